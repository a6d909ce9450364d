"""Whose turn it is with the global generators of this process, which its threads share.

A transform that seeds them puts them back when it is done. Until then nobody else may seed them, nor look whether
anybody has drawn.
"""

from __future__ import annotations

import threading

from headrace.core.process.this_process import ForkLock

_TURN = ForkLock()


def global_turn() -> threading.Lock:
    """Returns the lock to hold for as long as the global generators are another's than the program's."""
    return _TURN.here
