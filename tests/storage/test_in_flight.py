"""How many requests are under way at a time, on lines that are simulated."""

from __future__ import annotations

import heapq

import pytest

from headrace.storage.fetching.in_flight import FIRST, MOST, InFlight


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


def storm(in_flight: InFlight, now: float) -> None:
    """All requests that are under way are refused, within a tenth of a second."""
    for number in range(in_flight.limit):
        in_flight.busy(now + 0.1 * number / 256)


def test_refusals_of_one_moment_halve_the_limit_once() -> None:
    in_flight = InFlight()
    simulate(in_flight, 0.1, 1e9, 100_000, 20.0)
    before = in_flight.limit
    assert before >= 64
    storm(in_flight, 30.0)
    assert in_flight.limit == before // 2
    assert in_flight.reason == "refused"


def test_after_a_storm_the_limit_is_soon_back_where_it_was() -> None:
    in_flight = InFlight()
    simulate(in_flight, 0.02, 1e9, 100_000, 20.0)
    before = in_flight.limit
    # For three seconds the server refuses whatever comes.
    for second in range(6):
        storm(in_flight, 30.0 + 0.6 * second)
    assert in_flight.limit <= max(before // 64, 1)

    simulate(in_flight, 0.02, 1e9, 100_000, 1.0, begin=34.0)
    assert in_flight.limit >= before // 2
    simulate(in_flight, 0.02, 1e9, 100_000, 10.0, begin=35.0)
    assert in_flight.reason != "refused"


def test_a_server_that_takes_less_for_good_is_not_asked_for_more_again_and_again() -> None:
    in_flight = InFlight()
    simulate(in_flight, 0.02, 1e9, 100_000, 20.0)
    assert in_flight.limit > 40
    refused = 0
    now = 30.0
    limits = []
    for _ in range(300):
        if in_flight.limit > 20:
            refused += 1
            in_flight.busy(now)
            now += 0.6
        simulate(in_flight, 0.02, 1e9, 100_000, 0.1, begin=now)
        now += 0.1
        limits.append(in_flight.limit)

    # It is refused when it tries one more than the server takes, which it does once in a while.
    assert refused <= 60
    assert sum(limits[-100:]) / 100 >= 13


def test_why_the_limit_is_not_higher_is_said() -> None:
    in_flight = InFlight()
    assert in_flight.reason == "rising"
    simulate(in_flight, 0.001, 125e6, 1_000_000, 30.0)
    assert in_flight.reason == "measured"
    far = InFlight()
    simulate(far, 0.5, 1e12, 1000, 200.0)
    assert (far.limit, far.reason) == (MOST, "most")
