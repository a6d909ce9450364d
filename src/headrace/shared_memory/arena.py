"""The arena: the memory that a process shares with its workers, and the reader's side of its regions."""

from __future__ import annotations

import threading
from collections import deque
from dataclasses import dataclass, field
from typing import NamedTuple

from headrace.shared_memory.forks import ForkedChild, finish_interrupted_fork, watch_forks
from headrace.shared_memory.leases import ReturnBox, lease
from headrace.shared_memory.memory import Backing, Bytes, FileBacking, Region, Slot
from headrace.shared_memory.page_lock import PageLock
from headrace.shared_memory.slots_in_flight import SlotsInFlight
from headrace.shared_memory.writer_memory import BufferLayout, WriterMemory


class HostMemory(NamedTuple):
    """What memory batches are made in."""

    lock: PageLock | None = None
    """What page-locks them; None: nothing does."""
    layout: BufferLayout = BufferLayout.APART


ORDINARY = HostMemory()
"""Nothing is page-locked."""


class Arena:
    """Shared memory that outlives epochs, so that the pages of one serve the next.

    An iterator borrows one region per writer and gives it back when the writer has ended. Batches that are still leased
    then stay valid, also after the arena itself is gone.
    """

    def __init__(self) -> None:
        self._backing = FileBacking.create()
        self._in_file = 0
        """Regions that lie in the file of `_backing`."""
        # Filled by finalizers, which may run in the very thread that holds the lock: they must not wait for it. A deque
        # needs none.
        self._idle: dict[PageLock | None, deque[InboundRegion]] = {None: deque()}
        self._lock = threading.Lock()

    def borrow(self, lock: PageLock | None = None) -> InboundRegion:
        """Returns a region that no writer uses. lock: what page-locks its slots; None: nothing does."""
        with self._lock:
            idle = self._idle.setdefault(lock, deque())
            if idle:
                return idle.pop()
            # Where file sizes are limited, the next regions lie in a file of their own.
            if not self._backing.has_room_for(self._in_file + 1):
                self._backing = FileBacking.create()
                self._in_file = 0

            self._backing.reserve(self._in_file + 1)
            self._in_file += 1
            return InboundRegion(self._backing, self._in_file - 1, lock)

    def give_back(self, region: InboundRegion) -> None:
        """Takes a region back whose writer will never write again. Finalizers may call it, at any moment."""
        self._idle[region.page_lock].append(region)


@dataclass
class ChildView:
    """Which slots of a region a forked child may look at."""

    handed_over: set[Slot] = field(default_factory=set)
    """Those that the user got while it was being forked."""
    unseen: frozenset[Slot] = frozenset()
    """Those whose leases had ended when the fork began."""
    seen: frozenset[Slot] | None = None
    """Those that it may look at; None: it is being forked, and may come to see any."""

    def has(self, slot: Slot) -> bool:
        """Whether the child may look at a slot."""
        return self.seen is None or slot in self.seen


