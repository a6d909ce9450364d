"""Reads byte ranges through an I/O process, and starts one."""

from __future__ import annotations

import contextlib
import itertools
import os
import shutil
import signal
import socket
import subprocess
import sys
import tempfile
import threading
import time
import weakref
from collections import deque
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any, TypeVar

from headrace.core import framing
from headrace.core.errors import StorageError
from headrace.core.process import this_process
from headrace.core.process.per_process import PerProcess
from headrace.storage.fetching import unix_sockets
from headrace.storage.fetching.ranges import ByteRange, PlannedRead, cut
from headrace.storage.stores import registry
from headrace.telemetry.remote_reads import RemoteReads

T = TypeVar("T")

TRIES = 5
"""How often a request is sent again to an I/O process that was started anew."""

RESTARTS = 50
"""How often an I/O process that ends early is started again. One that never begins to answer is given up by those who
ask, who try it less often; one that is killed again and again, by whomever, goes on as long as it answers."""

LONG_LIFE = 5.0
"""Seconds behind which the end of an I/O process says nothing of the next one."""

BACKLOG = 1024
"""Connections that wait while an I/O process is being started."""

PREFIX = "headrace-io-"
"""Of the names of folders in which sockets lie."""

SOCKET = "socket"
"""Its name in such a folder."""


class _ThreadsOwn(threading.local):
    """What each thread has of its own."""

    opened: _Opened | None = None


class _Opened:
    """A connection. It is closed when the thread that has made it ends, or drops it."""

    def __init__(self, address: str) -> None:
        self.socket = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM | socket.SOCK_CLOEXEC)
        self.known: set[str] = set()
        """The stores whose settings were sent over it."""

        # A forked child makes one of its own: two processes would take each other's answers.
        self.process = this_process.current
        try:
            unix_sockets.connect(self.socket, Path(address))
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
        self._abandoned: deque[int] = deque()

    def read(self, ranges: Sequence[ByteRange]) -> list[memoryview]:
        out = memoryview(bytearray(sum(wanted.size for wanted in ranges)))
        self.read_into(ranges, out)
        return cut(out, ranges)

    def read_into(self, ranges: Sequence[ByteRange], out: memoryview) -> None:
        def ask(connection: socket.socket) -> None:
            framing.send(connection, ("read", list(ranges)))
            status, about = framing.receive(connection)
            if status == "error":
                raise about
            framing.receive_into(connection, out)

        self._with_connection(ranges, ask)

    def announce(self, plan: int, coming: Sequence[PlannedRead]) -> None:
        ranges = list(itertools.chain.from_iterable(at.ranges for at in coming))
        self._tell(("announce", plan, list(coming)), ranges)

    def passed(self, plan: int, position: int) -> None:
        self._tell(("passed", plan, position))

    def abandon(self, plan: int) -> None:
        """See `Endpoint.abandon`. The I/O process is told with the next message."""
        self._abandoned.append(plan)

    def read_directly(self, count: int) -> None:
        self._tell(("read directly", count))

    def count(self) -> RemoteReads:
        """See `Endpoint.count`. One that was started anew counts from 0 on."""

        def ask(connection: socket.socket) -> RemoteReads:
            framing.send(connection, ("counts",))
            counts: RemoteReads = framing.receive(connection)
            return counts

        return self._with_connection((), ask)

    def _tell(self, message: tuple[Any, ...], ranges: Sequence[ByteRange] = ()) -> None:
        def send(connection: socket.socket) -> None:
            # Another thread may take the last one.
            with contextlib.suppress(IndexError):
                while True:
                    framing.send(connection, ("forget", self._abandoned.popleft()))
            framing.send(connection, message)

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
        fix = "look for messages of the I/O process on stderr; it may have been killed for its memory"
        raise StorageError.about("the I/O process does not answer", place=self.address, found=found, fix=fix)

    def _connection(self) -> _Opened:
        opened = self._local.opened
        if opened is None or opened.process is not this_process.current:
            opened = self._local.opened = _Opened(self.address)
        return opened

    def _introduce(self, opened: _Opened, ranges: Sequence[ByteRange]) -> None:
        """Sends the stores that ranges name, those that were not sent over this connection yet.

        Then is the time to say which others nobody holds any more: the I/O process closes their caches.
        """
        new = {wanted.object.store for wanted in ranges} - opened.known
        if not new:
            return

        for name in [name for name in opened.known if registry.known(name) is None]:
            framing.send(opened.socket, ("drop store", name))
            opened.known.remove(name)

        for name in new:
            store = registry.known(name)
            if store is not None:
                framing.send(opened.socket, ("store", store))
                opened.known.add(name)


