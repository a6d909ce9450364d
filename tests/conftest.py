"""What holds for all tests."""

import gc
import signal
from collections.abc import Iterator

import pytest


def pytest_collection_finish() -> None:
    """Leaves what was imported out of later collections: tests that look for leaks collect again and again."""
    gc.collect()
    gc.freeze()


@pytest.fixture(scope="session", autouse=True)
def ctrl_c_is_heard() -> Iterator[None]:
    """Shells start background jobs with SIGINT ignored, and programs that tests start would inherit that."""
    before = signal.getsignal(signal.SIGINT)
    if before == signal.SIG_IGN:
        signal.signal(signal.SIGINT, signal.default_int_handler)
    yield
    signal.signal(signal.SIGINT, before)
