"""When requests are made again: waits and limits."""

from __future__ import annotations

import time

import pytest
from hypothesis import given
from hypothesis import strategies as st

from headrace.storage.stores.retries import CONNECTION, THROTTLED, GaveUp, PassingFailure, RetryLimits, retried


@given(st.integers(1, 1000), st.floats(0, 1))
def test_waits_grow_and_have_a_bound(failures: int, jitter: float) -> None:
    limits = RetryLimits(first_wait=0.1, longest_wait=10.0)
    wait = limits.wait(failures, jitter)
    assert 0.05 <= wait <= 10.0
    assert wait <= 0.1 * 2.0 ** (failures - 1)
    assert limits.wait(failures, 1.0) <= limits.wait(failures + 1, 1.0)


def failing(times: int, failure: PassingFailure) -> tuple[list[int], object]:
    calls: list[int] = []

    def request() -> str:
        calls.append(1)
        if len(calls) <= times:
            raise failure
        return "done"

    return calls, request


def test_it_waits_between_attempts_and_tells_of_each() -> None:
    waits: list[float] = []
    kinds: list[str] = []
    calls, request = failing(3, PassingFailure(THROTTLED, "status 503"))
    limits = RetryLimits(retries=3, first_wait=1.0, longest_wait=2.0)
    assert "done" == retried(request, limits, kinds.append, waits.append)  # type: ignore[arg-type]
    assert 4 == len(calls)
    assert [THROTTLED] * 3 == kinds
    assert all(low <= wait <= 2 * low for wait, low in zip(waits, (0.5, 1.0, 1.0), strict=True))


def test_it_waits_as_long_as_the_server_asks() -> None:
    waits: list[float] = []
    _, request = failing(1, PassingFailure(THROTTLED, "status 503", seconds=7.0))
    retried(request, RetryLimits(), None, waits.append)  # type: ignore[arg-type]
    assert [7.0] == waits


@pytest.mark.parametrize("limits", [RetryLimits(retries=2), RetryLimits(seconds=0.0)])
def test_it_gives_up_at_a_limit(limits: RetryLimits) -> None:
    calls, request = failing(100, PassingFailure(CONNECTION, "closed"))
    with pytest.raises(GaveUp, match="closed") as caught:
        retried(request, limits, None, lambda seconds: None)  # type: ignore[arg-type]
    assert len(calls) == caught.value.attempts == (3 if limits.retries == 2 else 1)


def test_it_asks_a_last_time_when_the_time_is_up() -> None:
    """And not before the pause that would have been longer."""
    waits: list[float] = []
    calls, request = failing(100, PassingFailure(CONNECTION, "closed"))

    def sleep(seconds: float) -> None:
        waits.append(seconds)
        time.sleep(seconds)

    with pytest.raises(GaveUp) as caught:
        retried(request, RetryLimits(seconds=0.5, first_wait=0.2), None, sleep)  # type: ignore[arg-type]
    assert caught.value.seconds >= 0.5
    assert len(calls) == len(waits) + 1
    assert sum(waits) <= 0.5


def test_a_server_that_asks_for_more_time_than_is_left_is_not_asked_again() -> None:
    calls, request = failing(100, PassingFailure(THROTTLED, "status 503", seconds=7.0))
    with pytest.raises(GaveUp):
        retried(request, RetryLimits(seconds=5.0), None, pytest.fail)  # type: ignore[arg-type]
    assert len(calls) == 1


def test_other_exceptions_pass_through() -> None:
    def request() -> None:
        raise KeyError("other")

    with pytest.raises(KeyError, match="other"):
        retried(request, RetryLimits(), None)
