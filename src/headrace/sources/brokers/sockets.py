"""Sockets as sources: `tcp://host:port` and `unix:///path`, as a client or as a server.

Sockets know neither acks nor message ids. What was sent and not received when this end goes is lost, unless the sender
sends again; what was received is in the journal.
"""

from __future__ import annotations

import contextlib
import logging
import selectors
import socket
import time
from dataclasses import dataclass
from pathlib import Path
from urllib.parse import parse_qsl, unquote, urlsplit

from headrace.core.errors import StorageError, UsageError, wrong_argument
from headrace.core.sizes import bytes_in
from headrace.core.text.urls import check_server, shown_url
from headrace.sources.brokers.frame_error import FrameError
from headrace.sources.brokers.frames import LARGEST, Frame, Frames, frames
from headrace.sources.journal.receiver import Away, Messages

PLACE = "headrace.follow"
FORM = "tcp://host:port or unix:///path"

LOGGER = logging.getLogger("headrace")

PIECE = 1 << 20
"""Bytes that are taken from a connection at once."""

CONNECTING = 5.0
"""Seconds that the other end has to answer."""

CLIENTS = 128
"""Connections that may wait until they are accepted."""


@dataclass(frozen=True)
class SocketSource:
    """An address, and how what comes from there is cut into records."""

    url: str
    """`tcp://host:port` or `unix:///path`; "?listen" behind it does what `listen` does."""

    frame: Frame = "lines"
    """ "lines": a record is a line. "length": its length in four bytes, the highest first, stands in front of it.
    "arrow": it is a row of a stream in Arrow's IPC format."""

    listen: bool = False
    """Whether to wait for clients there, rather than to connect."""

    largest_frame: int | str = LARGEST
    """Bytes of a frame, about. What announces more is an error."""

    def __post_init__(self) -> None:
        frames(self.frame, bytes_in(self.largest_frame, "largest_frame"))
        self.address()
        if not isinstance(self.listens, bool):
            raise wrong_argument("listen", self.listen, "True or False")

    @property
    def place(self) -> str:
        """The URL without user, password and query."""
        return shown_url(self.url.partition("?")[0])

    def address(self) -> tuple[str, int] | str:
        """Returns host and port, or the path of a socket file. Raises `UsageError`."""
        # Who listens may leave the host out: at all addresses of the machine.
        check_server(self.url, PLACE, FORM, needs_host=False)
        parts = urlsplit(self.url)
        shown = shown_url(self.url)
        if parts.username is not None or parts.password is not None:
            expected = "no user and password: sockets know none"
            fix = "leave them out, and connect only where others cannot"
            raise UsageError.about("wrong address of a socket", place=PLACE, found=shown, expected=expected, fix=fix)

        is_plain = parts.path in ("", "/") and "," not in parts.netloc
        if parts.scheme == "tcp" and is_plain and parts.port is not None and (parts.hostname or self.listens):
            return parts.hostname or "", parts.port
        if parts.scheme == "unix" and not parts.netloc and parts.path not in ("", "/"):
            return unquote(parts.path)
        fix = "write host and port, or three slashes and the path of the socket file"
        raise UsageError.about("wrong address of a socket", place=PLACE, found=shown, expected=FORM, fix=fix)

    @property
    def listens(self) -> bool:
        """Whether it waits for clients."""
        query = dict(parse_qsl(urlsplit(self.url).query, keep_blank_values=True))
        others = set(query) - {"listen"}
        if others:
            found = ", ".join(sorted(others))
            fix = "correct what is after the question mark, or leave it out"
            what = "this URL has a wrong setting"
            raise UsageError.about(what, place=f"{PLACE}({self.place})", found=found, expected="?listen", fix=fix)
        return self.listen or "listen" in query

    def receiver(self) -> SocketReceiver:
        """Makes the receiver."""
        return SocketReceiver(self)


