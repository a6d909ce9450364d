"""The writer's side of a region: slots for the batches that it makes."""

from __future__ import annotations

import enum
import math
import sys
import threading
import weakref
from dataclasses import dataclass

import torch

from headrace.shared_memory.leases import HUGE, tensor_over
from headrace.shared_memory.memory import Bytes, Region, Slot, address_of
from headrace.shared_memory.slots import SlotPool

SMALL = 16 << 10
"""Buffers below this many bytes are cheaper to copy than to lease."""

ALIGNED = 256
"""Buffers that share a slot begin at multiples of so many bytes: what devices and vector instructions ask for."""


class BufferLayout(enum.Enum):
    """How the buffers of a batch lie in slots."""

    APART = enum.auto()
    """Each large buffer in a slot of its own; small ones travel in the message."""
    SMALL_TOGETHER = enum.auto()
    """Each large buffer in a slot of its own; small ones share one, so that all of the batch lies in slots.

    Whoever keeps a large tensor only, or a small one only, keeps no memory of the others.
    """
    TOGETHER = enum.auto()
    """All in one slot, as far as the sizes of earlier batches foretell that of the next one."""


GATHERED = {BufferLayout.APART: 0, BufferLayout.SMALL_TOGETHER: SMALL, BufferLayout.TOGETHER: sys.maxsize}
"""Bytes below which buffers that lie in no slot share one."""


@dataclass
class _SharedSlot:
    """A slot that several buffers of one batch share, and how many of its bytes are taken."""

    slot: Slot
    array: Bytes
    used: int = 0


class WriterMemory:
    """The slots of one shared region, seen by its writer; batches made here are read in another process.

    A slot is used again when the reader has given it back *and* nothing in this process refers to it any more (a
    dataset may have kept what it collated).
    """

    smallest = SMALL

    def __init__(
        self, region: Region, free: list[Slot], leased: list[Slot], layout: BufferLayout = BufferLayout.APART
    ) -> None:
        self._region = region
        self._pool = SlotPool(region.discard)
        self._pool.adopt(free, leased)
        self.gathered_below = GATHERED[layout]
        """A buffer of fewer bytes that lies in no slot is placed with others of its kind, once all are known."""
        self._together = layout is BufferLayout.TOGETHER
        self._local: dict[Slot, weakref.ref[Bytes]] = {}
        self._lingering: list[Slot] = []
        self._batch: list[tuple[int, Slot, int, int]] = []
        """Of each buffer of the batch that is being made: address, slot, place in the slot, and bytes."""
        self._shared: _SharedSlot | None = None
        self._expected = 0
        """Bytes that the next batch is likely to need."""
        # A dataset may collate in threads of its own.
        self._lock = threading.Lock()
        self._sharing = threading.Lock()

    def empty(self, shape: tuple[int, ...], dtype: torch.dtype) -> torch.Tensor:
        """Returns an uninitialised tensor in a slot of the batch that is being made."""
        nbytes = math.prod(shape) * dtype.itemsize
        start = 0
        if self._together:
            slot, start, array = self._shared_room(nbytes)
        else:
            slot, array = self._slot(nbytes)
        tensor = tensor_over(array, shape, dtype)
        # In a tenth of the time that the address of an array takes.
        self._batch.append((tensor.data_ptr(), slot, start, nbytes))
        return tensor

    def take(self, nbytes: int) -> tuple[Slot, Bytes]:
        """Returns a slot of its own for `nbytes` bytes of the batch that is being made, and an array over it."""
        slot, array = self._slot(nbytes)
        self._batch.append((address_of(array), slot, 0, nbytes))
        return slot, array

    def place(self, nbytes: int) -> tuple[Slot, int, Bytes]:
        """Returns room for a buffer of the batch that is being made: its slot, its place there, an array over it."""
        start = 0
        if self._together:
            slot, start, array = self._shared_room(nbytes)
        else:
            slot, array = self._slot(nbytes)
        self._batch.append((address_of(array), slot, start, nbytes))
        return slot, start, array

    def _shared_room(self, nbytes: int) -> tuple[Slot, int, Bytes]:
        """Returns room in the slot that the buffers of the batch share, before it is noted that it belongs to it."""
        with self._sharing:
            shared = self._shared
            if shared is None or shared.used + nbytes > shared.array.size:
                shared = self._shared = _SharedSlot(*self._slot(max(nbytes, self._expected)))
            start = shared.used
            shared.used += aligned(nbytes)
        return shared.slot, start, shared.array[start : start + nbytes]

    def _slot(self, nbytes: int) -> tuple[Slot, Bytes]:
        """Returns a free slot, and an array over it."""
        with self._lock:
            slot = self._pool.allocate(nbytes)

        if slot not in self._local or slot.capacity >= HUGE:
            self._region.populate(slot, nbytes)

        array = self._region.view(slot, nbytes)
        self._local[slot] = weakref.ref(array)
        return slot, array

    def find(self, address: int) -> tuple[Slot, int] | None:
        """Returns the slot of this batch that holds an address, and the offset of the address in the slot."""
        for start, slot, place, nbytes in self._batch:
            if start <= address < start + nbytes:
                return slot, place + address - start
        return None

    def finish(self, sent: set[Slot]) -> None:
        """Ends a batch: the slots in `sent` now belong to the reader, the others are free again."""
        for slot in sent:
            if slot.capacity >= HUGE:
                self._region.look_away(slot)

        if self._shared is not None:
            needed = sum(aligned(nbytes) for _, _, _, nbytes in self._batch)
            # Batches differ: room for a larger one is kept for a while.
            self._expected = max(needed, self._expected - self._expected // 16)
            self._shared = None

        unused = [slot for _, slot, _, _ in self._batch if slot not in sent]
        self._batch.clear()
        if self._together:
            unused = list(dict.fromkeys(unused))
        self.give_back(unused)

    def give_back(self, slots: list[Slot]) -> None:
        """Takes back slots that the reader is done with."""
        candidates = [*self._lingering, *slots]
        self._lingering = []
        for slot in candidates:
            alive = self._local.get(slot)
            if alive is not None and alive() is not None:
                self._lingering.append(slot)
            else:
                self._pool.release(slot)


def aligned(nbytes: int) -> int:
    """Returns how many bytes a buffer takes in a slot that it shares."""
    return -(-nbytes // ALIGNED) * ALIGNED
