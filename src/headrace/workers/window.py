"""The in-flight window: which replica gets the next task, and which result is delivered next.

Pure bookkeeping: no process, socket, file or clock. Tasks are numbered 0, 1, 2, ... in the order in which the sampler
gave them. The rules are torch's:

- up to `limit` tasks are out at a time, and each delivery makes room for one more;
- tasks go round robin over the replicas that still have data, so with none exhausted task k goes to replica k mod n;
- in order, results are delivered by task number; otherwise as they arrive, and a replica gets a task only while it has
  fewer than its share;
- a replica whose iterable dataset has ended drops out, and its remaining tasks with it.

A result that is late may give its turn to another one: then `task_in` says which task comes in which turn.

Two rules are not torch's. While the result that is delivered next is late, finished ones behind it do not count: up to
`spare` of them may wait, so that other replicas do not stand still.

And where it does not matter which replica makes a batch (`free`), a task waits until a replica has room for it: a slow
batch then holds up its own replica only, and the others make what comes behind it.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from typing import Generic, TypeVar

from headrace.core.stragglers import AHEAD

Result = TypeVar("Result")


class Window(Generic[Result]):
    """The state of one epoch. The first task goes to replica `first`."""

    def __init__(
        self, replicas: int, limit: int, in_order: bool, *, free: bool = False, first: int = 0, ahead: int = AHEAD
    ) -> None:
        """ahead: tasks that a free replica holds."""
        self.limit = limit
        self.ahead = ahead
        self.open_replicas = replicas
        """Replicas that are given tasks, where it does not matter which: the first so many."""
        self.task_in: Callable[[int], int] = _itself
        """Returns the task that is delivered in a turn, in order."""
        self.spare = 0
        """How many finished results may wait behind one that is late, beyond `limit`."""
        self._in_order = in_order
        self._free = free
        self._down: set[int] = set()
        self._active = [True] * replicas
        self._held = [0] * replicas  # tasks given to a replica whose results were not delivered yet
        self._making = [0] * replicas  # tasks given to a replica whose results have not arrived yet
        self._owner: dict[int, int] = {}  # every task that was sent and not delivered -> its replica
        self._arrived: dict[int, Result] = {}
        self._next_replica = first
        self._next_task = 0
        self._next_delivery = 0

    @property
    def outstanding(self) -> int:
        """How many tasks are out: sent, and not delivered."""
        return len(self._owner)

    def unanswered(self) -> Iterator[int]:
        """Yields the tasks whose results are still to come from replicas that have data, in their order."""
        return (task for task, replica in self._owner.items() if self._active[replica] and task not in self._arrived)

    def undelivered(self) -> Iterator[tuple[int, Result]]:
        """Yields replicas and results that have arrived, in the order of their tasks."""
        return ((self._owner[task], self._arrived[task]) for task in sorted(self._arrived))

    @property
    def next_task(self) -> int:
        """The number of the task that is sent next."""
        return self._next_task

    @property
    def is_late(self) -> bool:
        """Whether the result that is delivered next, in order, has not arrived."""
        return bool(self._owner) and self.due not in self._arrived

    @property
    def turn(self) -> int:
        """The number of the delivery that comes next, in order."""
        return self._next_delivery

    @property
    def due(self) -> int:
        """The task that is delivered next, in order."""
        return self.task_in(self._next_delivery)

    def ready_turns(self, last: int) -> Iterator[int]:
        """Yields the turns behind the next one, up to turn `last`, whose results have arrived."""
        for turn in range(self._next_delivery + 1, min(last + 1, self._next_task)):
            if self.task_in(turn) in self._arrived:
                yield turn

    def next_arrived(self, count: int) -> list[int]:
        """Returns up to `count` tasks whose results have arrived and are delivered next, with no gap before them."""
        if not self._in_order:
            return list(self._arrived)[:count]

        tasks: list[int] = []
        for turn in range(self._next_delivery, self._next_task):
            task = self.task_in(turn)
            if task not in self._owner and task not in self._arrived:
                continue  # of a replica that ended
            if task not in self._arrived or len(tasks) == count:
                break
            tasks.append(task)
        return tasks

    def exchange(self, task: int, result: Result) -> None:
        """Puts a result in the place of one that has arrived."""
        self._arrived[task] = result

    def arrived(self, task: int) -> Result:
        """Returns the result of a task, which has arrived."""
        return self._arrived[task]

    def has_data(self, replica: int) -> bool:
        """Tells whether a replica may have batches left."""
        return self._active[replica]

    def making(self, replica: int) -> int:
        """Returns how many tasks a replica makes."""
        return self._making[replica]

    def idle(self) -> list[int]:
        """Returns the replicas that get tasks, have none, and are up."""
        replicas = range(self.open_replicas)
        return [replica for replica in replicas if not self._making[replica] and replica not in self._down]

    def choose(self) -> int | None:
        """Returns the replica for the next task, or None if no replica can take one."""
        if self._free:
            return self._choose_free()

        replicas = len(self._active)
        share = 0
        if not self._in_order:
            share = max(self.limit // max(sum(self._active), 1), 1)

        for _ in range(replicas):
            replica = self._next_replica
            self._next_replica = (replica + 1) % replicas
            if self._active[replica] and (self._in_order or self._held[replica] < share):
                return replica

        return None

    @property
    def has_room(self) -> bool:
        """Whether a further task may be sent."""
        if len(self._owner) < self.limit:
            return True
        is_late = self._in_order and self.due not in self._arrived
        if not is_late or len(self._arrived) >= self.spare:
            return False

        if self._free:
            share = self.ahead
        else:
            share = max(self.limit // max(sum(self._active), 1), 1)
        return any(self._active[replica] and making < share for replica, making in enumerate(self._making))

    def _choose_free(self) -> int | None:
        if not self.has_room:
            return None

        least = self.least_busy()
        if least is not None and self._making[least] < self.ahead:
            return least
        return None

    def least_busy(self) -> int | None:
        """Returns the replica that makes the fewest tasks. One that is down is only chosen where all are."""
        replicas: Iterable[int] = range(self.open_replicas)
        if self._down and self.some_are_up:
            replicas = (replica for replica in replicas if replica not in self._down)
        return min(replicas, key=self._making.__getitem__, default=None)

    @property
    def some_are_up(self) -> bool:
        """Whether a replica is there to work."""
        return any(replica not in self._down for replica in range(self.open_replicas))

    def set_down(self, replica: int) -> None:
        """Records that nobody works for a replica now."""
        self._down.add(replica)

    def set_up(self, replica: int) -> None:
        """Records that somebody works for a replica again."""
        self._down.discard(replica)

    def tasks_that_wait(self) -> list[int]:
        """Returns the tasks of replicas that are down, in their order."""
        return [task for task in self.unanswered() if self._owner[task] in self._down]

    def move(self, task: int, replica: int) -> None:
        """Records that a task whose result is still to come goes to another replica."""
        before = self._owner[task]
        self._held[before] -= 1
        self._making[before] -= 1
        self._owner[task] = replica
        self._held[replica] += 1
        self._making[replica] += 1

    def begin_part(self, replica: int, weight: int = 1) -> None:
        """Records that a replica makes a part of a task, which counts as so many tasks."""
        self._making[replica] += weight

    def end_part(self, replica: int, weight: int = 1) -> None:
        """Records the end of a part of a task. That of the task's owner counts as the task itself until then."""
        self._making[replica] -= weight

    def arrive_joined(self, task: int, result: Result) -> None:
        """Records the result of a task whose parts have all ended."""
        self._arrived[task] = result

    def send(self, replica: int) -> int:
        """Records that the next task goes to `replica`; returns the task's number."""
        task = self._next_task
        self._next_task += 1
        self._owner[task] = replica
        self._held[replica] += 1
        self._making[replica] += 1
        return task

    def arrive(self, task: int, result: Result) -> None:
        """Records the result of a task. A second result for it would be an error of the caller."""
        self._arrived[task] = result
        self._making[self._owner[task]] -= 1

    def exhaust(self, task: int) -> None:
        """Records that the replica of `task` has no data left in this epoch; all it had not delivered is dropped."""
        replica = self._owner.pop(task)
        self._active[replica] = False

    def deliverable(self) -> tuple[int, int, Result] | None:
        """Takes out the result that is to be delivered now: (task, replica, result); None if it has not arrived yet."""
        if self._in_order:
            if self.task_in is _itself:
                self._skip_dropped()
            task = self.due
        else:
            task = next(iter(self._arrived), -1)

        if task not in self._arrived:
            return None

        replica = self._owner.pop(task)
        self._held[replica] -= 1
        if self._in_order:
            self._next_delivery += 1
        return task, replica, self._arrived.pop(task)

    def _skip_dropped(self) -> None:
        """Moves on past tasks of replicas that ended before they came to them."""
        while self._next_delivery < self._next_task:
            replica = self._owner.get(self._next_delivery)
            if replica is not None and (self._active[replica] or self._next_delivery in self._arrived):
                return
            self._owner.pop(self._next_delivery, None)
            self._next_delivery += 1

    @property
    def finished(self) -> bool:
        """True when nothing is left to deliver or to wait for."""
        return not self._arrived and next(self.unanswered(), None) is None


def _itself(turn: int) -> int:
    return turn
