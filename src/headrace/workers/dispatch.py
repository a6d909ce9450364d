"""Which worker gets which task, and which result comes next: what executors with workers hold."""

from __future__ import annotations

import math
import time
from collections.abc import Callable
from typing import Any, Generic, Protocol, TypeVar

from headrace.core.spans import NothingYetError
from headrace.core.stragglers import AHEAD, LATE, OVERDUE, SLACK, SPARE
from headrace.epoch.deferral import FARTHEST, Deferral
from headrace.epoch.epoch import Epoch
from headrace.epoch.spec import LoaderSpec
from headrace.workers.window import Window


class Answer(Protocol):
    """What a worker answers to a task."""

    @property
    def status(self) -> str:
        """What it is: "batch", or what came in its place."""


Result = TypeVar("Result", bound=Answer)

FORGET = 0.8
"""Share of the older batches in the mean of their times, when another one comes."""


class Carrier(Protocol):
    """What brings tasks to workers and results back: the executor that holds a dispatcher."""

    def submit(self, worker: int, task: int, replica: int, index: object) -> None:
        """Gives a task to a worker; it may wait until `flush`."""

    def withdraw(self, worker: int, task: int) -> bool:
        """Takes a submitted task back. False: it was sent already."""

    def flush(self, least: int = 1) -> None:
        """Sends what was submitted to workers for which there are at least so many tasks by now."""

    def collect(self) -> None:
        """Waits until at least one result has come, and files it with `Dispatcher.file` or `file_end`.

        It also returns when `Dispatcher.look` says that another result may be delivered.
        """

    def close(self) -> None:
        """Ends the workers."""


