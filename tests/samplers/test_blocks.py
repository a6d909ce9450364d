"""Shuffling by blocks: every key once, few blocks in use at a time, well mixed."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from headrace.core.errors import UsageError
from headrace.samplers import BlockShuffleSampler
from tests.samplers.makers import ALONE


@given(
    total=st.integers(1, 400),
    block=st.integers(1, 60),
    window=st.integers(1, 6),
    seed=st.integers(0, 99),
    epoch=st.integers(0, 3),
)
@example(total=1, block=60, window=6, seed=0, epoch=0)
@settings(max_examples=150, deadline=None)
def test_a_window_holds_its_blocks_whole_and_nothing_else(
    total: int, block: int, window: int, seed: int, epoch: int
) -> None:
    sampler = BlockShuffleSampler(total, block, window=window, seed=seed, **ALONE)
    sampler.set_epoch(epoch)
    keys = np.asarray(list(sampler))
    assert sorted(keys.tolist()) == list(range(total))
    blocks = set(range(-(-total // block)))
    start = 0
    while blocks:
        # Which blocks a window has cannot be told before it is over: the next `window` that are complete together.
        stops = range(start + 1, min(start + window * block, total) + 1)
        stop = max(stop for stop in stops if is_whole(keys[start:stop], block, total, min(window, len(blocks))))
        blocks -= {*(keys[start:stop] // block).tolist()}
        start = stop
    assert start == total


def is_whole(keys: np.ndarray[Any, Any], block: int, total: int, count: int) -> bool:
    used = np.unique(keys // block)
    return len(used) == count and len(keys) == sum(min(block, total - number * block) for number in used.tolist())


@pytest.mark.parametrize("total", [5000, 5003])
def test_blocks_and_samples_are_shuffled_anew_in_each_epoch(total: int) -> None:
    sampler = BlockShuffleSampler(total, 10, window=5, **ALONE)
    orders, places = [], []
    for epoch in range(2):
        sampler.set_epoch(epoch)
        keys = np.asarray(list(sampler))
        orders.append(np.asarray([*dict.fromkeys((keys // 10).tolist())]))
        places.append(np.argsort(keys) % 50)  # places within the windows, by key
    for first, second in (orders, places, (orders[0], np.sort(orders[0]))):
        assert abs(np.corrcoef(first, second)[0, 1]) < 0.2


def test_a_window_is_shuffled_anew_in_each_epoch() -> None:
    sampler = BlockShuffleSampler(1000, 1000, **ALONE)
    orders = [sampler.keys_at(epoch, np.arange(1000)) for epoch in range(2)]
    assert abs(np.corrcoef(*orders)[0, 1]) < 0.2


def test_the_samples_of_a_window_come_in_every_order() -> None:
    """Windows of 2 blocks of 2 samples: 24 orders, over 6000 windows."""
    keys = BlockShuffleSampler(24_000, 2, window=2, **ALONE).keys_at(0, np.arange(24_000)).reshape(-1, 4)
    orders = np.argsort(keys, axis=1)
    counts = np.unique(orders, axis=0, return_counts=True)[1]
    assert len(counts) == 24
    assert ((counts - 250) ** 2 / 250).sum() < 49.7  # the 0.1 % point for 23 degrees of freedom


def test_the_short_block_comes_anywhere() -> None:
    first = set()
    for seed in range(100):
        keys = list(BlockShuffleSampler(34, 10, window=1, seed=seed, **ALONE))
        first.add(next(place for place, key in enumerate(keys) if key >= 30))
    assert first == {0, 10, 20, 30}


@pytest.mark.parametrize("name", ["block_size", "window"])
@pytest.mark.parametrize("value", [0, -1, 1.5, None, True])
def test_sizes_are_positive_whole_numbers(name: str, value: Any) -> None:
    with pytest.raises(UsageError, match=rf"(?s)place:    {name}=.*found:.*expected: a whole number above 0"):
        BlockShuffleSampler(10, **{"block_size": 2, name: value})
