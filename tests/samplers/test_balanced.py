"""Class-balanced sampling."""

from __future__ import annotations

from collections import Counter
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from headrace.core.errors import UsageError
from headrace.samplers import ClassBalancedSampler
from tests.samplers.makers import ALONE


@given(labels=st.lists(st.integers(0, 12), min_size=1, max_size=60), rounds=st.integers(1, 12), seed=st.integers(0, 9))
@settings(max_examples=60, deadline=None)
def test_each_round_holds_every_class_once(labels: list[int], rounds: int, seed: int) -> None:
    classes = sorted(set(labels))
    drawn = list(ClassBalancedSampler(labels, rounds * len(classes), seed=seed, **ALONE))
    for start in range(0, len(drawn), len(classes)):
        assert sorted(labels[key] for key in drawn[start : start + len(classes)]) == classes


def test_classes_come_in_every_order_within_a_round() -> None:
    drawn = np.asarray(list(ClassBalancedSampler([0, 1, 2, 3], 24_000, **ALONE))).reshape(-1, 4)
    counts = np.unique(drawn, axis=0, return_counts=True)[1]
    assert len(counts) == 24
    assert ((counts - 250) ** 2 / 250).sum() < 49.7  # the 0.1 % point for 23 degrees of freedom


@given(sizes=st.lists(st.integers(1, 30), min_size=1, max_size=5), epochs=st.integers(1, 4), seed=st.integers(0, 9))
@settings(max_examples=40, deadline=None)
def test_a_sample_comes_again_only_after_all_others_of_its_class(sizes: list[int], epochs: int, seed: int) -> None:
    labels = np.repeat(np.arange(len(sizes)), sizes)
    sampler = ClassBalancedSampler(labels, 20 * len(sizes), seed=seed, **ALONE)
    drawn: list[int] = []
    for epoch in range(epochs):
        sampler.set_epoch(epoch)
        drawn += sampler
    for number, size in enumerate(sizes):
        keys = [key for key in drawn if labels[key] == number]
        assert len(keys) == 20 * epochs
        passes = [sorted(keys[i : i + size]) for i in range(0, len(keys) - size + 1, size)]
        assert passes == [np.flatnonzero(labels == number).tolist()] * len(passes)


def test_each_pass_through_a_class_is_shuffled_anew() -> None:
    drawn = np.asarray(list(ClassBalancedSampler([7] * 100, 1000, **ALONE))).reshape(10, 100)
    correlations = np.corrcoef(drawn)[~np.eye(10, dtype=bool)]
    assert np.abs(correlations).max() < 0.4


def test_classes_are_shuffled_independently() -> None:
    drawn = np.asarray(list(ClassBalancedSampler([0, 1] * 500, **ALONE)))
    zeros, ones = drawn[drawn % 2 == 0] // 2, drawn[drawn % 2 == 1] // 2
    assert sorted(zeros) == sorted(ones) == list(range(500))
    assert abs(np.corrcoef(zeros, ones)[0, 1]) < 0.2


def test_labels_may_be_anything_that_can_be_hashed() -> None:
    plain = [3, 1, 3, 0, 1, 3]
    expected = list(ClassBalancedSampler(plain, **ALONE))
    words = [("c", "b", "?", "a")[label] for label in plain]
    for labels in (
        np.asarray(plain, np.int8),
        torch.tensor(plain),
        [torch.tensor(label) for label in plain],
        np.asarray(words),
        words,
        np.asarray(words, dtype=object),
        [(word, None) for word in words],
        tuple(plain),
    ):
        assert list(ClassBalancedSampler(labels, **ALONE)) == expected


def test_thousands_of_classes_are_no_burden() -> None:
    labels = np.arange(40_000) % 20_011
    drawn = Counter(labels[list(ClassBalancedSampler(labels, 40_022, **ALONE))].tolist())
    assert set(drawn.values()) == {2}


def test_by_default_an_epoch_is_as_long_as_the_labels() -> None:
    assert len(ClassBalancedSampler(list("aabbb"), **ALONE)) == 5


@pytest.mark.parametrize("labels", [[], [[1, 2], [3, 4]], 3, None, np.zeros((2, 2)), np.zeros(0), torch.tensor(3)])
def test_labels_that_are_no_row_are_refused(labels: Any) -> None:
    with pytest.raises(UsageError, match=r"(?s)place:    labels=.*found:.*expected: one label for each sample.*fix:"):
        ClassBalancedSampler(labels)
