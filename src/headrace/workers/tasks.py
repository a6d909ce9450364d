"""The tasks of an epoch that are out, and who has which.

A task is a batch. Where several workers make one together, each part is a task of its own for its worker, under a
number from `FIRST_PART` on.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any, Generic, TypeVar

from headrace.workers.carrier import Carrier
from headrace.workers.window import Window

Result = TypeVar("Result")

FIRST_PART = 1 << 40
"""The number of the first part; whole batches have lower ones."""


class Tasks(Generic[Result]):
    """What workers were given and have not answered. Replica k lies with worker k modulo the number of workers."""

    def __init__(self, window: Window[Result], workers: int) -> None:
        self.window = window
        self.workers = workers
        self.out: dict[int, tuple[int, Any]] = {}
        """Replica and index of each task that is not answered."""
        self.batch_of: dict[int, int] = {}
        """For each part that is out, the number of its batch. What is not here is a whole batch."""

    def give(self, number: int, replica: int, index: Any, carrier: Carrier) -> None:
        """Gives a task to the worker of a replica."""
        self.out[number] = replica, index
        carrier.submit(replica % self.workers, number, replica, index)

    def worker_of(self, number: int) -> int:
        """Returns the worker that has a task."""
        return self.out[number][0] % self.workers

    def task_of(self, number: int) -> int:
        """Returns the batch to which what a worker was given belongs: itself, or that of which it is a part."""
        return self.batch_of.get(number, number)

    def in_turn(self) -> list[int]:
        """Returns the numbers of all that is out, in the order of their batches."""
        return sorted(self._unanswered(), key=lambda number: (self.task_of(number), number))

    def of_worker(self, worker: int) -> list[tuple[int, int, Any]]:
        """Returns what a worker has not answered yet: number, replica, index."""
        return [(number, *self.out[number]) for number in self.in_turn() if self.worker_of(number) == worker]

    def comes_before(self, task: int, worker: int) -> bool:
        """Tells whether other workers make batches, or parts of some, that come before this one."""
        others = (number for number in self._unanswered() if self.worker_of(number) != worker)
        return any(self.task_of(number) < task for number in others)

    def busy(self) -> list[int]:
        """Returns the workers that have work."""
        return sorted({self.worker_of(number) for number in self._unanswered()})

    def _unanswered(self) -> Iterator[int]:
        # What a stream was to make behind its end is never answered.
        return (number for number, (replica, _) in self.out.items() if self.window.has_data(replica))