class Dispatcher(Generic[Result]):
    """The tasks of one epoch: which are out, with which worker, and which result is delivered next.

    Tasks are numbered as the sampler gave their indices. Replica k lies with worker k modulo the number of workers.
    The carrier is an argument of each call, never kept: it holds the dispatcher, and must go as soon as it is dropped.
    """

    def __init__(
        self, epoch: Epoch, workers: int, limit: int, *, fills: bool = False, ahead: int = AHEAD, spare_bytes: int = 0
    ) -> None:
        """Args:

        limit: how many tasks may be out at a time.
        ahead: how many tasks a worker holds where it does not matter which worker gets which.
        fills: whether each chance is used to give out as many tasks as there is room for, since the limit may change.
        spare_bytes: of finished batches that may wait behind one that is late, beyond the limit. Then it fills, too.
        """
        self.window: Window[Result] = Window(
            max(epoch.record.replicas, 1),
            limit,
            epoch.spec.in_order,
            free=epoch.any_replica_will_do,
            first=epoch.next_replica,
            ahead=ahead,
        )
        self.out: dict[int, tuple[int, Any]] = {}
        """Replica and index of each task that is not answered."""

        self.sampler_ended = False
        """Whether the sampler has no index left."""

        self.starved = False
        """Whether the sampler has nothing yet."""

        self._epoch = epoch
        self._workers = workers
        self._fills = fills or epoch.is_live or spare_bytes > 0
        self._spare_bytes = spare_bytes
        self._spare = 0  # how many of the largest batches that is
        self._looked = False  # since the last delivery
        self._told = False  # since then, that a batch may change places
        self._usual = 0.0  # seconds that a worker takes for a batch
        self._first_came = math.inf  # when the first result came
        self._largest = 1
        self._free = epoch.any_replica_will_do
        self._deferral = epoch.deferral
        self._notices = spare_bytes > 0 or self._deferral is not None  # whether anything follows where a batch is late
        self._deferred: set[int] = set()  # tasks that were late, and gave their turns away
        if self._deferral is not None:
            self.window.task_in = self._deferral.task_in
        self._numbers: dict[int, int] = {}  # by turn, which is the task unless it gave its turn away
        self._posted: dict[int, float] = {}

    def prime(self, carrier: Carrier) -> None:
        """Gives out the first tasks of an epoch, for which the workers are ready."""
        for _ in range(self.window.limit):
            self.give_out(carrier)
        carrier.flush()

    def await_first(self, carrier: Carrier) -> None:
        """Waits until there is a first task, of a sampler that had nothing yet."""
        while self.starved and not self.out:
            self._epoch.wait(None)
            self.give_out(carrier)

    def resize(self, limit: int, workers: int, ahead: int | None = None) -> None:
        """Changes how many tasks may be out, and how many workers get tasks where it does not matter which.

        ahead: how many tasks a worker holds there; None: as many as before.
        """
        self.window.limit = limit
        if ahead is not None:
            self.window.ahead = ahead
        if self._free:
            self.window.open_replicas = workers

    @property
    def moves_tasks(self) -> bool:
        """Whether the tasks of a worker that is not there can be done by another one that is."""
        return self._free and self.window.some_are_up

    def set_down(self, worker: int, carrier: Carrier) -> None:
        """Notes that a worker is not there. Its tasks go to others, where that does not matter and there are some."""
        for replica in self._replicas_of(worker):
            self.window.set_down(replica)
        self._move_tasks(carrier)

    def set_up(self, worker: int, carrier: Carrier) -> None:
        """Notes that a worker is there, and gives it what there is to do."""
        for replica in self._replicas_of(worker):
            self.window.set_up(replica)

        self._move_tasks(carrier)
        while self._free and self._give_out_one(carrier):
            pass

    def _replicas_of(self, worker: int) -> range:
        return range(worker, max(self._epoch.record.replicas, 1), self._workers)

    def _move_tasks(self, carrier: Carrier) -> None:
        if not self.moves_tasks:
            return

        for task in self.window.tasks_that_wait():
            replica = self.window.least_busy()
            before, index = self.out[task]
            if replica is not None and carrier.withdraw(before % self._workers, task):
                self.window.move(task, replica)
                self.out[task] = replica, index
                carrier.submit(replica % self._workers, task, replica, index)

    def give_out(self, carrier: Carrier) -> None:
        """Takes the next index from the sampler and gives it to a replica, if there are both."""
        if not self._fills:
            self._give_out_one(carrier)
            return

        while self.window.has_room and self._give_out_one(carrier):
            pass

    def _give_out_one(self, carrier: Carrier) -> bool:
        """Returns whether a task was given out."""
        replica = None
        if self._free:
            replica = self.window.choose()
            if replica is None:
                return False

        try:
            number, index = self._take()
            self.starved = False
        except StopIteration:
            self.sampler_ended = True
            self.starved = False
            return False
        except NothingYetError:
            self.starved = True
            return False

        if not self._free:
            replica = self.window.choose()  # after the sampler was asked, as torch does
        if replica is None:
            return False

        task = self.window.send(replica)
        self._numbers[task] = number
        self._posted[task] = time.perf_counter()
        self._hand_out(task, replica, index, carrier)
        return True

    def _take(self) -> tuple[int, Any]:
        """Returns the sampler's next index and its number. Raises `StopIteration`, `NothingYetError`."""
        return self._epoch.take()

    def _hand_out(self, task: int, replica: int, index: Any, carrier: Carrier) -> None:
        self.out[task] = replica, index
        carrier.submit(replica % self._workers, task, replica, index)

    def next_delivery(self, carrier: Carrier, least: int) -> tuple[int, int, Result]:
        """Returns the next result to deliver: task, replica, result.

        Raises `StopIteration` if nothing is left; workers that are not kept end with it.

        least: tasks for which a worker is sent a message; one that wakes a worker costs more than a batch may.
        """
        began = 0.0
        while True:
            delivery = self.window.deliverable()
            if delivery is None and self._deferral is not None:
                began = began or time.perf_counter()
                if self._gives_way(self._deferral, began, carrier):
                    delivery = self.window.deliverable()
            if delivery is not None:
                self.window.spare = 0
                self._looked = self._told = False
                self._deferred.discard(delivery[0])
                self.give_out(carrier)
                carrier.flush(least)
                return delivery
            if self.starved and self.window.finished:
                self._epoch.wait(None)
            if self.starved:
                self.give_out(carrier)
                carrier.flush()
                if self.starved and self.window.finished:
                    continue

            if self.window.finished:
                if not self._epoch.spec.persistent_workers:
                    carrier.close()
                raise StopIteration

            carrier.collect()

    def _gives_way(self, deferral: Deferral, began: float, carrier: Carrier) -> bool:
        """Has the next batch change turns with one that is ready, if it is late and there is one.

        began: when the loop began to wait for it.
        """
        task = self.window.due
        if self.window.finished:
            return False
        if task not in self._deferred:
            if not self._looked and time.perf_counter() - began >= self._patience:
                self.look(carrier)
            if not self._looked or self._overdue_in > 0:
                return False

        turn = self.window.turn
        number = self._numbers[turn]
        for other in self.window.ready_turns(task + FARTHEST):
            is_batch = self.window.arrived(deferral.task_in(other)).status == "batch"
            if is_batch and deferral.may_swap(number, self._numbers[other]):
                self._deferred.add(task)
                deferral.swap((turn, other), (number, self._numbers[other]))
                return True
        return False

    def is_at_end(self, carrier: Carrier) -> bool:
        """Tells whether nothing is left of the epoch. Waits for the first batch of an iterable dataset."""
        window = self.window
        if self._epoch.is_map:
            return window.finished and self._epoch.is_at_end()

        while not window.finished and not any(True for _ in window.undelivered()):
            carrier.collect()
        return window.finished

    @property
    def look_again(self) -> float | None:
        """Seconds after which `look` may find something to do, although no result has come; None: never."""
        if not self._notices:
            return None
        if not self._looked:
            return self._patience
        if self._deferral is not None and 0 < self._overdue_in < math.inf:
            return self._overdue_in
        return None

    @property
    def _patience(self) -> float:
        """Seconds after which the loop has waited for long."""
        return max(LATE, OVERDUE * self._usual / self._workers)

    @property
    def _overdue_in(self) -> float:
        """Seconds after which the next batch may change places: its worker has had time enough for it.

        Workers that make equal batches at the same time keep the loop waiting, too, but not behind the others. When
        the first result comes, all workers have begun.
        """
        begun = max(self._posted.get(self.window.due, 0.0), self._first_came)
        return begun + (self.window.ahead + SLACK) * self._usual - time.perf_counter()

    def look(self, carrier: Carrier) -> bool:
        """The next batch is late: other workers go on behind it. True: one that is there may come before it."""
        if not self._notices:
            return False
        is_news = not self._told and self._deferral is not None and self._overdue_in <= 0
        self._told |= is_news
        # Not before: on a busy machine one worker is often a little behind, and each batch ahead takes memory.
        self._looked = True
        self.window.spare = self._spare
        self.give_out(carrier)
        return is_news

    def file(self, task: int, result: Result, carrier: Carrier, nbytes: int = 0, seconds: float = 0.0) -> None:
        """Files a result: a batch of so many bytes that took so many seconds, or an exception in its place."""
        del self.out[task]
        self._first_came = min(self._first_came, time.perf_counter())
        self.window.arrive(task, result)
        self._note_cost(nbytes, seconds)
        if self._free or self._spare_bytes:
            self.give_out(carrier)

    def _note_cost(self, nbytes: int, seconds: float) -> None:
        if seconds > 0:  # otherwise, or NaN: it was not timed
            if self._usual:
                self._usual = FORGET * self._usual + (1 - FORGET) * seconds
            else:
                self._usual = seconds
        if nbytes > self._largest:
            self._largest = nbytes
            self._spare = min(self._spare_bytes // self._largest, SPARE)
            if self._looked:
                self.window.spare = self._spare

    def file_end(self, task: int, state: object, carrier: Carrier) -> None:
        """Files that the replica of a task has no data left, and its state behind the end."""
        self._epoch.ends[self.out[task][0]] = state
        self.window.exhaust(task)
        self.give_out(carrier)

    def leaves(self, task: int, replica: int, state: Any, losses: Any = ()) -> float:
        """Tells the epoch that the batch of a task leaves for the user. Returns when the task was given out."""
        turn = task if self._deferral is None else self.window.turn - 1
        self._epoch.leaves(self._numbers.pop(turn), replica, state, losses)
        return self._posted.pop(task)

    def unanswered(self, worker: int) -> list[tuple[int, int, Any]]:
        """Returns the tasks that a worker has not answered yet: number, replica, index."""
        tasks = ((task, *self.out[task]) for task in self.window.unanswered())
        return [task for task in tasks if task[1] % self._workers == worker]

    def comes_before(self, task: int, worker: int) -> bool:
        """Tells whether other workers make tasks that come before this one."""
        return any(other < task and self.out[other][0] % self._workers != worker for other in self.window.unanswered())

    def task_of(self, number: int) -> int:
        """Returns the task to which what a worker was given belongs: itself, or that of which it is a part."""
        return number

    def busy(self) -> list[int]:
        """Returns the workers that have work."""
        replicas = {self.out[task][0] for task in self.window.unanswered()}
        return sorted({replica % self._workers for replica in replicas})

    def states_behind(self, worker: int, state_of: Callable[[Result], Any]) -> dict[int, Any]:
        """Returns the states of replicas behind all that was delivered, and that has arrived from this worker."""
        arrived: dict[int, Any] = {}
        if self._epoch.keeps_states:
            for replica, result in self.window.undelivered():
                if replica % self._workers == worker:
                    arrived[replica] = state_of(result)
        return self._epoch.states_behind(arrived)


def deadline_after(timeout: float) -> float | None:
    """Returns when so many seconds will have passed, by `time.monotonic`; None: 0 seconds mean for ever."""
    if timeout > 0:
        return time.monotonic() + timeout
    return None


def check_prefetch_factor(spec: LoaderSpec) -> None:
    """Raises torch's error for a `prefetch_factor` that is not positive."""
    if (spec.prefetch_factor or 0) <= 0:
        raise AssertionError("prefetch_factor must be greater than 0 for MultiProcessingDataLoaderIter")
