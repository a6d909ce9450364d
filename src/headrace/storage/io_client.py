"""Reads byte ranges through an I/O process, and starts one."""

from __future__ import annotations

import contextlib
import os
import shutil
import socket
import subprocess
import sys
import tempfile
import threading
import time
import weakref
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any, TypeVar

from headrace.core.errors import StorageError
from headrace.core.per_process import PerProcess
from headrace.storage import stores, wire
from headrace.storage.ranges import ByteRange, cut
from headrace.telemetry.remote_reads import RemoteReads

T = TypeVar("T")

TRIES = 5
"""How often a request is sent again to an I/O process that was started anew."""

LONG_LIFE = 5.0
"""Seconds behind which the end of an I/O process says nothing of the next one."""

BACKLOG = 1024
"""Connections that wait while an I/O process is being started."""


class _ThreadsOwn(threading.local):
    """What each thread has of its own."""

    opened: _Opened | None = None


class _Opened:
    """A connection. It is closed when the thread that has made it ends, or drops it."""

    def __init__(self, address: str) -> None:
        self.socket = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM | socket.SOCK_CLOEXEC)
        self.known: set[str] = set()
        """The stores whose settings were sent over it."""

        self.plans: set[int] = set()
        """The plans that were announced over it."""

        # A forked child makes one of its own: two processes would take each other's answers.
        self.pid = os.getpid()
        try:
            self.socket.connect(address)
        except BaseException:
            self.socket.close()
            raise

    def __del__(self) -> None:
        self.socket.close()


class IOClient:
    """An endpoint that reads through an I/O process. See `Endpoint`. Each thread has a connection of its own."""

    def __init__(self, address: str) -> None:
        """address: of the socket on which the I/O process listens."""
        self.address = address
        self._local = _ThreadsOwn()
        self._abandoned: set[int] = set()

    def read(self, ranges: Sequence[ByteRange]) -> list[memoryview]:
        """See `Endpoint.read`."""
        out = memoryview(bytearray(sum(wanted.size for wanted in ranges)))
        self.read_into(ranges, out)
        return cut(out, ranges)

    def read_into(self, ranges: Sequence[ByteRange], out: memoryview) -> None:
        """See `Endpoint.read_into`."""

        def ask(connection: socket.socket) -> None:
            wire.send(connection, ("read", list(ranges)))
            status, about = wire.receive(connection)
            if status == "error":
                raise about
            wire.receive_into(connection, out)

        self._with_connection(ranges, ask)

    def announce(
        self, plan: int, position: int, ranges: Sequence[ByteRange], next_uses: Sequence[int] | None = None
    ) -> None:
        """See `Endpoint.announce`."""
        self._tell(plan, ("announce", plan, position, list(ranges), next_uses), ranges)

    def passed(self, plan: int, position: int) -> None:
        """See `Endpoint.passed`."""
        self._tell(plan, ("passed", plan, position))

    def abandon(self, plan: int) -> None:
        """See `Endpoint.abandon`. The I/O process is told with the next message of the thread that announced it."""
        self._abandoned.add(plan)

    def read_directly(self, count: int) -> None:
        """See `Endpoint.read_directly`."""
        self._tell(None, ("read directly", count))

    def count(self) -> RemoteReads:
        """See `Endpoint.count`. One that was started anew counts from 0 on."""

        def ask(connection: socket.socket) -> RemoteReads:
            wire.send(connection, ("counts",))
            counts: RemoteReads = wire.receive(connection)
            return counts

        return self._with_connection((), ask)

    def _tell(self, plan: int | None, message: tuple[Any, ...], ranges: Sequence[ByteRange] = ()) -> None:
        def send(connection: socket.socket) -> None:
            opened = self._connection()
            # The I/O process tells plans apart by connection, too.
            for abandoned in opened.plans & self._abandoned:
                wire.send(connection, ("forget", abandoned))
                opened.plans.discard(abandoned)
                self._abandoned.discard(abandoned)

            if plan is not None:
                opened.plans.add(plan)
            wire.send(connection, message)

        self._with_connection(ranges, send)

    def _with_connection(self, ranges: Sequence[ByteRange], ask: Callable[[socket.socket], T]) -> T:
        """Asks over this thread's connection; over a new one, if the I/O process was started anew meanwhile."""
        for attempt in range(TRIES):
            try:
                opened = self._connection()
                self._introduce(opened, ranges)
                return ask(opened.socket)
            except StorageError:
                raise
            except (EOFError, ConnectionError, BrokenPipeError):
                # The I/O process is gone, and its parent starts another one on the same socket. What was announced
                # to the former is not read ahead any more: whoever needs it asks for it.
                self._local.opened = None
                time.sleep(0.1 * attempt)
            except BaseException:
                # Ctrl-C, in the middle of an answer: what still comes belongs to nobody.
                self._local.opened = None
                raise

        found = f"it is gone, after {TRIES} tries"
        cure = "look for messages of the I/O process on stderr; it may have been killed for its memory"
        raise StorageError.about("the I/O process does not answer", place=self.address, found=found, cure=cure)

    def _connection(self) -> _Opened:
        opened = self._local.opened
        if opened is None or opened.pid != os.getpid():
            opened = self._local.opened = _Opened(self.address)
        return opened

    def _introduce(self, opened: _Opened, ranges: Sequence[ByteRange]) -> None:
        """Sends how the stores that ranges name are opened, those that this connection has not sent yet."""
        for name in {wanted.object.store for wanted in ranges} - opened.known:
            wire.send(opened.socket, ("store", stores.settings_of(name)))
            opened.known.add(name)


