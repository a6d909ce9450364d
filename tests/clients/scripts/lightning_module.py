"""A tiny module for the scripts that use Lightning, and a trainer that writes nothing."""

from __future__ import annotations

import logging
from typing import Any

import lightning
import torch
from reporting import delivered, in_the_loop

for name in ("lightning.pytorch", "lightning.fabric"):
    logging.getLogger(name).setLevel(logging.ERROR)


class Net(lightning.LightningModule):
    """One layer, which says what it is trained with."""

    def __init__(self) -> None:
        super().__init__()
        self.layer = torch.nn.Linear(4, 1)

    def training_step(self, batch: Any, index: int) -> Any:
        """Learns from a batch."""
        delivered(batch[1])
        return self.layer(batch[0]).mean()

    def predict_step(self, batch: Any, index: int) -> Any:
        """Predicts for a batch."""
        delivered(batch[1])
        return self.layer(batch[0])

    def configure_optimizers(self) -> Any:
        """Returns plain gradient descent."""
        return torch.optim.SGD(self.parameters(), 0.001)

    def on_train_start(self) -> None:
        """Says which loader Lightning trains with."""
        in_the_loop(self.trainer.train_dataloader)

    def on_predict_start(self) -> None:
        """Says which loader Lightning predicts with."""
        in_the_loop(self.trainer.predict_dataloaders)


def trainer(**options: Any) -> lightning.Trainer:
    """Returns a trainer on the CPU, seeded, for one epoch unless `options` say otherwise."""
    lightning.seed_everything(3, verbose=False)
    quiet = {
        "logger": False,
        "enable_checkpointing": False,
        "enable_progress_bar": False,
        "enable_model_summary": False,
    }
    return lightning.Trainer(**{"accelerator": "cpu", "max_epochs": 1, **quiet, **options})
