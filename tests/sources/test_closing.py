"""Where spans end: limits are kept, and a log is cut in the same way however its records come."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from headrace.sources.feed.span_rule import Closing

LOGS = st.dictionaries(st.integers(0, 6), st.lists(st.integers(0, 40), max_size=30).map(tuple), min_size=1, max_size=5)


def sums(sizes):
    return np.cumsum(np.array(sizes, np.int64))


def cuts(closing, log, arrivals):
    """Returns the spans of a log whose records come in portions: `arrivals` gives a partition and how many come."""
    read = dict.fromkeys(log, 0)
    taken = dict.fromkeys(log, 0)
    spans = []

    def close(waited):
        while True:
            coming = {p: sums(log[p][taken[p] : read[p]]) for p in log}
            at_end = {p for p in log if read[p] == len(log[p])}
            ending = closing
            if not spans:
                ending = closing.of_first(sum(map(len, coming.values())), at_end=at_end == log.keys())
            cut = ending.cut(coming, at_end, waited)
            if cut is None:
                return
            spans.append(cut)
            for p, count in cut.items():
                taken[p] += count

    for partition, count in arrivals:
        if partition in log:
            read[partition] = min(read[partition] + count, len(log[partition]))
            close(1.0)

    for partition in log:
        read[partition] = len(log[partition])
        close(1.0)

    close(9.0)
    return spans, taken


@settings(deadline=None)
@given(LOGS, st.integers(1, 25), st.lists(st.tuples(st.integers(0, 6), st.integers(0, 9)), max_size=25))
def test_a_log_is_cut_alike_however_it_comes(log, samples, arrivals):
    closing = Closing(samples, 5.0, 10**6)
    spans, taken = cuts(closing, log, arrivals)
    again, _ = cuts(closing, log, [])
    assert spans == again
    assert taken == {p: len(sizes) for p, sizes in log.items()}


@settings(deadline=None)
@given(LOGS, st.integers(1, 25), st.integers(1, 120))
def test_a_span_keeps_its_limits(log, samples, nbytes):
    spans, _ = cuts(Closing(samples, 5.0, nbytes), log, [])
    done = dict.fromkeys(log, 0)
    for cut in spans:
        parts = [log[p][done[p] : done[p] + count] for p, count in cut.items()]
        sizes = [size for part in parts for size in part]
        assert 0 < len(sizes) <= samples
        assert sum(sizes) <= nbytes or len(sizes) == 1
        for p, count in cut.items():
            done[p] += count


def test_partitions_give_alike():
    closing = Closing(10, 5.0, 10**6)
    coming = {0: sums([1] * 20), 1: sums([1] * 20), 2: sums([1] * 2)}
    assert closing.cut(coming, {2}, 0.0) == {0: 4, 1: 4, 2: 2}


@pytest.mark.parametrize("waited,expected", [(0.0, None), (4.9, None), (5.0, {0: 3, 1: 0})])
def test_a_span_that_is_not_full_waits_for_linger(waited, expected):
    assert Closing(10, 5.0, 10**6).cut({0: sums([1] * 3), 1: sums([])}, {0, 1}, waited) == expected


def test_a_partition_that_gives_nothing_holds_up_the_others_until_their_bytes_are_too_many():
    closing = Closing(1000, 5.0, 100)
    assert closing.cut({0: sums([10] * 19), 1: sums([])}, set(), 0.0) is None
    assert closing.cut({0: sums([10] * 20), 1: sums([])}, set(), 0.0) == {0: 10, 1: 0}


@pytest.mark.parametrize("count,at_end,linger", [(100, True, 0.5), (99, True, 5.0), (100, False, 5.0)])
def test_the_first_span_of_an_epoch_is_closed_soon_if_the_log_is_read(count, at_end, linger):
    assert Closing(1000, 5.0, 10**6).of_first(count, at_end=at_end).linger == linger


def test_the_first_span_of_an_epoch_lingers_no_longer_than_others():
    assert Closing(1000, 0.1, 10**6).of_first(100, at_end=True).linger == 0.1


def test_nothing_makes_no_span():
    assert Closing(10, 0.0, 100).cut({0: sums([])}, {0}, 99.0) is None
