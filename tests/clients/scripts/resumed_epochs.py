"""Lightning with the callback, which saves when an epoch has ended: stops there, and goes on with the next."""

from __future__ import annotations

from lightning.pytorch.callbacks import ModelCheckpoint
from resumed import EPOCHS, asked
from resumed_lightning import fit

if __name__ == "__main__":
    folder, stop, *_ = asked()
    each_epoch = ModelCheckpoint(dirpath=folder, filename="{step}", every_n_epochs=1, save_on_train_epoch_end=True)
    fit(each_epoch, max_epochs=1 if stop else EPOCHS)
