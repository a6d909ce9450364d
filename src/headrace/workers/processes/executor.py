"""Worker processes: the in-flight window decides, the pool of workers does, the supervisor sees to the dead."""

from __future__ import annotations

import functools
import time
import weakref
from collections.abc import Iterable
from dataclasses import replace
from typing import Any, Literal, NamedTuple

from headrace.batches.index import Careful, plain_index, split
from headrace.core.errors import ClusterError
from headrace.core.process.thread_exit import leave_daemon_thread
from headrace.core.randomness.counter_based import stream_key
from headrace.core.torch_internals import python_is_exiting
from headrace.epoch.epoch import Epoch
from headrace.epoch.opening import SEED_BITS
from headrace.epoch.spec import LoaderSpec
from headrace.epoch.start import EpochStart
from headrace.shared_memory.arena import Arena
from headrace.shared_memory.codec import decode
from headrace.telemetry.recorder import Recorder
from headrace.telemetry.replay_bar import ReplayBar
from headrace.telemetry.timings import timings_of_worker
from headrace.workers.crash_report import CrashReport
from headrace.workers.dispatch import Dispatcher, check_prefetch_factor, deadline_after
from headrace.workers.processes.arrived import leased
from headrace.workers.processes.dispatching import could_share, dispatcher_for
from headrace.workers.processes.messages import Result
from headrace.workers.processes.pool import WorkerPool
from headrace.workers.processes.prefetch import prefetch_for
from headrace.workers.processes.scale import Scale
from headrace.workers.processes.start import ForkServers
from headrace.workers.processes.supervision import LOGGER, Supervisor, error_for
from headrace.workers.processes.worker_main import Assignment
from headrace.workers.protocol import BatchResult
from headrace.workers.remote.placement import Placement
from headrace.workers.remote.remote_workers import NEWS, RemoteWorkers
from headrace.workers.worker_spec import WorkerSpec


class PendingError(NamedTuple):
    """The error with which the epoch ends, the worker that cannot go on, and its first task that is not answered."""

    error: Exception
    worker: int
    task: int


