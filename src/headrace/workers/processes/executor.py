"""Worker processes: the in-flight window decides, the team of workers does, the supervisor sees to the dead."""

from __future__ import annotations

import functools
import time
import weakref
from collections.abc import Iterable
from typing import Any, NamedTuple

from headrace.batches.fetch_map import Careful, plain_index, split
from headrace.core.counter import stream_key
from headrace.core.leaving import leave_daemon_thread
from headrace.core.torch_internals import TorchProcessIterator, python_is_exiting
from headrace.loader.epoch_iterator import SEED_BITS
from headrace.shared_memory.arena import Arena, InboundRegion
from headrace.shared_memory.codec import decode
from headrace.shared_memory.memory import Bytes, Slot
from headrace.telemetry.stopwatch import Times
from headrace.workers.crash_report import Obituary
from headrace.workers.dispatch import WindowedIterator
from headrace.workers.processes.messages import InSlot, Result
from headrace.workers.processes.pool import Team
from headrace.workers.processes.start import ZygoteKeeper
from headrace.workers.processes.supervision import Supervisor, error_for
from headrace.workers.processes.worker_main import Assignment
from headrace.workers.replica import Begin


class Arrived(NamedTuple):
    """A result whose memory is leased: it outlives the worker that made it."""

    status: str
    header: bytes | memoryview
    buffers: list[Bytes]
    worker: int
    times: Times
    nbytes: int
    at: float
    """When it arrived."""
    region: InboundRegion
    slots: list[Slot]
    """Where the buffers lie, in `region`."""


class Doom(NamedTuple):
    """The error with which the epoch ends, the worker that cannot go on, and its first task that is not answered."""

    error: Exception
    worker: int
    task: int


