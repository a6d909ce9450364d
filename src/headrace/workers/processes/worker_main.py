"""The life of a worker process: set up as torch does, then tasks in order until the parent stops it or is gone."""

from __future__ import annotations

import faulthandler
import gc
import os
import select
import time
from collections import deque
from collections.abc import Sequence
from dataclasses import dataclass, field
from multiprocessing.connection import Connection
from typing import Any

import numpy as np

from headrace.batches.collate import SlotCollate
from headrace.batches.partial_loading import PartialLoading
from headrace.core.missing_state import MissingState, cannot_be_sent
from headrace.core.process.activity import (
    IDLE,
    PLACE,
    SEND,
    STAGE,
    START,
    STOP_TASK,
    TASK,
    TOGETHER,
    count_whole_process,
)
from headrace.core.process.allocator import keep_freed_memory
from headrace.core.process.parent_watch import ParentWatch
from headrace.core.torch_internals import (
    MP_STATUS_CHECK_INTERVAL,
    enter_worker_process,
    torch_default_collate,
)
from headrace.epoch.start import EpochStart
from headrace.faults.bad_sample import BadSample
from headrace.shared_memory.arena import Ticket
from headrace.shared_memory.codec import EncodedBatch, encode
from headrace.shared_memory.memory import Slot
from headrace.storage.fetching.endpoint import read_through
from headrace.telemetry.stack_sampler import StackSampler
from headrace.telemetry.stopwatch import Stopwatch
from headrace.workers.failure import Failure
from headrace.workers.processes.crash_file import CrashFile
from headrace.workers.processes.machines import StandIn
from headrace.workers.processes.messages import INLINE, READ, UNTOLD, InSlot, Request, Result
from headrace.workers.processes.outbox import Outbox
from headrace.workers.processes.plain_requests import unpacked_request
from headrace.workers.replica import ReplicaHost
from headrace.workers.worker_spec import WorkerSpec

PAUSE = 0.5e-3
"""Seconds between two looks for messages, while there are tasks."""


@dataclass
class Assignment:
    """What a worker process is told at its start, besides the `WorkerSpec`. Picklable while a process is being
    started."""

    begin: EpochStart
    epoch: int
    """The number of the epoch that `begin` begins."""
    worker_id: int
    workers: int
    original_errors: bool
    pipe: Connection
    outgoing: Ticket
    incoming: Ticket
    parent_pid: int
    crash_file: CrashFile
    parent_watch: ParentWatch
    """By which the kernel ends it with the parent, also in the middle of a sample."""
    inherited: list[Connection] = field(default_factory=list)
    """Under fork: the parent's ends of all pipes, to be closed in the child so that a dead parent is noticed."""
    stand_in: StandIn | None = None
    """Where the process only stands for a worker on another machine: what runs instead of a worker."""


def main(worker_spec: WorkerSpec, assignment: Assignment) -> None:
    """The target of a worker process."""
    try:
        for pipe in assignment.inherited:
            pipe.close()
        assignment.parent_watch.begin()
        if assignment.stand_in is not None:
            assignment.stand_in.run(assignment)
            return

        faulthandler.disable()  # if the parent had enabled it: torch's handlers come first, then ours
        enter_worker_process()
        keep_freed_memory()
        assignment.crash_file.record()
        assignment.crash_file.activity[STAGE] = START
        count_whole_process()
        gc.freeze()  # a collection would write to every object of the parent, and so copy its pages
        _Worker(worker_spec, assignment).run()
    except (KeyboardInterrupt, EOFError, BrokenPipeError, ConnectionResetError):
        pass  # Ctrl-C reaches the parent too, which decides; without a parent there is nobody to tell.


