"""What scripts have in common that train, are stopped, and go on: their data, arguments, and what they say."""

from __future__ import annotations

import json
import os
import sys
from collections.abc import Iterable
from typing import Any

import torch
from torch import Tensor
from torch.utils.data import Dataset

EPOCHS = 2
SAMPLES = 48
STEPS_OF_EPOCH = 6


class Noisy(Dataset[tuple[Tensor, int]]):
    """Samples with noise that their own random numbers give, and their numbers."""

    def __len__(self) -> int:
        return SAMPLES

    def __getitem__(self, index: int) -> tuple[Tensor, int]:
        return index + torch.rand(4), index


def asked() -> tuple[str, int, int, int]:
    """Returns the folder of checkpoints, the step to stop behind (0: none), the step to go on from, the batch size."""
    folder, *numbers = sys.argv[1:]
    stop, begun, batch_size = map(int, numbers)
    return folder, stop, begun, batch_size


def told(batches: Iterable[Any]) -> None:
    """Says what this rank was trained with: for each batch, its samples with their noise."""
    for values, numbers in batches:
        rows = [[number, *row] for number, row in zip(numbers.tolist(), values.tolist(), strict=True)]
        # In one call, which is one write: ranks share a pipe, and long writes would come mixed.
        os.write(1, f"trained {os.environ.get('RANK', '0')} {json.dumps(rows)}\n".encode())