class SocketReceiver:
    """Takes records from one connection that it makes, or from all clients that connect."""

    delivers_again = False

    def __init__(self, source: SocketSource) -> None:
        self._source = source
        self._address = source.address()
        self._listens = source.listens
        self._selector: selectors.DefaultSelector | None = None
        self._made: str | None = None
        self._error: StorageError | None = None

    def connect(self) -> None:
        """Connects, or begins to listen. Raises `Away`; `StorageError` if it may not listen there."""
        self.close()
        self._selector = selectors.DefaultSelector()
        if self._listens:
            self._selector.register(self._listening(), selectors.EVENT_READ, None)
        else:
            self._add(self._connected())

    def _connected(self) -> socket.socket:
        try:
            if isinstance(self._address, tuple):
                return socket.create_connection(self._address, CONNECTING)

            connection = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
            connection.settimeout(CONNECTING)
            try:
                connection.connect(self._address)
            except BaseException:
                connection.close()
                raise
            return connection
        except OSError as error:
            raise Away(str(error)) from error

    def _listening(self) -> socket.socket:
        try:
            if isinstance(self._address, tuple):
                family = socket.AF_INET6 if ":" in self._address[0] else socket.AF_INET
                server = socket.create_server(self._address, family=family, backlog=CLIENTS)
            else:
                server = self._listening_at(self._address)
        except OSError as error:
            fix = "give another address, or end who listens there"
            raise StorageError.about("cannot listen", place=self._source.place, found=error, fix=fix) from error
        server.setblocking(False)
        return server

    def _listening_at(self, path: str) -> socket.socket:
        # A socket file stays when its process is killed, and nobody can bind to it again.
        with contextlib.suppress(FileNotFoundError):
            if Path(path).is_socket() and not _answers(path):
                Path(path).unlink()
        server = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
        try:
            server.bind(path)
            server.listen(CLIENTS)
        except BaseException:
            server.close()
            raise
        self._made = path
        return server

    def _add(self, connection: socket.socket) -> None:
        connection.setblocking(False)
        if connection.family != socket.AF_UNIX:
            # A machine that is switched off says nothing: after some minutes of silence it is asked.
            connection.setsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)
        cutting = frames(self._source.frame, bytes_in(self._source.largest_frame, "largest_frame"))
        if self._selector is not None:
            self._selector.register(connection, selectors.EVENT_READ, cutting)

    def receive(self, timeout: float, limit: int) -> Messages:
        """Returns what has come. Raises `Away` when the other end has gone; `StorageError` for wrong frames."""
        if self._error is not None:
            raise self._error
        if self._selector is None or not self._selector.get_map():
            raise Away("the other end has closed the connection")

        payloads: list[bytes] = []
        taken = 0
        ready = self._selector.select(timeout)
        while ready:
            for key, _ in ready:
                # The selector has nothing but sockets.
                connection: socket.socket = key.fileobj  # type: ignore[assignment]
                if key.data is None:
                    self._accept(connection)
                else:
                    taken += self._take(connection, key.data, payloads)
            if taken >= limit or not self._selector.get_map():
                break
            ready = self._selector.select(0)
        return Messages(payloads)

    def _accept(self, server: socket.socket) -> None:
        try:
            connection, _ = server.accept()
        except OSError:
            return  # the client has gone again, or the machine has no descriptor left for it now
        self._add(connection)

    def _take(self, connection: socket.socket, cutting: Frames, payloads: list[bytes]) -> int:
        """Takes what has come on a connection, and returns how many bytes these were."""
        try:
            data = connection.recv(PIECE)
        except BlockingIOError:
            return 0
        except OSError as error:
            self._end(connection, cutting, str(error))
            return 0

        if not data:
            self._end(connection, cutting, None)
            return 0
        payloads += cutting.feed(data)
        if cutting.error is not None:
            self._refuse(connection, cutting.error)
        return len(data)

    def _refuse(self, connection: socket.socket, found: FrameError) -> None:
        """Ends a connection whose frames are wrong. That of a server is an error, one of many clients is not."""
        self._forget(connection)
        expected = f"frames as frame={self._source.frame!r} says"
        fix = "correct frame=, or have the sender cut what it sends into smaller frames"
        error = StorageError.about(
            "a connection has wrong frames", place=self._source.place, found=found, expected=expected, fix=fix
        )
        if self._listens:
            LOGGER.warning("A client is not listened to any more: %s", error)
        else:
            self._error = error

    def _end(self, connection: socket.socket, cutting: Frames, what: str | None) -> None:
        """Ends a connection that the other end has closed, or that broke."""
        self._forget(connection)
        if cutting.unfinished:
            how = "broke" if what else "ended"
            LOGGER.warning(
                "A connection of %s %s within a record: its %s bytes are dropped.",
                self._source.place,
                how,
                f"{cutting.unfinished:,}",
            )

    def _forget(self, connection: socket.socket) -> None:
        if self._selector is not None:
            self._selector.unregister(connection)
        connection.close()

    def ack(self, token: object) -> None:
        """Does nothing: sockets know no acks."""

    def rest(self, timeout: float) -> None:
        """Waits. What is sent meanwhile fills the buffers of the kernel, and then the sender waits."""
        time.sleep(timeout)

    def close(self) -> None:
        """Ends all connections."""
        if self._selector is not None:
            for key in list(self._selector.get_map().values()):
                # What has begun of a record will not be completed.
                connection: socket.socket = key.fileobj  # type: ignore[assignment]
                connection.close()
            self._selector.close()
            self._selector = None
        if self._made is not None:
            with contextlib.suppress(OSError):
                Path(self._made).unlink()
            self._made = None


def _answers(path: str) -> bool:
    with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as probe:
        probe.settimeout(CONNECTING)
        try:
            probe.connect(path)
        except OSError:
            return False
        return True
