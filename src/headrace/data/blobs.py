"""A batch of byte strings in one piece of memory."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, overload

import numpy as np
import torch

from headrace.data.formats.columns import Array


class Blobs(Sequence[memoryview]):
    r"""The byte strings of a batch: item i is a view of its bytes, without a copy; `bytes(item)` makes one.

    Equal to any sequence of the same byte strings.

    Args:
        data: uint8 [total], the memory that all views share and keep.
        starts: where each begins, int64 [batch].
        stops: where each ends, int64 [batch].

    Examples:
        >>> data = torch.tensor([1, 2, 3], dtype=torch.uint8)
        >>> blobs = headrace.types.Blobs(data, np.array([0, 2]), np.array([2, 3]))
        >>> [bytes(item) for item in blobs]
        [b'\x01\x02', b'\x03']
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
        """Gives an item as a tensor.

        Args:
            index: 0 .. batch-1.

        Returns:
            A tensor uint8 [length], without a copy.

        Examples:
            >>> data = torch.tensor([1, 2, 3], dtype=torch.uint8)
            >>> headrace.types.Blobs(data, np.array([0, 2]), np.array([2, 3])).tensor(1)
            tensor([3], dtype=torch.uint8)
        """
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
