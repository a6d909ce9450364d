"""Weighted sampling, with and without replacement."""

from __future__ import annotations

from collections import Counter
from itertools import permutations
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import example, given
from hypothesis import strategies as st

from headrace.core.errors import UsageError
from headrace.core.randomness.counter_based import uniforms_at
from headrace.samplers import WeightedSampler
from headrace.samplers.weighted import drawn_by
from tests.samplers.makers import ALONE

any_weights = st.lists(st.just(0.0) | st.floats(0, 1.7e308), min_size=1, max_size=30).filter(any)


def test_draws_follow_the_weights() -> None:
    weights = np.asarray([0, 1, 2, 3, 0, 4.0])
    counts = np.bincount(list(WeightedSampler(weights, 100_000, **ALONE)), minlength=6)
    expected = weights / weights.sum() * 100_000
    assert (counts[weights == 0] == 0).all()
    assert ((counts - expected)[weights > 0] ** 2 / expected[weights > 0]).sum() < 16.3  # 0.1 %, 3 degrees of freedom


def test_successive_draws_are_independent() -> None:
    keys = np.asarray(list(WeightedSampler([1, 2, 1], 60_000, **ALONE))).reshape(-1, 2)
    counts = np.bincount(keys[:, 0] * 3 + keys[:, 1], minlength=9)
    expected = 30_000 * np.outer([0.25, 0.5, 0.25], [0.25, 0.5, 0.25]).ravel()
    assert ((counts - expected) ** 2 / expected).sum() < 26.1  # 0.1 %, 8 degrees of freedom


def test_more_weights_than_torch_can_take_are_exact() -> None:
    weights = np.zeros(2**24 + 5)
    weights[-4:] = 1, 2, 1, 0
    counts = Counter(WeightedSampler(weights, 4000, **ALONE))
    first = 2**24 + 1
    assert set(counts) == {first, first + 1, first + 2}
    assert abs(counts[first + 1] - 2000) < 160


def test_a_draw_is_the_place_of_its_random_number() -> None:
    count = 2**24 + 8
    sampler, positions = WeightedSampler(np.ones(count, np.int8), **ALONE), np.arange(20_000)
    uniforms = uniforms_at(sampler._stream(0, 0), positions)
    assert sampler.keys_at(0, positions).tolist() == (uniforms * count).astype(int).tolist()


@given(weights=any_weights, seed=st.integers(0, 99), replacement=st.booleans())
@example(weights=[1e308, 1e308, 0.0], seed=0, replacement=True)
@example(weights=[5e-324, 0.0], seed=0, replacement=False)
def test_a_key_without_weight_is_never_drawn(weights: list[float], seed: int, replacement: bool) -> None:
    count = 200 if replacement else 1
    drawn = set(WeightedSampler(weights, count, replacement=replacement, seed=seed, **ALONE))
    assert all(weights[key] > 0 for key in drawn)


@given(weights=st.lists(st.floats(1e-12, 1.0), min_size=1, max_size=50), zeros=st.integers(0, 3))
def test_the_smallest_and_largest_random_numbers_find_the_first_and_last_weight(
    weights: list[float], zeros: int
) -> None:
    sums = np.cumsum([0.0] * zeros + weights + [0.0] * zeros)
    uniforms = np.asarray([0.0, 1 - 2.0**-53])
    assert drawn_by(sums, uniforms).tolist() == [zeros, zeros + len(weights) - 1] or sums[-1] == sums[-2 - zeros]
    assert (uniforms * sums[-1] < sums[-1]).all()


@given(size=st.integers(1, 40), seed=st.integers(0, 99), data=st.data())
def test_without_replacement_no_key_comes_twice(size: int, seed: int, data: st.DataObject) -> None:
    count = data.draw(st.integers(1, size))
    drawn = list(WeightedSampler(np.arange(1, size + 1), count, replacement=False, seed=seed, **ALONE))
    assert len(set(drawn)) == len(drawn) == count


def test_without_replacement_each_order_has_its_probability() -> None:
    """A key is drawn in proportion to its weight among those that are left."""
    weights, tries = [1, 2, 5], 4000
    sampler = WeightedSampler(weights, replacement=False, **ALONE)
    orders = Counter(tuple(sampler.keys_at(epoch, np.arange(3)).tolist()) for epoch in range(tries))
    chi_square = 0.0
    for a, b, c in permutations(range(3)):
        expected = tries * weights[a] / 8 * weights[b] / (8 - weights[a])
        chi_square += (orders[a, b, c] - expected) ** 2 / expected
    assert chi_square < 20.5  # 0.1 %, 5 degrees of freedom


def test_without_replacement_weights_may_differ_by_any_factor() -> None:
    drawn = list(WeightedSampler([1e-300, 1.0, 1e300, 0.0], 2, replacement=False, **ALONE))
    assert drawn == [2, 1]


def test_drawing_fewer_gives_the_beginning_of_drawing_all() -> None:
    weights = np.random.default_rng(0).random(500)
    everything = list(WeightedSampler(weights, replacement=False, **ALONE))
    assert list(WeightedSampler(weights, 20, replacement=False, **ALONE)) == everything[:20]


def test_only_one_epoch_of_draws_is_kept_and_none_is_pickled() -> None:
    sampler = WeightedSampler(np.ones(1000), replacement=False, **ALONE)
    first, second = (sampler.keys_at(epoch, np.arange(1000)).tolist() for epoch in (0, 1))
    assert first != second
    assert sampler.keys_at(0, np.arange(1000)).tolist() == first
    assert sampler.__getstate__()["_drawn"] is None


def test_weights_may_be_tensors_of_any_kind_and_are_not_changed() -> None:
    plain = [1.0, 0.5, 2.0, 0.0]
    expected = list(WeightedSampler(plain, 50, **ALONE))
    for weights in (
        np.asarray(plain, np.float32),
        torch.tensor(plain, requires_grad=True),
        torch.tensor(plain, dtype=torch.bfloat16),
        np.asarray(plain) * 1e300,
    ):
        before = torch.as_tensor(weights).detach().double().tolist()
        assert list(WeightedSampler(weights, 50, **ALONE)) == expected
        assert torch.as_tensor(weights).detach().double().tolist() == before
    assert list(WeightedSampler(torch.tensor([2, 1, 4, 0]), 50, **ALONE)) == expected


@pytest.mark.parametrize(
    ("weights", "found"),
    [
        ([], "shape (0,)"),
        ([[1, 2]], "shape (1, 2)"),
        ([1, -1], "-1.0 at index 1"),
        ([1, float("nan")], "nan at index 1"),
        ([float("inf")], "inf at index 0"),
        ([0, 0], "zeros only"),
        (["a"], "list: "),
        (None, "found:    None"),
        ([[1], [1, 2]], "list: "),
    ],
)
def test_weights_that_cannot_be_drawn_with_are_refused(weights: Any, found: str) -> None:
    with pytest.raises(
        UsageError, match=r"(?s)place:    weights=.*found:.*expected: a one-dimensional.*fix:"
    ) as caught:
        WeightedSampler(weights, 3)
    assert found in str(caught.value)


def test_more_draws_than_weights_need_replacement() -> None:
    with pytest.raises(UsageError, match=r"(?s)place:    num_samples=.*found:\s+3.*at most 2.*with replacement"):
        WeightedSampler([1, 0, 1], 3, replacement=False)


@pytest.mark.parametrize("count", [0, -1, 2.5, True, "3"])
def test_a_count_is_a_positive_whole_number(count: Any) -> None:
    with pytest.raises(UsageError, match="a whole number above 0"):
        WeightedSampler([1, 1], count)
