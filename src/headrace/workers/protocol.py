"""What makes batches: the life cycle that every executor has, and what it leaves to others.

The iterator that a loop holds has one executor, which lives as long as it, and one epoch after the other:

1. `start(epoch)` begins an epoch. The executor may start workers, tells them `epoch.beginning()`, and may take indices
   ahead, by `epoch.take()`, as many as it likes: nothing of them counts before it is delivered.
2. `next_result()` returns the next batch, in the order in which the indices were taken, unless the loader allows
   another. It calls `epoch.leaves` for the batch first. If there is an exception in the place of the batch, it calls
   `epoch.leaves`, too, and raises the exception; the next call goes on behind it. At the end it raises
   `StopIteration`, after it has left in `epoch.ends` the states of iterable datasets behind their ends.
3. An exception that is nobody's result (a signal handler raised it, or Ctrl-C) may leave `next_result` at any line.
   What it had taken from the epoch is not lost: the same batch comes at the next call.
4. `start` may be called again for the next epoch, at any point of the one before: what is still out of that is dropped.
5. `close()` ends the workers. It may be called at any time, several times; when an executor is dropped or Python exits,
   it closes itself. An executor holds no reference to the iterator.

Whatever an executor does, the batches are those of `InlineExecutor`, which makes them one after the other in the
calling thread: `tests/workers/test_executors.py` holds every executor to that.

Not thread-safe: an executor belongs to the thread that iterates.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Literal, Protocol

from headrace.epoch.epoch import Epoch
from headrace.telemetry.timings import BatchTimings, ShortTimings

Backend = Literal["inline", "thread", "process"]


BatchResult = tuple[Any, BatchTimings | ShortTimings]
"""A batch, and how it came to be."""


class Executor(Protocol):
    """Makes the batches of epochs. See the module."""

    @property
    def backend(self) -> Backend:
        """Where batches are made."""

    @property
    def replicas(self) -> int:
        """How many logical workers a fresh epoch has; 0: none, the dataset sees no worker."""

    @property
    def num_workers(self) -> int:
        """How many workers there shall be now."""

    @property
    def scales(self) -> bool:
        """Whether the number of workers changes by what is measured."""

    @property
    def workers(self) -> list[Any]:
        """The worker processes or threads, under which users of torch's iterator look for them."""

    @property
    def is_here(self) -> bool:
        """Whether its workers are this process's, and not those of the one that forked it."""

    def start(self, epoch: Epoch) -> None:
        """Begins an epoch."""

    def next_result(self) -> BatchResult:
        """Returns the next batch. Raises what takes its place, and `StopIteration` at the end of the epoch."""

    def prepare(self, count: int, begin: Callable[[Any], Any]) -> None:
        """Has `begin` take the batches that come next, up to so many, as far as they are there; waits for none.

        `next_result` returns what it returned in their place. It may get a batch again that it has returned. It must
        not raise, but for a signal handler.
        """

    def is_at_end(self) -> bool:
        """Tells whether nothing is left of the epoch. May wait for the first batch of an iterable dataset."""

    def close(self) -> None:
        """Ends the workers."""
