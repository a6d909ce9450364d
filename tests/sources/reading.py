"""What the tests of sources share: logs that are opened, read and closed."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

LIMIT = 1 << 20
PATIENCE = 30.0


@contextmanager
def opened(source: Any) -> Iterator[Any]:
    log = source.open()
    try:
        yield log
    finally:
        log.close()


def take(log: Any, count: int) -> list[bytes]:
    """Polls until so many records are there, and returns them."""
    values: list[bytes] = []
    deadline = time.monotonic() + PATIENCE
    while len(values) < count and time.monotonic() < deadline:
        for records in log.poll(1.0, LIMIT):
            assert len(records.positions) == len(records.values)
            assert records.following > records.positions[-1]
            values += records.values
    return values


def until(happened: Callable[[], object]) -> None:
    deadline = time.monotonic() + PATIENCE
    while not happened():
        assert time.monotonic() < deadline
        time.sleep(0.01)


def bytes_in(folder: str) -> int:
    """Returns the bytes of the files of a folder, which come and go meanwhile."""
    total = 0
    for path in Path(folder).iterdir():
        with suppress(FileNotFoundError):
            total += path.stat().st_size
    return total