class IOProcess:
    """A running I/O process. It ends with this object, and with this process."""

    def __init__(self) -> None:
        remove_abandoned()
        folder = tempfile.mkdtemp(prefix=PREFIX)  # which this user alone may enter
        address = str(Path(folder, SOCKET))
        self._listener = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
        # It gets its name when it listens: others take a socket that refuses them for one that is abandoned.
        unfinished = Path(folder, "new")
        unix_sockets.bind(self._listener, unfinished)
        self._listener.listen(BACKLOG)
        unfinished.rename(address)
        self.client = IOClient(address)
        self._running = _Running(self._listener, folder)
        self._running.start()
        # The thread holds what it needs, and not this object: otherwise it would never be dropped.
        watching = threading.Thread(target=self._running.watch, name="headrace-io-watch", daemon=True)
        watching.start()
        self._end = weakref.finalize(self, _end, self._running, folder, this_process.current)

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

    def __init__(self, listener: socket.socket, folder: str) -> None:
        """folder: in which the socket lies. It goes with whoever ends last."""
        self._listener = listener
        self._folder = folder
        self._began = 0.0
        self._ended = False
        # Between the look whether all is over and the start of a successor, the owner must not end it: it would end the
        # one that is gone, and the successor would run as long as this process.
        self._lock = threading.Lock()

    def start(self) -> None:
        """Starts a process. Raises `OSError`."""
        descriptor = self._listener.fileno()
        program = [sys.executable, "-m", "headrace.storage.fetching.io_process"]
        command = [*program, str(descriptor), str(os.getpid()), self._folder]
        # By default glibc raises it to 32 MB, and then keeps as much again of what large answers took.
        environment = {"MALLOC_MMAP_THRESHOLD_": "131072", **os.environ}
        self._began = time.monotonic()
        # Blocked, as the process inherits it: Ctrl-C reaches it too, and may come before it ignores that itself.
        before = signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGINT})
        try:
            self.process = subprocess.Popen(command, stdin=subprocess.PIPE, pass_fds=[descriptor], env=environment)
        finally:
            signal.pthread_sigmask(signal.SIG_SETMASK, before)

    def watch(self) -> None:
        """Starts the process anew whenever it ends before its time."""
        early = 0
        while True:
            self.process.wait()
            self._close_stdin()
            if time.monotonic() - self._began > LONG_LIFE:
                early = 0
            early += 1
            with self._lock:
                if self._ended:
                    return
                try:
                    if early > RESTARTS:
                        raise OSError("it ends as soon as it is started")
                    self.start()
                except OSError:
                    # Whoever waits for a connection gets an error, instead of waiting for ever.
                    self._listener.close()
                    return

    def end(self) -> None:
        """Ends the process, which is not started again."""
        with self._lock:
            self._ended = True
            self._say_end()
            self._close_stdin()
            self._listener.close()

    def _say_end(self) -> None:
        """Writes a byte: to close our end says nothing while a forked child holds it, too."""
        with contextlib.suppress(OSError, ValueError):
            if self.process.stdin is not None:
                self.process.stdin.write(b"\n")
                self.process.stdin.flush()

    def _close_stdin(self) -> None:
        with contextlib.suppress(OSError):
            if self.process.stdin is not None:
                self.process.stdin.close()


def _end(running: _Running, folder: str, owner: this_process.Process) -> None:
    """Ends an I/O process, in the process that has started it: a forked child inherits the finalizer."""
    if owner is not this_process.current:
        return
    running.end()
    shutil.rmtree(folder, ignore_errors=True)


def remove_abandoned() -> None:
    """Removes folders of sockets whose processes are gone: both were killed, so that neither could remove its own."""
    for folder in Path(tempfile.gettempdir()).glob(f"{PREFIX}*"):
        try:
            if folder.lstat().st_uid != os.geteuid():
                continue
            with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as probe:
                probe.setblocking(False)
                unix_sockets.connect(probe, folder / SOCKET)
        except ConnectionRefusedError:
            # Nobody holds the socket open any more: not its owner, and not a process that was to serve it.
            shutil.rmtree(folder, ignore_errors=True)
        except OSError:
            continue  # it is being made, or removed


IO_PROCESS = PerProcess(IOProcess)
"""The I/O process that this process has started, as long as somebody holds it."""
