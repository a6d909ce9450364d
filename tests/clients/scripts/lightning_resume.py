"""Lightning: a run on two ranks that stops in mid-epoch goes on from its checkpoint, with loaders of every order.

Lightning saves the state of rank 0's loader alone, and gives it to all ranks.
"""

from __future__ import annotations

import logging
import os
import tempfile
from pathlib import Path
from typing import Any

import lightning
import torch
from lightning.pytorch.callbacks import ModelCheckpoint
from orders import ORDERS, loader, tell, whole
from reporting import rank

import headrace

STEPS = 3


class Net(lightning.LightningModule):
    """One layer, which remembers what it is trained with."""

    def __init__(self, order: str, *, in_hook: bool) -> None:
        super().__init__()
        self.layer = torch.nn.Linear(4, 1)
        self.seen: list[int] = []
        self.order = order
        if not in_hook:
            given = loader(order)
            self.train_dataloader = lambda: given  # type: ignore[method-assign]

    def train_dataloader(self) -> Any:
        """Makes the loader, within a hook of Lightning."""
        return loader(self.order, num_workers=1)

    def training_step(self, batch: Any, index: int) -> Any:
        """Learns from a batch."""
        self.seen += batch[1].tolist()
        return self.layer(batch[0]).mean()

    def configure_optimizers(self) -> Any:
        """Returns plain gradient descent."""
        return torch.optim.SGD(self.parameters(), 0.001)


def trained(order: str, folder: Path, *, in_hook: bool, **options: Any) -> list[int]:
    """Trains, and returns the samples that this rank has seen."""
    lightning.seed_everything(3, verbose=False)
    checkpoint = options.pop("checkpoint", None)
    trainer = lightning.Trainer(
        accelerator="cpu", devices=int(os.environ["WORLD_SIZE"]), max_epochs=1, logger=False,
        enable_progress_bar=False, enable_model_summary=False,
        callbacks=[ModelCheckpoint(dirpath=folder, filename="{step}", every_n_train_steps=STEPS, save_top_k=-1)],
        **options,
    )  # fmt: skip
    net = Net(order, in_hook=in_hook)
    trainer.fit(net, ckpt_path=checkpoint)
    return net.seen


def try_all(folder: str) -> None:
    """Tries every order, with loaders that exist before Lightning looks, and with those that a hook makes."""
    for in_hook in (False, True):
        for order in ORDERS:
            said: dict[str, Any] = {"cell": "hook" if in_hook else "given", "order": order, "rank": rank()}
            said["whole"] = whole(order)
            place = Path(folder, f"{in_hook}", order)
            try:
                said["before"] = trained(order, place, in_hook=in_hook, max_steps=STEPS)
                checkpoint = place / f"step={STEPS}.ckpt"
                said["behind"] = trained(order, place, in_hook=in_hook, checkpoint=checkpoint)
            except Exception as error:  # noqa: BLE001 - whatever is raised is what there is to see
                said["raised"] = f"{type(error).__name__}: {error}"
            tell(said)
            if "raised" in said:
                return  # the other rank may still wait for this one


if __name__ == "__main__":
    for name in ("lightning", "lightning.pytorch", "lightning.fabric"):
        logging.getLogger(name).setLevel(logging.ERROR)
    assert headrace.__version__
    shared = os.environ.get("SHARED_FOLDER")
    if shared is not None:
        try_all(shared)
    else:
        with tempfile.TemporaryDirectory() as own:
            try_all(own)
