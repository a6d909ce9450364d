"""A batch of byte strings in one piece of memory."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, overload

import numpy as np
import torch

from headrace.data.formats.columns import Array


class Blobs(Sequence[memoryview]):
    """The byte strings of a batch: item i is a view of its bytes, without a copy; `bytes(item)` makes one.

    data: uint8 [total], the memory that all views share and keep; starts, stops: int64 [batch]. Equal to any sequence
    of the same byte strings.
    """

    def __init__(self, data: torch.Tensor, starts: Array, stops: Array) -> None:
        self.data = data
        self.starts = starts
        self.stops = stops

    def __len__(self) -> int:
        return len(self.starts)

    @overload
    def __getitem__(self, index: int) -> memoryview: ...

    @overload
    def __getitem__(self, index: slice) -> Blobs: ...

    def __getitem__(self, index: int | slice) -> memoryview | Blobs:
        if isinstance(index, slice):
            return Blobs(self.data, self.starts[index], self.stops[index])
        return self.data.numpy().data[int(self.starts[index]) : int(self.stops[index])]

    def tensor(self, index: int) -> torch.Tensor:
        """Returns item `index` as a tensor uint8 [length], without a copy."""
        return self.data[int(self.starts[index]) : int(self.stops[index])]

    @property
    def lengths(self) -> Array:
        """Length of each, int64 [batch]."""
        return self.stops - self.starts

    def pin_memory(self) -> Blobs:
        """Returns itself: torch, which asks, would make lists of numbers of the byte strings."""
        return self

    def __eq__(self, other: object) -> bool:
        if not isinstance(other, Sequence) or isinstance(other, (str, bytes)):
            return NotImplemented
        return len(self) == len(other) and all(mine == its for mine, its in zip(self, other, strict=True))

    __hash__ = None  # type: ignore[assignment]

    def __repr__(self) -> str:
        return f"Blobs({len(self)} byte strings, {int(np.sum(self.lengths)):,} bytes)"

    def __reduce__(self) -> Any:
        return Blobs, (self.data, self.starts, self.stops)
