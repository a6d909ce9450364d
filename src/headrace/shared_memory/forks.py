"""Forked children, which see the shared memory of their parent: what they may look at is not written while they live.

A fork gives the child every batch that its parent holds, without a word to the parent's leases. So the forking thread
opens a pipe whose writing end only the child keeps, and its descendants. The kernel closes that end with the last of
them, or when they become another program by `exec`. The parent sees it at the reading end.
"""

from __future__ import annotations

import contextlib
import os
import select
import threading
import weakref
from typing import Protocol

from headrace.core.descriptors import close_with


class ForkedChild:
    """A child that was forked while its parent held batches, together with all its own descendants.

    Owns the reading end of the pipe, and closes it when collected. Without a descriptor, the child counts as alive for
    ever.
    """

    def __init__(self, reading_end: int | None) -> None:
        self._fd = reading_end
        self._close = None
        if reading_end is not None:
            self._close = close_with(self, reading_end)

    @property
    def gone(self) -> bool:
        """Whether nobody is left who saw the parent's memory at the fork."""
        if self._fd is None:
            return False
        poll = select.poll()
        poll.register(self._fd, 0)
        # Registered for no event: a hang-up, once all writing ends are closed, is told unasked.
        return bool(poll.poll(0))

    def forget(self) -> None:
        """Closes the descriptor. For another child, which has inherited it."""
        if self._fd is not None:
            os.close(self._fd)
        self._fd = None
        if self._close is not None:
            self._close.detach()


class Holder(Protocol):
    """Has memory that a forked child may look at. All is called in the forking thread, around the fork."""

    def holds_batches(self) -> bool:
        """Tells whether a child that is forked now would see any batch."""

    def keep_for(self, child: ForkedChild) -> None:
        """Keeps what the child may look at until the child is gone."""

    def forget_those_gone(self) -> None:
        """Forgets children that are gone."""

    def leave_to_parent(self) -> None:
        """In the child: forgets other children. The memory is the parent's, and stays readable."""


_holders: weakref.WeakSet[Holder] = weakref.WeakSet()
_forking = threading.local()
_hooks_installed = False


def watch_forks(holder: Holder) -> None:
    """Tells a holder of all forks from here on, for as long as it exists."""
    global _hooks_installed
    _holders.add(holder)
    if not _hooks_installed and hasattr(os, "register_at_fork"):
        os.register_at_fork(before=_before, after_in_parent=_after_in_parent, after_in_child=_after_in_child)
        _hooks_installed = True


def forget_those_gone() -> None:
    """Closes the pipes by which children were watched that are gone. Each fork does it as well."""
    for holder in list(_holders):
        holder.forget_those_gone()


def _before() -> None:
    _forking.writing_end = None
    forget_those_gone()
    holders = [holder for holder in list(_holders) if holder.holds_batches()]
    if not holders:
        return

    reading_end = None
    # Where no descriptor is left, the child cannot be watched, and the memory is kept for ever.
    with contextlib.suppress(OSError):
        reading_end, _forking.writing_end = os.pipe()

    child = ForkedChild(reading_end)
    for holder in holders:
        holder.keep_for(child)


def _after_in_parent() -> None:
    # Another thread may fork between `_before` and here. Its child gets a copy of our writing end, too, so our memory
    # is kept until both children are gone: longer than needed, never too short.
    writing_end = getattr(_forking, "writing_end", None)
    if writing_end is not None:
        os.close(writing_end)


def _after_in_child() -> None:
    # The writing end stays open: it is what tells the parent that this process may still look at batches.
    for holder in list(_holders):
        holder.leave_to_parent()
    _holders.clear()
