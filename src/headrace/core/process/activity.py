"""The activity: what a worker is doing at this moment, in a few numbers that others can read, also after its death.

An activity is a few integers of 64 bits, in memory that may be shared. Only the worker writes them, but for `STOP_TASK`
and `STOP_ROW`: there the main process says which samples of a batch others make.
"""

from __future__ import annotations

import time
from array import array
from collections.abc import MutableSequence

Activity = MutableSequence[int]

TASK, STAGE, PLACE, SPARE = 0, 1, 2, 3
"""Number of the task; what is done for it; which sample of the batch, or of the stream (`TOGETHER`: all at once); and,
while another sample is tried for a place, the number of that one plus 1."""

COLLATED_FROM, LOAD_CPU = 4, 5
"""When collation of the batch began, in nanoseconds of `time.perf_counter_ns` (0: it is not collated), and the worker's
clock of CPU time at that moment."""

STOP_TASK, STOP_ROW = 6, 7
"""The number of a task plus 1, and the first of its samples that the worker need not make (never sample 0)."""

LENGTH = 8

UNBORN, START, IDLE, LOAD, COLLATE, SEND, JUDGE = range(7)
"""Stages. `START` is all that comes before the first batch: unpickling, `worker_init_fn`, `__iter__`, replay. `JUDGE`
is asking the user's `on_error` about a bad sample."""

TOGETHER = -1

_cpu_clock = time.thread_time_ns


def count_whole_process() -> None:
    """Has the clock of CPU time count all threads of this process, which works on one batch at a time."""
    global _cpu_clock
    _cpu_clock = time.process_time_ns


def cpu_time() -> int:
    """Returns the CPU time of the worker that asks, in nanoseconds."""
    return _cpu_clock()


def note_collation(activity: Activity) -> None:
    """Marks that the samples of a batch are there, and collation begins."""
    activity[STAGE] = COLLATE
    activity[PLACE] = TOGETHER
    activity[COLLATED_FROM], activity[LOAD_CPU] = time.perf_counter_ns(), _cpu_clock()


def private_activity() -> Activity:
    """Returns an activity that only this process can read."""
    return array("q", [0] * LENGTH)
