"""The life of a worker process: set up as torch does, then tasks in order until the parent stops it or is gone."""

from __future__ import annotations

import os
import pickle
import select
from collections import deque
from collections.abc import Callable
from dataclasses import dataclass, field
from multiprocessing.connection import Connection
from typing import Any

import numpy as np

from headrace.collate.stacking import SlotCollate
from headrace.core.torch_internals import (
    MP_STATUS_CHECK_INTERVAL,
    DatasetKind,
    enter_worker,
    reseed_datapipe,
    torch_default_collate,
    wrap_exception,
)
from headrace.engine.messages import INLINE, InSlot, Orders, Result, Resume
from headrace.fetch.fetcher import Fetcher, make_fetcher
from headrace.transport.arena import Ticket
from headrace.transport.codec import Parcel, decode, encode
from headrace.transport.memory import Slot


@dataclass
class Assignment:
    """Everything that a worker process is told at its start. It must be picklable under spawn and forkserver."""

    worker_id: int
    num_workers: int
    base_seed: int
    shared_seed: int | None
    dataset: Any
    dataset_kind: int
    auto_collation: bool
    collate_fn: Callable[[Any], Any]
    drop_last: bool
    worker_init_fn: Callable[[int], None] | None
    pipe: Connection
    outgoing: Ticket
    incoming: Ticket
    parent_pid: int
    inherited: list[Connection] = field(default_factory=list)
    """Under fork: the parent's ends of all pipes, to be closed in the child so that a dead parent is noticed."""


def main(assignment: Assignment) -> None:
    """The target of a worker process."""
    try:
        for pipe in assignment.inherited:
            pipe.close()
        enter_worker(assignment.worker_id, assignment.num_workers, assignment.base_seed, assignment.dataset)
        _Worker(assignment).run()
    except (KeyboardInterrupt, EOFError, BrokenPipeError, ConnectionResetError):
        pass  # Ctrl-C reaches the parent too, which decides; without a parent there is nobody to tell.


class _Worker:
    def __init__(self, assignment: Assignment) -> None:
        self._it = assignment
        self._memory = assignment.outgoing.writer()
        self._orders = assignment.incoming.reader()
        self._ear = _Ear(assignment.pipe, assignment.parent_pid)
        self._collate = assignment.collate_fn
        slot_collate = SlotCollate(self._memory, in_worker=True)
        slot_collate.install()
        if self._collate is torch_default_collate:
            self._collate = slot_collate
        self._where = f"in DataLoader worker process {assignment.worker_id}"
        self._fetcher: Fetcher | None = None
        self._failure: Any = None
        self._epoch = 0
        self._tasks: deque[tuple[int, Any]] = deque()
        self._ended = False
        self._read = 0
        self._freed: list[Slot] = []

    def run(self) -> None:
        self._begin(Resume(self._it.shared_seed), first=True)
        while True:
            if not self._listen():
                return
            if self._tasks:
                task, index = self._tasks.popleft()
                if not self._ended:
                    self._do(task, index)

    def _listen(self) -> bool:
        """Reads all messages that are there, or waits for one if there is no work. False: stop."""
        while self._ear.hears(wait=not self._tasks):
            message = self._receive()
            if message.stop:
                return False
            self._memory.give_back(message.returned)
            if message.resume is not None:
                self._epoch = message.epoch
                self._tasks.clear()
                self._begin(message.resume, first=False)
            self._tasks.extend(message.tasks)
        return bool(self._tasks)

    def _receive(self) -> Orders:
        message: Orders | InSlot = pickle.loads(self._it.pipe.recv_bytes())
        self._read += 1
        if isinstance(message, Orders):
            return message
        self._freed.append(message.slot)
        orders: Orders = decode(self._orders.view(message.slot, message.nbytes).data, [])
        return orders

    def _begin(self, resume: Resume, *, first: bool) -> None:
        """Starts an epoch. What goes wrong here is the result of its first task."""
        self._ended = False
        self._fetcher = None
        it = self._it
        try:
            dataset = reseed_datapipe(it.dataset, resume.shared_seed)
            if first and it.worker_init_fn is not None:
                it.worker_init_fn(it.worker_id)
            self._fetcher = make_fetcher(it.dataset_kind, dataset, it.auto_collation, self._collate, it.drop_last)
        except Exception:  # noqa: BLE001 - raised again in the main process
            self._failure = wrap_exception(self._where)

    def _do(self, task: int, index: Any) -> None:
        status, payload = self._fetch(index)
        try:
            parcel = encode(payload, self._memory) if status != "error" else self._encode_error(payload)
        except Exception as error:  # noqa: BLE001 - pickling may raise anything; the main process raises it again
            self._memory.finish(set())
            error.add_note("headrace: raised while the batch was prepared for sending to the main process")
            status, parcel = "error", self._encode_error(wrap_exception(self._where))
        del payload
        self._send(task, status, parcel)

    def _fetch(self, index: Any) -> tuple[str, Any]:
        if self._failure is not None:
            failure, self._failure = self._failure, None
            return "error", failure
        try:
            if self._fetcher is None:
                raise RuntimeError("this worker could not begin the epoch; its first result says why")
            return "batch", self._fetcher.fetch(index)
        except StopIteration:
            if self._it.dataset_kind == DatasetKind.Iterable:
                self._ended = True
                return "end", None
            return "error", wrap_exception(self._where)
        except Exception:  # noqa: BLE001 - raised again in the main process
            return "error", wrap_exception(self._where)

    def _encode_error(self, wrapper: Any) -> Parcel:
        """Encodes an error; one whose class cannot be pickled becomes a RuntimeError with the same traceback."""
        try:
            return encode(wrapper, self._memory)
        except Exception:  # noqa: BLE001 - pickling may raise anything
            wrapper.exc_type = RuntimeError
            return encode(wrapper, self._memory)

    def _send(self, task: int, status: str, parcel: Parcel) -> None:
        header: bytes | InSlot = parcel.header
        sent = {slot for slot, _ in parcel.slots}
        if len(parcel.header) > INLINE:
            slot, target = self._memory.take(len(parcel.header))
            np.copyto(target, np.frombuffer(parcel.header, np.uint8))
            header = InSlot(slot, len(parcel.header))
            sent.add(slot)
        freed, self._freed = self._freed, []
        result = Result(self._epoch, task, status, header, parcel.slots, parcel.buffers, self._read, freed)
        self._it.pipe.send_bytes(pickle.dumps(result, 5))
        self._memory.finish(sent)


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
            if events or os.getppid() != self._born_under:
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
