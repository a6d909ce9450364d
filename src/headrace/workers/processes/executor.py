"""Worker processes: the in-flight window decides, the pool of workers does, the recovery sees to the dead."""

from __future__ import annotations

import time
import weakref
from collections.abc import Callable, Iterable
from typing import Any, Literal

from headrace.epoch.epoch import Epoch
from headrace.telemetry.recorder import Recorder
from headrace.telemetry.timings import timings_of_worker
from headrace.workers.answers import REPORTS, OwningProcess, Reports, deadline_after, seconds_left, shortest
from headrace.workers.dispatch import Dispatcher
from headrace.workers.dispatcher_choice import dispatcher_for
from headrace.workers.processes.arrived import join_arrived, leased, prepared
from headrace.workers.processes.machines import NEWS
from headrace.workers.processes.messages import READ, Result
from headrace.workers.processes.pool import WorkerPool
from headrace.workers.processes.recovery import Recovery
from headrace.workers.processes.starter import PoolStarter
from headrace.workers.protocol import BatchResult
from headrace.workers.scale import Scale
from headrace.workers.stragglers.prefetch import prefetch_for


class ProcessExecutor:
    """Makes batches in worker processes. They lie in leased shared memory and belong to the user.

    A worker that dies is replaced, and what it had not answered is made again. Where that is of no use, the epoch ends
    with an error, after everything that has come was delivered.
    """

    backend: Literal["process"] = "process"

    def __init__(self, starter: PoolStarter, recorder: Recorder, scale: Scale) -> None:
        """scale: how many workers there shall be; see `asked_scale`."""
        self.recorder = recorder
        self.scale = scale
        self.for_device = False
        """Whether batches go on to a device: then `next_result` may return an `UnopenedBatch`."""
        self._starter = starter
        self._generation = -1
        self._pool: WorkerPool | None = None
        self.owner = OwningProcess()
        self._end: weakref.finalize[Any, Any] | None = None

    @property
    def replicas(self) -> int:
        return self.scale.most

    @property
    def num_workers(self) -> int:
        return self.scale.workers

    @property
    def scales(self) -> bool:
        return False

    @property
    def pool(self) -> WorkerPool:
        """The worker processes; there are some once an epoch has begun."""
        if self._pool is None:
            raise RuntimeError("this executor has not begun an epoch")
        return self._pool

    @property
    def workers(self) -> list[Any]:
        """The worker processes, as users of torch's iterator know them."""
        if self._pool is None:
            return []
        return [getattr(worker.process, "process", worker.process) for worker in self._pool.workers]

    @property
    def is_here(self) -> bool:
        return self.owner.is_here

    def start(self, epoch: Epoch) -> None:
        self._epoch = epoch
        self._timeout = epoch.spec.timeout
        self._generation += 1
        begin = epoch.beginning()
        is_first = self._pool is None
        if is_first:
            self._hire(epoch)
        self._recovery.begin_epoch(epoch, self._generation)
        if not is_first:
            self.pool.begin(begin)
            for worker_id, worker in enumerate(self.pool.workers):
                if worker.reaped and worker_id < self.num_workers:
                    self._recovery.replace(worker_id, begin, self)

        self.recorder.note_start(fork_server=self.pool.is_by_fork_server)
        self._reports = Reports(epoch)
        remote = self._starter.is_remote
        self._prefetch = prefetch_for(epoch.spec, self.scale, remote=remote)
        adapts = self._prefetch is not None
        self._dispatcher: Dispatcher[Any] = dispatcher_for(
            epoch, self.pool, join_arrived, self.scale, self.recorder, remote=remote, adapts=adapts
        )
        if self.scale.changes:
            self._dispatcher.resize(self.scale.limit, self.scale.workers)
        self._recovery.watch_over(self._dispatcher, self)
        self._dispatcher.prime(self)
        self._recovery.begin_wait()
        self._reports.await_beginnings(self._timeout, self._receive_beginnings)

    def _hire(self, epoch: Epoch) -> None:
        """Starts the workers of the first epoch."""
        pool = self._starter.pool(epoch, self.scale)
        self._pool = pool
        self._recovery = Recovery(pool, epoch, self.recorder, self._starter.machines)
        # It runs when the executor is dropped. It must not hold the executor itself, nor what the user gave.
        self._end = weakref.finalize(self, pool.resources.close)
        self._end.atexit = False  # daemons end with the process

    # -- what the dispatcher asks of its carrier -----------------------------------------------------------------------

    def submit(self, worker: int, task: int, replica: int, index: object) -> None:
        self.pool.post(worker, task, replica, index)

    def withdraw(self, worker: int, task: int) -> bool:
        return self.pool.withdraw(worker, task)

    def flush(self, least: int = 1) -> None:
        self.pool.flush(self._generation, least)

    def collect(self) -> None:
        """Waits until at least one result has come. Raises if workers cannot go on or the loader's timeout passed."""
        if self.pool.closed:
            raise RuntimeError("this iterator has been shut down; make a new one with iter(loader)")

        recovery = self._recovery
        self._flush_before_waiting()
        recovery.begin_wait()
        deadline = deadline_after(self._timeout)
        came = False
        while not came:
            came = self._receive(deadline)
            if not came:
                came = self._dispatcher.look(self)
            if recovery.pending is not None and not came and recovery.is_at_error:
                self.close()
                raise recovery.pending.error

            if recovery.waits_for_machines:
                deadline = deadline_after(self._timeout)
            if deadline is not None and not came and time.monotonic() >= deadline:
                came = self._take_in(recovery.time_out())
                recovery.reap_the_dead(self)
                deadline = deadline_after(self._timeout)
                recovery.begin_wait()
            self._flush_before_waiting()

    def _flush_before_waiting(self) -> None:
        least = 1 if self._prefetch is None else self.scale.least
        self.pool.flush(self._generation, least, least // 2)

    # -- what comes from workers ---------------------------------------------------------------------------------------

    def _receive(self, deadline: float | None) -> bool:
        """Takes in what workers have sent, and sees to those that hang or died. False: no result to deliver came."""
        recovery = self._recovery
        came = self._take_in(self.pool.receive(self._patience(deadline)))
        came |= self._take_in(recovery.end_those_that_hang())
        recovery.reap_the_dead(self)
        return came

    def _receive_beginnings(self, deadline: float | None) -> bool:
        """Does so while replicas begin. False: one of them cannot."""
        if self._recovery.pending is not None:
            return False
        self._receive(deadline)
        self.flush()
        return True

    def _patience(self, deadline: float | None) -> float | None:
        """Returns for how many seconds to wait for results; None: for ever."""
        if self._recovery.pending is not None and self._recovery.is_at_error:
            return 0.0
        return shortest(self._recovery.look_again, seconds_left(deadline), self._dispatcher.look_again)

    def _take_in(self, results: Iterable[tuple[int, Result]]) -> bool:
        came = False
        for worker_id, result in results:
            self._recovery.made_progress(worker_id)
            came |= self._sort(worker_id, result)
        return came

    def _sort(self, worker_id: int, result: Result) -> bool:
        """Files a result in the window. False: it was not one to deliver."""
        if result.status in NEWS:
            self._recovery.hear_news(worker_id, result, self)
            return False

        arrived = leased(worker_id, self.pool.workers[worker_id].region, result)
        if result.seen:
            self.recorder.saw(result.seen)
        if result.drew:
            self._epoch.seeding.tries_without = False
        if result.epoch != self._generation or result.status == READ:
            return False  # dropped, and the slots with it
        if result.status in REPORTS:
            self._reports.hear(result.status, arrived.content())
            return False

        if result.status == "end":
            if not self._epoch.spec.persistent_workers and self._epoch.record.replicas == self.scale.most:
                self.pool.retire(worker_id)
            self._dispatcher.file_end(result.task, arrived.content(), self)
            return True

        self._dispatcher.file(result.task, arrived, self, arrived.nbytes, arrived.seconds)
        if self._prefetch is not None and self._prefetch.made(arrived.seconds, arrived.nbytes):
            self.scale.prefetch = self._prefetch.tasks
            self._dispatcher.resize(self.scale.limit, self.scale.workers, self._prefetch.tasks)
            self.recorder.adjust(self.scale.workers, self.scale.prefetch)
        return True

    def next_result(self) -> BatchResult:
        self.owner.check()
        task, replica, result = self._dispatcher.next_delivery(self, self.scale.least)
        opening = time.perf_counter()
        payload, state, losses = result.opened(for_device=self.for_device)
        posted = self._dispatcher.leaves(task, replica, state, losses)
        if result.status == "error":
            payload.raise_again()

        opened = time.perf_counter() - opening
        return payload, timings_of_worker(result.worker, result.nbytes, posted, result.times, result.at, opened)

    def prepare(self, count: int, begin: Callable[[Any], Any]) -> None:
        if not self.pool.closed:
            self._take_in(self.pool.receive(0.0))
            self._dispatcher.prepare(count, lambda result: prepared(result, begin))

    def is_at_end(self) -> bool:
        return self._dispatcher.is_at_end(self)

    # -- another number of workers -------------------------------------------------------------------------------------

    @property
    def has_work(self) -> bool:
        """Whether workers have anything to do or to deliver, or the sampler has ended."""
        return self._dispatcher.sampler_ended or not self._dispatcher.window.finished

    @property
    def waits_for_machines(self) -> bool:
        """Whether a worker has been hired for another machine and is not there yet."""
        return any(worker.unplaced and not worker.reaped for worker in self.pool.workers)

    @property
    def pids(self) -> list[int]:
        """The processes that run."""
        return [worker.process.pid for worker in self.pool.workers if not worker.reaped]

    def change_to(self, workers: int, prefetch: int) -> list[int]:
        """Has so many workers make the batches from here on. Returns those that were added."""
        begin = self._epoch.beginning()
        added = []
        for worker_id in range(workers):
            if worker_id >= len(self.pool.workers):
                self.pool.hire(begin, self._generation)
            elif self.pool.workers[worker_id].reaped:
                self.pool.replace(worker_id, begin, self._generation)
            else:
                continue
            added.append(worker_id)

        self.scale.workers = workers
        self.scale.prefetch = prefetch
        self._dispatcher.resize(self.scale.limit, workers)
        self._recovery.note_unplaced(self)
        self._dispatcher.give_out(self)
        self.flush()
        return added

    def dismiss_idle(self) -> list[int]:
        """Ends the workers that are too many and have done what they were given. Returns which those are."""
        dismissed = []
        for worker_id in range(self.scale.workers, len(self.pool.workers)):
            if not self.pool.workers[worker_id].reaped and not self._dispatcher.tasks.of_worker(worker_id):
                self.pool.dismiss(worker_id)
                dismissed.append(worker_id)
        return dismissed

    def close(self) -> None:
        if self._end is not None:
            self._end()