class InboundRegion:
    """A region as its reader sees it: leases over what the writer has sent.

    A slot is leased from its arrival on. It is *in use* once its batch was handed to the user. A child that is forked
    then may look at it, also after the lease has ended here, so it is *kept* until that child is gone.

    Where slots are page-locked, one is *in flight* behind its lease until the device has done what it was asked for.

    A lease may end at any moment, in any thread: a finalizer only drops the slot into the return box, or beside it
    where a child may look at it. What has come back is sorted by `_settle`, in the thread of the iterator to which the
    region was lent.
    """

    def __init__(self, backing: Backing, index: int, lock: PageLock | None = None) -> None:
        """lock: what page-locks the slots as they come, so that they are in flight for a while behind their leases."""
        self.page_lock = lock
        self._in_flight = None
        self._region = Region(backing, index)
        if lock is not None:
            self._region.keeps_pages = True
            self._in_flight = SlotsInFlight(lock.accelerator)
        self._backing = backing
        self._returned = ReturnBox(self._region)
        self._held_back: deque[Slot] = deque()
        """Slots whose leases have ended, but that a child may still look at, and that are not sorted yet."""
        self._known: set[Slot] = set()
        self._leased: set[Slot] = set()
        self._in_use: set[Slot] = set()
        self._kept: set[Slot] = set()
        """Slots that were held back, once they are sorted."""
        # Any thread may fork, and finalizers may read it, at any moment: each change is one step for the interpreter,
        # and so is the copy that loops go over.
        self._views: dict[ForkedChild, ChildView] = {}
        # Not the arena: it may be gone before the batches that are leased here.
        watch_forks(self)

    def lease(self, slot: Slot, nbytes: int) -> Bytes:
        """Returns an array over a slot that the writer has sent; the slot goes back when the array is collected."""
        self._known.add(slot)
        self._leased.add(slot)
        if self.page_lock is not None:
            self._region.lock(slot, self.page_lock)
        return lease(self._region, slot, nbytes, self._release)

    def hand_over(self, slots: list[Slot]) -> None:
        """Notes that the user gets what lies in these slots, whose leases must be alive."""
        self._in_use.update(slots)
        for view in self._views.copy().values():
            if view.seen is None:
                view.handed_over.update(slots)

    def returned(self) -> list[Slot]:
        """Returns the slots that nobody sees any more, since the last call; the caller tells the writer."""
        return self._settle()

    def ticket(self, layout: BufferLayout = BufferLayout.APART) -> Ticket:
        """Returns what a new writer of this region needs. layout: how it lays out its batches."""
        self._settle()
        # A lease that ends after this line counts as leased, and its slot waits in the return box for the new writer.
        taken = self._leased | self._kept
        # Among those in flight are some whose children have ended: they are neither leased nor kept any more.
        if self._in_flight is not None:
            taken |= self._in_flight.waiting()
        return Ticket(
            self._backing,
            self._region.index,
            sorted(self._known - taken),
            sorted(taken),
            layout,
            keeps_pages=self._region.keeps_pages,
        )

    def keep_all_for(self, child: ForkedChild) -> None:
        view = self._views[child] = ChildView()
        # From here on, whatever comes back is kept. What had come back before can be used again, and be handed over.
        view.unseen = frozenset({*self._returned.waiting(), *self._held_back.copy(), *self._kept})

    def keep_seen_for(self, child: ForkedChild) -> None:
        view = self._views.setdefault(child, ChildView())  # it may be missing where a signal handler has raised
        # In this order: what the iterator's thread sorts meanwhile is kept before it counts as not in use.
        candidates = {*self._in_use, *self._held_back.copy(), *self._kept}
        view.seen = frozenset((candidates - view.unseen) | view.handed_over)
        if not view.seen:
            del self._views[child]

    def holds_batches(self) -> bool:
        return bool(self._in_use)

    def leave_to_parent(self) -> None:
        for child in self._views:
            child.forget()
        self._views.clear()

    def forget_those_gone(self) -> None:
        for child, view in self._views.copy().items():
            if view.seen is not None and child.gone:
                self._views.pop(child, None)

    def _release(self, slot: Slot) -> None:
        """Takes a slot back whose lease has ended. Called by finalizers, so it takes no lock."""
        for child, view in self._views.copy().items():
            if view.has(slot) and not child.gone:
                self._held_back.append(slot)
                return

        self._returned.put(slot)

    def _settle(self) -> list[Slot]:
        """Sorts what has come back since the last call; returns the slots that nobody sees any more."""
        while self._held_back:
            slot = self._held_back.popleft()
            self._kept.add(slot)
            self._leased.discard(slot)
            self._in_use.discard(slot)

        if self._kept:
            self._let_go()

        back = self._returned.empty()
        if self._in_flight is not None:
            back = self._in_flight.exchange(back)
        if back:
            self._leased.difference_update(back)
            self._in_use.difference_update(back)
        return back

    def _let_go(self) -> None:
        """Has the slots come back that were kept for children that are gone by now."""
        finish_interrupted_fork()
        self.forget_those_gone()
        for slot in sorted(self._kept):
            # Where a fork begins meanwhile, its child does not see these slots: their leases had ended.
            if not any(view.has(slot) for view in self._views.copy().values()):
                self._kept.discard(slot)
                self._returned.put(slot)


class Ticket:
    """What a writer process gets to write into a region: the file and the state of its slots."""

    def __init__(
        self,
        backing: Backing,
        region: int,
        free: list[Slot],
        leased: list[Slot],
        layout: BufferLayout,
        *,
        keeps_pages: bool,
    ) -> None:
        """keeps_pages: whether no pages go back to the machine, since a device may read them."""
        self._backing = backing
        self._region = region
        self._free = free
        self._leased = leased
        self._layout = layout
        self._keeps_pages = keeps_pages

    def writer(self) -> WriterMemory:
        """Opens the region for writing."""
        region = Region(self._backing, self._region)
        region.keeps_pages = self._keeps_pages
        return WriterMemory(region, self._free, self._leased, self._layout)

    def reader(self) -> Region:
        """Opens the region for reading messages."""
        return Region(self._backing, self._region)
