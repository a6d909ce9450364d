"""One instance for all of a process, for as long as somebody uses it."""

from __future__ import annotations

import os
import threading
import weakref
from collections.abc import Callable
from typing import Generic, TypeVar

T = TypeVar("T")


class PerProcess(Generic[T]):
    """Gives every caller in a process the same instance; a forked child gets one of its own.

    The instance is made at the first call and goes with its last user. A child must not use its parent's: both would
    hand out the same memory.
    """

    def __init__(self, make: Callable[[], T]) -> None:
        self._make = make
        self._current: weakref.ref[T] | None = None
        self._pid = 0
        self._lock = threading.Lock()
        if hasattr(os, "register_at_fork"):
            os.register_at_fork(after_in_child=self._forget)

    def get(self) -> T:
        """Returns the instance of this process. The caller keeps it alive."""
        with self._lock:
            if self._current is not None and self._pid == os.getpid():
                instance = self._current()
            else:
                instance = None

            if instance is None:
                instance = self._make()
                self._current, self._pid = weakref.ref(instance), os.getpid()
            return instance

    def _forget(self) -> None:
        # In a forked child. Another thread of the parent may have held the lock; here nobody would release it.
        self._lock = threading.Lock()
        self._current = None
