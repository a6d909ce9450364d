"""How many requests are under way at a time, on lines that are simulated."""

from __future__ import annotations

import heapq

import pytest

from headrace.storage.in_flight import FIRST, MOST, InFlight


def simulate(in_flight: InFlight, latency: float, rate: float, size: int, seconds: float, begin: float = 0.0) -> float:
    """Asks for objects as fast as the limit allows, on a line of `rate` bytes a second. Returns bytes a second."""
    now = begin
    free_at = begin
    answers: list[float] = []
    brought = 0
    while now < begin + seconds:
        while len(answers) < in_flight.limit:
            free_at = max(free_at, now + latency) + size / rate
            heapq.heappush(answers, free_at)
            in_flight.started(now, len(answers))
        now = heapq.heappop(answers)
        brought += size
        in_flight.finished(now, size)

    return brought / (now - begin)


@pytest.mark.parametrize("latency", [0.001, 0.02, 0.1])
@pytest.mark.parametrize("rate", [125e6, 1.25e9])
def test_the_line_is_filled(latency: float, rate: float) -> None:
    in_flight = InFlight()
    size = 1_000_000
    simulate(in_flight, latency, rate, size, 10.0)
    assert simulate(in_flight, latency, rate, size, 2.0, begin=20.0) > 0.9 * min(rate, MOST * size / latency)


def test_it_asks_no_more_than_the_line_takes() -> None:
    in_flight = InFlight()
    simulate(in_flight, 0.001, 125e6, 1_000_000, 30.0)
    assert in_flight.limit <= 4 * FIRST


def test_a_busy_server_is_asked_half_as_much() -> None:
    in_flight = InFlight()
    simulate(in_flight, 0.1, 1e9, 100_000, 10.0)
    before = in_flight.limit
    assert before > FIRST
    in_flight.busy(11.0)
    assert in_flight.limit == before // 2
    for second in range(12, 60):
        in_flight.busy(float(second))
    assert in_flight.limit == 1


def test_a_limit_that_was_never_reached_is_not_raised() -> None:
    in_flight = InFlight()
    now = 0.0
    for _ in range(1000):
        in_flight.started(now, 2)
        now += 0.01
        in_flight.finished(now, 100_000)
    assert in_flight.limit == FIRST
