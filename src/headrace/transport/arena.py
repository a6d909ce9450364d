"""The arena: the memory that a process shares with its workers, and the reader's side of its regions."""

from __future__ import annotations

import contextlib
import os
import threading
import weakref
from collections import deque
from collections.abc import Iterator

from headrace.transport.leases import ReturnBox, WriterMemory, lease
from headrace.transport.memory import Bytes, FileBacking, Region, Slot


class Arena:
    """Shared memory that outlives epochs, so that the pages of one serve the next.

    An iterator borrows one region per writer and gives it back when the writer has ended. Batches that are still leased
    then stay valid, also after the arena itself is gone.
    """

    def __init__(self) -> None:
        self._backing = FileBacking.create()
        self._idle: deque[InboundRegion] = deque()  # filled by finalizers, which must not wait for the lock
        self._regions: list[InboundRegion] = []
        self._lock = threading.Lock()
        _remember(self)

    def borrow(self) -> InboundRegion:
        """Returns a region that no writer uses."""
        with self._lock:
            if self._idle:
                return self._idle.pop()
            self._backing.reserve(len(self._regions) + 1)
            region = InboundRegion(self._backing, len(self._regions))
            self._regions.append(region)
            return region

    def give_back(self, region: InboundRegion) -> None:
        """Takes a region back whose writer will never write again. Finalizers may call it, at any moment."""
        self._idle.append(region)

    def keep_leases_for_child(self) -> None:
        """Withdraws the slots that are leased now from use: a forked child may hold batches in them."""
        for region in self._regions:
            region.withdraw_leased()


class InboundRegion:
    """A region as its reader sees it: leases over what the writer has sent."""

    def __init__(self, backing: FileBacking, index: int) -> None:
        self._backing = backing
        self._region = Region(backing, index)
        self._returned = ReturnBox(self._region)
        self._known: set[Slot] = set()
        self._leased: set[Slot] = set()
        self._withdrawn: set[Slot] = set()

    def lease(self, slot: Slot, nbytes: int) -> Bytes:
        """Returns an array over a slot that the writer has sent; the slot goes back when the array is collected."""
        self._known.add(slot)
        self._leased.add(slot)
        return lease(self._region, slot, nbytes, self._release)

    def returned(self) -> list[Slot]:
        """Returns the slots whose leases ended since the last call; the caller tells the writer."""
        return self._returned.empty()

    def ticket(self) -> Ticket:
        """Returns what a new writer of this region needs."""
        # A lease may end at any moment. In this order a slot whose lease ends in between counts as leased, never as
        # both free and returned.
        leased = self._leased | self._withdrawn
        self._returned.empty()
        return Ticket(self._backing, self._region.index, sorted(self._known - leased), sorted(leased))

    def withdraw_leased(self) -> None:
        """Never uses the slots again that are leased now."""
        self._withdrawn |= self._leased

    def _release(self, slot: Slot) -> None:
        self._leased.discard(slot)
        if slot not in self._withdrawn:
            self._returned.put(slot)


class Ticket:
    """What a writer process gets to write into a region: the file and the state of its slots."""

    def __init__(self, backing: FileBacking, region: int, free: list[Slot], leased: list[Slot]) -> None:
        self._backing = backing
        self._region = region
        self._free = free
        self._leased = leased

    def writer(self) -> WriterMemory:
        """Opens the region for writing."""
        return WriterMemory(Region(self._backing, self._region), self._free, self._leased)

    def reader(self) -> Region:
        """Opens the region for reading messages."""
        return Region(self._backing, self._region)


_arenas: weakref.WeakSet[Arena] = weakref.WeakSet()
_state = threading.local()
_hook_installed = False


@contextlib.contextmanager
def forking_workers() -> Iterator[None]:
    """Marks the forks of this thread as ours: workers never look at the batches that their parent holds."""
    _state.ours = True
    try:
        yield
    finally:
        _state.ours = False


def _remember(arena: Arena) -> None:
    global _hook_installed
    _arenas.add(arena)
    if not _hook_installed and hasattr(os, "register_at_fork"):
        os.register_at_fork(before=_before_fork)
        _hook_installed = True


def _before_fork() -> None:
    if not getattr(_state, "ours", False):
        for arena in list(_arenas):
            arena.keep_leases_for_child()
