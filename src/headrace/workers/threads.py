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
from typing import Any

from headrace.batches.collate import SlotCollate
from headrace.batches.fetch_map import Careful, plain_index, split
from headrace.core.activity import LOAD, private_mark
from headrace.core.leaving import leave_daemon_thread
from headrace.core.torch_internals import DatasetKind, torch_default_collate
from headrace.shared_memory.leases import LocalMemory
from headrace.telemetry.batch_size import batch_bytes
from headrace.workers.crash_report import doing
from headrace.workers.dispatch import WindowedIterator
from headrace.workers.heartbeat import Watch
from headrace.workers.replica import LaneHost, surroundings_kept
from headrace.workers.restart_policy import Sighting
from headrace.workers.sample_timer import Alarm, too_slow
from headrace.workers.thread_worker import Outcome, Worker

LOGGER = logging.getLogger("headrace")

GRACE = 5.0
"""Seconds that threads have to finish their sample when they are stopped; then they are left alone."""


ALWAYS_SUSPECTED = 16
"""Batches during which generators moved that are all looked into; of those after them the 32nd, 64th, 128th, ...."""


class ThreadIterator(WindowedIterator[Outcome]):
    """An epoch (with persistent workers: one epoch after the other) through worker threads.

    Batches collated by default lie in leased memory and belong to the user.

    Threads share the global random generators. So with `seed=` the first batch is made in the thread of the user, which
    waits for it anyway, and watched: if the dataset draws from those generators, all batches are made there, one after
    the other, because nothing else would give the same numbers each time.

    A dataset may begin to draw later. So a thread notes whether the generators moved while it made a batch. That may
    be the user's own doing, so such a batch is made once more in the user's thread, watched: each of the first few,
    then fewer and fewer.
    """

    backend = "thread"

    def __init__(self, loader: Any, memory: LocalMemory) -> None:
        self._memory = memory
        self._suspicious = 0
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

        cargo = self.cargo_for_workers(loader)
        count = self._num_workers
        is_stream = self._dataset_kind == DatasetKind.Iterable
        original = loader.original_errors
        outbox = queue.SimpleQueue[Outcome]()

        watched = loader.sample_timeout is not None

        def worker(number: int) -> Worker:
            mark = private_mark()
            host = LaneHost(cargo, number, count, "thread", collate, mark, watched=watched)
            return Worker(host, is_stream, original, outbox, mark=mark, number=number)

        crew = [worker(number) for number in range(count)]
        self._outbox = outbox
        self._crew = crew
        self._new_worker = worker  # neither holds the iterator: it must go as soon as it is dropped
        self._watch = Watch(lambda number: crew[number].mark)
        self._threads: list[threading.Thread] = []
        self._sample_timeout: float | None = loader.sample_timeout
        if loader.sample_timeout is None:
            self._alarm = None
        else:
            self._alarm = Alarm(loader.sample_timeout)

        self._end = weakref.finalize(self, _stop, self._crew, self._threads)
        self._was_shut_down = False

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
        self._indices_made: dict[int, Any] = {}  # of suspicious tasks that are not delivered yet
        self._waiting: list[tuple[int, int, int, Any]] = []  # tasks for the user's thread
        if self._terms.seed is None:
            self._alone = False

        if self._alone is False:
            self._launch()
            for worker in self._crew:
                worker.inbox.put((self._epoch + 1, begin._replace(seed_globals=False)))
            self._prime()
            return

        begin = begin._replace(seed_globals=True, watch=self._alone is None, unseeded_first=False)
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
            self._warn_of_draws("all its batches are made one after the other in the main thread")
            return

        self._launch()
        waiting = self._waiting
        self._waiting = []
        for message in waiting:
            self._crew[message[2] % self._num_workers].inbox.put(message)

    def _warn_of_draws(self, consequence: str) -> None:
        warnings.warn(
            f"{type(self._dataset).__name__} (or a transform, or the collate function) draws from the global "
            f"random generators, which threads share: with seed= {consequence}. "
            "Draw from headrace.rng() instead, or use backend='process'.",
            stacklevel=2,
        )

    def _looked_into(self, task: int, lane: int, outcome: Outcome) -> Outcome:
        """Returns the outcome of a suspicious task, made again if the dataset has begun to draw random numbers."""
        message = (self._epoch, task, lane, self._indices_made[task])
        if not self._alone:
            self._suspicious += 1
            rarely = self._suspicious & (self._suspicious - 1)  # but for powers of two
            if self._suspicious > ALWAYS_SUSPECTED and rarely:
                return outcome
            if not self._draws_in(message):
                return outcome  # it was the user's loop that drew
            self._go_on_alone()

        with surroundings_kept(random=True):
            return self._make_here(self._crew[lane % self._num_workers], message)

    def _draws_in(self, message: tuple[int, int, int, Any]) -> bool:
        """Makes a batch in the user's thread, and tells whether that draws from the global generators."""
        lane = message[2]
        witness = self._new_worker(lane % self._num_workers)
        with surroundings_kept(random=False):
            witness.begin(self._epoch, self.beginning()._replace(seed_globals=False, unseeded_first=True))
            return self._make_here(witness, message).suspicious

    def _go_on_alone(self) -> None:
        """Ends the threads; what they have made and what they have not goes to the user's thread, in its order."""
        self._warn_of_draws(
            "its batches are made one after the other in the main thread from here on, and earlier ones may hold "
            "numbers that are not those of the seed"
        )
        self._alone = True
        _stop(self._crew, self._threads)
        self._threads.clear()
        self._outbox = queue.SimpleQueue[Outcome]()
        begin = self.beginning()._replace(unseeded_first=False)
        for number in range(len(self._crew)):
            self._crew[number] = self._new_worker(number)

        with surroundings_kept(random=True):
            for worker in self._crew:
                worker.begin(self._epoch, begin)

        for number in range(len(self._crew)):
            self._waiting += [(self._epoch, *task) for task in self._unanswered(number)]

        self._waiting.sort(key=lambda message: message[1])

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
            if not self._was_shut_down:  # Python exits, and has called the finalizer
                leave_daemon_thread()
            raise RuntimeError("this iterator has been shut down; make a new one with iter(loader)")

        if self._alone:
            with surroundings_kept(random=True):
                message = self._waiting[0]
                worker = self._crew[message[2] % self._num_workers]
                if message[2] not in worker.ended:
                    outcome = self._make_here(worker, message)
                else:
                    outcome = None

            if outcome is not None:
                self._take_in(outcome)
            self._waiting.remove(message)  # only now: a signal handler may have raised meanwhile
            return

        if self._timeout > 0:
            deadline = time.monotonic() + self._timeout
        else:
            deadline = None

        self._watch.begin()
        while not self._take_in_next(deadline):
            if deadline is not None and time.monotonic() >= deadline:
                raise RuntimeError(f"DataLoader timed out after {self._timeout} seconds") from RuntimeError(
                    "\n".join(self._stack_of(number) for number in self._busy())
                )
            self._abandon_those_that_hang()

    def _await_beginnings(self) -> None:
        """See `WindowedIterator._await_beginnings`."""
        if self._timeout > 0:
            deadline = time.monotonic() + self._timeout
        else:
            deadline = None

        self._watch.begin()
        while self._untold and (deadline is None or time.monotonic() < deadline):
            if not self._take_in_next(deadline):
                self._abandon_those_that_hang()

    def _abandon_those_that_hang(self) -> None:
        """Has the work of threads done by others that take longer than `sample_timeout`."""
        if self._sample_timeout is None:
            return

        for number in self._busy():
            hangs = self._watch.hangs(number, self._sample_timeout)
            if hangs is not None:
                self._abandon(number, *hangs)

    def _take_in_next(self, deadline: float | None) -> bool:
        """Files the next outcome. False: none came that is to be delivered, for a while."""
        if deadline is None:
            patience = None
        else:
            patience = max(deadline - time.monotonic(), 0)

        if self._sample_timeout is not None:
            patience = min(max(self._sample_timeout / 4, 0.01), 1.0 if patience is None else patience)

        try:
            return self._take_in(self._outbox.get(timeout=patience))
        except queue.Empty:
            return False

    def _stack_of(self, number: int) -> str:
        """Returns where a worker thread is, the innermost call last."""
        frame = sys._current_frames().get(self._threads[number].ident or 0)
        if frame is not None:
            return f"worker thread {number}:\n{''.join(traceback.format_stack(frame))}"
        return ""

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
            if carefully and task == seen.task:
                again = Careful(plain_index(index))
            else:
                again = index

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

        if outcome.status == "begun":
            self.note_beginnings(outcome.payload)
            return False

        if outcome.task not in self._indices_out:
            return False  # of a thread that was left alone, and came back

        if outcome.status == "end":
            self._file_end(outcome.task, outcome.state)
        else:
            if outcome.suspicious:
                self._indices_made[outcome.task] = self._indices_out[outcome.task][1]
            self._file(outcome.task, outcome)

        return True

    def _open_result(self, task: int, lane: int, result: Outcome) -> Any:
        opening = time.perf_counter()
        if result.suspicious and self._terms.seed is not None and self._is_map:
            result = self._looked_into(task, lane, result)

        self._indices_made.pop(task, None)
        self._record_delivery(task, lane, result.state, result.losses)
        if result.status == "error":
            result.payload.raise_again()

        nbytes = batch_bytes(result.payload)
        arrived = result.times.sent
        return self._pinned(task, result.payload, result.worker, nbytes, result.times, arrived, opening)

    def _shutdown_workers(self) -> None:
        self._was_shut_down = True
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
