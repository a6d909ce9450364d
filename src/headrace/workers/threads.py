"""Worker threads: the same replicas, window and results as with processes, without pickling and without copies.

For work that releases the global interpreter lock (decoding, NumPy, reading), and for Python builds without one.
"""

from __future__ import annotations

import contextlib
import logging
import queue
import sys
import threading
import time
import traceback
import weakref
from collections.abc import Callable
from dataclasses import replace
from typing import Any, Literal

from headrace.batches.collate import SlotCollate
from headrace.batches.index import Careful
from headrace.core.batch_memory import BatchMemory
from headrace.core.errors import UsageError, warn
from headrace.core.process.activity import LOAD, private_activity
from headrace.core.process.interruptible_wait import slices
from headrace.core.process.thread_exit import leave_daemon_thread
from headrace.core.torch_internals import torch_default_collate
from headrace.epoch.epoch import Epoch
from headrace.epoch.spec import LoaderSpec
from headrace.telemetry.batch_size import batch_bytes
from headrace.telemetry.timings import timings_of_worker
from headrace.workers.answers import (
    REPORTS,
    OwningProcess,
    Reports,
    deadline_after,
    give_again,
    keys_of,
    seconds_left,
    shortest,
    timed_out,
)
from headrace.workers.crash_report import doing
from headrace.workers.dispatch import Dispatcher
from headrace.workers.heartbeat import Watch
from headrace.workers.protocol import BatchResult
from headrace.workers.replica import ReplicaHost, surroundings_kept
from headrace.workers.restart_policy import Sighting
from headrace.workers.sample_timer import too_slow
from headrace.workers.scale import asked_scale
from headrace.workers.stragglers.prefetch import may_draw_early
from headrace.workers.thread_worker import Outcome, Worker
from headrace.workers.worker_spec import WorkerSpec

LOGGER = logging.getLogger("headrace")

GRACE = 5.0
"""Seconds that threads have to finish their sample when they are stopped; then they are left alone."""

FIX = 'draw from headrace.rng() in its place, or use backend="process"'
"""What to do about a dataset that draws from generators that threads share."""


