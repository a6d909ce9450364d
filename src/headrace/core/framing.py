"""Messages over a socket: a length (4 bytes, big-endian), a pickle, and raw bytes behind it.

Pickles execute code: both ends belong to one user, and nobody else may reach the socket before it has proved that.
"""

from __future__ import annotations

import pickle
import socket
import struct
from collections.abc import Sequence
from typing import Any

from headrace.core.errors import StorageError

LENGTH = struct.Struct("!I")
AT_ONCE = 512
"""Buffers that one call of the system sends at most; Linux takes 1,024."""


def send(connection: socket.socket, message: object, data: Sequence[memoryview] = ()) -> None:
    """Sends a message, and buffers of bytes behind it, none of them empty. Raises `OSError`."""
    body = pickle.dumps(message, pickle.HIGHEST_PROTOCOL)
    parts = [memoryview(LENGTH.pack(len(body)) + body), *data]
    while parts:
        sent = connection.sendmsg(parts[:AT_ONCE])
        done = 0
        while done < len(parts) and sent >= len(parts[done]):
            sent -= len(parts[done])
            done += 1

        del parts[:done]
        if sent:
            parts[0] = parts[0][sent:]


def receive(connection: socket.socket, largest: int | None = None) -> Any:
    """Returns the next message. largest: bytes that it may have, where no message of the sender has more.

    Raises `EOFError` if the other end is gone or sends more than `largest`, and `OSError`.
    """
    head = bytearray(LENGTH.size)
    receive_into(connection, memoryview(head))
    (length,) = LENGTH.unpack(head)
    if largest is not None and length > largest:
        raise EOFError(f"the other end sent a message of {length} bytes, which none has")

    body = bytearray(length)
    receive_into(connection, memoryview(body))
    return pickle.loads(body)


def receive_into(connection: socket.socket, out: memoryview) -> None:
    """Fills a buffer with the bytes that come next. Raises `EOFError` if the other end is gone, and `OSError`."""
    done = 0
    while done < len(out):
        count = connection.recv_into(out[done:], 0, socket.MSG_WAITALL)
        if count == 0:
            raise EOFError("the other end closed the connection")
        done += count


def picklable(error: Exception) -> Exception:
    """Returns an error as it is, or one that says the same and can be sent."""
    try:
        pickle.loads(pickle.dumps(error))
    except Exception:  # noqa: BLE001 - pickling may raise anything
        return StorageError(f"{type(error).__name__}: {error}")
    return error
