"""The in-flight window: which lane gets the next task, and which result is delivered next.

Pure bookkeeping: no process, socket, file or clock. Tasks are numbered 0, 1, 2, ... in the order in which the sampler
gave them. The rules are torch's:

- up to `limit` tasks are out at a time, and each delivery makes room for one more;
- tasks go round robin over the lanes that still have data, so with none exhausted task k goes to lane k mod n;
- in order, results are delivered by task number; otherwise as they arrive, and a lane gets a task only while it has
  fewer than its share;
- a lane whose iterable dataset has ended drops out, and its remaining tasks with it.

Where it does not matter which lane makes a batch (`free`), a task waits until a lane has room for it: a slow batch then
holds up its own lane only, and the others make what comes behind it.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Generic, TypeVar

Result = TypeVar("Result")

AHEAD = 2
"""Tasks that a free lane holds: the one it makes, and one more, so that it never waits for the next."""


class Window(Generic[Result]):
    """The state of one epoch. The first task goes to lane `first`."""

    def __init__(self, lanes: int, limit: int, in_order: bool, *, free: bool = False, first: int = 0) -> None:
        self.limit = limit
        self.open_lanes = lanes
        """Lanes that are given tasks, where it does not matter which: the first so many."""
        self._in_order = in_order
        self._free = free
        self._active = [True] * lanes
        self._held = [0] * lanes  # tasks given to a lane whose results were not delivered yet
        self._making = [0] * lanes  # tasks given to a lane whose results have not arrived yet
        self._owner: dict[int, int] = {}  # every task that was sent and not delivered -> its lane
        self._arrived: dict[int, Result] = {}
        self._next_lane = first
        self._next_task = 0
        self._next_delivery = 0

    @property
    def outstanding(self) -> int:
        """How many tasks are out: sent, and not delivered."""
        return len(self._owner)

    @property
    def waiting_for(self) -> int:
        """How many results are still to come from lanes that have data."""
        return sum(1 for _ in self.unanswered())

    def unanswered(self) -> Iterator[int]:
        """Yields the tasks whose results are still to come from lanes that have data, in their order."""
        return (task for task, lane in self._owner.items() if self._active[lane] and task not in self._arrived)

    def undelivered(self) -> Iterator[tuple[int, Result]]:
        """Yields lanes and results that have arrived, in the order of their tasks."""
        return ((self._owner[task], self._arrived[task]) for task in sorted(self._arrived))

    def choose(self) -> int | None:
        """Returns the lane for the next task, or None if no lane can take one."""
        if self._free:
            return self._choose_free()

        lanes = len(self._active)
        share = max(self.limit // max(sum(self._active), 1), 1)
        for _ in range(lanes):
            lane = self._next_lane
            self._next_lane = (lane + 1) % lanes
            if self._active[lane] and (self._in_order or self._held[lane] < share):
                return lane

        return None

    def _choose_free(self) -> int | None:
        if len(self._owner) >= self.limit:
            return None

        least = min(range(self.open_lanes), key=self._making.__getitem__, default=None)
        if least is not None and self._making[least] < AHEAD:
            return least
        return None

    def send(self, lane: int) -> int:
        """Records that the next task goes to `lane`; returns the task's number."""
        task = self._next_task
        self._next_task += 1
        self._owner[task] = lane
        self._held[lane] += 1
        self._making[lane] += 1
        return task

    def arrive(self, task: int, result: Result) -> None:
        """Records the result of a task. A second result for it would be an error of the caller."""
        self._arrived[task] = result
        self._making[self._owner[task]] -= 1

    def exhaust(self, task: int) -> None:
        """Records that the lane of `task` has no data left in this epoch; all it had not delivered is dropped."""
        lane = self._owner.pop(task)
        self._active[lane] = False

    def deliverable(self) -> tuple[int, int, Result] | None:
        """Takes out the result that is to be delivered now: (task, lane, result); None if it has not arrived yet."""
        if self._in_order:
            self._skip_dropped()
            task = self._next_delivery
        else:
            task = next(iter(self._arrived), -1)

        if task not in self._arrived:
            return None

        lane = self._owner.pop(task)
        self._held[lane] -= 1
        if self._in_order:
            self._next_delivery += 1
        return task, lane, self._arrived.pop(task)

    def _skip_dropped(self) -> None:
        """Moves on past tasks of lanes that ended before they came to them."""
        while self._next_delivery < self._next_task:
            lane = self._owner.get(self._next_delivery)
            if lane is not None and (self._active[lane] or self._next_delivery in self._arrived):
                return
            self._owner.pop(self._next_delivery, None)
            self._next_delivery += 1

    @property
    def finished(self) -> bool:
        """True when nothing is left to deliver or to wait for."""
        return not self._arrived and self.waiting_for == 0