class IOProcess:
    """A running I/O process. It ends with this object, and with this process."""

    def __init__(self) -> None:
        folder = tempfile.mkdtemp(prefix="headrace-io-")  # which this user alone may enter
        address = str(Path(folder, "socket"))
        self._listener = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
        self._listener.bind(address)
        self._listener.listen(BACKLOG)
        self.client = IOClient(address)
        self._running = _Running(self._listener)
        self._running.start()
        # The thread holds what it needs, and not this object: otherwise it would never be dropped.
        watching = threading.Thread(target=self._running.watch, name="headrace-io-watch", daemon=True)
        watching.start()
        self._end = weakref.finalize(self, _end, self._running, self._listener, folder, os.getpid())

    @property
    def address(self) -> str:
        """Of the socket, for `IOClient`."""
        return self.client.address

    def close(self) -> None:
        """Ends the process."""
        self._end()

    @property
    def pid(self) -> int:
        """Of the process that runs now."""
        return self._running.process.pid


class _Running:
    """The process, and its successors."""

    process: subprocess.Popen[bytes]

    def __init__(self, listener: socket.socket) -> None:
        self._listener = listener
        self._began = 0.0
        self.ended = False

    def start(self) -> None:
        descriptor = self._listener.fileno()
        command = [sys.executable, "-m", "headrace.storage.io_process", str(descriptor)]
        self._began = time.monotonic()
        self.process = subprocess.Popen(command, stdin=subprocess.PIPE, pass_fds=[descriptor])

    def watch(self) -> None:
        """Starts the process anew whenever it ends before its time."""
        early = 0
        while True:
            self.process.wait()
            self._close_stdin()
            if self.ended:
                return

            if time.monotonic() - self._began > LONG_LIFE:
                early = 0
            early += 1
            try:
                if early > TRIES:
                    raise OSError("it ends as soon as it is started")
                self.start()
            except OSError:
                # Whoever waits for a connection gets an error, instead of waiting for ever.
                self._listener.close()
                return

    def end(self) -> None:
        self.ended = True
        self._close_stdin()

    def _close_stdin(self) -> None:
        with contextlib.suppress(OSError):
            if self.process.stdin is not None:
                self.process.stdin.close()


def _end(running: _Running, listener: socket.socket, folder: str, pid: int) -> None:
    """Ends an I/O process, in the process that has started it: a forked child inherits the finalizer."""
    if os.getpid() != pid:
        return
    running.end()
    listener.close()
    shutil.rmtree(folder, ignore_errors=True)


IO_PROCESS = PerProcess(IOProcess)
"""The I/O process that this process has started, as long as somebody holds it."""
