"""What each process has of its own: one instance for all who ask, and what is opened where it is used."""

from __future__ import annotations

import weakref
from collections.abc import Callable
from typing import Any, Generic, TypeVar

from headrace.core.process import this_process
from headrace.core.process.this_process import ForkLock, Process

T = TypeVar("T")


class PerProcess(Generic[T]):
    """Gives every caller in a process the same instance; a forked child gets one of its own.

    The instance is made at the first call and goes with its last user. A child must not use its parent's: both would
    hand out the same memory.
    """

    def __init__(self, make: Callable[[], T]) -> None:
        self._make = make
        self._current: weakref.ref[T] | None = None
        self._process: Process | None = None
        self._lock = ForkLock()

    def get(self) -> T:
        """Returns the instance of this process. The caller keeps it alive."""
        with self._lock.here:
            if self._current is not None and self._process is this_process.current:
                instance = self._current()
            else:
                instance = None

            if instance is None:
                instance = self._make()
                self._current, self._process = weakref.ref(instance), this_process.current
            return instance


class Handle(Generic[T]):
    """Something that is opened at its first use in each process, and is never pickled."""

    def __init__(self, opener: Callable[[], T] | None = None) -> None:
        """opener: not a method of the handle's owner; that is given to `get`.

        Kept here it would be a cycle: files would stay open behind `del` until Python's collector comes.
        """
        self._opener = opener
        self._forget()

    def _forget(self) -> None:
        self._process: Process | None = None
        self._value: T | None = None
        self._lock = ForkLock()

    def get(self, opener: Callable[[], T] | None = None) -> T:
        """Returns it, opened by the calling process. opener: where the handle was made without one."""
        value = self._value
        if value is not None and self._process is this_process.current:
            return value

        # What the parent of a forked child has opened is left alone: a file descriptor shares its position.
        with self._lock.here:
            if self._value is None or self._process is not this_process.current:
                self._value = (opener or self._opener)()  # type: ignore[misc]
                self._process = this_process.current
            return self._value

    def __getstate__(self) -> dict[str, Any]:
        return {"_opener": self._opener}

    def __setstate__(self, state: dict[str, Any]) -> None:
        self._opener = state["_opener"]
        self._forget()
