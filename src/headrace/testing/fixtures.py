"""Fixtures for pytest. In a `conftest.py`: `pytest_plugins = ["headrace.testing.fixtures"]`.

Or import those you want: `from headrace.testing.fixtures import no_leaks`. None of them acts unless a test asks for it.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator, Sequence

import pytest

from headrace.testing import leaks
from headrace.testing.attempts import Attempts
from headrace.testing.killer import SIGKILL, Killer

StartKiller = Callable[..., Killer]


@pytest.fixture
def no_leaks() -> Iterator[None]:
    """Fails the test, as an error at its end, if it leaves children, threads, descriptors or files in /dev/shm.

    Name it first among a test's fixtures: what is set up before it is not looked at.
    """
    with leaks.no_leaks():
        yield


@pytest.fixture
def attempts() -> Iterator[Attempts]:
    """Gives a counter over processes and restarts, gone when the test ends."""
    with Attempts() as counter:
        yield counter


@pytest.fixture
def killer() -> Iterator[StartKiller]:
    """Gives `killer(pids, every, seed=0, signal=SIGKILL)`, which starts a `Killer`; all of them end with the test."""
    with contextlib.ExitStack() as started:

        def start(pids: Callable[[], Sequence[int]], every: float, seed: int = 0, signal: int = SIGKILL) -> Killer:
            return started.enter_context(Killer(pids, every, seed, signal))

        yield start
