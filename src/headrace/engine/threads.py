"""Worker threads: the same lanes, window and results as with processes, without pickling and without copies.

For work that releases the global interpreter lock (decoding, NumPy, reading), and for Python builds without one.
"""

from __future__ import annotations

import logging
import queue
import sys
import threading
import time
import traceback
import warnings
import weakref
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

from headrace.collate.stacking import SlotCollate
from headrace.core.mark import LOAD, TASK, Mark, private_mark
from headrace.core.torch_internals import DatasetKind, compute_with_one_thread, torch_default_collate
from headrace.engine.alarm import Alarm, too_slow
from headrace.engine.casualties import Sighting
from headrace.engine.failure import Failure
from headrace.engine.lane import Begin, LaneHost, surroundings_kept
from headrace.engine.obituary import doing
from headrace.engine.watch import Watch
from headrace.engine.windowed import WindowedIterator
from headrace.faults.record import BadSample
from headrace.fetch.fetcher import Careful, plain_index, split
from headrace.observe.recording import MAIN
from headrace.observe.sizes import batch_bytes
from headrace.observe.stopwatch import NO_TIMES, Stopwatch, Times
from headrace.transport.leases import LocalMemory

LOGGER = logging.getLogger("headrace")

GRACE = 5.0
"""Seconds that threads have to finish their sample when they are stopped; then they are left alone."""


