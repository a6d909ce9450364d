"""Where a batch is made: the word that collation, datasets and transport share."""

from __future__ import annotations

from typing import Protocol

import torch


class BatchMemory(Protocol):
    """Memory for the batch that is being made."""

    smallest: int
    """Bytes of the smallest tensor that is faster here than in memory of its own."""

    def empty(self, shape: tuple[int, ...], dtype: torch.dtype) -> torch.Tensor:
        """Returns an uninitialised tensor, contiguous and page-aligned, that belongs to the batch."""


class OwnMemory:
    """New memory for each batch: what the others are compared with, and what plain calls use."""

    smallest = 0

    def empty(self, shape: tuple[int, ...], dtype: torch.dtype) -> torch.Tensor:
        return torch.empty(shape, dtype=dtype)
