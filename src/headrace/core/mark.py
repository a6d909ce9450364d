"""The mark: what a worker is doing at this moment, in a few numbers that others can read, also after its death.

A mark is four integers of 64 bits, in memory that may be shared. Only the worker writes them.
"""

from __future__ import annotations

from array import array
from collections.abc import MutableSequence

Mark = MutableSequence[int]

TASK, STAGE, PLACE, SPARE = 0, 1, 2, 3
"""Number of the task; what is done for it; which sample of the batch, or of the stream (`TOGETHER`: all at once); and,
while another sample is tried for a place, the number of that one plus 1."""

LENGTH = 4

UNBORN, START, IDLE, LOAD, COLLATE, SEND, JUDGE = range(7)
"""Stages. `START` is all that comes before the first batch: unpickling, `worker_init_fn`, `__iter__`, replay. `JUDGE`
is asking the user's `on_error` about a bad sample."""

TOGETHER = -1


def private_mark() -> Mark:
    """Returns a mark that only this process can read."""
    return array("q", [0] * LENGTH)
