"""Whose turn it is with the global generators of this process, which its threads share.

A transform that seeds them puts them back when it is done. Until then nobody else may seed them, nor look whether
anybody has drawn.
"""

from __future__ import annotations

import os
import threading


class _Turns:
    """A lock that is free again in a forked child, where the thread that held it does not exist."""

    def __init__(self) -> None:
        self._lock, self._process = threading.Lock(), os.getpid()

    def lock(self) -> threading.Lock:
        if self._process != os.getpid():
            self.__init__()  # type: ignore[misc]
        return self._lock


_turns = _Turns()


def global_turn() -> threading.Lock:
    """Returns the lock to hold for as long as the global generators are another's than the program's."""
    return _turns.lock()
