"""The worker processes of one iterator, seen from the parent: start, talk, notice deaths, stop in order."""

from __future__ import annotations

import contextlib
import os
import pickle
import selectors
import signal
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from multiprocessing.connection import Connection, Pipe, wait
from typing import Any

import numpy as np

from headrace.engine.lane import Begin
from headrace.engine.messages import INLINE, UNREAD, InSlot, Orders, Result
from headrace.engine.starting import Start
from headrace.engine.worker import Assignment
from headrace.transport.arena import Arena, InboundRegion
from headrace.transport.codec import dumps
from headrace.transport.leases import WriterMemory

GRACE = 5.0
"""Seconds that workers have to finish their sample when they are stopped, before they are terminated."""


@dataclass
class Member:
    """One worker process: its pipe, the region it writes, and the orders that were not sent yet."""

    process: Any
    pipe: Connection
    region: InboundRegion
    tasks: list[tuple[int, int, Any]] = field(default_factory=list)
    begin: Begin | None = None
    sent: int = 0
    read: int = 0
    retired: bool = False


class Team:
    """Starts the workers at construction. Belongs to the process and thread that made it."""

    def __init__(self, start: Start, arena: Arena, count: int, brief: Callable[..., Assignment]) -> None:
        self._pid = os.getpid()
        self._arena = arena
        self._selector = selectors.DefaultSelector()
        self._letters = arena.borrow()  # the parent's own region, for orders too long for a pipe
        self._memory: WriterMemory = self._letters.ticket().writer()
        self.members: list[Member] = []
        self.dead: list[Member] = []
        self.closed = False
        for worker_id in range(count):
            self.members.append(self._start(start, worker_id, brief))

    def _start(self, start: Start, worker_id: int, brief: Callable[..., Assignment]) -> Member:
        ours, theirs = Pipe(duplex=True)
        region = self._arena.borrow()
        assignment = brief(
            worker_id=worker_id,
            pipe=theirs,
            outgoing=region.ticket(),
            incoming=self._letters.ticket(),
            parent_pid=os.getpid(),
            inherited=[*(member.pipe for member in self.members), ours] if start.forks else [],
        )
        try:
            process = start.process(assignment)
        finally:
            theirs.close()
        self._selector.register(ours, selectors.EVENT_READ, worker_id)
        self._selector.register(process.sentinel, selectors.EVENT_READ, ~worker_id)
        return Member(process, ours, region)

    def post(self, worker_id: int, task: int, lane: int, index: Any) -> None:
        """Puts a task into the outbox of a worker; `flush` sends it."""
        self.members[worker_id].tasks.append((task, lane, index))

    def begin(self, begin: Begin) -> None:
        """Has every worker begin the next epoch; orders of the last one that were not sent are dropped."""
        for member in self.members:
            member.tasks.clear()
            member.begin = begin
            member.retired = False

    def flush(self, epoch: int, least: int = 1) -> None:
        """Sends what is in outboxes with at least so many tasks, except to workers that have many unread messages."""
        for member in self.members:
            if (len(member.tasks) >= least or member.begin) and member.sent - member.read < UNREAD:
                orders = Orders(epoch, member.begin, member.tasks, member.region.returned(), False)
                member.tasks, member.begin = [], None
                self._send(member, orders)

    def retire(self, worker_id: int) -> None:
        """Lets a worker go that has no data left."""
        member = self.members[worker_id]
        member.retired = True
        self._selector.unregister(member.process.sentinel)
        self._selector.unregister(member.pipe)
        self._say_stop(member)

    def receive(self, timeout: float | None) -> Iterator[tuple[int, Result]]:
        """Waits up to `timeout` seconds (None: for ever) and yields the results that came, with their workers.

        Workers found dead are added to `dead`, after everything that they had sent was yielded.
        """
        for key, _ in self._selector.select(timeout):
            worker_id = key.data if key.data >= 0 else ~key.data
            member = self.members[worker_id]
            if member in self.dead:
                continue
            if key.data >= 0:
                yield from self._read(worker_id, member)
            else:
                while member.pipe.poll(0):
                    results = list(self._read(worker_id, member))
                    if not results:
                        break
                    yield from results
                self._bury(member)

    def _read(self, worker_id: int, member: Member) -> Iterator[tuple[int, Result]]:
        try:
            result: Result = pickle.loads(member.pipe.recv_bytes())
        except (EOFError, ConnectionResetError):
            self._bury(member)
            return
        member.read = result.read
        self._memory.give_back(result.freed)
        yield worker_id, result

    def _bury(self, member: Member) -> None:
        if member not in self.dead:
            member.process.join(GRACE)
            self.dead.append(member)
            self._selector.unregister(member.process.sentinel)
            self._selector.unregister(member.pipe)

    def _send(self, member: Member, orders: Orders) -> None:
        plain = all(type(index) is np.ndarray for _, _, index in orders.tasks)
        data = pickle.dumps(orders, 5) if plain else dumps(orders)
        if len(data) > INLINE:
            slot, target = self._memory.take(len(data))
            np.copyto(target, np.frombuffer(data, np.uint8))
            self._memory.finish({slot})
            data = dumps(InSlot(slot, len(data)))
        member.sent += 1
        with contextlib.suppress(BrokenPipeError, ConnectionResetError):  # a dead worker: its sentinel tells
            member.pipe.send_bytes(data)

    def _say_stop(self, member: Member) -> None:
        os.set_blocking(member.pipe.fileno(), False)  # a full pipe must not hold up the end
        with contextlib.suppress(BlockingIOError, BrokenPipeError, ConnectionResetError):
            member.pipe.send_bytes(dumps(Orders(0, None, [], [], True)))

    def death_notice(self) -> RuntimeError:
        """Returns torch's error for dead workers; its cause says how each ended."""
        pids = ", ".join(str(member.process.pid) for member in self.dead)
        error = RuntimeError(f"DataLoader worker (pid(s) {pids}) exited unexpectedly")
        error.__cause__ = RuntimeError("\n".join(_obituary(member.process) for member in self.dead))
        return error

    def close(self) -> None:
        """Stops all workers, waits for their end, and gives their regions back. Does nothing the second time."""
        if self.closed or os.getpid() != self._pid:
            return
        self.closed = True
        self._selector.close()
        for member in self.members:
            if not member.retired:
                self._say_stop(member)
            member.pipe.close()
        for end in (lambda process: None, _terminate, _kill):
            _wait_for_all([member.process for member in self.members], end)
        for member in self.members:
            if member.process.exitcode is not None:
                member.process.join()
                self._arena.give_back(member.region)
        self._arena.give_back(self._letters)


def _wait_for_all(processes: list[Any], end: Callable[[Any], None]) -> None:
    """Applies `end` to the processes that still run and waits up to `GRACE` seconds for all of them."""
    running = [process for process in processes if process.exitcode is None]
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


def _obituary(process: Any) -> str:
    code = process.exitcode
    if code is not None and code < 0:
        text = f"DataLoader worker (pid {process.pid}) is killed by signal: {signal.strsignal(-code)}. "
        if -code == signal.SIGBUS:
            text += (
                "It is possible that dataloader's workers are out of shared memory. "
                "Please try to raise your shared memory limit."
            )
        return text
    return (
        f"DataLoader worker (pid {process.pid}) exited unexpectedly with exit code {code}. "
        "Details are lost due to multiprocessing. Rerunning with num_workers=0 may give better error trace."
    )
