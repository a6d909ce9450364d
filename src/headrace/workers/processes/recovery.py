"""Goes on behind workers that died, that hang, or that have no machine; where that is of no use, the epoch ends.

A worker that dies is replaced, and what it had not answered is made again. The error with which an epoch ends is kept
until everything that comes before it was delivered.

The executor is an argument of calls, as a carrier, and never kept: it holds its recovery, and ends with its owner.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any, NamedTuple

from headrace.core.errors import ClusterError
from headrace.core.process.thread_exit import leave_daemon_thread
from headrace.core.torch_internals import python_is_exiting
from headrace.epoch.epoch import Epoch
from headrace.epoch.start import EpochStart
from headrace.telemetry.recorder import Recorder
from headrace.workers.answers import give_again, keys_of, timed_out
from headrace.workers.carrier import Carrier
from headrace.workers.crash_report import CrashReport
from headrace.workers.dispatch import Dispatcher
from headrace.workers.processes.machines import Machines
from headrace.workers.processes.messages import Result
from headrace.workers.processes.pool import WorkerPool
from headrace.workers.processes.supervision import LOGGER, Supervisor, error_for

Received = Iterator[tuple[int, Result]]
"""Results that came, with their workers."""


class PendingError(NamedTuple):
    """The error with which the epoch ends, the worker that cannot go on, and its first task that is not answered."""

    error: Exception
    worker: int
    task: int


class Recovery:
    """That of one pool."""

    def __init__(self, pool: WorkerPool, epoch: Epoch, recorder: Recorder, machines: Machines | None) -> None:
        self.pending: PendingError | None = None
        self._pool = pool
        self._recorder = recorder
        self._machines = machines
        self._supervisor = Supervisor(pool, epoch.spec.dataset, epoch.spec.sample_timeout)
        self._restarts = 0
        self._generation = -1
        self._epoch: Epoch
        self._dispatcher: Dispatcher[Any]

    def begin_epoch(self, epoch: Epoch, generation: int) -> None:
        """Begins an epoch: tasks have new numbers."""
        self._epoch = epoch
        self._generation = generation
        self._supervisor.begin_epoch()

    def watch_over(self, dispatcher: Dispatcher[Any], carrier: Carrier) -> None:
        """Looks after the tasks of a dispatcher from here on. Workers that have no machine yet get none."""
        self._dispatcher = dispatcher
        self.note_unplaced(carrier)

    # -- waiting -------------------------------------------------------------------------------------------------------

    def begin_wait(self) -> None:
        """Begins to wait for results."""
        self._supervisor.watch.begin()

    def made_progress(self, worker_id: int) -> None:
        """Notes that a worker has sent a result."""
        self._supervisor.made_progress(worker_id)

    @property
    def is_at_error(self) -> bool:
        """Whether nothing that is being made comes before the error with which the epoch ends."""
        if self.pending is None:
            return False
        if not self._epoch.spec.in_order:
            return True
        return not self._dispatcher.tasks.comes_before(self.pending.task, self.pending.worker)

    @property
    def waits_for_machines(self) -> bool:
        """Whether a worker with work has no machine yet: no timeout of batches counts then, but `start_timeout`."""
        if self._machines is None:
            return False
        return any(self._pool.workers[worker_id].unplaced for worker_id in self._dispatcher.tasks.busy())

    @property
    def look_again(self) -> float | None:
        """Seconds after which to look what workers do; None: when one has something to tell."""
        look_again = self._supervisor.look_again
        timeout = self._epoch.spec.timeout
        if look_again is None and timeout > 0 and self._epoch.policy is not None:
            look_again = timeout / 4  # so that it is known who does what all the while
        if look_again is not None:
            for worker_id in self._dispatcher.tasks.busy():
                self._supervisor.watch.waited(worker_id)
        return look_again

    def end_those_that_hang(self) -> Received:
        """Ends workers by `sample_timeout`; yields what they had sent."""
        if self._supervisor.look_again is not None:
            for worker_id, after in self._supervisor.overdue(self._dispatcher.tasks.busy()):
                yield from self._supervisor.end(worker_id, after)

    def time_out(self) -> Received:
        """Raises torch's error for a `timeout`; with a policy for bad samples, ends workers that hang instead."""
        timeout = self._epoch.spec.timeout
        busy = self._dispatcher.tasks.busy()
        hanging = []
        if self._epoch.policy is not None:
            hanging = self._supervisor.idle_for(busy, timeout)
        if not hanging:
            raise timed_out(timeout, self._supervisor.stacks(busy))
        for worker_id in hanging:
            yield from self._supervisor.end(worker_id, timeout)

    # -- workers that have died ----------------------------------------------------------------------------------------

    def reap_the_dead(self, carrier: Carrier) -> None:
        """Has the work of dead workers done again; where that is of no use, keeps the error that says so."""
        dead = self._pool.take_dead()
        if dead and python_is_exiting():
            leave_daemon_thread()

        for worker_id in dead:
            lost = ""
            if self._machines is not None:
                if worker_id in self._machines.refused:
                    self._do_without(worker_id, self._machines.refused.pop(worker_id), carrier)
                    continue
                lost = self._machines.lost.pop(worker_id, "")
            self._go_on_behind(worker_id, lost, carrier)

    def _go_on_behind(self, worker_id: int, lost: str, carrier: Carrier) -> None:
        """Replaces a dead worker, or keeps the error. lost: how the connection to its machine was lost, if it was."""
        epoch = self._epoch
        keys = keys_of(epoch, self._dispatcher.tasks.of_worker(worker_id))
        report, decision = self._supervisor.examine(worker_id, keys, lost)
        helpless = epoch.policy is None or not epoch.is_map
        known = repr(report.key) in epoch.fault_counter.killers
        if decision == "give up" or (decision == "isolate" and (helpless or known)):
            self._keep_error(error_for(report, policy=epoch.policy is not None), worker_id)
            return

        if decision == "isolate":
            epoch.fault_counter.killers[repr(report.key)] = report.sentence + ", again and again"
        self._replace(worker_id, report, carrier, carefully=decision == "carefully")

    def _keep_error(self, error: Exception, worker_id: int) -> None:
        """Keeps the error with which the epoch ends, unless another one comes before it."""
        tasks = self._dispatcher.tasks
        first = 0
        if of_worker := tasks.of_worker(worker_id):
            first = tasks.task_of(of_worker[0][0])
        if self.pending is None or first < self.pending.task:
            self.pending = PendingError(error, worker_id, first)

    def _replace(self, worker_id: int, report: CrashReport, carrier: Carrier, *, carefully: bool) -> None:
        tasks = self._dispatcher.tasks
        self._restarts += 1
        self._epoch.fault_counter.restarted()
        count = len(tasks.of_worker(worker_id))
        self._supervisor.say(report, f"it is replaced (batches to make again: {count})")
        self.replace(worker_id, self._beginning_anew(worker_id), carrier)
        give_again(tasks, worker_id, report.seen.task if carefully else None, carrier)
        # Where the machine is gone, the next one takes a while. After a crash, the worker is back in milliseconds; it
        # also knows of the samples that have killed it, which others do not.
        if report.lost:
            self._dispatcher.set_down(worker_id, carrier)

    def replace(self, worker_id: int, begin: EpochStart, carrier: Carrier) -> None:
        """Starts another worker in the place of one that was reaped, to begin where `begin` says."""
        try:
            self._pool.replace(worker_id, begin, self._generation)
        except BaseException:  # no process to be had, or Ctrl-C: there is nobody to wait for
            carrier.close()
            raise

    def _beginning_anew(self, worker_id: int) -> EpochStart:
        """Returns where a worker begins that takes the place of one in mid-epoch: behind what that one has made.

        Without `seed=` a map-style dataset gets new random numbers: the old ones would come twice. An iterable one
        gets the same, since it goes through its samples again.
        """
        begin = self._epoch.beginning()
        states = self._dispatcher.states_behind(worker_id, lambda result: result.content()[1])
        if self._epoch.is_map and self._epoch.terms.seed is None:
            begin = begin.with_other_numbers(self._restarts)
        return begin._replace(states=states)

    # -- workers on other machines -------------------------------------------------------------------------------------

    def note_unplaced(self, carrier: Carrier) -> None:
        """Tells the dispatcher which workers have been hired and have no machine yet."""
        for worker_id, worker in enumerate(self._pool.workers):
            if worker.unplaced:
                self._dispatcher.set_down(worker_id, carrier)

    def hear_news(self, worker_id: int, result: Result, carrier: Carrier) -> None:
        """Deals with what is told of a worker on another machine. result: its status is one of `NEWS`."""
        if self._machines is None:
            return

        news = self._machines.note(worker_id, result)
        worker = self._pool.workers[worker_id]
        if news.kind == "placed":
            worker.unplaced = False
            worker.host = news.text
            worker.remote_pid = news.pid
            self._recorder.placed(worker_id, news.text)
            self._dispatcher.set_up(worker_id, carrier)
        elif news.kind == "waiting":
            self._do_without(worker_id, news.text, carrier)

    def _do_without(self, worker_id: int, reason: str, carrier: Carrier) -> None:
        """Goes on without a worker for which there is no machine; where that cannot be, keeps the error."""
        self._dispatcher.set_down(worker_id, carrier)
        if self._dispatcher.moves_tasks:
            LOGGER.warning("headrace: worker %d is not there, and others do its work: %s", worker_id, reason)
            return

        self._keep_error(ClusterError(reason), worker_id)
