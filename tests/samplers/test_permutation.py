"""The keyed permutation: a bijection, uniform, and quick to enter."""

from __future__ import annotations

import math
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from headrace.core.errors import UsageError
from headrace.core.randomness.counter_based import stream_key, uniforms_at, words_at
from headrace.samplers.permutation import Permutation, Permutations


@given(length=st.integers(1, 5000), key=st.integers(0, 2**64 - 1))
def test_every_key_comes_once(length: int, key: int) -> None:
    keys = Permutation(length, key).at(np.arange(length))
    assert sorted(keys.tolist()) == list(range(length))


@given(length=st.integers(1, 2**62), key=st.integers(0, 2**64 - 1), data=st.data())
def test_the_inverse_finds_the_position_again(length: int, key: int, data: st.DataObject) -> None:
    positions = np.asarray(data.draw(st.lists(st.integers(0, length - 1), min_size=1, max_size=20)), np.int64)
    permutation = Permutation(length, key)
    keys = permutation.at(positions)
    assert ((keys >= 0) & (keys < length)).all()
    assert permutation.inverse(keys).tolist() == positions.tolist()


@given(length=st.integers(2, 3000), key=st.integers(0, 2**32), cut=st.integers(1, 2999))
def test_keys_do_not_depend_on_how_they_are_asked_for(length: int, key: int, cut: int) -> None:
    permutation, positions = Permutation(length, key), np.arange(length)
    parts = [permutation.at(positions[:cut]), permutation.at(positions[cut:])]
    assert np.concatenate(parts).tolist() == permutation.at(positions).tolist()
    assert permutation.at(positions.reshape(1, -1)).shape == (1, length)


@given(
    lengths=st.lists(st.integers(0, 400), min_size=1, max_size=8), keys=st.lists(st.integers(0, 2**64 - 1), min_size=8)
)
@settings(deadline=None)
def test_many_permutations_at_once_are_those_of_one_each(lengths: list[int], keys: list[int]) -> None:
    rows = np.repeat(np.arange(len(lengths)), lengths)
    positions = np.concatenate([np.arange(length) for length in lengths])
    expected = [Permutation(length, key).at(np.arange(length)) for length, key in zip(lengths, keys, strict=False)]
    words = np.asarray(keys, np.uint64)[rows]
    assert Permutations(lengths).at(rows, words, positions).tolist() == np.concatenate(expected).tolist()


def test_many_permutations_reach_as_far_as_one() -> None:
    positions = np.asarray([0, 1, 2**62 - 1, 2**33])
    expected = Permutation(2**62, 7).at(positions)
    found = Permutations([5, 2**62]).at(np.ones(4, np.int64), np.full(4, 7, np.uint64), positions)
    assert found.tolist() == expected.tolist()


@pytest.mark.parametrize("length", [0, 1])
def test_a_range_may_be_empty_or_hold_a_single_key(length: int) -> None:
    permutation = Permutation(length, 3)
    assert permutation.at(np.arange(length)).tolist() == list(range(length))
    assert permutation.inverse(np.arange(length)).tolist() == list(range(length))


@pytest.mark.parametrize("length", [-1, 2**62 + 1])
def test_a_length_out_of_range_is_refused(length: int) -> None:
    for make in (lambda: Permutation(length, 0), lambda: Permutations([3, length])):
        with pytest.raises(UsageError, match=r"(?s)found:.*expected: a length from 0 to 2\*\*62"):
            make()


def shuffles(length: int, width: int, tries: int) -> np.ndarray[Any, Any]:
    """The first `width` keys of many permutations, shape (tries, width)."""
    positions = np.tile(np.arange(width), tries)
    keys = words_at(9, np.repeat(np.arange(tries), width))
    return Permutations([length]).at(np.zeros_like(positions), keys, positions).reshape(tries, width)


