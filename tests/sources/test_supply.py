"""The training process's end of a feed."""

from __future__ import annotations

import contextlib
import os
import signal
from dataclasses import dataclass

import pytest

from headrace.core.errors import StorageError
from headrace.core.spans import Beginning, NothingYetError
from headrace.sources.feed.feed_options import FeedOptions
from headrace.sources.feed.supply import LocalSupply


@dataclass(frozen=True)
class Deadly:
    """A source whose client library ends the process that uses it."""

    place: str = "deadly://host/topic"

    def open(self) -> None:
        os.kill(os.getpid(), signal.SIGKILL)


@pytest.mark.thorough
def test_an_io_process_that_ends_whenever_it_reads_is_an_error_in_the_end() -> None:
    options = FeedOptions(samples=10, linger=1.0, nbytes=1 << 20, budget=1 << 22)
    supply = LocalSupply(Deadly(), options, Beginning())  # type: ignore[arg-type]

    def read() -> None:
        while True:
            supply.wait(30)
            with contextlib.suppress(NothingYetError):
                supply.next_span()

    with pytest.raises(StorageError, match="ends whenever it begins to read") as raised:
        read()
    assert "deadly://host/topic" in str(raised.value)
    assert "fix:" in str(raised.value)
