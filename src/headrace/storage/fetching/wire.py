"""Messages between the I/O process and those who read through it: a length, a pickle, and bytes behind it.

Both ends belong to one user, who alone may open the socket.
"""

from __future__ import annotations

import pickle
import socket
import struct
from collections.abc import Sequence
from typing import Any

from headrace.core.errors import StorageError

LENGTH = struct.Struct("<I")
AT_ONCE = 512
"""Buffers that one call of the system sends at most; Linux takes 1,024."""


def send(connection: socket.socket, message: object, data: Sequence[memoryview] = ()) -> None:
    """Sends a message, and buffers behind it."""
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


def receive(connection: socket.socket) -> Any:
    """Returns the next message. Raises `EOFError` if the other end is gone."""
    head = bytearray(LENGTH.size)
    receive_into(connection, memoryview(head))
    body = bytearray(LENGTH.unpack(head)[0])
    receive_into(connection, memoryview(body))
    return pickle.loads(body)


def receive_into(connection: socket.socket, out: memoryview) -> None:
    """Fills a buffer with the bytes that come next. Raises `EOFError` if the other end is gone."""
    done = 0
    while done < len(out):
        count = connection.recv_into(out[done:], 0, socket.MSG_WAITALL)
        if count == 0:
            raise EOFError("the other end of the socket is gone")
        done += count


def picklable(error: Exception) -> Exception:
    """Returns an error as it is, or one that says the same and can be sent."""
    try:
        pickle.loads(pickle.dumps(error))
    except Exception:  # noqa: BLE001 - pickling may raise anything
        return StorageError(f"{type(error).__name__}: {error}")
    return error
