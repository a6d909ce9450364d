"""The worker spec on one machine: it comes over the network once, and the hosts there share its memory.

One of the hosts offers it under a name that follows from the key of the loader and the content. It receives the spec
from its proxy; the others wait, and get the descriptor of the file in memory. If it ends before that, the next one
offers it.

The name is an abstract address of a Unix socket: it ends with the process, leaves no file, and is seen by the processes
of one network namespace only, such as those of one container. Only processes of the same user are answered or asked.
Where there are no abstract addresses (outside of Linux), each host receives the spec by itself.
"""

from __future__ import annotations

import contextlib
import errno
import hmac
import os
import pickle
import socket
import struct
import sys
from typing import Any
from weakref import WeakSet

from headrace.core.process.descriptors import nameless_file
from headrace.core.process.this_process import in_forked_child
from headrace.shared_memory.by_value import TravellingManifest

PATIENCE = 60.0
"""Seconds that a host waits for a spec which another one receives, before it has the spec sent by itself."""

CREDENTIALS = struct.Struct("3i")
"""Of the process at the other end of a Unix socket: its number, its user and its group (unix(7), `SO_PEERCRED`)."""


class NobodyOffersError(ConnectionError):
    """The host that has offered a spec has ended, or has had no luck with it."""


class Offer:
    """A name under which this host offers a spec, at first one that it is still to receive."""

    def __init__(self, listener: socket.socket) -> None:
        """`offer` makes new ones."""
        self._listener = listener
        self._files: list[int] = []
        _OFFERS.add(self)

    def fileno(self) -> int:
        """Returns a descriptor that can be read when somebody asks."""
        return self._listener.fileno()

    def has(self, fd: int, manifest: TravellingManifest) -> None:
        """Notes the spec. Keeps a descriptor of its file of its own."""
        self._files = [os.dup(fd), nameless_file("manifest")]
        # In a file as well: the manifest of many arrays is longer than a message may be.
        with open(self._files[1], "wb", closefd=False) as file:
            pickle.dump(manifest, file)

    def answer(self) -> None:
        """Gives the spec to one of those who ask."""
        with contextlib.suppress(OSError):  # who has asked is gone
            asking, _ = self._listener.accept()
            with asking:
                if _is_of_this_user(asking):
                    socket.send_fds(asking, [b"s"], self._files)

    def close(self) -> None:
        """Offers the spec no longer. Those who wait for it notice."""
        self._listener.close()
        for fd in self._files:
            os.close(fd)
        self._files = []


_OFFERS: WeakSet[Offer] = WeakSet()
"""Those of this process."""


def _close_in_child() -> None:
    """A worker that outlives its host must not hold the name: nobody would answer."""
    for one in list(_OFFERS):
        one.close()


in_forked_child(_close_in_child)


def answer(offers: list[Offer], readable: list[Any]) -> None:
    """Answers of some offers those that can be read."""
    for one in offers:
        if one in readable:
            one.answer()


def name_of(key: bytes, machine: str, digest: str) -> bytes:
    """Returns the address of a spec. Nobody can guess it without the key of the loader."""
    return b"\0headrace-" + hmac.digest(key, f"spec {machine} {digest}".encode(), "sha256").hex().encode()


def offer(name: bytes) -> Offer | None:
    """Returns an offer; None: another host offers that spec. Raises OSError where there are no such addresses."""
    if sys.platform != "linux":
        raise OSError(errno.EAFNOSUPPORT, "there are no abstract addresses")

    listener = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
    try:
        listener.bind(name)
        listener.listen(128)
    except OSError as error:
        listener.close()
        if error.errno == errno.EADDRINUSE:
            return None
        raise
    return Offer(listener)


def ask(name: bytes) -> socket.socket:
    """Asks for a spec. The answer can be taken once the socket can be read.

    Raises `NobodyOffersError`, and PermissionError if a process of another user has that name.
    """
    asking = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
    try:
        asking.connect(name)
    except OSError as error:
        asking.close()
        raise NobodyOffersError(str(error)) from error

    if not _is_of_this_user(asking):
        asking.close()
        raise PermissionError("another user has this name")
    return asking


def take(asking: socket.socket) -> tuple[int, TravellingManifest]:
    """Returns the descriptor of a spec, which the caller owns, and its manifest. Raises `NobodyOffersError`."""
    try:
        _, fds, _, _ = socket.recv_fds(asking, 1, 2)
    except OSError as error:
        raise NobodyOffersError(str(error)) from error
    if len(fds) != 2:
        raise NobodyOffersError("no answer")

    fd, listed = fds
    # All who have asked share one position in the file.
    content = os.pread(listed, os.fstat(listed).st_size, 0)
    os.close(listed)
    return fd, pickle.loads(content)


def _is_of_this_user(connection: socket.socket) -> bool:
    data = connection.getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, CREDENTIALS.size)
    _, user, _ = CREDENTIALS.unpack(data)
    return bool(user == os.geteuid())
