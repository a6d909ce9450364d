"""Messages between two machines over one TCP connection: a small pickle, and behind it raw bytes.

A message is (kind, content, sizes), framed as `core/framing.py` says, and as many raw buffers as there are sizes. The
receiver chooses where each buffer goes, so a batch is copied once, from the kernel into its slot.

Pickles execute code. So each side first proves that it knows a secret key (HMAC-SHA256 over nonces of both), and no
message is read before that. The bytes are not encrypted: the connection belongs into a network of one's own.
"""

from __future__ import annotations

import contextlib
import hmac
import secrets
import socket
import threading
from collections.abc import Iterable, Iterator
from typing import Any, NamedTuple

from headrace.core import framing
from headrace.core.errors import ClusterError

NONCE = 32
"""Bytes of a nonce."""

PROOF = 32
"""Bytes of a proof, which HMAC-SHA256 gives."""

AUTHENTICATION_TIMEOUT = 10.0
"""Seconds that the other side has to prove that it knows the key."""

SILENCE = 12.0
"""Seconds without a byte, or without room for one, after which the other side counts as lost."""

BEAT = 1.0
"""Seconds after which a side that has nothing to say says so."""

FINISHING = 5.0
"""Seconds that the other side has to read the last messages."""

LARGEST_HEADER = 1 << 30
"""Bytes that a message may have besides its buffers."""


class WireMessage(NamedTuple):
    """What came over the wire. The raw buffers are still to be read, with `Wire.read_into`, in their order."""

    kind: str
    content: Any
    sizes: list[int]


class LostError(ConnectionError):
    """The other side is gone, or nothing has come from it for `SILENCE` seconds."""


class Wire:
    """One end of a connection. One thread may read while others write."""

    def __init__(self, connection: socket.socket) -> None:
        """Takes over a connected TCP socket."""
        self._socket = connection
        self._write_lock = threading.Lock()
        connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        if hasattr(socket, "TCP_USER_TIMEOUT"):
            connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_USER_TIMEOUT, int(SILENCE * 1000))
        connection.settimeout(SILENCE)

    def fileno(self) -> int:
        """Returns the descriptor of the socket, to wait for messages."""
        return self._socket.fileno()

    def wait_at_most(self, seconds: float) -> None:
        """Has reads and writes wait at most so long for the other side; at first it is `SILENCE`."""
        self._socket.settimeout(seconds)

    @property
    def peer(self) -> str:
        """The address of the other side, for messages."""
        return ":".join(str(part) for part in self._socket.getpeername()[:2])

    def send(self, kind: str, content: Any = None, buffers: Iterable[memoryview] = ()) -> None:
        """Sends a message. Raises `LostError`."""
        raw = [buffer for buffer in buffers if len(buffer)]
        message = (kind, content, [len(buffer) for buffer in raw])
        try:
            with self._write_lock:
                framing.send(self._socket, message, raw)
        except OSError as error:
            raise LostError(f"sending to {self._name()} failed: {error}") from error

    def receive(self) -> WireMessage:
        """Waits for a message. Raises `LostError`."""
        with self._as_lost():
            return WireMessage(*framing.receive(self._socket, LARGEST_HEADER))

    def read_into(self, target: memoryview) -> None:
        """Fills a buffer with what comes next. Raises `LostError`."""
        with self._as_lost():
            framing.receive_into(self._socket, target)

    @contextlib.contextmanager
    def _as_lost(self) -> Iterator[None]:
        """Raises a `LostError` for whatever reading raises."""
        try:
            yield
        except TimeoutError as error:
            raise LostError(f"nothing came from {self._name()} for {self._socket.gettimeout():g} s") from error
        except EOFError as error:
            raise LostError(f"lost {self._name()}: {error}") from error
        except OSError as error:
            raise LostError(f"reading from {self._name()} failed: {error}") from error

    def skip(self, sizes: Iterable[int]) -> None:
        """Reads buffers that nobody wants."""
        for size in sizes:
            self.read_into(memoryview(bytearray(size)))

    def finish(self) -> None:
        """Ends this side, and waits until the other one has read everything and ended, too.

        A connection that is closed with something unread in it takes back what the other side has not read yet.
        """
        with contextlib.suppress(LostError, OSError):
            self._socket.shutdown(socket.SHUT_WR)
            self._socket.settimeout(FINISHING)
            while True:
                self.read_into(memoryview(bytearray(1)))

    def _name(self) -> str:
        try:
            return self.peer
        except OSError:
            return "the other side"

    def close(self) -> None:
        """Ends the connection; a thread that reads or writes notices it."""
        with contextlib.suppress(OSError):  # it has ended already
            self._socket.shutdown(socket.SHUT_RDWR)
        self._socket.close()


def authenticate(connection: socket.socket, key: bytes, *, as_server: bool) -> None:
    """Proves to the other side that this one knows the key, and has it prove the same.

    Both send a nonce, and then the HMAC of their role and both nonces. Raises `ClusterError` if the other side does not
    know the key, and `LostError` if it is gone.
    """
    connection.settimeout(AUTHENTICATION_TIMEOUT)
    ours = secrets.token_bytes(NONCE)
    try:
        connection.sendall(ours)
        theirs = _exactly(connection, NONCE)
        if as_server:
            roles = (b"server", b"client")
            nonces = ours + theirs
        else:
            roles = (b"client", b"server")
            nonces = theirs + ours

        connection.sendall(hmac.digest(key, roles[0] + nonces, "sha256"))
        proof = _exactly(connection, PROOF)
    except (OSError, EOFError) as error:
        raise LostError(f"the other side ended before it had proved who it is: {error}") from error

    if not hmac.compare_digest(proof, hmac.digest(key, roles[1] + nonces, "sha256")):
        raise ClusterError.about(
            "a connection between machines was refused",
            place=":".join(str(part) for part in connection.getpeername()[:2]),
            found="the other side does not know the key of this loader",
            expected="a worker that this loader has started",
            fix="keep other programs off the ports of workers",
        )


def _exactly(connection: socket.socket, nbytes: int) -> bytes:
    data = bytearray(nbytes)
    framing.receive_into(connection, memoryview(data))
    return bytes(data)