class ProcessExecutor:
    """Makes batches in worker processes. They lie in leased shared memory and belong to the user.

    A worker that dies is replaced, and what it had not answered is made again. Where that is of no use, the epoch ends
    with an error, after everything that has come was delivered.
    """

    backend: Literal["process"] = "process"

    def __init__(
        self,
        spec: LoaderSpec,
        arena: Arena,
        fork_servers: ForkServers,
        recorder: Recorder,
        scale: Scale | None = None,
        placement: Placement | None = None,
    ) -> None:
        """Args:

        scale: how many workers there shall be, where that may change; None: as many as `spec` says, always.
        placement: finds places on other machines; None: all workers run on this one.
        """
        if scale is None:
            check_prefetch_factor(spec)
            scale = Scale(spec.num_workers, spec.prefetch_factor or 0, most=spec.num_workers)

        self.scale = scale
        self._arena = arena
        self._placement = placement
        self._remote: RemoteWorkers | None = None
        self._fork_servers = fork_servers
        self.recorder = recorder
        self.generation = -1
        self._pending_error: PendingError | None = None
        self._restarts = 0
        self._pool: WorkerPool | None = None
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

    def start(self, epoch: Epoch) -> None:
        self._epoch = epoch
        self._timeout = epoch.spec.timeout
        self.generation += 1
        begin = epoch.beginning()
        if self._pool is None:
            self._pool = self._hired(begin)
        else:
            self._supervisor.begin_epoch()
            self._pool.begin(begin)
            for worker_id, worker in enumerate(self._pool.workers):
                if worker.reaped and worker_id < self.num_workers:
                    self._replace_in_pool(worker_id, begin)

        self.recorder.note_start(fork_server=self._pool.is_by_fork_server)
        self._bar = ReplayBar(epoch.spec.dataset)
        self._prefetch = prefetch_for(epoch.spec, self.scale, remote=self._placement is not None)
        remote = self._placement is not None
        adapts = self._prefetch is not None
        self.dispatcher: Dispatcher[Any] = dispatcher_for(
            epoch, self._pool, self.scale, self.recorder, remote=remote, adapts=adapts
        )
        if self.scale.changes:
            self.dispatcher.resize(self.scale.limit, self.scale.workers)
        self.note_unplaced()
        self.dispatcher.prime(self)
        self._await_beginnings()

    def _hired(self, begin: EpochStart) -> WorkerPool:
        """Starts the workers of the first epoch."""
        spec = self._epoch.spec
        worker_spec = WorkerSpec.for_workers(self._epoch)
        timed = could_share(self._epoch, self.scale, remote=self._placement is not None)
        worker_spec = replace(worker_spec, times_samples=timed)
        brief = functools.partial(Assignment, workers=self.scale.most, original_errors=spec.original_errors)
        if self._placement is not None:
            self._remote = RemoteWorkers(self._placement, worker_spec)
            brief = functools.partial(self._remote.brief, brief)

        timeout = self._timeout or None
        find_start = functools.partial(self._fork_servers.start_for, spec.multiprocessing_context, worker_spec, timeout)
        pool = WorkerPool(find_start, self._arena, self.num_workers, brief, begin)

        # It runs when the executor is dropped. It must not hold the executor itself, nor what the user gave.
        self._end = weakref.finalize(self, pool.resources.close)
        self._end.atexit = False  # daemons end with the process
        self._supervisor = Supervisor(pool, spec.dataset, spec.sample_timeout)
        return pool

    def submit(self, worker: int, task: int, replica: int, index: object) -> None:
        self.pool.post(worker, task, replica, index)

    def withdraw(self, worker: int, task: int) -> bool:
        return self.pool.withdraw(worker, task)

    def flush(self, least: int = 1) -> None:
        self.pool.flush(self.generation, least)

    def _flush_before_waiting(self) -> None:
        least = 1 if self._prefetch is None else self.scale.least
        self.pool.flush(self.generation, least, least // 2)

    def collect(self) -> None:
        """Waits until at least one result has come. Raises if workers cannot go on or the loader's timeout passed."""
        if self.pool.closed:
            raise RuntimeError("this iterator has been shut down; make a new one with iter(loader)")

        self._flush_before_waiting()
        watch = self._supervisor.watch
        watch.begin()
        deadline = deadline_after(self._timeout)
        came = False
        while not came:
            came |= self._take_in(self.pool.receive(self._patience(deadline)))
            came |= self._end_those_that_hang()
            self._reap_the_dead()
            if not came:
                came = self.dispatcher.look(self)
            if self._pending_error is not None and not came and not self._comes_before(self._pending_error):
                self.close()
                raise self._pending_error.error

            if self._waits_for_machines:
                deadline = deadline_after(self._timeout)
            if deadline is not None and not came and time.monotonic() >= deadline:
                came = self._time_out()
                deadline = time.monotonic() + self._timeout
                watch.begin()
            self._flush_before_waiting()

    def _await_beginnings(self) -> None:
        """Waits until all replicas have told how they begin. What goes wrong is raised where batches are asked for."""
        if not self._epoch.untold:
            return

        self._supervisor.watch.begin()
        deadline = deadline_after(self._timeout)
        while self._epoch.untold and self._pending_error is None:
            self._take_in(self.pool.receive(self._patience(deadline)))
            self._end_those_that_hang()
            self._reap_the_dead()
            self.flush()
            if deadline is not None and time.monotonic() >= deadline:
                return

    def _patience(self, deadline: float | None) -> float | None:
        """Returns for how many seconds to wait for results; None: for ever."""
        if self._pending_error is not None and not self._comes_before(self._pending_error):
            return 0.0

        look_again = self._supervisor.look_again
        if deadline is None:
            left = None
        else:
            left = max(deadline - time.monotonic(), 0)

        if look_again is None and left is not None and self._epoch.policy is not None:
            look_again = self._timeout / 4  # so that it is known who does what all the while
        if look_again is not None:
            for worker_id in self.dispatcher.busy():
                self._supervisor.watch.waited(worker_id)

        waits = (look_again, left, self.dispatcher.look_again)
        return min((one for one in waits if one is not None), default=None)

    def _take_in(self, results: Iterable[tuple[int, Result]]) -> bool:
        came = False
        for worker_id, result in results:
            self._supervisor.made_progress(worker_id)
            came |= self._sort(worker_id, result)
        return came

    def _sort(self, worker_id: int, result: Result) -> bool:
        """Files a result in the window. False: it was not one to deliver."""
        if result.status in NEWS:
            self._hear_of_remote(worker_id, result)
            return False

        arrived = leased(worker_id, self.pool.workers[worker_id].region, result)
        if result.seen:
            self.recorder.saw(result.seen)
        if result.drew:
            self._epoch.seeding.tries_without = False
        if result.epoch != self.generation:
            return False  # dropped, and the slots with it
        if result.status == "replay":
            self._bar.report(*decode(arrived.header, arrived.buffers))
            return False

        if result.status == "begun":
            self._epoch.note_beginnings(decode(arrived.header, arrived.buffers))
            return False

        if result.status == "end":
            if not self._epoch.spec.persistent_workers and self._epoch.record.replicas == self.scale.most:
                self.pool.retire(worker_id)
            self.dispatcher.file_end(result.task, decode(arrived.header, arrived.buffers), self)
        else:
            self.dispatcher.file(result.task, arrived, self, arrived.nbytes, arrived.seconds)
            if self._prefetch is not None and self._prefetch.made(arrived.seconds, arrived.nbytes):
                self.scale.prefetch = self._prefetch.tasks
                self.dispatcher.resize(self.scale.limit, self.scale.workers, self._prefetch.tasks)
                self.recorder.adjust(self.scale.workers, self.scale.prefetch)

        return True

    def next_result(self) -> BatchResult:
        task, replica, result = self.dispatcher.next_delivery(self, self.scale.least)
        opening = time.perf_counter()
        payload, state, losses = result.opened()
        posted = self.dispatcher.leaves(task, replica, state, losses)
        if result.status == "error":
            payload.raise_again()

        opened = time.perf_counter() - opening
        return payload, timings_of_worker(result.worker, result.nbytes, posted, result.times, result.at, opened)

    def is_at_end(self) -> bool:
        return self.dispatcher.is_at_end(self)

    # -- workers on other machines -------------------------------------------------------------------------------------

    @property
    def _waits_for_machines(self) -> bool:
        """Whether a worker with work has no machine yet: no timeout of batches counts then, but `start_timeout`."""
        if self._remote is None:
            return False
        return any(self.pool.workers[worker_id].unplaced for worker_id in self.dispatcher.busy())

    def note_unplaced(self) -> None:
        """Tells the dispatcher which workers have been hired and have no machine yet."""
        for worker_id, worker in enumerate(self.pool.workers):
            if worker.unplaced:
                self.dispatcher.set_down(worker_id, self)

    def _hear_of_remote(self, worker_id: int, result: Result) -> None:
        """Deals with what a proxy tells of itself."""
        if self._remote is None:
            return

        news = self._remote.note(worker_id, result)
        worker = self.pool.workers[worker_id]
        if news.kind == "placed":
            worker.unplaced = False
            worker.host = news.text
            worker.remote_pid = news.pid
            self.recorder.placed(worker_id, news.text)
            self.dispatcher.set_up(worker_id, self)
        elif news.kind == "waiting":
            self._do_without(worker_id, news.text)

    def _do_without(self, worker_id: int, reason: str) -> None:
        """Goes on without a worker for which there is no machine; where that cannot be, keeps the error."""
        self.dispatcher.set_down(worker_id, self)
        if self.dispatcher.moves_tasks:
            LOGGER.warning("headrace: worker %d is not there, and others do its work: %s", worker_id, reason)
            return

        tasks = self.dispatcher.unanswered(worker_id)
        self._keep_error(ClusterError(reason), worker_id, tasks)

    # -- workers that die or hang --------------------------------------------------------------------------------------

    def _comes_before(self, pending: PendingError) -> bool:
        """Tells whether batches are being made that come before the one that cannot be."""
        if not self._epoch.spec.in_order:
            return False

        return self.dispatcher.comes_before(pending.task, pending.worker)

    def _end_those_that_hang(self) -> bool:
        """Ends workers by `sample_timeout`. True if results came with their end."""
        came = False
        if self._supervisor.look_again is not None:
            for worker_id, after in self._supervisor.overdue(self.dispatcher.busy()):
                came |= self._take_in(self._supervisor.end(worker_id, after))
        return came

    def _time_out(self) -> bool:
        """Raises torch's error for a `timeout`; with a policy for bad samples, ends workers that hang instead."""
        busy = self.dispatcher.busy()
        if self._epoch.policy is not None:
            hanging = self._supervisor.idle_for(busy, self._timeout)
        else:
            hanging = []

        if not hanging:
            raise RuntimeError(f"DataLoader timed out after {self._timeout} seconds") from _what_they_do(
                self._supervisor.stacks(busy)
            )

        came = False
        for worker_id in hanging:
            came |= self._take_in(self._supervisor.end(worker_id, self._timeout))

        self._reap_the_dead()
        return came

    def _reap_the_dead(self) -> None:
        """Has the work of dead workers done again; where that is of no use, keeps the error that says so."""
        dead = self.pool.take_dead()
        if dead and python_is_exiting():
            leave_daemon_thread()

        for worker_id in dead:
            if self._remote is not None and worker_id in self._remote.refused:
                self._do_without(worker_id, self._remote.refused.pop(worker_id))
                continue

            tasks = self.dispatcher.unanswered(worker_id)
            keys = None
            if self._epoch.is_map:
                batched = self._epoch.spec.batched
                keys = {task: split(plain_index(index), batched=batched)[0] for task, _, index in tasks}

            lost = ""
            if self._remote is not None:
                lost = self._remote.lost.pop(worker_id, "")

            report, decision = self._supervisor.examine(worker_id, keys, lost)
            helpless = self._epoch.policy is None or not self._epoch.is_map
            known = repr(report.key) in self._epoch.fault_counter.killers
            if decision == "give up" or (decision == "isolate" and (helpless or known)):
                self._keep_error(error_for(report, policy=self._epoch.policy is not None), worker_id, tasks)
                continue

            if decision == "isolate":
                self._epoch.fault_counter.killers[repr(report.key)] = report.sentence + ", again and again"
            self._replace(worker_id, tasks, report, carefully=decision == "carefully")

    def _keep_error(self, error: Exception, worker_id: int, tasks: list[tuple[int, int, Any]]) -> None:
        """Keeps the error with which the epoch ends, unless another one comes before it."""
        first = 0
        if tasks:
            first = self.dispatcher.task_of(tasks[0][0])
        if self._pending_error is None or first < self._pending_error.task:
            self._pending_error = PendingError(error, worker_id, first)

    def _replace(
        self, worker_id: int, tasks: list[tuple[int, int, Any]], report: CrashReport, *, carefully: bool
    ) -> None:
        self._restarts += 1
        self._epoch.fault_counter.restarted()
        self._supervisor.say(report, f"it is replaced (batches to make again: {len(tasks)})")
        self._replace_in_pool(worker_id, self._beginning_anew(worker_id))
        for task, replica, index in tasks:
            if carefully and task == report.seen.task:
                again = Careful(plain_index(index))
            else:
                again = index

            self.dispatcher.out[task] = replica, again
            self.pool.post(worker_id, task, replica, again)

        # Where the machine is gone, the next one takes a while. After a crash, the worker is back in milliseconds; it
        # also knows of the samples that have killed it, which others do not.
        if report.lost:
            self.dispatcher.set_down(worker_id, self)

    def _replace_in_pool(self, worker_id: int, begin: EpochStart) -> None:
        try:
            self.pool.replace(worker_id, begin, self.generation)
        except BaseException:  # no process to be had, or Ctrl-C: there is nobody to wait for
            self.close()
            raise

    def _beginning_anew(self, worker_id: int) -> EpochStart:
        """Returns where a worker begins that takes the place of one in mid-epoch: behind what that one has made.

        Without `seed=` a map-style dataset gets new random numbers: the old ones would come twice. An iterable one
        gets the same, since it goes through its samples again.
        """
        begin = self._epoch.beginning()
        states = self.dispatcher.states_behind(worker_id, lambda result: decode(result.header, result.buffers)[1])
        if self._epoch.is_map and self._epoch.terms.seed is None:
            begin = begin._replace(base_seed=stream_key(begin.base_seed, self._restarts) & SEED_BITS)
        return begin._replace(states=states)

    def close(self) -> None:
        if self._end is not None:
            self._end()


def _what_they_do(stacks: str) -> RuntimeError | None:
    """Returns the cause of an error that says that workers took too long."""
    if stacks:
        return RuntimeError(f"the Python stacks of the workers that it waits for are:\n{stacks}")
    return None
