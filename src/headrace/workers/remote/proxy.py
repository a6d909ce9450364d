"""The proxy: a process on the trainer's machine that stands for a worker on another one.

To the trainer it is a worker like the others: it reads requests from the pipe, and what it answers lies in its region
of the arena. Batches go from the connection straight into slots, so a remote batch is the same memory as a local one.
It copies the worker's activity into its own, and ends as the worker ended. If the connection is lost, it says so and
ends; the trainer then starts another proxy, which asks for another place.

The main thread reads the trainer's pipe. A second thread reads from the wire, so that neither direction can block the
other.
"""

from __future__ import annotations

import contextlib
import faulthandler
import mmap
import os
import pickle
import select
import signal
import socket
import threading
import time
from collections import deque
from dataclasses import dataclass
from multiprocessing.connection import Connection
from typing import Any, NoReturn

from headrace.cluster.code import versions
from headrace.core.errors import ClusterError
from headrace.core.process.activity import STAGE, START
from headrace.shared_memory.by_value import TravellingObject
from headrace.shared_memory.memory import Slot
from headrace.telemetry.stopwatch import NO_TIMES, Times
from headrace.workers.heartbeat import START_PATIENCE
from headrace.workers.processes.crash_file import TELL_STACKS
from headrace.workers.processes.messages import INLINE, InSlot, Request, Result, packed
from headrace.workers.processes.plain_requests import unpacked_request
from headrace.workers.processes.worker_main import Assignment
from headrace.workers.remote.messages import Death, Hello, HostAddress, RemoteRequest, RemoteResult, Welcome
from headrace.workers.remote.wire import BEAT, SILENCE, LostError, Wire, WireMessage, authenticate

ATTEMPTS = 5
"""Hosts that may fail to start the worker before that is an error."""

CONNECTING = 5.0
"""Seconds that a host has to answer the door."""


@dataclass
class RemoteWorker:
    """Makes a proxy of a worker process; see `StandIn`. Picklable while a process is being started."""

    door: Connection
    """To the process that finds places."""
    worker_spec: TravellingObject

    def run(self, assignment: Assignment) -> None:
        """The life of a proxy."""
        _take_signals_from_nobody()
        assignment.crash_file.activity[STAGE] = START
        proxy = _Proxy(assignment, self)
        try:
            proxy.connect()
            proxy.forward()
        except _StoppedError:
            os._exit(0)
        except _RefusedError as refused:
            proxy.tell("refused", str(refused))
            os._exit(1)
        except LostError as lost:
            # What the host has sent before counts for more: it may say how the worker has ended.
            proxy.read_to_the_end()
            proxy.give_up(lost)


class _StoppedError(Exception):
    """The trainer needs this worker no longer."""


class _RefusedError(Exception):
    """No host can run this worker; the text says why."""


def _take_signals_from_nobody() -> None:
    """Drops the handlers that a forked process has from the trainer. Ctrl-C is for the trainer to deal with."""
    faulthandler.disable()
    for number in (signal.SIGTERM, signal.SIGSEGV, signal.SIGBUS, signal.SIGABRT, signal.SIGFPE, signal.SIGILL):
        signal.signal(number, signal.SIG_DFL)

    signal.signal(signal.SIGINT, signal.SIG_IGN)
    signal.signal(TELL_STACKS, signal.SIG_IGN)
    # A proxy may have to end as a worker that crashed, which is not to leave a second core file.
    import resource  # not everywhere where this module is imported

    _, most = resource.getrlimit(resource.RLIMIT_CORE)
    resource.setrlimit(resource.RLIMIT_CORE, (0, most))


