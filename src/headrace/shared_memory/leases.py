"""Leases: who may use a slot, and how it comes back.

A *lease* is a NumPy array over a slot. Everything that is built over the slot keeps the lease alive, so when the lease
is collected nobody can see the slot any more, and its finalizer puts the slot into a return box. A user who keeps a
batch for ever keeps its lease for ever: the slot is never written again.
"""

from __future__ import annotations

import atexit
import math
import threading
import weakref
from collections import deque
from collections.abc import Callable

import numpy as np
import torch

from headrace.core.process import this_process
from headrace.shared_memory.memory import AnonymousBacking, Bytes, Region, Slot
from headrace.shared_memory.slots import SlotPool

SMALL_LOCALLY = 3 << 18
"""Within a process, tensors below this many bytes are as fast in memory from malloc, which keeps such pages."""

KEEP = 256 << 20
"""Bytes that may wait in a return box with their pages; what comes back beyond that gives its pages up at once."""

NUMPY_TYPES: dict[torch.dtype, type[np.generic]] = {
    torch.bool: np.bool_,
    torch.uint8: np.uint8,
    torch.int8: np.int8,
    torch.int16: np.int16,
    torch.int32: np.int32,
    torch.int64: np.int64,
    torch.float16: np.float16,
    torch.float32: np.float32,
    torch.float64: np.float64,
}
"""The types of tensors that NumPy has as well, in every version of torch."""

HUGE = 512 << 20
"""A slot of so many bytes keeps no pages for the next batch: memory counts for more than the time to touch them."""


class ReturnBox:
    """Collects the slots whose leases have ended, until the region's writer asks for them.

    `put` is called by finalizers: at any moment, in any thread, also in a forked child, where it does nothing.
    """

    def __init__(self, region: Region) -> None:
        self._region = region
        self._slots: deque[Slot] = deque()
        self._bytes = 0
        self._largest = 0
        self._process = this_process.current

    def put(self, slot: Slot) -> None:
        """Takes back one slot."""
        # A forked child has copies of the parent's leases. When they go there, the parent may still read the slot.
        if self._process is not this_process.current:
            return

        self._bytes += slot.capacity
        self._largest = max(self._largest, slot.capacity)
        is_too_much = slot.capacity >= HUGE or self._bytes > max(KEEP, 4 * self._largest)
        if is_too_much:
            self._region.discard(slot)

        self._slots.append(slot)

    def waiting(self) -> set[Slot]:
        """Returns the slots that the next `empty` returns, and leaves them here."""
        # A copy at once, in C: a finalizer may add to the deque at any moment, and a loop over it would raise.
        return set(self._slots.copy())

    def empty(self) -> list[Slot]:
        """Returns all slots that have come back since the last call."""
        # `popleft` is one step for the interpreter; what a finalizer adds meanwhile comes along, or at the next call.
        slots = []
        while self._slots:
            slots.append(self._slots.popleft())
        self._bytes = 0
        return slots


def lease(region: Region, slot: Slot, nbytes: int, give_back: Callable[[Slot], None]) -> Bytes:
    """Returns an array over the first `nbytes` bytes of a slot; calls `give_back(slot)` when it is collected."""
    array = region.view(slot, nbytes)
    end = _LeaseEnd(array, _give_back)
    end.slot = slot
    end.give_back = give_back
    _ends[id(end)] = end
    return array


class _LeaseEnd(weakref.ref[Bytes]):
    """Calls `_give_back` when a lease is collected, as `weakref.finalize` would, in a fifth of its time."""

    __slots__ = ("give_back", "slot")

    slot: Slot
    give_back: Callable[[Slot], None]


_ends: dict[int, _LeaseEnd] = {}
"""The leases that have not ended; a weak reference that nobody holds is never called."""

# At the end of the process nobody takes slots any more, and the region may be unmapped before its leases go.
atexit.register(_ends.clear)


def _give_back(end: _LeaseEnd) -> None:
    # It may run at any moment, in any thread: each line is one step for the interpreter.
    if _ends.pop(id(end), None) is not None:
        end.give_back(end.slot)


def tensor_over(array: Bytes | bytearray, shape: tuple[int, ...], dtype: torch.dtype) -> torch.Tensor:
    """Returns a contiguous tensor of this shape at the start of `array`, which it aliases and keeps alive."""
    kind = NUMPY_TYPES.get(dtype)
    if kind is None:
        return torch.frombuffer(array, dtype=dtype).view(shape)

    # In a third of the time: torch makes a tensor of an array in one step, where a view costs it another tensor.
    return torch.from_numpy(np.ndarray(shape, kind, array))


class LocalMemory:
    """Leased memory for batches that are made and used in one process.

    Touched pages are several times faster to fill than new ones, which is what this is for.
    """

    smallest = SMALL_LOCALLY

    def __init__(self) -> None:
        self._region = Region(AnonymousBacking(), 0)
        self._pool = SlotPool(self._region.discard)
        self._returned = ReturnBox(self._region)
        # One loader may be iterated in several threads.
        self._lock = threading.Lock()

    def empty(self, shape: tuple[int, ...], dtype: torch.dtype) -> torch.Tensor:
        """Returns an uninitialised tensor that its user owns; the memory comes back by itself."""
        nbytes = math.prod(shape) * dtype.itemsize
        with self._lock:
            for slot in self._returned.empty():
                self._pool.release(slot)
            slot = self._pool.allocate(nbytes)

        return tensor_over(lease(self._region, slot, nbytes, self._returned.put), shape, dtype)
