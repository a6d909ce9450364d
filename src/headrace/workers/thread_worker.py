"""A worker thread's side: its replicas, what it is told, and what becomes of its tasks."""

from __future__ import annotations

import queue
import threading
import time
from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from typing import Any

from headrace.core.process.activity import TASK, Activity, private_activity
from headrace.core.shared_draws import SharedDraws
from headrace.core.torch_internals import compute_with_one_thread
from headrace.epoch.start import EpochStart
from headrace.faults.bad_sample import BadSample
from headrace.telemetry.recording import MAIN
from headrace.telemetry.stopwatch import NO_TIMES, Stopwatch, Times
from headrace.workers.failure import Failure
from headrace.workers.replica import ReplicaHost


@dataclass(frozen=True)
class Outcome:
    """What became of a task.

    `status` is "batch", "error" (the payload is a `Failure`), "end", "replay", "begun" (the payload holds the states
    with which the worker's replicas begin) or "died".

    `times`: of the thread that did it.
    """

    epoch: int
    task: int
    status: str
    payload: Any
    state: Any
    losses: Sequence[BadSample] = ()
    worker: int = MAIN
    times: Times = NO_TIMES
    moved_since: float | None = None
    """With `seed=`: when it was begun, if generators that threads share have moved since; None: they have not."""
    nbytes: int = -1
    """Of the batch, if somebody has counted them."""


@dataclass
class Worker:
    """One worker thread's side: its replicas, and what it is told."""

    host: ReplicaHost
    is_stream: bool
    is_seeded: bool
    original_errors: bool
    outbox: queue.SimpleQueue[Outcome]
    inbox: queue.SimpleQueue[Any] = field(default_factory=queue.SimpleQueue)
    stopping: threading.Event = field(default_factory=threading.Event)
    failures: dict[int, BaseException] = field(default_factory=dict)
    ended: set[int] = field(default_factory=set)
    activity: Activity = field(default_factory=private_activity)
    number: int = 0
    epoch: int = 0

    def __post_init__(self) -> None:
        self.watch = Stopwatch(self.activity)
        self._draws = SharedDraws() if self.is_seeded else None
        self._drew_at_beginning = False

    def run(self) -> None:
        """The life of the thread."""
        try:
            compute_with_one_thread()
            self._serve()
        except BaseException as error:  # noqa: BLE001 - a thread must not end in silence while somebody waits for it
            self.outbox.put(Outcome(self.epoch, -1, "died", error, None))

    def _serve(self) -> None:
        """Does what it is told, in order, until it is told to stop."""
        while (message := self.inbox.get()) is not None:
            if self.stopping.is_set():
                return
            if isinstance(message, tuple) and isinstance(message[1], EpochStart):
                self.begin(*message)
            elif message[0] == self.epoch and message[2] not in self.ended:
                self.outbox.put(self.make(*message))
            del message

    def begin(self, epoch: int, begin: EpochStart) -> None:
        """Begins an epoch in every replica; what goes wrong is the outcome of the replica's first task."""
        self.epoch = epoch
        self.ended.clear()
        self.failures = self.host.begin(begin, self._report)
        self._drew_at_beginning = self.host.drew()
        self.host.stop_watching()
        if begin.tell:
            self.outbox.put(Outcome(epoch, -1, "begun", self.host.states_at_beginning(), None))

    def make(self, epoch: int, task: int, replica: int, index: object) -> Outcome:
        """Returns what becomes of a task."""
        if self._draws is None:
            return self._make(epoch, task, replica, index)

        began = time.perf_counter()
        self._draws.begin()
        outcome = self._make(epoch, task, replica, index)
        if self._draws.happened() or self.host.drew_from_own(replica) or self._drew_at_beginning:
            outcome = replace(outcome, moved_since=began)
        return outcome

    def _make(self, epoch: int, task: int, replica: int, index: object) -> Outcome:
        self.activity[TASK] = task
        self.watch.start()
        try:
            if replica in self.failures:
                raise self.failures.pop(replica)
            made = self.host.fetch(replica, index)
            self.watch.made()
            return Outcome(epoch, task, "batch", *made, self.number, self.watch.stop())
        except StopIteration as end:
            if self.is_stream:
                self.ended.add(replica)
                return Outcome(epoch, task, "end", None, self.host.state(replica))
            return self._failed(epoch, task, replica, end)
        except SystemExit as error:
            ended = RuntimeError(f"DataLoader worker thread {replica} was to exit with code {error.code}")
            return self._failed(epoch, task, replica, ended)
        except Exception as error:  # noqa: BLE001 - raised again in the user's thread
            return self._failed(epoch, task, replica, error)

    def _failed(self, epoch: int, task: int, replica: int, error: BaseException) -> Outcome:
        failure = Failure(error, f"in DataLoader worker thread {replica}", original=self.original_errors)
        return Outcome(epoch, task, "error", failure, self.host.state(replica), self.host.losses(replica))

    def _report(self, replica: int, done: int, total: int) -> None:
        self.outbox.put(Outcome(self.epoch, -1, "replay", (replica, done, total), None))