class _Proxy:
    def __init__(self, assignment: Assignment, remote: RemoteWorker) -> None:
        self._it = assignment
        self._door = remote.door
        self._travelling = remote.worker_spec
        self._pipe = assignment.pipe
        self._pipe_lock = threading.Lock()
        self._memory = assignment.outgoing.writer()
        self._requests = assignment.incoming.reader()
        self._read = 0
        # Filled by the main thread, emptied by the one that reads the wire.
        self._freed: deque[Slot] = deque()
        self._returned: deque[Slot] = deque()
        self._wire: Wire
        self._clock = 0.0
        self._is_over = False
        """Whether the host has been told that nobody needs its worker any longer."""
        self._reader = threading.Thread(target=self._read_wire, daemon=True)

    # -- finding a host ------------------------------------------------------------------------------------------------

    def connect(self) -> None:
        """Asks for places until a host takes the worker. Raises `_StoppedError` and `_RefusedError`."""
        failed: HostAddress | None = None
        for attempt in range(1, ATTEMPTS + 1):
            place = self._find(failed)
            try:
                welcome = self._introduce(place)
            except (LostError, OSError) as error:
                failed = place
                if attempt == ATTEMPTS:
                    raise _RefusedError(
                        f"{ATTEMPTS} hosts failed one after the other; the last one: {error}"
                    ) from error
                continue

            self.tell("placed", (welcome.host, self._worker_pid))
            return

    def _find(self, failed: HostAddress | None) -> HostAddress:
        self._door.send(("place", failed))
        while True:
            readable, _, _ = select.select([self._door, self._pipe], [], [])
            if self._pipe in readable:
                self._listen_for_stop()
            if self._door not in readable:
                continue

            try:
                kind, content = self._door.recv()
            except (EOFError, OSError) as error:
                raise _RefusedError("the process that talks to Ray has ended") from error

            if kind == "place":
                return content  # type: ignore[no-any-return]
            if kind == "refused":
                raise _RefusedError(content)
            self.tell("waiting", content)

    def _listen_for_stop(self) -> None:
        """Reads the pipe while there is no host: the trainer sends nothing but the end."""
        try:
            request = unpacked_request(self._pipe.recv_bytes())
        except (EOFError, OSError) as error:
            raise _StoppedError from error
        if isinstance(request, Request) and request.stop:
            raise _StoppedError

    def _introduce(self, place: HostAddress) -> Welcome:
        """Connects to a host and has it start the worker. Raises `LostError`, `OSError` and `_RefusedError`."""
        connection = socket.create_connection((place.address, place.port), CONNECTING)
        try:
            authenticate(connection, place.key, as_server=False)
        except ClusterError as error:
            raise _RefusedError(str(error)) from error

        self._wire = Wire(connection)
        self._wire.wait_at_most(START_PATIENCE)
        it = self._it
        hello = Hello(
            versions(), self._travelling.digest, it.worker_id, it.workers, it.original_errors, it.begin, it.epoch
        )
        asked = time.perf_counter()
        self._wire.send("hello", hello)
        _, welcome = self._answer("welcome")
        # The host has looked at its clock about half way between question and answer.
        self._clock = (asked + time.perf_counter()) / 2 - welcome.clock
        kind, content = self._answer("send spec", "started")
        if kind == "send spec":
            self._send_spec()
            _, content = self._answer("started")

        self._worker_pid: int = content
        self._wire.wait_at_most(SILENCE)
        return welcome  # type: ignore[no-any-return]

    def _send_spec(self) -> None:
        travelling = self._travelling
        with mmap.mmap(travelling.fd, travelling.nbytes, prot=mmap.PROT_READ) as content, memoryview(content) as view:
            self._wire.send("spec", travelling.manifest, [view])

    def _answer(self, *kinds: str) -> tuple[str, Any]:
        """Returns kind and content of the host's next message. Raises `_RefusedError` if it refuses."""
        message = self._wire.receive()
        while message.kind == "beat":  # it waits for another host of its machine
            message = self._wire.receive()

        if message.kind == "refused":
            raise _RefusedError(message.content)
        if message.kind not in kinds:
            raise LostError(f"the host answered {message.kind!r} where {' or '.join(kinds)} was due")
        return message.kind, message.content

    # -- trainer to host -----------------------------------------------------------------------------------------------

    def forward(self) -> None:
        """Sends on what the trainer asks, until it asks no more or the worker is gone."""
        signal.signal(TELL_STACKS, self._ask_for_stacks)
        self._reader.start()
        poll = select.poll()
        poll.register(self._pipe.fileno(), select.POLLIN)
        while True:
            if poll.poll(BEAT * 1000):
                self._pass_on()
            else:
                self._wire.send("beat")

    def read_to_the_end(self) -> None:
        """Waits until all was read that the host has sent. This process ends meanwhile if the worker has ended."""
        if self._reader.is_alive():
            self._reader.join(SILENCE)

    def _pass_on(self) -> None:
        try:
            message = unpacked_request(self._pipe.recv_bytes())
        except (EOFError, OSError) as error:
            raise _StoppedError from error

        self._read += 1
        if isinstance(message, InSlot):
            self._freed.append(message.slot)
            message = unpacked_request(self._requests.view(message.slot, message.nbytes).data)

        request: Request = message  # type: ignore[assignment]  # an `InSlot` holds one
        if request.stop:
            # Before the message: the host ends the connection at it, and the other thread may see that before this one
            # has ended the process. Such a host is not lost: the next proxy gets it, with the dataset that it has.
            self._is_over = True
            with contextlib.suppress(LostError):
                self._wire.send("stop")
            raise _StoppedError

        self._returned.extend(request.returned)
        self._wire.send("request", RemoteRequest(request.epoch, request.begin, request.tasks))

    def _ask_for_stacks(self, number: int, frame: object) -> None:
        """Handles the signal at which a worker writes down its stacks: the one on the other machine is asked."""
        # Not here: the signal may have come while this very thread was writing to the wire.
        threading.Thread(target=self._wire.send, args=("ask stacks",), daemon=True).start()

    # -- host to trainer -----------------------------------------------------------------------------------------------

    def _read_wire(self) -> None:
        """Brings what the host sends to the trainer, until the connection ends. Then this process ends, too."""
        try:
            while True:
                self._take_in(self._wire.receive())
        except LostError as lost:
            self.give_up(lost)

    def give_up(self, lost: LostError) -> NoReturn:
        """Ends this process; tells that the host is lost, the trainer and the process that finds places.

        Tells nothing if the host was to end the connection.
        """
        if self._is_over:
            os._exit(0)

        self.tell("lost", str(lost))
        with contextlib.suppress(OSError):
            self._door.send(("failed", None))
        os._exit(1)

    def _take_in(self, message: WireMessage) -> None:
        if message.kind == "result":
            self._take_in_result(message)
        elif message.kind == "beat":
            self._note_activity(message.content)
        elif message.kind == "stacks":
            self._it.crash_file.write(message.content)
        elif message.kind == "died":
            death: Death = message.content
            self._note_activity(death.activity)
            self._it.crash_file.write(death.stacks)
            # First of all: the trainer may ask for a place for the next worker before this process has quite ended.
            self._door.close()
            _end_like(death.exitcode)

    def _note_activity(self, numbers: list[int]) -> None:
        for at, number in enumerate(numbers):
            self._it.crash_file.activity[at] = number

    def _take_in_result(self, message: WireMessage) -> None:
        result: RemoteResult = message.content
        while self._returned:
            self._memory.give_back([self._returned.popleft()])

        header_size, *slot_sizes = message.sizes
        sent: set[Slot] = set()
        header: bytes | InSlot
        if header_size > INLINE:
            slot, target = self._memory.take(header_size)
            self._wire.read_into(target.data)
            header = InSlot(slot, header_size)
            sent.add(slot)
        else:
            small = bytearray(header_size)
            self._wire.read_into(memoryview(small))
            header = bytes(small)

        slots = []
        for size in slot_sizes:
            slot = self._receive_slot(size)
            slots.append((slot, size))
            sent.add(slot)

        self._send(
            Result(
                result.epoch, result.task, result.status, header, slots, result.buffers, 0,
                self._freed_slots(), _on_clock_here(result.times, self._clock), result.seen, result.drew,
            )
        )  # fmt: skip
        self._memory.finish(sent)

    def _receive_slot(self, size: int) -> Slot:
        slot, target = self._memory.take(size)
        self._wire.read_into(target.data)
        return slot

    def _freed_slots(self) -> list[Slot]:
        freed = []
        while self._freed:
            freed.append(self._freed.popleft())
        return freed

    def tell(self, status: str, content: object) -> None:
        """Tells the trainer what became of this worker."""
        header = pickle.dumps(content, 5)
        self._send(Result(0, 0, status, header, [], [], 0, [], NO_TIMES, [], False))

    def _send(self, result: Result) -> None:
        with self._pipe_lock, contextlib.suppress(BrokenPipeError, ConnectionResetError):
            # Counted under the lock: the trainer must not hear that fewer requests were read than it knows.
            self._pipe.send_bytes(packed([result._replace(read=self._read)]))


def _on_clock_here(times: Times, shift: float) -> Times:
    """Returns the times of a worker on another machine by the clock of this one."""
    return times._replace(
        begun=times.begun + shift,
        loaded=times.loaded + shift,
        collated=times.collated + shift,
        sent=times.sent + shift,
    )


def _end_like(exitcode: int | None) -> NoReturn:
    """Ends this process as the worker has ended, so that the trainer reads the same of it."""
    if exitcode is not None and exitcode < 0:
        os.kill(os.getpid(), -exitcode)
        time.sleep(BEAT)

    if exitcode is None:
        exitcode = 1
    os._exit(exitcode & 0xFF)
