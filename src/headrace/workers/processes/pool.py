"""The worker processes of one iterator, seen from the parent: start, talk, notice deaths, stop in order."""

from __future__ import annotations

import contextlib
import os
import pickle
import selectors
import threading
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from multiprocessing.connection import Connection, Pipe, wait
from typing import Any

import numpy as np

from headrace.shared_memory.arena import Arena, InboundRegion
from headrace.shared_memory.codec import dumps
from headrace.shared_memory.leases import WriterMemory
from headrace.shared_memory.memory import Slot
from headrace.workers.processes.crash_file import BlackBox
from headrace.workers.processes.messages import INLINE, UNREAD, InSlot, Orders, Result
from headrace.workers.processes.start import Start
from headrace.workers.processes.worker_main import Assignment
from headrace.workers.replica import Begin

GRACE = 5.0
"""Seconds that workers have to finish their sample when they are stopped, before they are terminated."""


@dataclass
class Member:
    """One worker process: its pipe, the region it writes, and the orders that were not sent yet."""

    process: Any
    pipe: Connection
    region: InboundRegion
    box: BlackBox
    tasks: list[tuple[int, int, Any]] = field(default_factory=list)
    begin: Begin | None = None
    sent: int = 0
    read: int = 0
    letters: set[Slot] = field(default_factory=set)
    """Slots of orders that it has not given back."""
    retired: bool = False
    buried: bool = False


@dataclass
class Crew:
    """The workers and what they use, without what the user gave: whoever holds it does not hold the loader's dataset.

    Its end does not depend on the order in which the garbage collector finalizes things: see `Team.crew`.
    """

    arena: Arena
    letters: InboundRegion
    members: list[Member] = field(default_factory=list)
    selector: selectors.BaseSelector = field(default_factory=selectors.DefaultSelector)
    pid: int = field(default_factory=os.getpid)
    closed: bool = False

    def say_stop(self, member: Member) -> None:
        """Tells a worker to end when it has done what it was given."""
        os.set_blocking(member.pipe.fileno(), False)  # a full pipe must not hold up the end
        with contextlib.suppress(BlockingIOError, BrokenPipeError, ConnectionResetError):
            member.pipe.send_bytes(dumps(Orders(0, None, [], [], True)))

    def close(self) -> None:
        """Stops all workers, waits for their end, and gives their regions back. Does nothing the second time."""
        if self.closed or os.getpid() != self.pid:
            return

        self.closed = True
        self.selector.close()
        members = [member for member in self.members if not member.buried]
        for member in members:
            if not member.retired:
                self.say_stop(member)
            member.pipe.close()

        for end in (lambda process: None, _terminate, _kill):
            _wait_for_all([member.process for member in members], end)

        for member in members:
            if not member.process.is_alive():
                member.process.join()
                self.arena.give_back(member.region)

        self.arena.give_back(self.letters)