class _Worker:
    def __init__(self, worker_spec: WorkerSpec, assignment: Assignment) -> None:
        if worker_spec.io_address is not None:
            read_through(worker_spec.io_address)

        self._it = assignment
        self._is_stream = not worker_spec.is_map
        self._memory = assignment.outgoing.writer()
        self._orders = assignment.incoming.reader()
        self._ear = _Ear(assignment.pipe, assignment.parent_pid)
        self._outbox = Outbox(assignment.pipe)
        collate = worker_spec.collate_fn
        slot_collate = SlotCollate(self._memory, in_worker=True)
        slot_collate.install()
        if collate is torch_default_collate:
            collate = slot_collate

        self._host = ReplicaHost(
            worker_spec,
            assignment.worker_id,
            assignment.workers,
            "process",
            collate,
            assignment.crash_file.activity,
            watched=True,
        )
        self._activity = assignment.crash_file.activity
        self._watch = Stopwatch(self._activity)
        self._sampler = StackSampler(self._activity)
        self._failures: dict[int, BaseException] = {}
        self._ended: set[int] = set()
        self._epoch = assignment.epoch
        self._tasks: deque[tuple[int, int, Any]] = deque()
        self._look_at = 0.0
        self._read = 0
        self._told = 0  # how many messages the parent knows to be read
        self._freed: list[Slot] = []

    def run(self) -> None:
        self._begin(self._it.begin)
        while True:
            if not self._listen():
                return
            if self._tasks:
                task, replica, index = self._tasks.popleft()
                if replica not in self._ended:
                    self._do(task, replica, index)

    def _listen(self) -> bool:
        """Reads all messages that are there, or waits for one if there is no work. False: stop."""
        # Tasks that were passed over, since their stream has ended, send no result with which the others would go.
        if not self._tasks:
            self._outbox.send()
        # To look costs a system call, which quick batches need not pay for one by one.
        now = time.perf_counter()
        if len(self._tasks) > 1 and now < self._look_at:
            return True
        self._look_at = now + PAUSE
        while self._hears():
            message = self._receive()
            if message.stop:
                return False
            self._memory.give_back(message.returned)
            if message.begin is not None:
                self._outbox.send()
                self._epoch = message.epoch
                self._tasks.clear()
                self._begin(message.begin)
            if message.void:
                self._tasks = deque(task for task in self._tasks if task[0] not in message.void)
            self._tasks.extend(message.tasks)

        return bool(self._tasks)

    def _hears(self) -> bool:
        """Tells whether there is a message. Waits for one if there is no work."""
        if not self._tasks and self._read - self._told >= UNTOLD:
            self._send(0, READ, encode(None, self._memory))
        return self._ear.hears(wait=not self._tasks)

    def _receive(self) -> Request:
        message = unpacked_request(self._it.pipe.recv_bytes())
        self._read += 1
        if isinstance(message, InSlot):
            self._freed.append(message.slot)
            message = unpacked_request(self._orders.view(message.slot, message.nbytes).data)
        return message  # type: ignore[return-value]  # an `InSlot` holds a request

    def _begin(self, begin: EpochStart) -> None:
        """Starts an epoch. What goes wrong here is the result of the first task of the replica."""
        self._ended.clear()
        self._activity[STOP_TASK] = 0
        self._failures = self._host.begin(begin, self._report)
        if begin.tell:
            states = self._host.states_at_beginning()
            for replica, state in states.items():
                if self._unsendable(state) is not None:
                    states[replica] = None
            self._send(0, "begun", encode(states, self._memory))

    def _report(self, replica: int, done: int, total: int) -> None:
        self._send(0, "replay", encode((replica, done, total), self._memory))

    def _do(self, task: int, replica: int, index: object) -> None:
        activity = self._activity
        activity[TASK] = task
        self._watch.start()
        status, payload = self._fetch(replica, index)
        self._watch.made()
        activity[STAGE] = SEND
        activity[PLACE] = TOGETHER
        try:
            encoded = self._encode(status, payload, replica)
        except Exception as error:  # noqa: BLE001 - pickling may raise anything; the main process raises it again
            self._memory.finish(set())
            error.add_note("headrace: raised while the batch was prepared for sending to the main process")
            status = "error"
            encoded = self._encode(status, self._failure(replica, error), replica)

        del payload
        self._send(task, status, encoded, self._host.partial(replica))
        activity[STAGE] = IDLE

    def _fetch(self, replica: int, index: object) -> tuple[str, Any]:
        try:
            if replica in self._failures:
                raise self._failures.pop(replica)
            return "batch", tuple(self._host.fetch(replica, index))
        except StopIteration as end:
            if self._is_stream:
                self._ended.add(replica)
                return "end", self._host.state(replica)
            return "error", self._failure(replica, end)
        except Exception as error:  # noqa: BLE001 - raised again in the main process
            return "error", self._failure(replica, error)

    def _failure(self, replica: int, error: BaseException) -> tuple[Failure, Any, Sequence[BadSample]]:
        where = f"in DataLoader worker process {replica}"
        return (
            Failure(error, where, original=self._it.original_errors),
            self._host.state(replica),
            self._host.losses(replica),
        )

    def _encode(self, status: str, payload: Any, replica: int) -> EncodedBatch:
        """Encodes a result. A state of the dataset that cannot be pickled is left out, until the epoch ends.

        An error whose class cannot be pickled becomes a RuntimeError with the same traceback.
        """
        try:
            return encode(payload, self._memory)
        except Exception:
            state = payload
            if status != "end":
                state = payload[1]

            missing = self._unsendable(state)
            if missing is None and status != "error":
                raise

        if missing is None:
            return encode((payload[0].simplified(), *payload[1:]), self._memory)

        state = self._host.state_without(replica, missing)
        if status == "end":
            return encode(state, self._memory)
        return self._encode(status, (payload[0], state, payload[2]), replica)

    def _unsendable(self, state: object) -> MissingState | None:
        """Returns what stands for a state of the dataset that cannot be pickled; None: it can be."""
        try:
            encode(state, self._memory)
        except Exception as error:  # noqa: BLE001 - pickling may raise anything
            return cannot_be_sent(error)
        return None

    def _send(self, task: int, status: str, encoded: EncodedBatch, partial: PartialLoading | None = None) -> None:
        header: bytes | InSlot = encoded.header
        sent = {slot for slot, _ in encoded.slots}
        if len(encoded.header) > INLINE:
            slot, target = self._memory.take(len(encoded.header))
            np.copyto(target, np.frombuffer(encoded.header, np.uint8))
            header = InSlot(slot, len(encoded.header))
            sent.add(slot)

        freed = self._freed
        self._freed = []
        times = self._watch.stop()
        if partial is not None:
            times = times._replace(slowest=partial.slowest)
        seen = self._sampler.take()
        drew = self._host.drew_unseeded
        result = Result(
            self._epoch,
            task,
            status,
            header,
            encoded.slots,
            encoded.buffers,
            self._read,
            freed,
            times,
            seen,
            drew,
        )
        if partial is not None:
            result = result._replace(rows=partial.rows, slow=partial.slow)
        self._told = self._read
        # Nobody writes to its slots from here on, also if it waits until further results are there.
        self._memory.finish(sent)
        self._outbox.put(result, more=bool(self._tasks))


