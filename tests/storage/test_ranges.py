"""Which ranges one request brings."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from headrace.storage.fetching.ranges import FREE, GAP, LARGEST, WANTED, ByteRange, ObjectVersion, WaitingRanges

A = ObjectVersion("store", "a", None, 1 << 40)
B = ObjectVersion("store", "b", None, 1 << 40)

SPANS = st.tuples(st.integers(0, 200), st.integers(1, 40)).map(lambda pair: (pair[0] * 20_000, pair[1] * 5_000))


def ranges_from(spans: list[tuple[int, int]], version: ObjectVersion = A) -> list[ByteRange]:
    return sorted({ByteRange(version, start, start + size) for start, size in spans})


@given(st.lists(SPANS, min_size=1, max_size=30), st.data(), st.integers(0, 2 * LARGEST))
def test_a_request_brings_the_range_and_its_neighbours_and_nothing_else(
    spans: list[tuple[int, int]], data: st.DataObject, room: int
) -> None:
    ranges = ranges_from(spans)
    others = ranges_from(spans, B)
    waiting = WaitingRanges()
    for one in ranges + others:
        waiting.add(one)

    wanted = data.draw(st.sampled_from(ranges))
    taken = waiting.take(wanted, room)
    assert wanted in taken
    assert taken == sorted(taken)
    assert set(taken) <= set(ranges)
    # Nothing was lost, and nothing comes twice.
    assert len(waiting) == len(ranges) + len(others) - len(taken)

    reached = max(one.stop for one in taken) - taken[0].start
    assert reached <= max(min(LARGEST, room), wanted.size) or taken == [wanted]
    stop = taken[0].stop
    wasted = 0
    for one in taken[1:]:
        assert one.start - stop <= GAP
        wasted += max(one.start - stop - FREE, 0)
        stop = max(stop, one.stop)
    assert wasted <= reached * (1 - WANTED)


@given(st.lists(SPANS, min_size=1, max_size=30))
def test_everything_that_waits_is_taken_in_the_end(spans: list[tuple[int, int]]) -> None:
    left = set(ranges_from(spans))
    waiting = WaitingRanges()
    for one in left:
        waiting.add(one)

    while left:
        left -= set(waiting.take(min(left), LARGEST))
    assert len(waiting) == 0


def test_neighbours_of_one_object_come_together() -> None:
    waiting = WaitingRanges()
    ranges = [ByteRange(A, start, start + 100) for start in range(0, 10_000, 100)]
    for one in ranges:
        waiting.add(one)
    assert waiting.take(ranges[40], LARGEST) == ranges


def test_samples_that_are_small_beside_their_distance_come_alone() -> None:
    """Otherwise a request would bring many times as many bytes as they have."""
    waiting = WaitingRanges()
    ranges = [ByteRange(A, start, start + 4096) for start in range(0, 1_000_000, 32_768)]
    for one in ranges:
        waiting.add(one)
    assert waiting.take(ranges[9], LARGEST) == [ranges[9]]

    # Of those that lie as far from each other as they are long, half of what comes is wanted.
    denser = [ByteRange(B, start, start + 4096) for start in range(0, 1_000_000, 8192)]
    for one in denser:
        waiting.add(one)
    assert waiting.take(denser[9], LARGEST) == denser


def test_what_is_far_away_is_left() -> None:
    waiting = WaitingRanges()
    near = ByteRange(A, 0, GAP)
    far = ByteRange(A, 2 * GAP + 1, 3 * GAP)
    waiting.add(near)
    waiting.add(far)
    assert waiting.take(near, LARGEST) == [near]
    assert waiting.take(far, LARGEST) == [far]


def test_a_range_that_is_not_there_cannot_be_removed() -> None:
    waiting = WaitingRanges()
    waiting.add(ByteRange(A, 0, 10))
    with pytest.raises(KeyError):
        waiting.remove(ByteRange(A, 0, 11))
    waiting.remove(ByteRange(A, 0, 10))
    assert len(waiting) == 0
