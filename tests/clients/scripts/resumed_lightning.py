"""Lightning with the callback: trains, is stopped behind a step, and goes on from the checkpoint on any ranks."""

from __future__ import annotations

import logging
import os
from pathlib import Path
from typing import Any

import lightning
import torch
from lightning.pytorch.callbacks import ModelCheckpoint
from resumed import EPOCHS, Noisy, asked, told

from headrace import DataLoader
from headrace.integrations.lightning import LoaderCallback


class Net(lightning.LightningModule):
    """One layer, which remembers what it is trained with."""

    def __init__(self) -> None:
        super().__init__()
        self.layer = torch.nn.Linear(4, 1)
        self.seen: list[Any] = []

    def training_step(self, batch: Any, index: int) -> Any:
        """Learns from a batch."""
        self.seen.append(batch)
        return self.layer(batch[0]).mean()

    def configure_optimizers(self) -> Any:
        """Returns plain gradient descent. Asks first for the number of steps, as schedules of learning rates do."""
        assert self.trainer.estimated_stepping_batches
        return torch.optim.SGD(self.parameters(), 0.01)


def fit(saves: ModelCheckpoint, **limits: Any) -> None:
    """Trains with checkpoints of a kind, whose names hold their steps, and says what it was trained with."""
    for name in ("lightning", "lightning.pytorch", "lightning.fabric"):
        logging.getLogger(name).setLevel(logging.ERROR)
    folder, _, begun, batch_size = asked()
    torch.manual_seed(1)
    trainer = lightning.Trainer(
        accelerator="cpu", devices=int(os.environ.get("WORLD_SIZE", "1")), logger=False, enable_progress_bar=False,
        enable_model_summary=False, callbacks=[LoaderCallback(), saves], **limits,
    )  # fmt: skip
    net = Net()
    loader = DataLoader(Noisy(), batch_size=batch_size, shuffle=True, num_workers=1, seed=3, shard="auto")
    trainer.fit(net, loader, ckpt_path=Path(folder, f"step={begun}.ckpt") if begun else None)
    told(net.seen)


if __name__ == "__main__":
    folder, stop, *_ = asked()
    each_step = ModelCheckpoint(dirpath=folder, filename="{step}", every_n_train_steps=1, save_top_k=-1)
    fit(each_step, max_epochs=EPOCHS, max_steps=stop or -1)
