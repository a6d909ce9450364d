"""What holds for all tests."""

import gc
import signal
from collections.abc import Iterator

import pytest

from tests.quick import mark_thorough


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Marks the cases that `make test` leaves out."""
    mark_thorough(items)


def pytest_collection_finish() -> None:
    """Leaves what was imported out of later collections: tests that look for leaks collect again and again."""
    gc.collect()
    gc.freeze()


@pytest.fixture
def looked_at_each_time(monkeypatch: pytest.MonkeyPatch) -> None:
    """Has the tuner of `num_workers="auto"` look at each batch, rather than a few times a second."""
    monkeypatch.setattr("headrace.workers.auto.scaling.LOOK", 0.0)
    monkeypatch.setattr("headrace.workers.auto.scaling.LOOK_SETTLED", 0.0)


@pytest.fixture(scope="session", autouse=True)
def ctrl_c_is_heard() -> Iterator[None]:
    """Shells start background jobs with SIGINT ignored, and programs that tests start would inherit that."""
    before = signal.getsignal(signal.SIGINT)
    if before == signal.SIG_IGN:
        signal.signal(signal.SIGINT, signal.default_int_handler)
    yield
    signal.signal(signal.SIGINT, before)