class ProcessIterator(WindowedIterator[Arrived], TorchProcessIterator):
    """An epoch (with persistent workers: one epoch after the other) through worker processes.

    Batches lie in leased shared memory and belong to the user. torch's own iterator is a base class for the sake of
    `isinstance` only: nothing of it runs.

    A worker that dies is replaced, and what it had not answered is made again. Where that is of no use, the epoch ends
    with an error, after everything that has come was delivered.
    """

    backend = "process"
    _team: Team  # missing while the constructor has not come so far

    def __init__(self, loader: Any, arena: Arena, zygotes: ZygoteKeeper) -> None:
        self._open(loader, workers=self._lanes_of(loader))
        self._read_options(loader)
        self._doom: Doom | None = None
        brief = functools.partial(Assignment, workers=self._num_workers, original_errors=loader.original_errors)
        cargo = self.cargo_for_workers(loader)
        find_start = functools.partial(zygotes.start_for, loader.multiprocessing_context, cargo, self._timeout or None)
        self._team = Team(find_start, arena, self.wanted_workers, brief, self.beginning())
        self._end = weakref.finalize(self, self._team.crew.close)
        self._end.atexit = False  # daemons end with the process
        self._supervisor = Supervisor(self._team, self._dataset, loader.sample_timeout)
        self._restarts = 0
        self._prime()

    def _lanes_of(self, loader: Any) -> int:
        """Returns how many lanes there are."""
        return int(loader.num_workers)

    @property
    def _workers(self) -> list[Any]:  # type: ignore[override]
        """The worker processes, under the name that users of torch's iterator know."""
        return [getattr(member.process, "process", member.process) for member in self._team.members]

    def _reset(self, loader: Any, first_iter: bool = False) -> None:
        self._reopen(loader)
        self._supervisor.begin_epoch()
        begin = self.beginning()
        self._team.begin(begin)
        for worker_id, member in enumerate(self._team.members):
            if member.buried and worker_id < self.wanted_workers:
                self._team.replace(worker_id, begin, self._epoch + 1)

        self._prime()

    def _post(self, worker: int, task: int, lane: int, index: Any) -> None:
        self._team.post(worker, task, lane, index)

    def _flush(self, least: int = 1) -> None:
        self._team.flush(self._epoch, least)

    def _collect(self) -> None:
        """Waits until at least one result has come. Raises if workers cannot go on or the loader's timeout passed."""
        if self._team.closed:
            raise RuntimeError("this iterator has been shut down; make a new one with iter(loader)")

        self._flush()
        watch = self._supervisor.watch
        watch.begin()
        if self._timeout > 0:
            deadline = time.monotonic() + self._timeout
        else:
            deadline = None

        came = False
        while not came:
            came |= self._take_in(self._team.receive(self._patience(deadline)))
            came |= self._end_those_that_hang()
            self._bury_the_dead()
            if self._doom is not None and not came and not self._comes_before(self._doom):
                self._shutdown_workers()
                raise self._doom.error

            if deadline is not None and not came and time.monotonic() >= deadline:
                came = self._time_out()
                deadline = time.monotonic() + self._timeout
                watch.begin()
            self._flush()

    def _await_beginnings(self) -> None:
        """See `WindowedIterator._await_beginnings`. What goes wrong meanwhile is raised where batches are asked for."""
        if not self._untold:
            return

        self._supervisor.watch.begin()
        if self._timeout > 0:
            deadline = time.monotonic() + self._timeout
        else:
            deadline = None

        while self._untold and self._doom is None:
            self._take_in(self._team.receive(self._patience(deadline)))
            self._end_those_that_hang()
            self._bury_the_dead()
            self._flush()
            if deadline is not None and time.monotonic() >= deadline:
                return

    def _patience(self, deadline: float | None) -> float | None:
        """Returns for how many seconds to wait for results; None: for ever."""
        if self._doom is not None and not self._comes_before(self._doom):
            return 0.0

        look_again = self._supervisor.look_again
        if deadline is None:
            left = None
        else:
            left = max(deadline - time.monotonic(), 0)

        if look_again is None and left is not None and self._policy is not None:
            look_again = self._timeout / 4  # so that it is known who does what all the while
        if look_again is not None:
            for worker_id in self._busy():
                self._supervisor.watch.waited(worker_id)

        return min((one for one in (look_again, left) if one is not None), default=None)

    def _take_in(self, results: Iterable[tuple[int, Result]]) -> bool:
        came = False
        for worker_id, result in results:
            self._supervisor.made_progress(worker_id)
            came |= self._sort(worker_id, result)
        return came

    def _sort(self, worker_id: int, result: Result) -> bool:
        """Files a result in the window. False: it was not one to deliver."""
        region = self._team.members[worker_id].region
        header, buffers = _leases(region, result)
        nbytes = sum(nbytes for _, _, nbytes in result.buffers) or len(header)  # small tensors lie in the header
        slots = [slot for slot, _ in result.slots]
        now = time.perf_counter()
        arrived = Arrived(result.status, header, buffers, worker_id, result.times, nbytes, now, region, slots)
        if result.seen:
            self._recorder.saw(result.seen)
        if result.drew:
            self._seeding.tries_without = False
        if result.epoch != self._epoch:
            return False  # dropped, and the slots with it
        if result.status == "replay":
            self._bar.report(*decode(arrived.header, arrived.buffers))
            return False

        if result.status == "begun":
            self.note_beginnings(decode(arrived.header, arrived.buffers))
            return False

        if result.status == "end":
            if not self._persistent_workers and self.record.lanes == self._num_workers:
                self._team.retire(worker_id)
            self._file_end(result.task, decode(arrived.header, arrived.buffers))
        else:
            self._file(result.task, arrived)

        return True

    def _open_result(self, task: int, lane: int, result: Arrived) -> Any:
        opening = time.perf_counter()
        result.region.hand_over(result.slots)
        payload, state, losses = decode(result.header, result.buffers)
        self._record_delivery(task, lane, state, losses)
        if result.status == "error":
            payload.raise_again()
        return self._pinned(task, payload, result.worker, result.nbytes, result.times, result.at, opening)

    # -- workers that die or hang --------------------------------------------------------------------------------------

    def _comes_before(self, doom: Doom) -> bool:
        """Tells whether batches are being made that come before the one that cannot be."""
        if not self._in_order:
            return False

        return any(
            task < doom.task and self._indices_out[task][0] % self._num_workers != doom.worker
            for task in self._window.unanswered()
        )

    def _end_those_that_hang(self) -> bool:
        """Ends workers by `sample_timeout`. True if results came with their end."""
        came = False
        if self._supervisor.look_again is not None:
            for worker_id, after in self._supervisor.overdue(self._busy()):
                came |= self._take_in(self._supervisor.end(worker_id, after))
        return came

    def _time_out(self) -> bool:
        """Raises torch's error for a `timeout`; with a policy for bad samples, ends workers that hang instead."""
        busy = self._busy()
        if self._policy is not None:
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

        self._bury_the_dead()
        return came

    def _bury_the_dead(self) -> None:
        """Has the work of dead workers done again; where that is of no use, keeps the error that says so."""
        dead = self._team.take_dead()
        if dead and python_is_exiting():
            leave_daemon_thread()

        for worker_id in dead:
            tasks = self._unanswered(worker_id)
            keys = None
            if self._is_map:
                keys = {task: split(plain_index(index), batched=self._auto_collation)[0] for task, _, index in tasks}
            obituary, verdict = self._supervisor.examine(worker_id, keys)
            helpless = self._policy is None or not self._is_map
            known = repr(obituary.key) in self._ledger.killers
            if verdict == "give up" or (verdict == "isolate" and (helpless or known)):
                doom = Doom(
                    error_for(obituary, policy=self._policy is not None), worker_id, tasks[0][0] if tasks else 0
                )
                if self._doom is None or doom.task < self._doom.task:
                    self._doom = doom
                continue

            if verdict == "isolate":
                self._ledger.killers[repr(obituary.key)] = obituary.sentence + ", again and again"
            self._replace(worker_id, tasks, obituary, carefully=verdict == "carefully")

    def _replace(
        self, worker_id: int, tasks: list[tuple[int, int, Any]], obituary: Obituary, *, carefully: bool
    ) -> None:
        self._restarts += 1
        self._ledger.restarted()
        self._supervisor.say(obituary, f"it is replaced (batches to make again: {len(tasks)})")
        try:
            self._team.replace(worker_id, self._beginning_anew(worker_id), self._epoch)
        except BaseException:  # no process to be had, or Ctrl-C: there is nobody to wait for
            self._shutdown_workers()
            raise

        for task, lane, index in tasks:
            if carefully and task == obituary.seen.task:
                again = Careful(plain_index(index))
            else:
                again = index

            self._indices_out[task] = lane, again
            self._team.post(worker_id, task, lane, again)

    def _beginning_anew(self, worker_id: int) -> Begin:
        """Returns where a worker begins that takes the place of one in mid-epoch: behind what that one has made.

        Without `seed=` a map-style dataset gets new random numbers: the old ones would come twice. An iterable one
        gets the same, since it goes through its samples again.
        """
        begin = self.beginning()
        states = self._states_behind(worker_id, lambda result: decode(result.header, result.buffers)[1])
        if self._is_map and self._terms.seed is None:
            begin = begin._replace(base_seed=stream_key(begin.base_seed, self._restarts) & SEED_BITS)
        return begin._replace(states=states)

    def _shutdown_workers(self) -> None:
        if "_end" in self.__dict__:
            self._end()

    def __del__(self) -> None:
        """Does nothing, in the place of torch's: `_end` ends the workers.

        When Python exits, this may run after the globals of this module were set to None. `_end` does nothing then.
        """


def _what_they_do(stacks: str) -> RuntimeError | None:
    """Returns the cause of an error that says that workers took too long."""
    if stacks:
        return RuntimeError(f"the Python stacks of the workers that it waits for are:\n{stacks}")
    return None


def _leases(region: InboundRegion, result: Result) -> tuple[bytes | memoryview, list[Bytes]]:
    """Takes the leases of a result: its header, and its buffers as arrays that keep their slots' leases alive."""
    slots = [region.lease(slot, used) for slot, used in result.slots]
    buffers = [slots[index][start : start + nbytes] for index, start, nbytes in result.buffers]
    if isinstance(result.header, InSlot):
        return region.lease(result.header.slot, result.header.nbytes).data, buffers
    return result.header, buffers
