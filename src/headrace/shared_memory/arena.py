"""The arena: the memory that a process shares with its workers, and the reader's side of its regions."""

from __future__ import annotations

import threading
from collections import deque

from headrace.shared_memory.forks import ForkedChild, watch_forks
from headrace.shared_memory.leases import ReturnBox, WriterMemory, lease
from headrace.shared_memory.memory import Bytes, FileBacking, Region, Slot


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
        self._idle: deque[InboundRegion] = deque()
        self._lock = threading.Lock()

    def borrow(self) -> InboundRegion:
        """Returns a region that no writer uses."""
        with self._lock:
            if self._idle:
                return self._idle.pop()
            # Where file sizes are limited, the next regions lie in a file of their own.
            if not self._backing.has_room_for(self._in_file + 1):
                self._backing = FileBacking.create()
                self._in_file = 0

            self._backing.reserve(self._in_file + 1)
            self._in_file += 1
            return InboundRegion(self._backing, self._in_file - 1)

    def give_back(self, region: InboundRegion) -> None:
        """Takes a region back whose writer will never write again. Finalizers may call it, at any moment."""
        self._idle.append(region)


class InboundRegion:
    """A region as its reader sees it: leases over what the writer has sent.

    A slot is leased from its arrival on. It is *in use* once its batch was handed to the user. A child that is forked
    then may look at it, also after the lease has ended here, so it is *kept* until that child is gone.

    A lease may end at any moment, in any thread: a finalizer only drops the slot into the return box. What has come
    back is sorted by `_settle`, in the thread of the iterator to which the region was lent.
    """

    def __init__(self, backing: FileBacking, index: int) -> None:
        self._region = Region(backing, index)
        self._backing = backing
        self._returned = ReturnBox(self._region)
        self._known: set[Slot] = set()
        self._leased: set[Slot] = set()
        self._in_use: set[Slot] = set()
        self._kept: set[Slot] = set()
        """Slots whose leases have ended, but that a child may still look at."""
        self._children: list[tuple[ForkedChild, frozenset[Slot]]] = []
        self._seen_by_children: frozenset[Slot] = frozenset()
        # Any thread may fork while the iterator's thread forgets children: none that is added meanwhile may be lost.
        self._children_change = threading.Lock()
        # Not the arena: it may be gone before the batches that are leased here.
        watch_forks(self)

    def lease(self, slot: Slot, nbytes: int) -> Bytes:
        """Returns an array over a slot that the writer has sent; the slot goes back when the array is collected."""
        self._known.add(slot)
        self._leased.add(slot)
        return lease(self._region, slot, nbytes, self._release)

    def hand_over(self, slots: list[Slot]) -> None:
        """Notes that the user gets what lies in these slots, whose leases must be alive."""
        self._in_use.update(slots)

    def returned(self) -> list[Slot]:
        """Returns the slots that nobody sees any more, since the last call; the caller tells the writer."""
        return self._settle()

    def ticket(self) -> Ticket:
        """Returns what a new writer of this region needs."""
        self._settle()
        # A lease that ends after this line counts as leased, and its slot waits in the return box for the new writer.
        taken = self._leased | self._kept
        return Ticket(self._backing, self._region.index, sorted(self._known - taken), sorted(taken))

    def holds_batches(self) -> bool:
        """See `Holder.holds_batches`."""
        return bool(self._in_use)

    def keep_for(self, child: ForkedChild) -> None:
        """See `Holder.keep_for`."""
        # Not what waits in the return box: no lease of it is left for the child.
        seen = frozenset(self._in_use - self._returned.waiting())
        with self._children_change:
            self._children.append((child, seen))
            self._seen_by_children = _all_of(self._children)

    def leave_to_parent(self) -> None:
        """See `Holder.leave_to_parent`."""
        for child, _ in self._children:
            child.forget()
        self._children = []

    def _release(self, slot: Slot) -> None:
        """Takes a slot back whose lease has ended. Called by finalizers."""
        self._returned.put(slot, keep_pages=self._is_seen(slot))

    def _is_seen(self, slot: Slot) -> bool:
        """Whether a child may still look at a slot. Takes no lock: finalizers may run while this thread holds it."""
        if slot not in self._seen_by_children:
            return False
        # A list of children only grows; where some are forgotten, another list takes its place.
        return any(slot in slots and not child.gone for child, slots in self._children)

    def _settle(self) -> list[Slot]:
        """Sorts what has come back since the last call; returns the slots that nobody sees any more."""
        if self._children or self._kept:
            self._let_go()
        back = self._returned.empty()
        if back:
            self._leased.difference_update(back)
            self._in_use.difference_update(back)

        # A fork in another thread may add a child right here. It does not see these slots: their leases had ended.
        if not self._children:
            return back

        self._kept.update(slot for slot in back if slot in self._seen_by_children)
        return [slot for slot in back if slot not in self._kept]

    def _let_go(self) -> None:
        """Has the slots come back that were kept for children that are gone by now."""
        self.forget_those_gone()
        for slot in sorted(self._kept - self._seen_by_children):
            self._kept.discard(slot)
            self._returned.put(slot)

    def forget_those_gone(self) -> None:
        """See `Holder.forget_those_gone`."""
        if not self._children:
            return
        with self._children_change:
            self._children = [(child, slots) for child, slots in self._children if not child.gone]
            self._seen_by_children = _all_of(self._children)


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


def _all_of(children: list[tuple[ForkedChild, frozenset[Slot]]]) -> frozenset[Slot]:
    return frozenset(slot for _, slots in children for slot in slots)
