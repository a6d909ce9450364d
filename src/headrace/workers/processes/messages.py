"""What parent and workers say to each other, over one duplex pipe for each worker.

The parent sends `Request`; the worker answers each task with one `Result`, and sends lists of these. A request, or the
header of a result, of more than `INLINE` bytes travels in a slot, and a small `InSlot` in the pipe names the slot, so
the bytes in a pipe are bounded. The parent lets at most `UNREAD` messages wait in a worker's pipe (the worker says in
each result how many it has read) and gathers what is left into the next one; so the parent never blocks in a write, and
a worker that blocks in one waits for a parent that reads. Not every message leads to a result: its tasks may be void,
or lie behind the end of a stream. So a worker that has read some, and has nothing else to say, says that.
"""

from __future__ import annotations

import pickle
from collections.abc import Sequence
from typing import Any, NamedTuple

from headrace.epoch.start import EpochStart
from headrace.shared_memory.memory import Slot
from headrace.telemetry.stopwatch import Times

INLINE = 16 << 10
UNREAD = 8
UNTOLD = UNREAD // 2
"""Messages that a worker without work may have read and not told of."""

ANSWERS = ("batch", "error", "end")
"""What a result says of a task; other results are of none."""

READ = "read"
"""What a result says that only tells how many messages were read."""


class Request(NamedTuple):
    """Work for a worker: (task, replica, index). Tasks of earlier epochs that it has not begun are void, so are all
    tasks after `stop`. `begin` is there if the worker is to begin another epoch."""

    epoch: int
    begin: EpochStart | None
    tasks: list[tuple[int, int, Any]]
    returned: list[Slot]
    stop: bool
    void: Sequence[int] = ()
    """Tasks that another worker does now, if they are not begun."""


class InSlot(NamedTuple):
    """A message that lies in a slot of the sender's region."""

    slot: Slot
    nbytes: int


class Result(NamedTuple):
    """What became of a task.

    `status` says what the payload is: "batch" (the parts of a `Made`), "error" (`Failure`, replica's state, losses),
    "end" (the replica's iterable dataset has ended), or, for no task, "replay" (replica, samples done, samples in all),
    "begun" (states with which the worker's replicas begin, by their numbers) or "read" (nothing). `slots` and `buffers`
    are those of `EncodedBatch`. `read` counts the messages that the worker has read, and `freed` are slots of the
    parent's region that it is done with. `times` are the task's, and `seen` says where the worker was met lately, and
    how often (`observe.anatomy`).
    """

    epoch: int
    task: int
    status: str
    header: bytes | InSlot
    slots: list[tuple[Slot, int]]
    buffers: list[tuple[int, int, int]]
    read: int
    freed: list[Slot]
    times: Times
    seen: list[tuple[str, str, int]]
    drew: bool = False
    """Whether the worker found out that the dataset draws random numbers."""
    rows: int = -1
    """How many samples of the task were made, the first ones, where others make the rest; -1: all."""
    slow: Sequence[tuple[int, float]] = ()
    """Which samples of the task took much longer than the others: places and seconds."""


def packed(results: Sequence[Result]) -> bytes:
    """Returns results as one message."""
    # Tuples of Python's own: pickle looks up the class of each named one.
    return pickle.dumps([_plain(result) for result in results], 5)


def unpacked(message: bytes) -> list[Result]:
    """Returns the results of a message that `packed` has made."""
    return [_result(plain) for plain in pickle.loads(message)]


def _plain(result: Result) -> tuple[Any, ...]:
    epoch, task, status, header, slots, buffers, read, freed, times, seen, *rest = result
    plain_slots = [(tuple(slot), used) for slot, used in slots]
    plain_freed = [tuple(slot) for slot in freed]
    return epoch, task, status, header, plain_slots, buffers, read, plain_freed, tuple(times), seen, *rest


def _result(plain: tuple[Any, ...]) -> Result:
    epoch, task, status, header, plain_slots, buffers, read, plain_freed, times, seen, *rest = plain
    slots = [(Slot._make(slot), used) for slot, used in plain_slots]
    freed = [Slot._make(slot) for slot in plain_freed]
    return Result(epoch, task, status, header, slots, buffers, read, freed, Times._make(times), seen, *rest)
