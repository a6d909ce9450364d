"""Page-locked memory for batches that are made in this process."""

from __future__ import annotations

import math
import threading

import torch

from headrace.core.process import this_process
from headrace.shared_memory.arena import InboundRegion
from headrace.shared_memory.leases import tensor_over
from headrace.shared_memory.memory import AnonymousBacking
from headrace.shared_memory.page_lock import PageLock
from headrace.shared_memory.slots import SlotPool


class LockedMemory:
    """As `LocalMemory`, in slots that an accelerator can read by itself.

    The memory is shared with forked children: of private memory, the kernel would give this process other pages at its
    next write, and the accelerator would go on reading the old ones. So what a child may look at is not written while
    the child lives, as with slots that workers write.
    """

    smallest = 4 << 10
    """A smaller tensor is copied into memory that torch has pinned: no more work than a slot."""

    def __init__(self, lock: PageLock) -> None:
        self._region = InboundRegion(AnonymousBacking(shared=True), 0, lock)
        # Its pages stay, since the accelerator may read them.
        self._pool = SlotPool(lambda slot: None)
        # One loader may be iterated in several threads.
        self._lock = threading.Lock()
        self._process = this_process.current

    def empty(self, shape: tuple[int, ...], dtype: torch.dtype) -> torch.Tensor:
        """Returns an uninitialised tensor that its user owns; the memory comes back by itself."""
        if self._process is not this_process.current:
            return torch.empty(shape, dtype=dtype)  # the slots are the parent's, which goes on writing them
        nbytes = math.prod(shape) * dtype.itemsize
        with self._lock:
            for slot in self._region.returned():
                self._pool.release(slot)
            slot = self._pool.allocate(nbytes)
            array = self._region.lease(slot, nbytes)
            self._region.hand_over([slot])
        return tensor_over(array, shape, dtype)
