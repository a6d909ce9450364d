"""The Trainer of transformers with the mixin: trains, evaluates, is stopped, and goes on from the checkpoint."""

from __future__ import annotations

from typing import Any

import torch
import transformers
from resumed import EPOCHS, Noisy, asked, told
from torch import Tensor
from torch.utils.data import Dataset

from headrace.integrations.transformers import LoaderMixin


class Rows(Dataset[dict[str, Any]]):
    """The same samples by name, so many of them."""

    def __init__(self, count: int) -> None:
        self.count = count

    def __len__(self) -> int:
        return self.count

    def __getitem__(self, index: int) -> dict[str, Any]:
        values, number = Noisy()[index]
        return {"values": values, "number": number, "labels": float(number)}


class Net(torch.nn.Module):
    """One layer, which remembers what it is trained with, and answers with the numbers of the samples."""

    def __init__(self) -> None:
        super().__init__()
        self.layer = torch.nn.Linear(4, 1)
        self.seen: list[Any] = []

    def forward(self, values: Tensor, number: Tensor, labels: Tensor | None = None) -> dict[str, Tensor]:
        """Returns the loss, and as logits the numbers."""
        if self.training:
            self.seen.append((values, number))
        return {"loss": self.layer(values).mean() * 1e-3, "logits": number.float()}


class Trainer(LoaderMixin, transformers.Trainer):
    """The Trainer with headrace's loaders."""


class StopBehind(transformers.TrainerCallback):
    """Stops the training once the checkpoint of a step is saved."""

    def __init__(self, step: int) -> None:
        self.step = step

    def on_save(self, args: Any, state: Any, control: Any, **kwargs: Any) -> None:
        """Looks whether it was that of the step."""
        if state.global_step == self.step:
            control.should_training_stop = True


EVALUATED = 53
"""Samples that are evaluated: two ranks do not get as many each."""

if __name__ == "__main__":
    folder, stop, begun, batch_size = asked()
    arguments = transformers.TrainingArguments(
        folder, per_device_train_batch_size=batch_size, per_device_eval_batch_size=4, num_train_epochs=EPOCHS,
        use_cpu=True, report_to=[], disable_tqdm=True, save_steps=1 if stop else 1000, dataloader_num_workers=1,
        eval_strategy="epoch", logging_strategy="no", seed=5,
    )  # fmt: skip
    evaluated: list[list[int]] = []
    net = Net()
    trainer = Trainer(
        model=net, args=arguments, train_dataset=Rows(48), eval_dataset=Rows(EVALUATED), callbacks=[StopBehind(stop)],
        compute_metrics=lambda found: evaluated.append(sorted(found.predictions.astype(int).tolist())) or {},
    )  # fmt: skip
    trainer.train(resume_from_checkpoint=f"{folder}/checkpoint-{begun}" if begun else None)
    assert all(numbers == list(range(EVALUATED)) for numbers in evaluated), evaluated
    told(net.seen)