@pytest.mark.parametrize(("length", "chi_square"), [(2, 10.8), (3, 20.5), (4, 49.7), (5, 173.6)])
def test_all_orders_of_a_few_are_equally_likely(length: int, chi_square: float) -> None:
    """`chi_square` is the 0.1 % point for length! - 1 degrees of freedom."""
    tries, orders = 24_000, math.factorial(length)
    counts = np.unique(shuffles(length, length, tries), axis=0, return_counts=True)[1]
    assert len(counts) == orders
    assert ((counts - tries / orders) ** 2 / (tries / orders)).sum() < chi_square


@pytest.mark.parametrize("length", [6, 8, 9, 12, 16, 17, 31, 33, 100])
def test_all_pairs_of_first_keys_are_about_equally_likely(length: int) -> None:
    tries, pairs = 50_000, length * (length - 1)
    counts = np.unique(shuffles(length, 2, tries), axis=0, return_counts=True)[1]
    chi_square = ((counts - tries / pairs) ** 2 / (tries / pairs)).sum() + (pairs - len(counts)) * tries / pairs
    assert abs(chi_square - (pairs - 1)) < 4 * math.sqrt(2 * (pairs - 1))


@pytest.mark.parametrize("length", [16, 24, 257, 1000, 4097])
def test_every_key_is_about_equally_likely_at_every_position(length: int) -> None:
    """Key and position fall into 8 x 8 fields, over many permutations."""
    positions, fields = np.arange(length), np.zeros((8, 8))
    rounds = 200 + 40_000 // length
    for key in range(rounds):
        keys = Permutation(length, stream_key(5, key)).at(positions)
        np.add.at(fields, (positions * 8 // length, keys * 8 // length), 1)
    expected = rounds * length / 64
    assert (np.abs(fields - expected) < 5 * np.sqrt(expected)).all()


@pytest.mark.parametrize("length", [1000, 1 << 20])
def test_neighbours_are_not_correlated(length: int) -> None:
    keys = Permutation(length, 77).at(np.arange(min(length, 50_000))).astype(float)
    for lag in (1, 2, 16):
        assert abs(np.corrcoef(keys[:-lag], keys[lag:])[0, 1]) < 5 / np.sqrt(len(keys))


def test_runs_up_and_down_are_as_long_as_by_chance() -> None:
    keys = Permutation(1 << 16, 5).at(np.arange(1 << 16))
    turns = np.count_nonzero((np.diff(keys)[:-1] > 0) != (np.diff(keys)[1:] > 0))
    expected, deviation = (2 * len(keys) - 4) / 3, math.sqrt((16 * len(keys) - 29) / 90)  # Wallis and Moore, 1941
    assert abs(turns - expected) < 4 * deviation


def test_permutations_of_similar_keys_have_nothing_in_common() -> None:
    first, second = (Permutation(50_000, key).at(np.arange(50_000)) for key in (8, 9))
    assert np.count_nonzero(first == second) < 8  # 1 by chance
    assert abs(np.corrcoef(first, second)[0, 1]) < 0.02


def test_uniform_numbers_are_uniform_and_differ_between_streams() -> None:
    first, second = (uniforms_at(stream_key(1, word), np.arange(100_000)) for word in (0, 1))
    assert first.min() >= 0
    assert first.max() < 1
    counts = np.bincount((first * 100).astype(int), minlength=100)
    assert ((counts - 1000) ** 2 / 1000).sum() < 149.5  # the 0.1 % point for 99 degrees of freedom
    assert abs(np.corrcoef(first, second)[0, 1]) < 0.02


def test_the_order_is_the_same_for_ever() -> None:
    """Saved states depend on it: a change here breaks every resume."""
    assert Permutation(10**9, 42).at(np.arange(4)).tolist() == [503290061, 190083144, 455925902, 476927245]
    assert Permutation(10, 42).at(np.arange(10)).tolist() == [0, 3, 5, 6, 2, 7, 4, 1, 8, 9]
    assert Permutation(7, 42).at(np.arange(7)).tolist() == [5, 1, 3, 4, 0, 6, 2]