class _Ear:
    """Listens to the pipe, and for the end of the parent process.

    The kernel tells the end of the parent through a pidfd; where there is none, the parent is looked at now and then.
    """

    def __init__(self, pipe: Connection, parent_pid: int) -> None:
        self._pipe = pipe
        self._born_under = os.getppid()
        self._poll = select.poll()
        self._poll.register(pipe.fileno(), select.POLLIN)
        self._pidfd = _pidfd_of(parent_pid)
        if self._pidfd is not None:
            self._poll.register(self._pidfd, select.POLLIN)

    def hears(self, *, wait: bool) -> bool:
        """True if a message can be read. With `wait`, returns only then. Raises EOFError once the parent is gone."""
        timeout = (-1 if self._pidfd is not None else MP_STATUS_CHECK_INTERVAL * 1000) if wait else 0
        while True:
            events = self._poll.poll(timeout)
            if any(fd == self._pipe.fileno() for fd, _ in events):
                return True
            if events or (self._pidfd is None and os.getppid() != self._born_under):
                raise EOFError("the main process is gone")
            if not wait:
                return False


def _pidfd_of(pid: int) -> int | None:
    if not hasattr(os, "pidfd_open"):
        return None

    try:
        return os.pidfd_open(pid)
    except OSError:
        return None
