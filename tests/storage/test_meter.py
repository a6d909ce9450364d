"""How quickly bytes come over time, and which ranges came before."""

from __future__ import annotations

import pytest

from headrace.storage.fetching.meter import MOST, WIDTH, Meter
from headrace.storage.fetching.ranges import ByteRange, ObjectVersion
from headrace.storage.fetching.seen import SeenRanges


def test_bytes_of_a_request_are_spread_over_its_time() -> None:
    meter = Meter()
    meter.brought(100.0, 100.0 + 4 * WIDTH, 4000)
    meter.brought(100.0 + WIDTH, 100.0 + 2 * WIDTH, 500)
    windows = meter.windows()
    assert [window.began for window in windows[:4]] == [100.0 + WIDTH * number for number in range(4)]
    assert [window.bytes for window in windows[:4]] == pytest.approx([1000, 1500, 1000, 1000])
    assert [window.in_flight for window in windows[:4]] == pytest.approx([1, 2, 1, 1])


@pytest.mark.parametrize("size", [1000, 10_000_000])
def test_the_line_is_what_came_steadily_and_not_in_a_burst(size: int) -> None:
    meter = Meter()
    for number in range(100):
        meter.brought(number * 0.1, number * 0.1 + 0.1, size)
    steady = meter.best()
    assert steady == pytest.approx(10 * size)
    # What lay in a buffer comes at once.
    meter.brought(10.0, 10.001, 3 * size)
    meter.brought(10.2, 12.0, size)
    assert meter.best() <= 16 * size


def test_too_short_a_time_tells_of_no_line() -> None:
    meter = Meter()
    assert meter.best() == 0
    meter.brought(5.0, 5.1, 10**9)
    assert meter.best() == 0


def test_hours_take_no_more_memory_than_minutes_and_keep_every_byte() -> None:
    meter = Meter()
    for second in range(0, 20_000, 7):
        meter.brought(second, second + 7.0, 1000)
    windows = meter.windows()
    assert len(windows) <= MOST
    assert sum(window.bytes for window in windows) == pytest.approx(1000 * len(range(0, 20_000, 7)))
    assert windows[0].seconds > WIDTH


def test_a_night_without_reading_is_forgotten_and_the_line_is_not() -> None:
    meter = Meter()
    for number in range(40):
        meter.brought(number * 0.5, number * 0.5 + 0.5, 1_000_000)
    line = meter.best()
    meter.brought(30_000.0, 30_000.2, 100)
    windows = meter.windows()
    assert (windows[0].began, windows[0].seconds) == (30_000.0, WIDTH)
    assert meter.best() == line > 0


def test_a_request_that_began_before_the_others_is_counted() -> None:
    meter = Meter()
    meter.brought(10.0, 10.1, 100)
    meter.brought(9.0, 10.2, 500)
    assert sum(window.bytes for window in meter.windows()) == pytest.approx(600)


def test_ranges_are_known_again() -> None:
    seen = SeenRanges()
    version = ObjectVersion("s", "key", "etag", 10**9)
    first = [ByteRange(version, at * 1000, at * 1000 + 1000) for at in range(50_000)]
    known = [seen.add(wanted) for wanted in first]
    # Two may have one place, seldom.
    assert sum(known) < 200
    assert all(seen.add(wanted) for wanted in first)
    others = [ByteRange(version._replace(key="another"), at * 1000, at * 1000 + 1000) for at in range(100)]
    assert sum(map(seen.add, others)) < 20
