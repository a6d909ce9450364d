"""The running process as an object, which is another one in a forked child, and what a child must have of its own.

Whoever keeps something that a forked child must not use keeps the process with it, `this_process.current`, and compares
the two. That takes a tenth of the time of `os.getpid`, which asks the system at each call.
"""

from __future__ import annotations

import os
import threading
import weakref
from collections.abc import Callable
from contextlib import AbstractContextManager
from typing import Any


class Process:
    """Stands for one process. Never pickled: it means nothing elsewhere."""


current = Process()
"""The process that runs now. Read it anew each time: `this_process.current`."""

_LOCKS: weakref.WeakSet[ForkLock] = weakref.WeakSet()


def in_forked_child(function: Callable[[], object]) -> None:
    """Has a function called in each forked child, before any other code runs there."""
    if hasattr(os, "register_at_fork"):
        os.register_at_fork(after_in_child=function)


class ForkLock:
    """A lock that is free in a forked child: a thread of the parent that held it does not exist there.

    It is taken by `with lock.here:`. A signal handler may raise at any line of Python, and so within an `__enter__` of
    ours, behind the moment at which the lock is taken: then nobody would ever free it. Python's own lock has no such
    line.
    """

    def __init__(self, *, reentrant: bool = False) -> None:
        """reentrant: the thread that holds the lock may take it again."""
        self._kind: Callable[[], AbstractContextManager[Any]] = threading.RLock if reentrant else threading.Lock
        self.here: AbstractContextManager[Any] = self._kind()
        """The lock of this process. Read it anew each time."""
        _LOCKS.add(self)

    def renew(self) -> None:
        """Makes it free again. Called in a forked child."""
        self.here = self._kind()


def _begin() -> None:
    global current
    current = Process()
    for lock in list(_LOCKS):
        lock.renew()


in_forked_child(_begin)