class ThreadExecutor:
    """Makes batches in worker threads.

    Batches collated by default lie in leased memory and belong to the user.

    Threads share the global random generators. So with `seed=` a dataset that draws from them is an error: nobody
    could say whose numbers a sample gets. Each thread looks whether they have moved while it made a batch. If the loop
    waited here all that time, the dataset has drawn. Otherwise the loop itself may have, and a warning says so, once.
    """

    backend: Literal["thread"] = "thread"
    scales = False

    def __init__(self, spec: LoaderSpec, memory: BatchMemory) -> None:
        """memory: where default collation writes."""
        self._scale = asked_scale(spec)
        self.replicas = spec.num_workers
        self.num_workers = spec.num_workers
        self._memory = memory
        self._generation = -1
        self._owner = OwningProcess()
        self._waits_since = 0.0  # when the loop came here last
        self._drew = False  # whether the dataset draws from generators that threads share
        self._may_draw = False  # whether it, or the loop itself, drew while a batch was made
        self._warned = False
        self._end: weakref.finalize[Any, Any] | None = None

    def start(self, epoch: Epoch) -> None:
        self._waits_since = time.perf_counter()
        self._epoch = epoch
        self._timeout = epoch.spec.timeout
        self._generation += 1
        self._drew = False
        self._may_draw = False
        if self._end is None or not self._end.alive:
            self._gather()
        self._begin()
        if epoch.terms.seed is not None:
            self._await_first()

    def _gather(self) -> None:
        """Makes the workers; their threads start when they have begun an epoch."""
        spec = self._epoch.spec
        collate: Callable[[Any], Any] = spec.collate_fn
        if collate is torch_default_collate:
            collate = SlotCollate(self._memory, in_worker=True)

        worker_spec = WorkerSpec.for_workers(self._epoch)
        count = self.num_workers
        is_stream = not spec.is_map
        is_seeded = self._epoch.terms.seed is not None
        original = spec.original_errors
        outbox = queue.SimpleQueue[Outcome]()
        watched = spec.sample_timeout is not None

        def worker(number: int) -> Worker:
            activity = private_activity()
            host = ReplicaHost(worker_spec, number, count, "thread", collate, activity, watched=watched)
            return Worker(host, is_stream, is_seeded, original, outbox, activity=activity, number=number)

        workers = [worker(number) for number in range(count)]
        self._outbox = outbox
        self._workers_here = workers
        self._new_worker = worker  # neither holds the executor: it must go as soon as it is dropped
        self._watch = Watch(lambda number: workers[number].activity)
        self._threads: list[threading.Thread] = []
        self._sample_timeout: float | None = spec.sample_timeout

        # It runs when the executor is dropped and when Python exits. It must not hold the executor itself.
        self._end = weakref.finalize(self, _stop, self._workers_here, self._threads)
        self._was_shut_down = False

    @property
    def is_here(self) -> bool:
        return self._owner.is_here

    @property
    def workers(self) -> list[threading.Thread]:
        """The worker threads."""
        return self._threads

    def _begin(self) -> None:
        """Has the workers begin the epoch, and gives out the first tasks."""
        epoch = self._epoch
        is_seeded = epoch.terms.seed is not None
        begin = epoch.beginning()._replace(watch=is_seeded)
        if is_seeded and not self._threads:
            # Here, since a `worker_init_fn` may seed the global generators: no batch is being made meanwhile.
            with surroundings_kept(random=True):
                for worker in self._workers_here:
                    worker.begin(self._generation, begin)
        else:
            for worker in self._workers_here:
                worker.inbox.put((self._generation, begin))

        for number in range(len(self._threads), len(self._workers_here)):
            self._threads.append(self._thread_of(number))

        # A sampler of the user's may draw, too, when it is asked for an index. So no batch is begun before the first
        # indices are there.
        self._held: list[tuple[int, Any]] | None = []
        self._asks_user_code = epoch.is_map and not may_draw_early(epoch.spec)
        self._reports = Reports(epoch)
        self._dispatcher: Dispatcher[Outcome] = Dispatcher(
            epoch, self.num_workers, self._scale.limit, time.perf_counter
        )
        self._dispatcher.prime(self)
        self._watch.begin()
        self._reports.await_beginnings(self._timeout, self._receive_beginnings)

    def _await_first(self) -> None:
        """Waits for the first batch, so that a dataset that draws is found out before the loop goes on."""
        dispatcher = self._dispatcher
        dispatcher.await_first(self)
        while not dispatcher.window.finished and not any(True for _ in dispatcher.window.undelivered()):
            self.collect()

    def _thread_of(self, number: int) -> threading.Thread:
        thread = threading.Thread(target=self._workers_here[number].run, name=f"pt_data_worker_{number}", daemon=True)
        thread.start()
        return thread

    # -- what the dispatcher asks of its carrier -----------------------------------------------------------------------

    def submit(self, worker: int, task: int, replica: int, index: object) -> None:
        message = (self._generation, task, replica, index)
        if self._held is not None:
            self._held.append((worker, message))
            return
        if self._asks_user_code:
            self._waits_since = time.perf_counter()
        self._workers_here[worker].inbox.put(message)

    def withdraw(self, worker: int, task: int) -> bool:
        """See `Carrier.withdraw`. `submit` sends at once."""
        return False

    def flush(self, least: int = 1) -> None:
        """See `Carrier.flush`. `submit` sends at once, but for the first tasks."""
        if self._held is not None:
            self._waits_since = time.perf_counter()
            for worker, message in self._held:
                self._workers_here[worker].inbox.put(message)
            self._held = None

    def collect(self) -> None:
        if self._end is None or not self._end.alive:
            if not self._was_shut_down:  # Python exits, and has called the finalizer
                leave_daemon_thread()
            raise RuntimeError("this iterator has been shut down; make a new one with iter(loader)")

        deadline = deadline_after(self._timeout)
        self._watch.begin()
        while not self._take_in_next(deadline):
            if self._dispatcher.look(self):
                return
            if deadline is not None and time.monotonic() >= deadline:
                raise timed_out(self._timeout, "\n".join(map(self._stack_of, self._dispatcher.tasks.busy())))
            self._abandon_those_that_hang()

    def _receive_beginnings(self, deadline: float | None) -> bool:
        """Takes in what threads tell while replicas begin."""
        if not self._take_in_next(deadline):
            self._abandon_those_that_hang()
        return True

    def _abandon_those_that_hang(self) -> None:
        """Has the work of threads done by others that take longer than `sample_timeout`."""
        if self._sample_timeout is None:
            return

        for number in self._dispatcher.tasks.busy():
            hangs = self._watch.hangs(number, self._sample_timeout)
            if hangs is not None:
                self._abandon(number, *hangs)

    def _take_in_next(self, deadline: float | None) -> bool:
        """Files the next outcome. False: none came that is to be delivered, for a while."""
        hang = None if self._sample_timeout is None else min(max(self._sample_timeout / 4, 0.01), 1.0)
        for seconds in slices(shortest(seconds_left(deadline), hang, self._dispatcher.look_again)):
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
        tasks = self._dispatcher.tasks
        keys = keys_of(self._epoch, tasks.of_worker(number))
        words, key = doing(seen, None if keys is None else keys.get(seen.task, ()), self._epoch.spec.dataset)
        error = too_slow(after, self._stack_of(number), words)
        carefully = key is None and seen.stage == LOAD and type(tasks.out[seen.task][1]) is not Careful
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
        begin = self._epoch.beginning()._replace(states=states)
        worker.inbox.put((self._generation, begin))
        give_again(tasks, number, seen.task if carefully else None, self)
        self._threads[number] = self._thread_of(number)

    def _take_in(self, outcome: Outcome) -> bool:
        """Files an outcome in the window. False: it was not one to deliver."""
        if outcome.status == "died":
            self.close()
            raise RuntimeError("a DataLoader worker thread ended unexpectedly") from outcome.payload

        if outcome.epoch != self._generation:
            return False
        if outcome.status in REPORTS:
            self._reports.hear(outcome.status, outcome.payload)
            return False
        if outcome.task not in self._dispatcher.tasks.out:
            return False  # of a thread that was left alone, and came back

        if outcome.moved_since is not None:
            self._drew |= outcome.moved_since >= self._waits_since
            self._may_draw = True
        if outcome.status == "end":
            self._dispatcher.file_end(outcome.task, outcome.state, self)
        else:
            self._dispatcher.file(outcome.task, outcome, self, seconds=outcome.times.making)

        return True

    @property
    def _name(self) -> str:
        return type(self._epoch.spec.dataset).__name__

    def next_result(self) -> BatchResult:
        """See `Executor.next_result`. Raises `UsageError` if the dataset draws from generators that threads share."""
        self._owner.check()
        self._waits_since = time.perf_counter()
        task, replica, result = self._dispatcher.next_delivery(self, self._scale.least)
        if self._drew:
            self.close()
            raise UsageError.about(
                "a dataset draws random numbers that worker threads cannot tell apart",
                place=f"{self._name}, backend='thread' with seed= (implied by shard= and by fit='split')",
                found="draws from the generators of random, NumPy or torch, or from one that the dataset holds (in "
                "samples, transforms or the collate function; or another thread of your program draws)",
                expected="random numbers from headrace.rng(), which is seeded for each sample in each thread",
                fix=FIX,
            )
        if self._may_draw and not self._warned:
            self._warned = True
            self._warn_of_draws()

        opening = time.perf_counter()
        posted = self._dispatcher.leaves(task, replica, result.state, result.losses)
        if result.status == "error":
            result.payload.raise_again()

        batch = result.payload
        nbytes = batch_bytes(batch) if result.nbytes < 0 else result.nbytes
        times = result.times
        opened = time.perf_counter() - opening
        return batch, timings_of_worker(result.worker, nbytes, posted, times, times.sent, opened)

    def _warn_of_draws(self) -> None:
        warn(
            f"random generators that threads share moved while a batch of {self._name} was made and your program ran. "
            "If it was the dataset that drew from them, this batch and others do not have the numbers that seed= "
            f"says: then {FIX}"
        )

    def prepare(self, count: int, begin: Callable[[Any], Any]) -> None:
        with contextlib.suppress(queue.Empty):
            while True:
                self._take_in(self._outbox.get_nowait())

        def prepared(outcome: Outcome) -> Outcome:
            if outcome.status == "error":
                return outcome
            nbytes = batch_bytes(outcome.payload) if outcome.nbytes < 0 else outcome.nbytes
            return replace(outcome, payload=begin(outcome.payload), nbytes=nbytes)

        self._dispatcher.prepare(count, prepared)

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
