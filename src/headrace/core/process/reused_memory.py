"""Memory for large results that is used again once nobody sees it any more.

The kernel clears each page that a program gets, which takes longer than to fill it. Memory of more than 32 MiB always
comes from the kernel anew, whatever was freed before.
"""

from __future__ import annotations

import math
import weakref
from collections import deque

import numpy as np
import numpy.typing as npt
import torch

SMALLEST = 1 << 20
"""Bytes from which on memory is kept. Below that, malloc keeps it."""

KEPT = 2
"""How many pieces are kept: a loop holds one result while the next one is made."""


class ReusedMemory:
    """Lends memory for tensors. What was built over a tensor keeps its memory from being used again.

    Many threads may ask at once. Nothing of it is pickled: a copy begins without memory.
    """

    def __init__(self) -> None:
        self._free: deque[npt.NDArray[np.uint8]] = deque(maxlen=KEPT)
        self._lent: dict[int, weakref.ref[npt.NDArray[np.uint8]]] = {}

    def empty(self, shape: tuple[int, ...], dtype: torch.dtype) -> torch.Tensor:
        """Returns an uninitialised, contiguous tensor that its user owns; large memory comes back by itself."""
        nbytes = math.prod(shape) * dtype.itemsize
        if nbytes < SMALLEST:
            return torch.empty(shape, dtype=dtype)

        block = self._block(nbytes)
        seen = block[:nbytes]
        key = id(seen)

        def take_back(_: object, block: npt.NDArray[np.uint8] = block) -> None:
            # It may run at any moment, in any thread: each line is one step for the interpreter.
            if self._lent.pop(key, None) is not None:
                self._free.append(block)

        self._lent[key] = weakref.ref(seen, take_back)
        return torch.frombuffer(seen, dtype=dtype).view(shape)

    def _block(self, nbytes: int) -> npt.NDArray[np.uint8]:
        """Returns memory that nobody sees, of up to twice the size that is asked for."""
        for _ in range(KEPT):
            try:
                block = self._free.popleft()
            except IndexError:
                break
            if nbytes <= block.size <= 2 * nbytes:
                return block
            self._free.append(block)

        return np.empty(nbytes, np.uint8)

    def __reduce__(self) -> tuple[type[ReusedMemory], tuple[()]]:
        return ReusedMemory, ()
