"""The worker processes of one iterator, seen from the parent: start, talk, notice deaths, stop in order."""

from __future__ import annotations

import contextlib
import os
import selectors
import time
from collections import deque
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from multiprocessing.connection import Connection, Pipe, wait
from typing import Any

import numpy as np

from headrace.core.process.activity import PLACE, STAGE, STOP_ROW, STOP_TASK, TASK
from headrace.core.process.interruptible_wait import slices
from headrace.core.process.parent_watch import ParentWatch
from headrace.epoch.start import EpochStart
from headrace.shared_memory.arena import ORDINARY, Arena, HostMemory, InboundRegion
from headrace.shared_memory.codec import dumps
from headrace.shared_memory.memory import Slot
from headrace.shared_memory.writer_memory import WriterMemory
from headrace.workers.processes.crash_file import CrashFile
from headrace.workers.processes.messages import ANSWERS, INLINE, UNREAD, InSlot, Request, Result, unpacked
from headrace.workers.processes.plain_requests import packed_request
from headrace.workers.processes.start import Start
from headrace.workers.processes.worker_main import Assignment

GRACE = 5.0
"""Seconds that workers have to finish their sample when they are stopped, before they are terminated."""


@dataclass
class WorkerHandle:
    """One worker process: its pipe, the region it writes, and the request that were not sent yet."""

    process: Any
    pipe: Connection
    region: InboundRegion
    crash_file: CrashFile
    tasks: list[tuple[int, int, Any]] = field(default_factory=list)
    void: list[int] = field(default_factory=list)
    """Tasks that were sent, and that it is to leave alone now."""
    begin: EpochStart | None = None
    epoch: int = -1
    """Of the tasks that were sent last."""
    in_hand: int = 0
    """How many of these it has not answered."""
    sent: int = 0
    read: int = 0
    came: deque[Result] = field(default_factory=deque)
    """Results that have been read and not been handed on yet."""
    large_messages: set[Slot] = field(default_factory=set)
    """Slots of request that it has not given back."""
    retired: bool = False
    reaped: bool = False
    unplaced: bool = False
    """Whether it stands for a worker on another machine, and no machine has been found yet: nothing is sent to it."""
    host: str = ""
    """The other machine on which it works; empty: it works on this one."""
    remote_pid: int | None = None
    """The worker's process there."""

    @property
    def is_up(self) -> bool:
        """Whether requests reach a worker."""
        return not self.reaped and not self.unplaced


@dataclass
class Regions:
    """Where workers write their batches."""

    arena: Arena
    host: HostMemory = ORDINARY


@dataclass
class PoolResources:
    """The workers and what they use, without what the user gave: whoever holds it does not hold the loader's dataset.

    Its end does not depend on the order in which the garbage collector finalizes things: see `WorkerPool.resources`.
    """

    arena: Arena
    large_messages: InboundRegion
    workers: list[WorkerHandle] = field(default_factory=list)
    selector: selectors.BaseSelector = field(default_factory=selectors.DefaultSelector)
    pid: int = field(default_factory=os.getpid)
    closed: bool = False

    def say_stop(self, worker: WorkerHandle) -> None:
        """Tells a worker to end when it has done what it was given."""
        os.set_blocking(worker.pipe.fileno(), False)  # a full pipe must not hold up the end
        with contextlib.suppress(BlockingIOError, BrokenPipeError, ConnectionResetError):
            worker.pipe.send_bytes(dumps(Request(0, None, [], [], True)))

    def close(self) -> None:
        """Stops all workers, waits for their end, and gives their regions back. Does nothing the second time."""
        if self.closed or os.getpid() != self.pid:
            return

        self.closed = True
        self.selector.close()
        workers = [worker for worker in self.workers if not worker.reaped]
        for worker in workers:
            if not worker.retired:
                self.say_stop(worker)
            worker.pipe.close()

        for end in (lambda process: None, _terminate, _kill):
            _wait_for_all([worker.process for worker in workers], end)

        for worker in workers:
            if not worker.process.is_alive():
                worker.process.join()
                self.arena.give_back(worker.region)

        self.arena.give_back(self.large_messages)