class Team:
    """Starts the workers at construction. Belongs to the process and thread that made it.

    `crew` is for a `weakref.finalize` of the owner to close: in a reference cycle that is collected, the pipes and the
    processes' descriptors would be closed before a `__del__` could use them.
    """

    def __init__(
        self, find_start: Callable[[], Start], arena: Arena, count: int, brief: Callable[..., Assignment], begin: Begin
    ) -> None:
        self._find_start, self._start, self._brief = find_start, find_start(), brief
        self.crew = Crew(arena, arena.borrow())  # the parent's own region, for orders too long for a pipe
        self._memory: WriterMemory = self.crew.letters.ticket().writer()
        self._dead: list[int] = []
        for worker_id in range(count):
            self.members.append(self._hire(worker_id, begin, 0))

    @property
    def members(self) -> list[Member]:
        """The workers, by their numbers; those that were buried too."""
        return self.crew.members

    @property
    def closed(self) -> bool:
        """Whether the workers were stopped."""
        return self.crew.closed

    def _hire(self, worker_id: int, begin: Begin, epoch: int) -> Member:
        ours, theirs = Pipe(duplex=True)
        region = self.crew.arena.borrow()
        box = BlackBox()
        others = [member.pipe for member in self.members if not member.buried]
        assignment = self._brief(
            begin=begin,
            epoch=epoch,
            box=box,
            bound=self._start.forks and threading.current_thread() is threading.main_thread(),
            worker_id=worker_id,
            pipe=theirs,
            outgoing=region.ticket(),
            incoming=self.crew.letters.ticket(),
            parent_pid=os.getpid(),
            inherited=[*others, ours] if self._start.forks else [],
        )
        try:
            process = self._start.process(assignment)
        finally:
            theirs.close()

        self.crew.selector.register(ours, selectors.EVENT_READ, worker_id)
        self.crew.selector.register(process.sentinel, selectors.EVENT_READ, ~worker_id)
        return Member(process, ours, region, box)

    def replace(self, worker_id: int, begin: Begin, epoch: int) -> None:
        """Starts another worker in the place of one that was buried, to begin where `begin` says."""
        if not self._start.alive:
            self._start = self._find_start()
        self.members[worker_id] = self._hire(worker_id, begin, epoch)

    def hire(self, begin: Begin, epoch: int) -> None:
        """Starts one more worker, to begin where `begin` says."""
        self.members.append(self._hire(len(self.members), begin, epoch))

    def dismiss(self, worker_id: int) -> None:
        """Ends a worker that has no work, and takes back what it had. Another one may `replace` it later."""
        member = self.members[worker_id]
        if not member.buried:
            self.retire(worker_id)
            self._take_back(member)

    def post(self, worker_id: int, task: int, lane: int, index: Any) -> None:
        """Puts a task into the outbox of a worker; `flush` sends it."""
        self.members[worker_id].tasks.append((task, lane, index))

    def begin(self, begin: Begin) -> None:
        """Has every worker begin the next epoch; orders of the last one that were not sent are dropped.

        Those that were buried must be replaced.
        """
        for member in self.members:
            member.tasks.clear()
            member.begin = begin
            member.retired = False

    def flush(self, epoch: int, least: int = 1) -> None:
        """Sends what is in outboxes with at least so many tasks, except to workers that have many unread messages."""
        for member in self.members:
            if member.buried:
                continue
            if (len(member.tasks) >= least or member.begin) and member.sent - member.read < UNREAD:
                orders = Orders(epoch, member.begin, member.tasks, member.region.returned(), False)
                member.tasks = []
                member.begin = None
                self._send(member, orders)

    def retire(self, worker_id: int) -> None:
        """Lets a worker go that has no data left."""
        member = self.members[worker_id]
        if member.buried:
            return

        member.retired = True
        self.crew.selector.unregister(member.process.sentinel)
        self.crew.selector.unregister(member.pipe)
        self.crew.say_stop(member)

    def receive(self, timeout: float | None) -> Iterator[tuple[int, Result]]:
        """Waits up to `timeout` seconds (None: for ever) and yields the results that came, with their workers.

        Workers found dead are buried, after everything that they had sent was yielded.
        """
        for key, _ in self.crew.selector.select(timeout):
            if key.data >= 0:
                worker_id = key.data
            else:
                worker_id = ~key.data

            member = self.members[worker_id]
            if member.buried:
                continue
            if key.data >= 0:
                yield from self._read(worker_id, member)
            else:
                yield from self._read_out(worker_id, member)

    def end(self, worker_id: int) -> Iterator[tuple[int, Result]]:
        """Kills a worker, and buries it after everything that it had sent was yielded."""
        member = self.members[worker_id]
        member.process.kill()
        member.process.join(GRACE)
        yield from self._read_out(worker_id, member)

    def take_dead(self) -> list[int]:
        """Returns the workers that were buried since the last call."""
        dead = self._dead
        self._dead = []
        return dead

    def _read_out(self, worker_id: int, member: Member) -> Iterator[tuple[int, Result]]:
        """Yields all that a dead worker had sent, and buries it."""
        while not member.buried and member.pipe.poll(0):
            yield from self._read(worker_id, member)
        self._bury(worker_id, member)

    def _read(self, worker_id: int, member: Member) -> Iterator[tuple[int, Result]]:
        try:
            result: Result = pickle.loads(member.pipe.recv_bytes())
        except (EOFError, OSError):  # the end of the pipe, be it in the middle of a message
            self._bury(worker_id, member)
            return

        member.read = result.read
        member.letters.difference_update(result.freed)
        self._memory.give_back(result.freed)
        yield worker_id, result

    def _bury(self, worker_id: int, member: Member) -> None:
        """Takes back what a dead worker had. What it sent must be leased by now."""
        if member.buried:
            return

        self.crew.selector.unregister(member.process.sentinel)
        self.crew.selector.unregister(member.pipe)
        self._take_back(member)
        self._dead.append(worker_id)

    def _take_back(self, member: Member) -> None:
        """Waits for the end of a worker, kills it if that takes long, and takes back what it had."""
        member.buried = True
        member.pipe.close()
        for end in (lambda process: None, _kill):
            _wait_for_all([member.process], end)

        self._memory.give_back(sorted(member.letters))
        if not member.process.is_alive():
            member.process.join()
            self.crew.arena.give_back(member.region)

    def _send(self, member: Member, orders: Orders) -> None:
        plain = all(type(index) is np.ndarray for _, _, index in orders.tasks)
        if plain:
            data = pickle.dumps(orders, 5)
        else:
            data = dumps(orders)

        if len(data) > INLINE:
            slot, target = self._memory.take(len(data))
            np.copyto(target, np.frombuffer(data, np.uint8))
            self._memory.finish({slot})
            member.letters.add(slot)
            data = dumps(InSlot(slot, len(data)))

        member.sent += 1
        with contextlib.suppress(BrokenPipeError, ConnectionResetError):  # a dead worker: its sentinel tells
            member.pipe.send_bytes(data)


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
