"""Requests as bytes: in Python's own types where that can be, which pickle writes and reads in C.

Arrays and classes take ten times as long. They remain for what is not whole numbers or strings, and for messages that
are rare.
"""

from __future__ import annotations

import pickle
from collections.abc import Sequence
from typing import Any

import numpy as np

from headrace.batches.index import Positioned
from headrace.shared_memory.codec import dumps
from headrace.shared_memory.memory import Slot
from headrace.shared_memory.plain_batches import KEYS
from headrace.workers.processes.messages import InSlot, Request

Task = tuple[int, int, Any]
"""Number, replica, index."""

PlainTask = tuple[int, int, Any, Any]
"""Number, replica, keys, positions: an array is a bytearray, a range is a pair; None: it has no positions."""

INT64 = np.dtype(np.int64)


def packed_request(request: Request) -> bytes:
    """Returns a request as bytes."""
    if request.begin is not None or request.stop:
        return dumps(request)

    tasks = _plain(request.tasks)
    if tasks is None:
        return dumps(request)
    returned = [tuple(slot) for slot in request.returned]
    return pickle.dumps((request.epoch, tasks, returned, list(request.void)), 5)


def unpacked_request(message: bytes | memoryview) -> Request | InSlot:
    """Returns what `packed_request` has packed; or an `InSlot`, which says where the request lies."""
    found = pickle.loads(message)
    if type(found) is not tuple:
        return found  # type: ignore[no-any-return]

    epoch, tasks, returned, void = found
    return Request(epoch, None, [_task(*task) for task in tasks], list(map(Slot._make, returned)), False, void)


def _plain(tasks: Sequence[Task]) -> list[PlainTask] | None:
    """Returns tasks in Python's own types; None if an index is of another kind."""
    plain: list[PlainTask] = []
    for number, replica, index in tasks:
        positions: Any = None
        if type(index) is Positioned:
            index, positions = index
            if type(positions) is range:
                positions = positions.start, positions.step
            elif not _is_keys(positions):
                return None
            else:
                positions = _kept(positions)

        if not _is_keys(index):
            return None
        plain.append((number, replica, _kept(index), positions))
    return plain


def _is_keys(index: Any) -> bool:
    kind = type(index)
    if kind is np.ndarray:
        return bool(index.dtype == INT64 and index.ndim == 1)
    if kind is list:
        return KEYS.issuperset(map(type, index))
    return kind in KEYS


def _kept(index: Any) -> Any:
    if type(index) is np.ndarray:
        return bytearray(index.tobytes())
    return index


def _task(number: int, replica: int, index: Any, positions: Any) -> Task:
    index = _given(index)
    if positions is None:
        return number, replica, index
    if type(positions) is tuple:
        start, step = positions
        count = len(index) if isinstance(index, (list, np.ndarray)) else 1
        return number, replica, Positioned(index, range(start, start + count * step, step))
    return number, replica, Positioned(index, _given(positions))


def _given(index: Any) -> Any:
    if type(index) is bytearray:
        return np.frombuffer(index, INT64)
    return index
