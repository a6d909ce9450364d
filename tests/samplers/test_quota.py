"""Shares of several sources, against counting them one by one."""

from __future__ import annotations

import numpy as np
from hypothesis import given, settings
from hypothesis import strategies as st

from headrace.samplers.quota import ONE, STRATA, Quota, shares_of

some_weights = st.lists(st.just(0.0) | st.floats(1e-9, 1.0), min_size=1, max_size=8).filter(any)
some_keys = st.integers(0, 2**64 - 1)


def counted(
    sources: np.ndarray[tuple[int], np.dtype[np.int64]], count: int
) -> np.ndarray[tuple[int, int], np.dtype[np.int64]]:
    """How often each source came before each position, shape (positions + 1, sources)."""
    return np.cumsum(np.vstack([np.zeros((1, count), np.int64), sources[:, None] == np.arange(count)]), axis=0)


@given(weights=some_weights, key=some_keys)
@settings(max_examples=40, deadline=None)
def test_counts_are_those_of_counting(weights: list[float], key: int) -> None:
    quota = Quota(shares_of(np.asarray(weights)), key)
    sources, before = quota.at(np.arange(10 * STRATA))
    expected = counted(sources, len(weights))
    assert before.tolist() == expected[np.arange(10 * STRATA), sources].tolist()
    for position in (0, 1, STRATA - 1, STRATA, 7 * STRATA + 13):
        assert quota.before(position).tolist() == expected[position].tolist()


@given(weights=some_weights, key=some_keys, start=st.integers(0, 2**61))
@settings(max_examples=40, deadline=None)
def test_counts_go_on_at_any_distance(weights: list[float], key: int, start: int) -> None:
    quota = Quota(shares_of(np.asarray(weights)), key)
    sources, before = quota.at(np.arange(start, start + 3 * STRATA))
    expected = quota.before(start) + counted(sources, len(weights))
    assert before.tolist() == expected[np.arange(3 * STRATA), sources].tolist()
    assert quota.before(start + 3 * STRATA).tolist() == expected[-1].tolist()
    assert int(quota.before(start).sum()) == start


@given(weights=some_weights, key=some_keys, blocks=st.integers(1, 2**40))
@settings(max_examples=200, deadline=None)
def test_no_source_is_ever_far_from_its_share(weights: list[float], key: int, blocks: int) -> None:
    shares = shares_of(np.asarray(weights))
    counts = Quota(shares, key).before(blocks * STRATA)
    for count, share in zip(counts.tolist(), shares.tolist(), strict=True):
        assert abs(count * ONE - share * blocks * STRATA) <= (2 + np.log2(blocks) * 2 / 3) * ONE


@given(weights=some_weights, key=some_keys, data=st.data())
@settings(max_examples=30, deadline=None)
def test_sources_do_not_depend_on_how_they_are_asked_for(weights: list[float], key: int, data: st.DataObject) -> None:
    quota = Quota(shares_of(np.asarray(weights)), key)
    sources, counts = quota.at(np.arange(2000))
    places = np.asarray(data.draw(st.lists(st.integers(0, 1999), min_size=1, max_size=20)))
    assert [found.tolist() for found in quota.at(places)] == [sources[places].tolist(), counts[places].tolist()]


@given(weights=some_weights)
def test_shares_are_whole_and_add_up(weights: list[float]) -> None:
    shares = shares_of(np.asarray(weights))
    assert int(shares.sum()) == ONE
    assert ((shares > 0) == (np.asarray(weights) > 0)).all()
    assert np.abs(shares / ONE - np.asarray(weights) / sum(weights)).max() < 2e-12


def test_a_rare_source_comes_in_time() -> None:
    """One in a million, for many keys: once in a million, and anywhere."""
    firsts = []
    for key in range(200):
        quota = Quota(shares_of(np.asarray([1e6 - 1, 1])), key)
        assert 0 <= quota.before(1 << 20)[1] <= 3
        assert abs(quota.before(10**9)[1] - 1000) <= 4
        firsts.append(quota.before(1 << 19)[1] > 0)
    assert 60 < sum(firsts) < 160


def test_neighbours_are_as_mixed_as_by_chance() -> None:
    sources = Quota(shares_of(np.asarray([1.0, 1.0])), 3).at(np.arange(100_000))[0]
    for stride in (1, 2, 3, 4, 7, 8, 16, 64, 256):
        same = np.mean(sources[:-stride] == sources[stride:])
        assert abs(same - 0.5) < 0.02
