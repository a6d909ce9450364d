"""Worker threads: the same replicas, window and results as with processes, without pickling and without copies.

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
from collections.abc import Callable
from typing import Any, Literal

from headrace.batches.collate import SlotCollate
from headrace.batches.index import Careful, plain_index, split
from headrace.core.process.activity import LOAD, private_activity
from headrace.core.process.interruptible_wait import slices
from headrace.core.process.thread_exit import leave_daemon_thread
from headrace.core.torch_internals import torch_default_collate
from headrace.epoch.epoch import Epoch
from headrace.epoch.spec import LoaderSpec
from headrace.shared_memory.leases import LocalMemory
from headrace.telemetry.batch_size import batch_bytes
from headrace.telemetry.replay_bar import ReplayBar
from headrace.telemetry.timings import timings_of_worker
from headrace.workers.crash_report import doing
from headrace.workers.dispatch import Dispatcher, check_prefetch_factor, deadline_after
from headrace.workers.heartbeat import Watch
from headrace.workers.protocol import BatchResult
from headrace.workers.replica import ReplicaHost, surroundings_kept
from headrace.workers.restart_policy import Sighting
from headrace.workers.sample_timer import SampleTimer, too_slow
from headrace.workers.thread_worker import Outcome, Worker
from headrace.workers.worker_spec import WorkerSpec

LOGGER = logging.getLogger("headrace")

GRACE = 5.0
"""Seconds that threads have to finish their sample when they are stopped; then they are left alone."""


ALWAYS_SUSPECTED = 16
"""Batches during which generators moved that are all looked into; of those after them the 32nd, 64th, 128th, ...."""


class ThreadExecutor:
    """Makes batches in worker threads.

    Batches collated by default lie in leased memory and belong to the user.

    Threads share the global random generators. So with `seed=` the first batch is made in the thread of the user, which
    waits for it anyway, and watched: if the dataset draws from those generators, all batches are made there, one after
    the other, because nothing else would give the same numbers each time.

    A dataset may begin to draw later. So a thread notes whether the generators moved while it made a batch. That may
    be the user's own doing, so such a batch is made once more in the user's thread, watched: each of the first few,
    then fewer and fewer.
    """

    backend: Literal["thread"] = "thread"
    scales = False

    def __init__(self, spec: LoaderSpec, memory: LocalMemory) -> None:
        """memory: where default collation writes."""
        check_prefetch_factor(spec)
        self.replicas = spec.num_workers
        self.num_workers = spec.num_workers
        self._memory = memory
        self._generation = -1
        self._suspicious = 0
        self._alone: bool | None = None  # whether all batches are made in the user's thread; None: not known yet
        self._end: weakref.finalize[Any, Any] | None = None

    def start(self, epoch: Epoch) -> None:
        self._epoch = epoch
        self._timeout = epoch.spec.timeout
        if self._end is None or not self._end.alive:
            self._gather()
        self._begin()

    def _gather(self) -> None:
        """Makes the workers; they start with the first task that is theirs."""
        spec = self._epoch.spec
        collate: Callable[[Any], Any] = spec.collate_fn
        if collate is torch_default_collate:
            collate = SlotCollate(self._memory, in_worker=True)

        worker_spec = WorkerSpec.for_workers(self._epoch)
        count = self.num_workers
        is_stream = not spec.is_map
        original = spec.original_errors
        outbox = queue.SimpleQueue[Outcome]()
        watched = spec.sample_timeout is not None

        def worker(number: int) -> Worker:
            activity = private_activity()
            host = ReplicaHost(worker_spec, number, count, "thread", collate, activity, watched=watched)
            return Worker(host, is_stream, original, outbox, activity=activity, number=number)

        workers = [worker(number) for number in range(count)]
        self._outbox = outbox
        self._workers_here = workers
        self._new_worker = worker  # neither holds the executor: it must go as soon as it is dropped
        self._watch = Watch(lambda number: workers[number].activity)
        self._threads: list[threading.Thread] = []
        self._sample_timeout: float | None = spec.sample_timeout
        self._timer = None
        if spec.sample_timeout is not None:
            self._timer = SampleTimer(spec.sample_timeout)

        # It runs when the executor is dropped and when Python exits. It must not hold the executor itself.
        self._end = weakref.finalize(self, _stop, self._workers_here, self._threads)
        self._was_shut_down = False

    @property
    def workers(self) -> list[threading.Thread]:
        """The worker threads."""
        return self._threads

    def _begin(self) -> None:
        epoch = self._epoch
        self._indices_made: dict[int, Any] = {}  # of suspicious tasks that are not delivered yet
        self._waiting: list[tuple[int, int, int, Any]] = []  # tasks for the user's thread
        if epoch.terms.seed is None:
            self._alone = False

        self._generation += 1
        begin = epoch.beginning()
        if self._alone is False:
            self._launch()
            for worker in self._workers_here:
                worker.inbox.put((self._generation, begin._replace(seed_globals=False)))
            self._prime()
            return

        begin = begin._replace(seed_globals=True, watch=self._alone is None, unseeded_first=False)
        with surroundings_kept(random=True):
            for worker in self._workers_here:
                worker.begin(self._generation, begin)

        self._prime()
        if self._alone is None:
            self._find_out()

    def _prime(self) -> None:
        """Gives out the first tasks, and waits until it is known how the replicas begin."""
        epoch = self._epoch
        spec = epoch.spec
        limit = self.num_workers * (spec.prefetch_factor or 0)
        self._bar = ReplayBar(spec.dataset)
        self._dispatcher: Dispatcher[Outcome] = Dispatcher(epoch, self.num_workers, limit)
        self._least = max((spec.prefetch_factor or 0) // 2, 1)
        self._dispatcher.prime(self)
        self._await_beginnings()

    def _find_out(self) -> None:
        """Makes the first batch here, and decides where the others are made; without one, the next epoch decides."""
        self._dispatcher.await_first(self)
        any_batch = bool(self._waiting)
        with surroundings_kept(random=True):
            if any_batch:
                _, _, replica, _ = self._waiting[0]
                worker = self._workers_here[replica % self.num_workers]
                self._take_in(self._make_here(worker, self._waiting.pop(0)))

            drawn = any(worker.host.drew() for worker in self._workers_here)
            for worker in self._workers_here:
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
            self._workers_here[message[2] % self.num_workers].inbox.put(message)

    def _warn_of_draws(self, consequence: str) -> None:
        name = type(self._epoch.spec.dataset).__name__
        warnings.warn(
            f"{name} (or a transform, the collate function, or another thread of your program) draws from the global "
            f"random generators, which threads share: with seed= {consequence}. "
            "Draw from headrace.rng() instead, or use backend='process'.",
            stacklevel=2,
        )

    def _looked_into(self, task: int, replica: int, outcome: Outcome) -> Outcome:
        """Returns the outcome of a suspicious task, made again if the dataset has begun to draw random numbers."""
        message = (self._generation, task, replica, self._indices_made[task])
        if not self._alone:
            self._suspicious += 1
            rarely = self._suspicious & (self._suspicious - 1)  # but for powers of two
            if self._suspicious > ALWAYS_SUSPECTED and rarely:
                return outcome
            if not self._draws_in(message):
                return outcome  # it was the user's loop that drew
            self._go_on_alone()

        with surroundings_kept(random=True):
            return self._make_here(self._workers_here[replica % self.num_workers], message)

    def _draws_in(self, message: tuple[int, int, int, Any]) -> bool:
        """Makes a batch in the user's thread, and tells whether that draws from the global generators."""
        replica = message[2]
        witness = self._new_worker(replica % self.num_workers)
        with surroundings_kept(random=False):
            witness.begin(self._generation, self._epoch.beginning()._replace(seed_globals=False, unseeded_first=True))
            return self._make_here(witness, message).suspicious

    def _go_on_alone(self) -> None:
        """Ends the threads; what they have made and what they have not goes to the user's thread, in its order."""
        self._warn_of_draws(
            "its batches are made one after the other in the main thread from here on, and earlier ones may hold "
            "numbers that are not those of the seed"
        )
        self._alone = True
        _stop(self._workers_here, self._threads)
        self._threads.clear()
        self._outbox = queue.SimpleQueue[Outcome]()
        begin = self._epoch.beginning()._replace(unseeded_first=False)
        for number in range(len(self._workers_here)):
            self._workers_here[number] = self._new_worker(number)

        with surroundings_kept(random=True):
            for worker in self._workers_here:
                worker.begin(self._generation, begin)

        for number in range(len(self._workers_here)):
            self._waiting += [(self._generation, *task) for task in self._dispatcher.unanswered(number)]

        self._waiting.sort(key=lambda message: message[1])

    def _make_here(self, worker: Worker, message: tuple[int, int, int, Any]) -> Outcome:
        """Returns what becomes of a task, in the user's thread."""
        if self._timer is None:
            return worker.make(*message)
        with self._timer.armed(worker.activity):
            return worker.make(*message)

    def _launch(self) -> None:
        """Starts the threads, unless they run."""
        for number in range(len(self._threads), len(self._workers_here)):
            self._threads.append(self._thread_of(number))

    def _thread_of(self, number: int) -> threading.Thread:
        thread = threading.Thread(target=self._workers_here[number].run, name=f"pt_data_worker_{number}", daemon=True)
        thread.start()
        return thread

    def submit(self, worker: int, task: int, replica: int, index: object) -> None:
        message = (self._generation, task, replica, index)
        if self._alone is False:
            self._workers_here[worker].inbox.put(message)
        else:
            self._waiting.append(message)

    def withdraw(self, worker: int, task: int) -> bool:
        """See `Carrier.withdraw`. `submit` sends at once."""
        return False

    def flush(self, least: int = 1) -> None:
        """Does nothing: `submit` sends at once."""

    def collect(self) -> None:
        if self._end is None or not self._end.alive:
            if not self._was_shut_down:  # Python exits, and has called the finalizer
                leave_daemon_thread()
            raise RuntimeError("this iterator has been shut down; make a new one with iter(loader)")

        if self._alone:
            with surroundings_kept(random=True):
                message = self._waiting[0]
                worker = self._workers_here[message[2] % self.num_workers]
                if message[2] not in worker.ended:
                    outcome = self._make_here(worker, message)
                else:
                    outcome = None

            if outcome is not None:
                self._take_in(outcome)
            self._waiting.remove(message)  # only now: a signal handler may have raised meanwhile
            return

        deadline = deadline_after(self._timeout)
        self._watch.begin()
        while not self._take_in_next(deadline):
            if self._dispatcher.look(self):
                return
            if deadline is not None and time.monotonic() >= deadline:
                raise RuntimeError(f"DataLoader timed out after {self._timeout} seconds") from RuntimeError(
                    "\n".join(self._stack_of(number) for number in self._dispatcher.busy())
                )
            self._abandon_those_that_hang()

    def _await_beginnings(self) -> None:
        """Waits until all replicas have told how they begin, or until it is certain that one will not."""
        deadline = deadline_after(self._timeout)
        self._watch.begin()
        while self._epoch.untold and (deadline is None or time.monotonic() < deadline):
            if not self._take_in_next(deadline):
                self._abandon_those_that_hang()

    def _abandon_those_that_hang(self) -> None:
        """Has the work of threads done by others that take longer than `sample_timeout`."""
        if self._sample_timeout is None:
            return

        for number in self._dispatcher.busy():
            hangs = self._watch.hangs(number, self._sample_timeout)
            if hangs is not None:
                self._abandon(number, *hangs)

    def _take_in_next(self, deadline: float | None) -> bool:
        """Files the next outcome. False: none came that is to be delivered, for a while."""
        left = None if deadline is None else max(deadline - time.monotonic(), 0)
        hang = None if self._sample_timeout is None else min(max(self._sample_timeout / 4, 0.01), 1.0)
        waits = [one for one in (left, hang, self._dispatcher.look_again) if one is not None]
        for seconds in slices(min(waits, default=None)):
            try:
                return self._take_in(self._outbox.get(timeout=seconds))
            except queue.Empty:
                continue

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
        tasks = self._dispatcher.unanswered(number)
        keys = None
        if self._epoch.is_map:
            batched = self._epoch.spec.batched
            keys = {task: split(plain_index(index), batched=batched)[0] for task, _, index in tasks}

        words, key = doing(seen, None if keys is None else keys.get(seen.task, ()), self._epoch.spec.dataset)
        error = too_slow(after, self._stack_of(number), words)
        carefully = key is None and seen.stage == LOAD and type(self._dispatcher.out[seen.task][1]) is not Careful
        self._workers_here[number].stopping.set()
        if self._epoch.policy is None or keys is None or (key is None and not carefully):
            self._threads.pop(number)  # it would be waited for
            self.close()
            raise error

        if key is not None:
            self._epoch.fault_counter.killers[repr(key)] = f"{words}: no progress for {after:g} s"

        self._epoch.fault_counter.restarted()
        LOGGER.warning(
            "headrace: worker thread %d hung for %g s while it was %s; it is replaced.", number, after, words
        )
        worker = self._workers_here[number] = self._new_worker(number)
        states = self._dispatcher.states_behind(number, lambda outcome: outcome.state)
        begin = self._epoch.beginning()._replace(seed_globals=False, states=states)
        worker.inbox.put((self._generation, begin))
        for task, replica, index in tasks:
            if carefully and task == seen.task:
                again = Careful(plain_index(index))
            else:
                again = index

            self._dispatcher.out[task] = replica, again
            worker.inbox.put((self._generation, task, replica, again))

        self._threads[number] = self._thread_of(number)

    def _take_in(self, outcome: Outcome) -> bool:
        """Files an outcome in the window. False: it was not one to deliver."""
        if outcome.status == "died":
            self.close()
            raise RuntimeError("a DataLoader worker thread ended unexpectedly") from outcome.payload

        if outcome.epoch != self._generation:
            return False
        if outcome.status == "replay":
            self._bar.report(*outcome.payload)
            return False

        if outcome.status == "begun":
            self._epoch.note_beginnings(outcome.payload)
            return False

        if outcome.task not in self._dispatcher.out:
            return False  # of a thread that was left alone, and came back

        if outcome.status == "end":
            self._dispatcher.file_end(outcome.task, outcome.state, self)
        else:
            if outcome.suspicious:
                self._indices_made[outcome.task] = self._dispatcher.out[outcome.task][1]
            self._dispatcher.file(outcome.task, outcome, self, seconds=outcome.times.making)

        return True

    def next_result(self) -> BatchResult:
        task, replica, result = self._dispatcher.next_delivery(self, self._least)
        opening = time.perf_counter()
        if result.suspicious and self._epoch.terms.seed is not None and self._epoch.is_map:
            result = self._looked_into(task, replica, result)

        self._indices_made.pop(task, None)
        posted = self._dispatcher.leaves(task, replica, result.state, result.losses)
        if result.status == "error":
            result.payload.raise_again()

        batch = result.payload
        nbytes = batch_bytes(batch)
        times = result.times
        opened = time.perf_counter() - opening
        return batch, timings_of_worker(result.worker, nbytes, posted, times, times.sent, opened)

    def is_at_end(self) -> bool:
        return self._dispatcher.is_at_end(self)

    def close(self) -> None:
        if self._end is not None:
            self._was_shut_down = True
            self._end()


def _stop(workers: list[Worker], threads: list[threading.Thread]) -> None:
    """Tells the threads to end and waits for them; also called when Python exits."""
    for worker in workers:
        worker.stopping.set()
        worker.inbox.put(None)

    deadline = time.monotonic() + GRACE
    for thread in threads:
        if thread is not threading.current_thread():
            thread.join(max(deadline - time.monotonic(), 0))
