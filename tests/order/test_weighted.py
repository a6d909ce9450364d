"""Weighted and class-balanced sampling."""

from __future__ import annotations

from collections import Counter
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from headrace.core.errors import UsageError
from headrace.samplers import ClassBalancedSampler, WeightedSampler

ALONE: dict[str, Any] = {"rank": 0, "world_size": 1}


def test_draws_follow_the_weights() -> None:
    weights = np.asarray([0, 1, 2, 3, 0, 4.0])
    counts = np.bincount(list(WeightedSampler(weights, 20_000, **ALONE)), minlength=6)
    expected = weights / weights.sum() * 20_000
    assert (counts[weights == 0] == 0).all()
    assert ((counts - expected)[weights > 0] ** 2 / expected[weights > 0]).sum() < 16.3  # 0.1 %, 3 degrees of freedom


def test_more_weights_than_torch_can_take_are_exact() -> None:
    weights = np.zeros(2**24 + 5)
    weights[-3:] = 1, 2, 1
    counts = Counter(WeightedSampler(weights, 4000, **ALONE))
    first = 2**24 + 2
    assert set(counts) == {first, first + 1, first + 2}
    assert abs(counts[first + 1] - 2000) < 160


@given(weights=st.lists(st.floats(0, 1e300), min_size=1, max_size=30).filter(any), seed=st.integers(0, 99))
def test_a_key_without_weight_is_never_drawn(weights: list[float], seed: int) -> None:
    if not np.isfinite(np.sum(weights)):
        return
    drawn = set(WeightedSampler(weights, 200, seed=seed, **ALONE))
    assert all(weights[key] > 0 for key in drawn)


@given(size=st.integers(1, 40), seed=st.integers(0, 99), data=st.data())
def test_without_replacement_no_key_comes_twice(size: int, seed: int, data: st.DataObject) -> None:
    count = data.draw(st.integers(1, size))
    drawn = list(WeightedSampler(np.arange(1, size + 1), count, replacement=False, seed=seed, **ALONE))
    assert len(set(drawn)) == len(drawn) == count


def test_without_replacement_heavy_keys_come_first() -> None:
    firsts = Counter(
        next(iter(WeightedSampler([1, 9], 2, replacement=False, seed=seed, **ALONE))) for seed in range(2000)
    )
    assert abs(firsts[1] - 1800) < 60


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
        (None, "shape ()"),
    ],
)
def test_weights_that_cannot_be_drawn_with_are_refused(weights: Any, found: str) -> None:
    with pytest.raises(UsageError) as caught:
        WeightedSampler(weights, 3)
    assert found in str(caught.value)


def test_more_draws_than_weights_need_replacement() -> None:
    with pytest.raises(UsageError, match=r"(?s)found:\s+3.*at most 2.*with replacement"):
        WeightedSampler([1, 0, 1], 3, replacement=False)


@pytest.mark.parametrize("count", [0, -1, 2.5, True, "3"])
def test_a_count_is_a_positive_whole_number(count: Any) -> None:
    with pytest.raises(UsageError, match="a whole number above 0"):
        WeightedSampler([1, 1], count)


@given(labels=st.lists(st.integers(0, 6), min_size=1, max_size=60), rounds=st.integers(1, 12), seed=st.integers(0, 9))
@settings(max_examples=60)
def test_each_round_holds_every_class_once(labels: list[int], rounds: int, seed: int) -> None:
    classes = len(set(labels))
    drawn = list(ClassBalancedSampler(labels, rounds * classes, seed=seed, **ALONE))
    for start in range(0, len(drawn), classes):
        assert sorted(labels[key] for key in drawn[start : start + classes]) == sorted(set(labels))


def test_a_sample_comes_again_only_after_all_others_of_its_class() -> None:
    labels = ["rare"] * 3 + ["common"] * 50
    drawn = list(ClassBalancedSampler(labels, 60, **ALONE))
    rare = [key for key in drawn if key < 3]
    assert [sorted(rare[i : i + 3]) for i in range(0, 30, 3)] == [[0, 1, 2]] * 10
    assert len({key for key in drawn if key >= 3}) == 30


def test_by_default_an_epoch_is_as_long_as_the_labels() -> None:
    assert len(ClassBalancedSampler(list("aabbb"), **ALONE)) == 5


@pytest.mark.parametrize("labels", [[], [[1, 2], [3, 4]], 3])
def test_labels_that_are_no_row_are_refused(labels: Any) -> None:
    with pytest.raises(UsageError, match="one label for each sample"):
        ClassBalancedSampler(labels)
