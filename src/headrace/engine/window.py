"""The in-flight window: which worker gets the next task, and which result is delivered next.

Pure bookkeeping: no process, socket, file or clock. Tasks are numbered 0, 1, 2, ... in the order in which the sampler
gave them. The rules are torch's:

- up to `workers * prefetch` tasks are out at a time, and each delivery makes room for one more;
- tasks go round robin over the workers that still have data, so with none exhausted task k goes to worker k mod n;
- in order, results are delivered by task number; otherwise as they arrive, and a worker gets a task only while it has
  fewer than its share;
- a worker whose iterable data set has ended drops out, and its remaining tasks with it.
"""

from __future__ import annotations

from typing import Generic, TypeVar

Result = TypeVar("Result")


class Window(Generic[Result]):
    """The state of one epoch."""

    def __init__(self, workers: int, prefetch: int, in_order: bool) -> None:
        self.limit = workers * prefetch
        self._in_order = in_order
        self._active = [True] * workers
        self._held = [0] * workers  # tasks given to a worker whose results were not delivered yet
        self._owner: dict[int, int] = {}  # every task that was sent and not delivered -> its worker
        self._arrived: dict[int, Result] = {}
        self._next_worker = 0
        self._next_task = 0
        self._next_delivery = 0

    @property
    def waiting_for(self) -> int:
        """How many results are still to come from workers that have data."""
        return sum(1 for task, worker in self._owner.items() if self._active[worker] and task not in self._arrived)

    def choose(self) -> int | None:
        """Returns the worker for the next task, or None if no worker can take one."""
        workers = len(self._active)
        share = self.limit // max(sum(self._active), 1)
        for _ in range(workers):
            worker = self._next_worker
            self._next_worker = (worker + 1) % workers
            if self._active[worker] and (self._in_order or self._held[worker] < share):
                return worker
        return None

    def send(self, worker: int) -> int:
        """Records that the next task goes to `worker`; returns the task's number."""
        task = self._next_task
        self._next_task += 1
        self._owner[task] = worker
        self._held[worker] += 1
        return task

    def arrive(self, task: int, result: Result) -> None:
        """Records the result of a task. A second result for it would be an error of the caller."""
        self._arrived[task] = result

    def exhaust(self, task: int) -> None:
        """Records that the worker of `task` has no data left in this epoch; all it had not delivered is dropped."""
        worker = self._owner.pop(task)
        self._active[worker] = False

    def deliverable(self) -> tuple[int, Result] | None:
        """Takes out the result that is to be delivered now, with its worker; None if it has not arrived yet."""
        if self._in_order:
            self._skip_dropped()
            task = self._next_delivery
        else:
            task = next(iter(self._arrived), -1)
        if task not in self._arrived:
            return None
        worker = self._owner.pop(task)
        self._held[worker] -= 1
        if self._in_order:
            self._next_delivery += 1
        return worker, self._arrived.pop(task)

    def _skip_dropped(self) -> None:
        """Moves on past tasks of workers that ended before they came to them."""
        while self._next_delivery < self._next_task:
            worker = self._owner.get(self._next_delivery)
            if worker is not None and (self._active[worker] or self._next_delivery in self._arrived):
                return
            self._owner.pop(self._next_delivery, None)
            self._next_delivery += 1

    @property
    def finished(self) -> bool:
        """True when nothing is left to deliver or to wait for."""
        return not self._arrived and self.waiting_for == 0
