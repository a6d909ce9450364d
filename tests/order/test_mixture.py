"""Mixtures: proportions, passes over each source, and weights that change."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from headrace.core.errors import UsageError
from headrace.samplers import MixtureSampler

ALONE: dict[str, Any] = {"rank": 0, "world_size": 1}


def sources(keys: list[int], lengths: list[int]) -> np.ndarray[Any, Any]:
    return np.searchsorted(np.cumsum(lengths), keys, side="right")


def test_each_run_of_1024_follows_the_weights() -> None:
    lengths = [5000, 300, 40]
    keys = list(MixtureSampler(lengths, [5, 3, 2], 4096, **ALONE))
    for start in range(0, 4096, 1024):
        counts = np.bincount(sources(keys[start : start + 1024], lengths), minlength=3)
        assert np.abs(counts - np.asarray([512, 307.2, 204.8])).max() <= 1


def test_a_source_repeats_a_sample_only_after_all_its_others() -> None:
    keys = np.asarray(list(MixtureSampler([100, 7], [1, 1], 200, **ALONE)))
    small = keys[keys >= 100]
    for start in range(0, len(small) - 7, 7):
        assert sorted(small[start : start + 7]) == list(range(100, 107))


def test_a_source_goes_on_in_the_next_epoch() -> None:
    sampler = MixtureSampler([100], [1], 30, **ALONE)
    seen: list[int] = []
    for epoch in range(3):
        sampler.set_epoch(epoch)
        seen += sampler
    assert len(set(seen)) == 90


def test_new_weights_hold_from_the_next_sample_on() -> None:
    sampler = MixtureSampler([1000, 1000], [1, 0], 500, **ALONE)
    iterator = iter(sampler)
    assert all(next(iterator) < 1000 for _ in range(100))
    sampler.set_weights([0, 1])
    rest = list(iterator)
    assert len(rest) == 400
    assert all(key >= 1000 for key in rest)


@given(size=st.integers(1, 4), change=st.integers(0, 60), save=st.integers(0, 80))
@settings(max_examples=30, deadline=None)
def test_changed_weights_survive_a_resume(size: int, change: int, save: int) -> None:
    def run(stop: int) -> tuple[list[list[int]], list[dict[str, Any]], list[list[int]]]:
        heads, states, tails = [], [], []
        for rank in range(size):
            sampler = MixtureSampler([50, 30], [1, 2], 100 * size, rank=rank, world_size=size)
            iterator, head = iter(sampler), []
            for step in range(stop):
                if step == change:
                    sampler.set_weights([7, 1])
                head.append(next(iterator))
            states.append(sampler.state_dict())
            heads.append(head)
            tails.append(list(iterator))
        return heads, states, tails

    _, states, tails = run(save)
    assert states == [states[0]] * size
    for rank in range(size):
        resumed = MixtureSampler([50, 30], [1, 1], 100 * size, rank=rank, world_size=size)
        resumed.load_state_dict(states[rank])
        assert list(resumed) == tails[rank]


def test_an_older_iteration_says_that_it_is_over() -> None:
    sampler = MixtureSampler([10, 10], [1, 1], 20, **ALONE)
    older = iter(sampler)
    next(older)
    next(iter(sampler))
    with pytest.raises(UsageError, match="another iteration"):
        list(older)


@pytest.mark.parametrize(
    ("lengths", "weights", "found"),
    [([5, 5], [1], "1 weights"), ([5, 0], [1, 1], "empty source 1"), ([5], [0], "zeros only"), ([5], [-1], "-1.0")],
)
def test_weights_that_do_not_fit_are_refused(lengths: list[int], weights: list[float], found: str) -> None:
    with pytest.raises(UsageError) as caught:
        MixtureSampler(lengths, weights)
    assert found in str(caught.value)


def test_a_source_without_a_length_is_refused() -> None:
    with pytest.raises(UsageError, match="a data set with a length"):
        MixtureSampler([object()], [1])  # type: ignore[list-item]
