"""A worker thread's side: its lanes, what it is told, and what becomes of its tasks."""

from __future__ import annotations

import queue
import threading
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

from headrace.core.activity import TASK, Mark, private_mark
from headrace.core.signal_handlers import is_of_signal_handler
from headrace.core.torch_internals import compute_with_one_thread
from headrace.faults.bad_sample import BadSample
from headrace.telemetry.recording import MAIN
from headrace.telemetry.stopwatch import NO_TIMES, Stopwatch, Times
from headrace.workers.failure import Failure
from headrace.workers.replica import Begin, LaneHost


@dataclass(frozen=True)
class Outcome:
    """What became of a task.

    `status` is "batch", "error" (the payload is a `Failure`), "end", "replay", "begun" (the payload holds the states
    with which the worker's lanes begin) or "died".

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
    suspicious: bool = False
    """Whether the global random generators, which threads share, moved while it was made."""


@dataclass
class Worker:
    """One worker thread's side: its lanes, and what it is told."""

    host: LaneHost
    is_stream: bool
    original_errors: bool
    outbox: queue.SimpleQueue[Outcome]
    inbox: queue.SimpleQueue[Any] = field(default_factory=queue.SimpleQueue)
    stopping: threading.Event = field(default_factory=threading.Event)
    failures: dict[int, BaseException] = field(default_factory=dict)
    ended: set[int] = field(default_factory=set)
    mark: Mark = field(default_factory=private_mark)
    number: int = 0
    epoch: int = 0

    def __post_init__(self) -> None:
        self.watch = Stopwatch(self.mark)

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
            if isinstance(message, tuple) and isinstance(message[1], Begin):
                self.begin(*message)
            elif message[0] == self.epoch and message[2] not in self.ended:
                self.outbox.put(self.make(*message))
            del message

    def begin(self, epoch: int, begin: Begin) -> None:
        """Begins an epoch in every lane; what goes wrong is the outcome of the lane's first task."""
        self.epoch = epoch
        self.ended.clear()
        self.failures = self.host.begin(begin, self._report)
        if begin.tell:
            self.outbox.put(Outcome(epoch, -1, "begun", self.host.states_at_beginning(), None))

    def make(self, epoch: int, task: int, lane: int, index: Any) -> Outcome:
        """Returns what becomes of a task."""
        self.mark[TASK] = task
        self.watch.start()
        try:
            if lane in self.failures:
                raise self.failures.pop(lane)
            made = self.host.fetch(lane, index)
            self.watch.made()
            suspicious = self.host.is_suspicious(lane)
            return Outcome(epoch, task, "batch", *made, self.number, self.watch.stop(), suspicious)
        except StopIteration as end:
            if self.is_stream:
                self.ended.add(lane)
                return Outcome(epoch, task, "end", None, self.host.state(lane))
            return self._failed(epoch, task, lane, end)
        except SystemExit as error:
            ended = RuntimeError(f"DataLoader worker thread {lane} was to exit with code {error.code}")
            return self._failed(epoch, task, lane, ended)
        except Exception as error:
            if is_of_signal_handler(error):
                raise  # only in the main thread, when it makes batches itself: this one is made anew
            return self._failed(epoch, task, lane, error)

    def _failed(self, epoch: int, task: int, lane: int, error: BaseException) -> Outcome:
        failure = Failure(error, f"in DataLoader worker thread {lane}", original=self.original_errors)
        return Outcome(epoch, task, "error", failure, self.host.state(lane), self.host.losses(lane))

    def _report(self, lane: int, done: int, total: int) -> None:
        self.outbox.put(Outcome(self.epoch, -1, "replay", (lane, done, total), None))