class WorkerPool:
    """Starts the workers at construction. Belongs to the process and thread that made it.

    `resources` is for a `weakref.finalize` of the owner to close: in a reference cycle that is collected, the pipes and
    the processes' descriptors would be closed before a `__del__` could use them.
    """

    def __init__(
        self,
        find_start: Callable[[], Start],
        regions: Regions,
        count: int,
        brief: Callable[..., Assignment],
        begin: EpochStart,
    ) -> None:
        self._find_start, self._start, self._brief = find_start, find_start(), brief
        self._regions = regions
        # The parent has a region of its own, for requests that are too long for a pipe.
        self.resources = PoolResources(regions.arena, regions.arena.borrow())
        self._memory: WriterMemory = self.resources.large_messages.ticket().writer()
        self._dead: list[int] = []
        for worker_id in range(count):
            self.workers.append(self._hire(worker_id, begin, 0))

    @property
    def workers(self) -> list[WorkerHandle]:
        """The workers, by their numbers; those that were reaped too."""
        return self.resources.workers

    @property
    def is_by_fork_server(self) -> bool:
        """Whether workers are forks of a fork server."""
        return self._start.is_fork_server

    @property
    def closed(self) -> bool:
        """Whether the workers were stopped."""
        return self.resources.closed

    def _hire(self, worker_id: int, begin: EpochStart, epoch: int) -> WorkerHandle:
        ours, theirs = Pipe(duplex=True)
        region = self._regions.arena.borrow(self._regions.host.lock)
        crash_file = CrashFile()
        others = [worker.pipe for worker in self.workers if not worker.reaped]
        assignment = self._brief(
            begin=begin,
            epoch=epoch,
            crash_file=crash_file,
            parent_watch=ParentWatch.for_child(),
            worker_id=worker_id,
            pipe=theirs,
            outgoing=region.ticket(self._regions.host.layout),
            incoming=self.resources.large_messages.ticket(),
            parent_pid=os.getpid(),
            inherited=[*others, ours] if self._start.forks else [],
        )
        try:
            process = self._start.process(assignment)
        finally:
            theirs.close()

        assignment.parent_watch.bind(process.pid)
        self.resources.selector.register(ours, selectors.EVENT_READ, worker_id)
        self.resources.selector.register(process.sentinel, selectors.EVENT_READ, ~worker_id)
        return WorkerHandle(process, ours, region, crash_file, unplaced=assignment.stand_in is not None)

    def replace(self, worker_id: int, begin: EpochStart, epoch: int) -> None:
        """Starts another worker in the place of one that was reaped, to begin where `begin` says."""
        if not self._start.alive:
            self._start = self._find_start()
        self.workers[worker_id] = self._hire(worker_id, begin, epoch)

    def hire(self, begin: EpochStart, epoch: int) -> None:
        """Starts one more worker, to begin where `begin` says."""
        self.workers.append(self._hire(len(self.workers), begin, epoch))

    def dismiss(self, worker_id: int) -> None:
        """Ends a worker that has no work, and takes back what it had. Another one may `replace` it later."""
        worker = self.workers[worker_id]
        if not worker.reaped:
            self.retire(worker_id)
            self._take_back(worker)

    def post(self, worker_id: int, task: int, replica: int, index: object) -> None:
        """Puts a task into the outbox of a worker; `flush` sends it."""
        self.workers[worker_id].tasks.append((task, replica, index))

    def withdraw(self, worker_id: int, task: int) -> bool:
        """Takes a task back that was posted and is not sent yet. False: it was sent."""
        worker = self.workers[worker_id]
        kept = [posted for posted in worker.tasks if posted[0] != task]
        was_there = len(kept) < len(worker.tasks)
        worker.tasks = kept
        return was_there

    def recall(self, worker_id: int, task: int) -> None:
        """Tells a worker, with the next message, to leave a task alone unless it has begun it."""
        worker = self.workers[worker_id]
        worker.void.append(task)
        worker.in_hand -= 1

    def doing(self, worker_id: int) -> tuple[int, int, int]:
        """Returns what a worker does at this moment: number of the task, stage, and place of the sample."""
        activity = self.workers[worker_id].crash_file.activity
        return activity[TASK], activity[STAGE], activity[PLACE]

    def stop_at(self, worker_id: int, task: int, row: int) -> None:
        """Tells a worker at once that it need not make this sample of a task, nor those behind it."""
        activity = self.workers[worker_id].crash_file.activity
        activity[STOP_ROW] = row
        activity[STOP_TASK] = task + 1

    def begin(self, begin: EpochStart) -> None:
        """Has every worker begin the next epoch; request of the last one that were not sent are dropped.

        Those that were reaped must be replaced.
        """
        for worker in self.workers:
            worker.tasks.clear()
            worker.void.clear()
            worker.in_hand = 0
            worker.begin = begin
            worker.retired = False

    def flush(self, epoch: int, least: int = 1, low: int = -1) -> None:
        """Sends tasks to workers for which there are at least `least`, or which have `low` or fewer left to do.

        Not to those that have many unread messages.
        """
        for worker in self.workers:
            if not worker.is_up or not (worker.tasks or worker.begin or worker.void):
                continue
            is_due = len(worker.tasks) >= least or worker.in_hand <= low or worker.begin or worker.void
            if is_due and worker.sent - worker.read < UNREAD:
                worker.epoch = epoch
                worker.in_hand += len(worker.tasks)
                request = Request(epoch, worker.begin, worker.tasks, worker.region.returned(), False, worker.void)
                worker.tasks = []
                worker.void = []
                worker.begin = None
                self._send(worker, request)

    def retire(self, worker_id: int) -> None:
        """Lets a worker go that has no data left."""
        worker = self.workers[worker_id]
        if worker.reaped:
            return

        worker.retired = True
        self._ignore(worker)
        self.resources.say_stop(worker)

    def receive(self, timeout: float | None) -> Iterator[tuple[int, Result]]:
        """Waits up to `timeout` seconds (None: for ever) and yields the results that came, with their workers.

        Workers found dead are reaped, after everything that they had sent was yielded.
        """
        for worker_id, worker in enumerate(self.workers):
            if worker.came:
                timeout = 0
                yield from self._hand_on(worker_id, worker)

        came: list[Any] = []
        for seconds in slices(timeout):
            came = self.resources.selector.select(seconds)
            if came:
                break

        for key, _ in came:
            if key.data >= 0:
                worker_id = key.data
            else:
                worker_id = ~key.data

            worker = self.workers[worker_id]
            if worker.reaped:
                continue
            if key.data >= 0:
                yield from self._read(worker_id, worker)
            else:
                yield from self._read_out(worker_id, worker)

    def end(self, worker_id: int) -> Iterator[tuple[int, Result]]:
        """Kills a worker, and reaps it after everything that it had sent was yielded."""
        worker = self.workers[worker_id]
        worker.process.kill()
        worker.process.join(GRACE)
        yield from self._read_out(worker_id, worker)

    def take_dead(self) -> list[int]:
        """Returns the workers that were reaped since the last call."""
        dead = self._dead
        self._dead = []
        return dead

    def _read_out(self, worker_id: int, worker: WorkerHandle) -> Iterator[tuple[int, Result]]:
        """Yields all that a dead worker had sent, and reaps it."""
        yield from self._hand_on(worker_id, worker)
        while not worker.reaped and worker.pipe.poll(0):
            yield from self._read(worker_id, worker)
        self._reap(worker_id, worker)

    def _read(self, worker_id: int, worker: WorkerHandle) -> Iterator[tuple[int, Result]]:
        try:
            results = unpacked(worker.pipe.recv_bytes())
        except (EOFError, OSError):  # the end of the pipe, be it in the middle of a message
            self._reap(worker_id, worker)
            return

        worker.came.extend(results)
        yield from self._hand_on(worker_id, worker)

    def _hand_on(self, worker_id: int, worker: WorkerHandle) -> Iterator[tuple[int, Result]]:
        # A signal handler may raise between two of them: the others wait for the next call.
        while worker.came:
            result = worker.came.popleft()
            if result.epoch == worker.epoch and result.status in ANSWERS:
                worker.in_hand -= 1
            worker.read = result.read
            worker.large_messages.difference_update(result.freed)
            self._memory.give_back(result.freed)
            yield worker_id, result

    def _reap(self, worker_id: int, worker: WorkerHandle) -> None:
        """Takes back what a dead worker had. What it sent must be leased by now."""
        if worker.reaped:
            return

        self._ignore(worker)
        self._take_back(worker)
        self._dead.append(worker_id)

    def _ignore(self, worker: WorkerHandle) -> None:
        """Waits no more for what a worker says, nor for its end."""
        # A signal handler may raise between the two: then the next call does the rest.
        for watched in (worker.process.sentinel, worker.pipe):
            with contextlib.suppress(KeyError):
                self.resources.selector.unregister(watched)

    def _take_back(self, worker: WorkerHandle) -> None:
        """Waits for the end of a worker, kills it if that takes long, and takes back what it had."""
        worker.reaped = True
        worker.pipe.close()
        for end in (lambda process: None, _kill):
            _wait_for_all([worker.process], end)

        self._memory.give_back(sorted(worker.large_messages))
        if not worker.process.is_alive():
            worker.process.join()
            self.resources.arena.give_back(worker.region)

    def _send(self, worker: WorkerHandle, request: Request) -> None:
        data = packed_request(request)
        if len(data) > INLINE:
            slot, target = self._memory.take(len(data))
            np.copyto(target, np.frombuffer(data, np.uint8))
            self._memory.finish({slot})
            worker.large_messages.add(slot)
            data = dumps(InSlot(slot, len(data)))

        worker.sent += 1
        with contextlib.suppress(BrokenPipeError, ConnectionResetError):  # a dead worker: its sentinel tells
            worker.pipe.send_bytes(data)


def _wait_for_all(processes: list[Any], end: Callable[[Any], None]) -> None:
    """Applies `end` to the processes that still run and waits up to `GRACE` seconds for all of them."""
    running = [process for process in processes if process.is_alive()]
    for process in running:
        end(process)

    deadline = time.monotonic() + GRACE
    sentinels = {process.sentinel: process for process in running}
    while sentinels and (left := deadline - time.monotonic()) > 0:
        for sentinel in wait(list(sentinels), left):
            sentinels.pop(sentinel).join()


def _terminate(process: Any) -> None:
    process.terminate()


def _kill(process: Any) -> None:
    process.kill()
