"""What the scripts share: the loader that they import, small data, and lines that say what was delivered."""

from __future__ import annotations

import os
import warnings
from collections.abc import Callable
from typing import Any

import torch
from process_group import leave_at_the_end
from torch.utils.data import Dataset

leave_at_the_end()
warnings.filterwarnings("ignore")

if os.environ.get("ON_DEVICE"):
    from device_loader import DataLoader
elif os.environ.get("IMPORTED_FROM") == "headrace":
    from headrace import DataLoader
else:
    from torch.utils.data import DataLoader

__all__ = ["DataLoader", "Numbers", "delivered", "in_the_loop", "numbers_streamed", "rank", "ways_of_workers"]


class Numbers(Dataset[tuple[torch.Tensor, int]]):
    """Sample i: four features and its number."""

    def __init__(self, length: int = 24) -> None:
        self.length = length

    def __len__(self) -> int:
        return self.length

    def __getitem__(self, index: int) -> tuple[torch.Tensor, int]:
        return torch.full((4,), float(index)), index


def rank() -> int:
    """This process's rank, as its launcher tells it."""
    return int(os.environ.get("RANK") or os.environ.get("LOCAL_RANK") or 0)


def delivered(numbers: Any) -> None:
    """Says which samples a batch has."""
    _say(f"batch {rank()} {torch.as_tensor(numbers).flatten().tolist()}")


def in_the_loop(loader: Any) -> None:
    """Says whether a loader, or the one that it wraps, is headrace's."""
    loaders = (loader, getattr(loader, "base_dataloader", None))
    ours = any(kind.__module__ == "headrace.loader.dataloader" for one in loaders for kind in type(one).__mro__)
    _say(f"class {rank()} {'headrace' if ours else 'torch'}")


def ways_of_workers() -> list[tuple[dict[str, Any], int]]:
    """Arguments of a loader, with a number of epochs: no workers, forked ones, and such as import everything anew."""
    return [
        ({}, 2),
        ({"num_workers": 2, "multiprocessing_context": "fork"}, 2),
        ({"num_workers": 2, "multiprocessing_context": "spawn"}, 1),
    ]


def numbers_streamed(make: Callable[..., Any], *, resumes: bool) -> None:
    """Says what loaders that `make` makes deliver in whole epochs, with each kind of workers.

    resumes: whether the loader stops in a further epoch, and another one goes on from its state.
    """
    for words, epochs in ways_of_workers():
        loader = make(**words)
        in_the_loop(loader)
        for _ in range(epochs):
            for batch in loader:
                delivered(batch["number"])
        if resumes:
            batches = iter(loader)
            delivered(next(batches)["number"])
            state = loader.state_dict()
            del batches, loader
            loader = make(**words)
            loader.load_state_dict(state)
            for batch in loader:
                delivered(batch["number"])


def _say(line: str) -> None:
    """Writes a line at once, so that lines of several ranks do not mix."""
    os.write(1, f"{line}\n".encode())
