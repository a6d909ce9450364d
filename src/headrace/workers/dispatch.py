"""Which worker gets which task, and which result comes next: what executors with workers hold.

Pure: no process, file or clock; whoever makes a dispatcher gives it the time.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Generic, TypeVar

from headrace.core.spans import NothingYetError
from headrace.core.stragglers import AHEAD
from headrace.epoch.epoch import Epoch
from headrace.workers.carrier import Answer, Carrier
from headrace.workers.stragglers.lateness import Lateness
from headrace.workers.stragglers.parts import Parts
from headrace.workers.stragglers.turns import Turns
from headrace.workers.tasks import Tasks
from headrace.workers.window import Window

Result = TypeVar("Result", bound=Answer)


class Dispatcher(Generic[Result]):
    """The tasks of one epoch: which are out, with which worker, and which result is delivered next.

    Tasks are numbered as the sampler gave their indices. Replica k lies with worker k modulo the number of workers.
    The carrier is an argument of each call, never kept: it holds the dispatcher, and must go as soon as it is dropped.
    """

    def __init__(
        self,
        epoch: Epoch,
        workers: int,
        limit: int,
        clock: Callable[[], float],
        *,
        fills: bool = False,
        ahead: int = AHEAD,
        spare_bytes: int = 0,
    ) -> None:
        """Args:

        limit: how many tasks may be out at a time.
        clock: tells the time in seconds.
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
        self.tasks = Tasks(self.window, workers)

        self.sampler_ended = False
        """Whether the sampler has no index left."""

        self.starved = False
        """Whether the sampler has nothing yet."""

        self._epoch = epoch
        self._take = epoch.take
        self._clock = clock
        self._fills = fills or epoch.is_live or spare_bytes > 0
        self._free = epoch.any_replica_will_do
        self._numbers: dict[int, int] = {}  # by turn, which is the task unless it gave its turn away
        self._posted: dict[int, float] = {}
        self.lateness = Lateness(workers, spare_bytes, clock)
        self._turns: Turns | None = None
        if epoch.deferral is not None:
            self._turns = Turns(epoch.deferral, self.window, self.lateness, self._numbers, self._posted, clock)
        # Whether anything follows where a batch is late.
        self._looks = spare_bytes > 0 or self._turns is not None
        self._parts: Parts | None = None

    def share(self, parts: Parts) -> None:
        """Has workers make batches together from here on. Call it before the first task is given out."""
        self._parts = parts
        self._fills = True
        self._take = parts.ahead.take

    def prime(self, carrier: Carrier) -> None:
        """Gives out the first tasks of an epoch, for which the workers are ready."""
        for _ in range(self.window.limit):
            self.give_out(carrier)
        carrier.flush()

    def await_first(self, carrier: Carrier) -> None:
        """Waits until there is a first task, of a sampler that had nothing yet."""
        while self.starved and not self.tasks.out:
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
        return range(worker, max(self._epoch.record.replicas, 1), self.tasks.workers)

    def _move_tasks(self, carrier: Carrier) -> None:
        if not self.moves_tasks:
            return

        for task in self.window.tasks_that_wait():
            replica = self.window.least_busy()
            _, index = self.tasks.out[task]
            if replica is not None and carrier.withdraw(self.tasks.worker_of(task), task):
                self.window.move(task, replica)
                self.tasks.give(task, replica, index, carrier)

    def give_out(self, carrier: Carrier) -> None:
        """Takes the next index from the sampler and gives it to a replica, if there are both."""
        if not self._fills:
            self._give_out_one(carrier)
            return

        if self._parts is not None:
            self._parts.begin_early(carrier)
        while self.window.has_room and self._give_out_one(carrier):
            pass
        if self._parts is not None and self.sampler_ended:
            self._parts.help(carrier)

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
        self._posted[task] = self._clock()
        if self._parts is None:
            self.tasks.give(task, replica, index, carrier)
        else:
            self._parts.give(task, replica, index, carrier)
        return True

    def next_delivery(self, carrier: Carrier, least: int) -> tuple[int, int, Result]:
        """Returns the next result to deliver: task, replica, result.

        Raises `StopIteration` if nothing is left; workers that are not kept end with it.

        least: tasks for which a worker is sent a message; one that wakes a worker costs more than a batch may.
        """
        began = 0.0
        while True:
            delivery = self.window.deliverable()
            if delivery is None and self._turns is not None:
                began = began or self._clock()
                if self._gives_way(self._turns, began, carrier):
                    delivery = self.window.deliverable()
            if delivery is not None:
                self.window.spare = 0
                self.lateness.is_noticed = False
                if self._turns is not None:
                    self._turns.delivered(delivery[0])
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

    def _gives_way(self, turns: Turns, began: float, carrier: Carrier) -> bool:
        """Has the next batch change turns with one that is ready, if it is late and there is one.

        began: when the loop began to wait for it.
        """
        if self.window.finished:
            return False
        lateness = self.lateness
        if not lateness.is_noticed and not turns.has_given_way and self._clock() - began >= lateness.patience:
            self.look(carrier)
        return turns.give_way()

    def prepare(self, count: int, change: Callable[[Result], Result]) -> None:
        """Changes the results that are delivered next, up to so many, as far as they have arrived."""
        for task in self.window.next_arrived(count):
            self.window.exchange(task, change(self.window.arrived(task)))

    def is_at_end(self, carrier: Carrier) -> bool:
        """Tells whether nothing is left of the epoch. Waits for the first batch of an iterable dataset."""
        window = self.window
        if self._parts is not None and self._parts.ahead:
            return False
        if self._epoch.is_map:
            return window.finished and self._epoch.is_at_end()

        while not window.finished and not any(True for _ in window.undelivered()):
            carrier.collect()
        return window.finished

    @property
    def look_again(self) -> float | None:
        """Seconds after which `look` may find something to do, although no result has come; None: never."""
        if not self._looks:
            return None
        if not self.lateness.is_noticed:
            return self.lateness.patience
        if self._parts is not None and self.window.idle():
            return self._parts.pause  # a worker may begin with a slow batch after the others have got idle
        if self._turns is not None:
            return self._turns.look_again
        return None

    def look(self, carrier: Carrier) -> bool:
        """The next batch is late: other workers go on behind it. True: one that is there may come before it."""
        is_news = False
        if self._looks:
            is_news = self._turns is not None and self._turns.is_news()
            # Not before: on a busy machine one worker is often a little behind, and each batch ahead takes memory.
            self.lateness.is_noticed = True
            self.window.spare = self.lateness.spare
            self.give_out(carrier)
        if self._parts is not None:
            self._parts.help_after_a_while(carrier)
        return is_news

    def file(self, task: int, result: Any, carrier: Carrier, nbytes: int = 0, seconds: float = 0.0) -> None:
        """Files a result: a batch of so many bytes that took so many seconds, or an exception in its place.

        Where workers make batches together, the result may be a part of one.
        """
        if self._parts is not None and self._parts.file(task, result, carrier):
            self._note_cost(nbytes, 0.0)  # a part says nothing of the time that a batch takes
            self.give_out(carrier)
            return

        del self.tasks.out[task]
        self.window.arrive(task, result)
        self._note_cost(nbytes, seconds)
        if self._free or self.lateness.spare_bytes:
            self.give_out(carrier)

    def _note_cost(self, nbytes: int, seconds: float) -> None:
        self.lateness.note(nbytes, seconds)
        if self.lateness.is_noticed:
            self.window.spare = self.lateness.spare

    def file_end(self, task: int, state: object, carrier: Carrier) -> None:
        """Files that the replica of a task has no data left, and its state behind the end."""
        self._epoch.ends[self.tasks.out[task][0]] = state
        self.window.exhaust(task)
        self.give_out(carrier)

    def leaves(self, task: int, replica: int, state: Any, losses: Any = ()) -> float:
        """Tells the epoch that the batch of a task leaves for the user. Returns when the task was given out."""
        turn = task if self._turns is None else self.window.turn - 1
        self._epoch.leaves(self._numbers.pop(turn), replica, state, losses)
        return self._posted.pop(task)

    def states_behind(self, worker: int, state_of: Callable[[Result], Any]) -> dict[int, Any]:
        """Returns the states of replicas behind all that was delivered, and that has arrived from this worker."""
        arrived: dict[int, Any] = {}
        if self._epoch.keeps_states:
            for replica, result in self.window.undelivered():
                if replica % self.tasks.workers == worker:
                    arrived[replica] = state_of(result)
        return self._epoch.states_behind(arrived)
