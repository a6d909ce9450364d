"""Forked children, which see the shared memory of their parent: what they may look at is not written while they live.

A fork gives the child every batch that its parent holds, without a word to the parent's leases. So the forking thread
opens a pipe whose writing end only the child keeps, and its descendants. The kernel closes that end with the last of
them, or when they become another program by `exec`. The parent sees it at the reading end.
"""

from __future__ import annotations

import contextlib
import functools
import os
import select
import threading
import weakref
from typing import Protocol

from headrace.core.process.descriptors import close_with


class ForkedChild:
    """A child that may look at batches of its parent, together with all its own descendants.

    Owns the reading end of the pipe, and closes it when collected. Without a descriptor, the child counts as alive for
    ever.
    """

    def __init__(self, reading_end: int | None) -> None:
        self.parent = os.getpid()
        """The process that forks it."""
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
    """Has memory that a forked child may look at. All but the last is called in the forking thread, around the fork.

    Other threads may go on until the fork itself, and again before the parent's side of it is through: hooks of others
    run in between. So all that is in use meanwhile is kept first, and afterwards what the child may really look at.
    """

    def keep_all_for(self, child: ForkedChild) -> None:
        """Keeps all that is in use from here on, for a child that will be forked now."""

    def keep_seen_for(self, child: ForkedChild) -> None:
        """The child is there: keeps what it may look at, until it is gone."""

    def holds_batches(self) -> bool:
        """In the child: tells whether it may look at any batch."""

    def leave_to_parent(self) -> None:
        """In the child: forgets other children. The memory is the parent's, and stays readable."""

    def forget_those_gone(self) -> None:
        """Forgets children that are gone. Any thread may call it."""


class _Forking(threading.local):
    """The child that this thread forks now, and the writing end of its pipe.

    A signal handler may raise in a hook: Python then drops the exception and the rest of the hook. What is left here is
    finished by the same thread, as soon as it comes by.
    """

    child: ForkedChild | None = None
    writing_end: int | None = None
    over = False
    """Whether the fork is over, although its child may still be here."""


_holders: weakref.WeakSet[Holder] = weakref.WeakSet()
# Any thread may make a holder while another one forks. Reentrant, for signal handlers that fork.
_holders_change = threading.RLock()
_begun: set[ForkedChild] = set()
"""Children that are being forked."""
_forking = _Forking()
_hooks_installed = False


def watch_forks(holder: Holder) -> None:
    """Tells a holder of all forks from here on, and of those that have begun, for as long as it exists."""
    global _hooks_installed
    with _holders_change:
        _holders.add(holder)
        if not _hooks_installed and hasattr(os, "register_at_fork"):
            os.register_at_fork(before=_before, after_in_parent=_after_in_parent, after_in_child=_after_in_child)
            # Called by Python without a line of Python, so no signal handler can come in between.
            os.register_at_fork(after_in_parent=functools.partial(setattr, _forking, "over", True))
            _hooks_installed = True
        for child in _begun:
            holder.keep_all_for(child)


def forget_those_gone() -> None:
    """Closes the pipes by which children were watched that are gone. Each fork does it as well."""
    finish_interrupted_fork()
    with _holders_change:
        holders = list(_holders)
    for holder in holders:
        holder.forget_those_gone()


def finish_interrupted_fork() -> None:
    """Finishes a fork of this thread whose hooks were interrupted: it would count as going on for ever."""
    # In the child the hooks may have been interrupted, too: its writing end stays open.
    if _forking.child is not None and _forking.over and _forking.child.parent == os.getpid():
        _after_in_parent()


def _before() -> None:
    forget_those_gone()
    reading_end = None
    # Where no descriptor is left, the child cannot be watched, and the memory is kept for ever.
    with contextlib.suppress(OSError):
        reading_end, _forking.writing_end = os.pipe()

    _forking.over = False
    child = _forking.child = ForkedChild(reading_end)
    with _holders_change:
        _begun.add(child)
        holders = list(_holders)
    for holder in holders:
        holder.keep_all_for(child)


def _after_in_parent() -> None:
    # None: a signal handler has raised at the beginning of `_before`, or has forked in between. The child cannot be
    # watched.
    child = _forking.child or ForkedChild(None)
    with _holders_change:
        _begun.discard(child)
        holders = list(_holders)
    for holder in holders:
        holder.keep_seen_for(child)

    # Another thread may fork between `_before` and here. Its child gets a copy of our writing end, too, so our memory
    # is kept until both children are gone: longer than needed, never too short.
    writing_end, _forking.writing_end = _forking.writing_end, None
    if writing_end is not None:
        os.close(writing_end)
    # Last: until here, the rest can be done again.
    _forking.child = None


def _after_in_child() -> None:
    global _holders_change
    # Another thread of the parent may have held it.
    _holders_change = threading.RLock()
    holders = list(_holders)
    sees_nothing = not any(holder.holds_batches() for holder in holders)
    for holder in holders:
        holder.leave_to_parent()
    if _forking.child is not None:
        _forking.child.forget()
    _forking.child = None
    _holders.clear()
    _begun.clear()

    # Else the writing end stays open: it is what tells the parent that this process may still look at batches.
    writing_end, _forking.writing_end = _forking.writing_end, None
    if sees_nothing and writing_end is not None:
        os.close(writing_end)
