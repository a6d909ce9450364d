"""Functions fail in the calls that were meant, values on the way that was meant."""

from __future__ import annotations

import pickle
from collections.abc import Callable
from typing import Any

import pytest

from headrace import DataLoader
from headrace.core.errors import UsageError
from headrace.testing import Attempts, FaultyCall, FaultyPickle, Hang, Raise, flaky

BAD = Raise(ValueError("bad call"))


def double(number: int) -> int:
    return 2 * number


def is_large(number: int) -> bool:
    return number >= 3


def is_second_worker(worker: int) -> bool:
    return worker == 1


def as_list(samples: list[Any]) -> list[Any]:
    return samples


def results(call: Callable[[int], Any], count: int = 6) -> list[Any]:
    got: list[Any] = []
    for number in range(count):
        try:
            got.append(call(number))
        except (ValueError, OSError) as error:
            got.append(type(error).__name__)
    return got


@pytest.mark.parametrize(
    ("options", "bad"),
    [
        ({"calls": {1, 4}}, [1, 4]),
        ({"calls": {1, 4}, "times": 1}, [1]),
        ({"every": 2}, [1, 3, 5]),
        ({"every": 2, "times": 2}, [1, 3]),
        ({"when": is_large}, [3, 4, 5]),
        ({"when": is_large, "times": 1}, [3]),
        ({}, [0, 1, 2, 3, 4, 5]),
        ({"times": 2}, [0, 1]),
    ],
)
def test_the_fault_happens_in_the_calls_that_are_meant(options: dict[str, Any], bad: list[int]) -> None:
    call = FaultyCall(double, BAD, **options)
    assert results(call) == ["ValueError" if number in bad else 2 * number for number in range(6)]
    assert call.attempts.of("call") == 6


@pytest.mark.parametrize("options", [{"calls": {1}, "every": 2}, {"every": 2, "when": is_large}, {"every": 0}])
def test_calls_that_are_not_clear_are_refused(options: dict[str, Any]) -> None:
    with pytest.raises(UsageError, match="not clear in which calls"):
        FaultyCall(double, BAD, **options)


def test_copies_count_together() -> None:
    call = FaultyCall(double, BAD, calls={1})
    copy = pickle.loads(pickle.dumps(call))
    assert (results(copy, 1), results(call, 1)) == ([0], ["ValueError"])


@pytest.mark.parametrize("method", ["fork", "spawn"])
def test_collation_fails_in_one_call_of_all_workers(method: str) -> None:
    collate = FaultyCall(as_list, BAD, calls={2})
    loader = DataLoader(range(12), 2, collate_fn=collate, num_workers=2, multiprocessing_context=method)  # type: ignore[arg-type]
    with pytest.raises(ValueError, match="bad call"):
        list(loader)
    assert len(list(loader)) == 6


def test_the_start_of_one_worker_fails() -> None:
    start = FaultyCall(None, BAD, when=is_second_worker)
    with pytest.raises(ValueError, match="in DataLoader worker process 1"):
        list(DataLoader(range(12), 2, worker_init_fn=start, num_workers=2))  # type: ignore[arg-type]
    assert start.attempts.of("fault") == 1


def test_a_flaky_function_fails_now_and_then_and_then_no_more() -> None:
    assert results(flaky(double, every=2, times=2)) == [0, "ConnectionResetError", 4, "ConnectionResetError", 8, 10]
    assert results(flaky(double, error=TimeoutError()), 3) == ["TimeoutError", 2, 4]
    assert results(flaky(double, times=None), 3) == ["ConnectionResetError"] * 3


def test_the_fault_happens_on_the_way_that_was_meant() -> None:
    with pytest.raises(ValueError, match="bad call"):
        pickle.dumps(FaultyPickle(1, "pickle", BAD))
    sent = pickle.dumps(FaultyPickle(1, "unpickle", BAD))
    with pytest.raises(ValueError, match="bad call"):
        pickle.loads(sent)


@pytest.mark.parametrize("when", ["pickle", "unpickle"])
def test_a_fault_that_returns_lets_the_value_arrive(when: Any) -> None:
    with Attempts() as attempts:
        value = FaultyPickle([1, 2], when, FaultyCall(None, Hang(0.0), attempts=attempts))
        arrived = pickle.loads(pickle.dumps(value))
        assert (arrived.value, attempts.of("fault")) == ([1, 2], 1)


def unsendable(samples: list[Any]) -> FaultyPickle:
    return FaultyPickle(samples, "pickle", BAD)


def test_a_batch_that_cannot_travel_is_an_error_of_its_worker() -> None:
    loader = DataLoader(range(4), batch_size=2, num_workers=1, collate_fn=unsendable)  # type: ignore[arg-type]
    with pytest.raises(ValueError, match="bad call"):
        list(loader)
