"""The keyed permutation: a bijection, uniform, and quick to enter."""

from __future__ import annotations

from collections import Counter
from itertools import permutations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from headrace.core.counter import stream_key, uniforms_at
from headrace.order.permutation import SORTED, Permutation


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


def test_all_orders_of_four_are_about_equally_likely() -> None:
    rounds = 24 * 500
    counts = Counter(tuple(Permutation(4, stream_key(9, key)).at(np.arange(4)).tolist()) for key in range(rounds))
    assert set(counts) == set(permutations(range(4)))
    chi_square = sum((count - 500) ** 2 / 500 for count in counts.values())
    assert chi_square < 49.7  # the 0.1 % point for 23 degrees of freedom


@pytest.mark.parametrize("length", [SORTED + 1, 1000, 4097])
def test_every_key_is_about_equally_likely_at_every_position(length: int) -> None:
    """Key and position fall into 8 x 8 fields, over many permutations."""
    positions, fields = np.arange(length), np.zeros((8, 8))
    rounds = 400
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


def test_uniform_numbers_are_uniform_and_differ_between_streams() -> None:
    first, second = (uniforms_at(stream_key(1, word), np.arange(100_000)) for word in (0, 1))
    assert first.min() >= 0
    assert first.max() < 1
    counts = np.bincount((first * 100).astype(int), minlength=100)
    assert ((counts - 1000) ** 2 / 1000).sum() < 149.5  # the 0.1 % point for 99 degrees of freedom
    assert abs(np.corrcoef(first, second)[0, 1]) < 0.02


def test_the_order_is_the_same_for_ever() -> None:
    """Saved states depend on it: a change here breaks every resume."""
    assert Permutation(10**9, 42).at(np.arange(4)).tolist() == GOLDEN_LARGE
    assert Permutation(10, 42).at(np.arange(10)).tolist() == GOLDEN_SMALL


GOLDEN_LARGE = [986697442, 562842840, 357205112, 493840742]
GOLDEN_SMALL = [4, 1, 6, 2, 8, 3, 9, 0, 7, 5]