@dataclass(frozen=True)
class Outcome:
    """What became of a task: `status` is "batch", "error" (the payload is a `Failure`), "end", "replay" or "died".

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

    def make(self, epoch: int, task: int, lane: int, index: Any) -> Outcome:
        """Returns what becomes of a task."""
        self.mark[TASK] = task
        self.watch.start()
        try:
            if lane in self.failures:
                raise self.failures.pop(lane)
            made = self.host.fetch(lane, index)
            self.watch.made()
            return Outcome(epoch, task, "batch", *made, self.number, self.watch.stop())
        except StopIteration as end:
            if self.is_stream:
                self.ended.add(lane)
                return Outcome(epoch, task, "end", None, self.host.state(lane))
            return self._failed(epoch, task, lane, end)
        except SystemExit as error:
            ended = RuntimeError(f"DataLoader worker thread {lane} was to exit with code {error.code}")
            return self._failed(epoch, task, lane, ended)
        except Exception as error:  # noqa: BLE001 - raised again in the main thread
            return self._failed(epoch, task, lane, error)

    def _failed(self, epoch: int, task: int, lane: int, error: BaseException) -> Outcome:
        failure = Failure(error, f"in DataLoader worker thread {lane}", original=self.original_errors)
        return Outcome(epoch, task, "error", failure, self.host.state(lane), self.host.losses(lane))

    def _report(self, lane: int, done: int, total: int) -> None:
        self.outbox.put(Outcome(self.epoch, -1, "replay", (lane, done, total), None))


class ThreadIterator(WindowedIterator[Outcome]):
    """An epoch (with persistent workers: one epoch after the other) through worker threads.

    Batches collated by default lie in leased memory and belong to the user.

    Threads share the global random generators. So with `seed=` the first batch is made in the thread of the user, which
    waits for it anyway, and watched: if the data set draws from those generators, all batches are made there, one after
    the other, because nothing else would give the same numbers each time.
    """

    backend = "thread"

    def __init__(self, loader: Any, memory: LocalMemory) -> None:
        self._memory = memory
        self._alone: bool | None = None  # whether all batches are made in the user's thread; None: not known yet
        self._open(loader, workers=loader.num_workers)
        self._read_options(loader)
        self._gather(loader)
        self._begin()

    def _gather(self, loader: Any) -> None:
        """Makes the workers; they start with the first task that is theirs."""
        collate = self._collate_fn
        if collate is torch_default_collate:
            collate = SlotCollate(self._memory, in_worker=True)
        cargo, count = self.cargo_for_workers(loader), self._num_workers
        is_stream = self._dataset_kind == DatasetKind.Iterable
        original, outbox = loader.original_errors, queue.SimpleQueue[Outcome]()

        watched = loader.sample_timeout is not None

        def worker(number: int) -> Worker:
            mark = private_mark()
            host = LaneHost(cargo, number, count, "thread", collate, mark, watched=watched)
            return Worker(host, is_stream, original, outbox, mark=mark, number=number)

        crew = [worker(number) for number in range(count)]
        self._outbox, self._crew = outbox, crew
        self._new_worker = worker  # neither holds the iterator: it must go as soon as it is dropped
        self._watch = Watch(lambda number: crew[number].mark)
        self._threads: list[threading.Thread] = []
        self._sample_timeout: float | None = loader.sample_timeout
        self._alarm = None if loader.sample_timeout is None else Alarm(loader.sample_timeout)
        self._end = weakref.finalize(self, _stop, self._crew, self._threads)

    @property
    def _workers(self) -> list[threading.Thread]:
        """The worker threads, under the name that users of torch's iterator know."""
        return self._threads

    def _reset(self, loader: Any, first_iter: bool = False) -> None:
        self._reopen(loader)
        if not self._end.alive:
            self._gather(loader)
        self._begin()

    def _begin(self) -> None:
        begin = self.beginning()
        self._waiting: list[tuple[int, int, int, Any]] = []  # tasks for the user's thread
        if self._terms.seed is None:
            self._alone = False
        if self._alone is False:
            self._launch()
            for worker in self._crew:
                worker.inbox.put((self._epoch + 1, begin._replace(seed_globals=False)))
            self._prime()
            return
        begin = begin._replace(seed_globals=True, watch=self._alone is None)
        with surroundings_kept(random=True):
            for worker in self._crew:
                worker.begin(self._epoch + 1, begin)
        self._prime()
        if self._alone is None:
            self._find_out()

    def _find_out(self) -> None:
        """Makes the first batch here, and decides where the others are made; without one, the next epoch decides."""
        any_batch = bool(self._waiting)
        with surroundings_kept(random=True):
            if any_batch:
                _, _, lane, _ = self._waiting[0]
                worker = self._crew[lane % self._num_workers]
                self._take_in(self._make_here(worker, self._waiting.pop(0)))
            drawn = any(worker.host.drew() for worker in self._crew)
            for worker in self._crew:
                worker.host.stop_watching(seed_globals=drawn)
        if not any_batch and not drawn:
            return  # a resume at the end of an epoch
        self._alone = drawn
        if drawn:
            warnings.warn(
                f"{type(self._dataset).__name__} (or a transform, or the collate function) draws from the global "
                "random generators, which threads share: with seed= its batches are made one after the other in the "
                "main thread. Draw from headrace.rng() instead, or use backend='process'.",
                stacklevel=2,
            )
            return
        self._launch()
        waiting, self._waiting = self._waiting, []
        for message in waiting:
            self._crew[message[2] % self._num_workers].inbox.put(message)

    def _make_here(self, worker: Worker, message: tuple[int, int, int, Any]) -> Outcome:
        """Returns what becomes of a task, in the user's thread."""
        if self._alarm is None:
            return worker.make(*message)
        with self._alarm.armed(worker.mark):
            return worker.make(*message)

    def _launch(self) -> None:
        """Starts the threads, unless they run."""
        for number in range(len(self._threads), len(self._crew)):
            self._threads.append(self._thread_of(number))

    def _thread_of(self, number: int) -> threading.Thread:
        thread = threading.Thread(target=self._crew[number].run, name=f"pt_data_worker_{number}", daemon=True)
        thread.start()
        return thread

    def _post(self, worker: int, task: int, lane: int, index: Any) -> None:
        message = (self._epoch, task, lane, index)
        if self._alone is False:
            self._crew[worker].inbox.put(message)
        else:
            self._waiting.append(message)

    def _flush(self, least: int = 1) -> None:
        """Nothing waits: `_post` sends at once."""

    def _collect(self) -> None:
        if not self._end.alive:
            raise RuntimeError("this iterator has been shut down; make a new one with iter(loader)")
        if self._alone:
            with surroundings_kept(random=True):
                message = self._waiting.pop(0)
                worker = self._crew[message[2] % self._num_workers]
                outcome = self._make_here(worker, message) if message[2] not in worker.ended else None
            if outcome is not None:
                self._take_in(outcome)
            return
        deadline = time.monotonic() + self._timeout if self._timeout > 0 else None
        self._watch.begin()
        while not self._take_in_next(deadline):
            if deadline is not None and time.monotonic() >= deadline:
                raise RuntimeError(f"DataLoader timed out after {self._timeout} seconds") from RuntimeError(
                    "\n".join(self._stack_of(number) for number in self._busy())
                )
            for number in self._busy() if self._sample_timeout is not None else ():
                hangs = self._watch.hangs(number, self._sample_timeout or 0.0)
                if hangs is not None:
                    self._abandon(number, *hangs)

    def _take_in_next(self, deadline: float | None) -> bool:
        """Files the next outcome. False: none came that is to be delivered, for a while."""
        patience = None if deadline is None else max(deadline - time.monotonic(), 0)
        if self._sample_timeout is not None:
            patience = min(max(self._sample_timeout / 4, 0.01), 1.0 if patience is None else patience)
        try:
            return self._take_in(self._outbox.get(timeout=patience))
        except queue.Empty:
            return False

    def _stack_of(self, number: int) -> str:
        """Returns where a worker thread is, the innermost call last."""
        frame = sys._current_frames().get(self._threads[number].ident or 0)
        return f"worker thread {number}:\n{''.join(traceback.format_stack(frame))}" if frame is not None else ""

    def _abandon(self, number: int, seen: Sighting, after: float) -> None:
        """Leaves a thread alone that hangs, since nothing can end it, and has its work done by another one.

        The sample at which it hangs counts as bad. Raises `SampleTimeoutError` where that is not to be survived.
        """
        tasks = self._unanswered(number)
        keys = None
        if self._is_map:
            keys = {task: split(plain_index(index), batched=self._auto_collation)[0] for task, _, index in tasks}
        words, key = doing(seen, None if keys is None else keys.get(seen.task, ()), self._dataset)
        error = too_slow(after, self._stack_of(number), words)
        carefully = key is None and seen.stage == LOAD and type(self._indices_out[seen.task][1]) is not Careful
        self._crew[number].stopping.set()
        if self._policy is None or keys is None or (key is None and not carefully):
            self._threads.pop(number)  # it would be waited for
            self._shutdown_workers()
            raise error
        if key is not None:
            self._ledger.killers[repr(key)] = f"{words}: no progress for {after:g} s"
        self._ledger.restarted()
        LOGGER.warning(
            "headrace: worker thread %d hung for %g s while it was %s; it is replaced.", number, after, words
        )
        worker = self._crew[number] = self._new_worker(number)
        states = self._states_behind(number, lambda outcome: outcome.state)
        worker.inbox.put((self._epoch, self.beginning()._replace(seed_globals=False, states=states)))
        for task, lane, index in tasks:
            again = Careful(plain_index(index)) if carefully and task == seen.task else index
            self._indices_out[task] = lane, again
            worker.inbox.put((self._epoch, task, lane, again))
        self._threads[number] = self._thread_of(number)

    def _take_in(self, outcome: Outcome) -> bool:
        """Files an outcome in the window. False: it was not one to deliver."""
        if outcome.status == "died":
            self._shutdown_workers()
            raise RuntimeError("a DataLoader worker thread ended unexpectedly") from outcome.payload
        if outcome.epoch != self._epoch:
            return False
        if outcome.status == "replay":
            self._bar.report(*outcome.payload)
            return False
        if outcome.task not in self._indices_out:
            return False  # of a thread that was left alone, and came back
        if outcome.status == "end":
            self._file_end(outcome.task, outcome.state)
        else:
            self._file(outcome.task, outcome)
        return True

    def _open_result(self, task: int, lane: int, result: Outcome) -> Any:
        opening = time.perf_counter()
        self._record_delivery(task, lane, result.state, result.losses)
        if result.status == "error":
            result.payload.raise_again()
        nbytes, arrived = batch_bytes(result.payload), result.times.sent
        return self._pinned(task, result.payload, result.worker, nbytes, result.times, arrived, opening)

    def _shutdown_workers(self) -> None:
        self._end()


def _stop(crew: list[Worker], threads: list[threading.Thread]) -> None:
    """Tells the threads to end and waits for them; also called when Python exits."""
    for worker in crew:
        worker.stopping.set()
        worker.inbox.put(None)
    deadline = time.monotonic() + GRACE
    for thread in threads:
        if thread is not threading.current_thread():
            thread.join(max(deadline - time.monotonic(), 0))
