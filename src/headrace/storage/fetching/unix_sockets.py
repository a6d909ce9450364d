"""Unix sockets at paths of any length."""

from __future__ import annotations

import contextlib
import os
import socket
from collections.abc import Iterator
from pathlib import Path

LONGEST = 107
"""Bytes that the path of a Unix socket may have (unix(7): `sun_path` has 108 with the zero at its end)."""


def bind(listener: socket.socket, path: Path) -> None:
    """Gives a socket its path. Raises `OSError`."""
    with _address(path) as address:
        listener.bind(address)


def connect(connection: socket.socket, path: Path) -> None:
    """Connects with the socket at a path. Raises `OSError`."""
    with _address(path) as address:
        connection.connect(address)


@contextlib.contextmanager
def _address(path: Path) -> Iterator[str]:
    """Yields a name of a path that is short enough: clusters give each job a folder for temporary files, deep down."""
    if len(os.fsencode(path)) <= LONGEST:
        yield str(path)
        return

    folder = os.open(path.parent, os.O_PATH | os.O_DIRECTORY | os.O_CLOEXEC)
    try:
        yield f"/proc/self/fd/{folder}/{path.name}"
    finally:
        os.close(folder)
