"""Batches by length, and shuffling by blocks."""

from __future__ import annotations

import itertools
import pickle
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from headrace.core.errors import UsageError
from headrace.order.permutation import Permutation
from headrace.samplers import BlockShuffleSampler, LengthBucketBatchSampler, MaxTokensBatchSampler

ALONE: dict[str, Any] = {"rank": 0, "world_size": 1}

some_lengths = st.lists(st.integers(0, 50), min_size=1, max_size=150)


@given(lengths=some_lengths, size=st.integers(1, 9), drop_last=st.booleans(), seed=st.integers(0, 9))
def test_batches_of_a_size_hold_every_sample_once(lengths: list[int], size: int, drop_last: bool, seed: int) -> None:
    sampler = LengthBucketBatchSampler(lengths, size, window=20, drop_last=drop_last, seed=seed, **ALONE)
    batches = list(sampler)
    keys = [key for batch in batches for key in batch]
    assert len(set(keys)) == len(keys)
    if drop_last:
        assert all(len(batch) == size for batch in batches)
        assert len(keys) == len(lengths) // size * size
    else:
        assert sorted(keys) == list(range(len(lengths)))
        assert sum(len(batch) != size for batch in batches) <= 1


def test_lengths_within_a_batch_are_neighbours_in_the_window() -> None:
    lengths = np.random.default_rng(0).integers(1, 500, 1024)
    batches = list(LengthBucketBatchSampler(lengths, 16, window=1024, **ALONE))
    ranges = sorted((min(lengths[batch]), max(lengths[batch])) for batch in batches)
    assert all(before[1] <= after[0] for before, after in itertools.pairwise(ranges))


@given(lengths=some_lengths, limit=st.integers(50, 200), samples=st.none() | st.integers(1, 5))
def test_no_batch_has_more_tokens_than_allowed(lengths: list[int], limit: int, samples: int | None) -> None:
    batches = list(MaxTokensBatchSampler(lengths, limit, max_samples=samples, window=40, **ALONE))
    assert all(len(batch) * max(lengths[key] for key in batch) <= limit for batch in batches)
    assert samples is None or all(len(batch) <= samples for batch in batches)
    assert sorted(key for batch in batches for key in batch) == list(range(len(lengths)))


def test_a_sample_that_is_too_long_is_named() -> None:
    with pytest.raises(UsageError, match=r"(?s)key 1.*found:\s+99 tokens.*at most max_tokens=10.*'skip' or 'alone'"):
        MaxTokensBatchSampler([3, 99, 4], 10)


def test_a_sample_that_is_too_long_can_be_skipped_or_go_alone() -> None:
    skipping = MaxTokensBatchSampler([3, 99, 4], 10, too_long="skip", **ALONE)
    alone = MaxTokensBatchSampler([3, 99, 4], 10, too_long="alone", **ALONE)
    assert sorted(map(sorted, skipping)) == [[0, 2]]
    assert sorted(map(sorted, alone)) == [[0, 2], [1]]


def test_a_batch_knows_the_positions_of_its_samples() -> None:
    sampler = LengthBucketBatchSampler(np.arange(50)[::-1], 4, seed=3, **ALONE)
    seen = []
    for batch in sampler:
        copy = pickle.loads(pickle.dumps(batch))
        assert (list(copy), copy.positions.tolist()) == (list(batch), batch.positions.tolist())
        seen += zip(batch.positions.tolist(), batch, strict=True)
    assert sorted(position for position, _ in seen) == list(range(50))
    unsorted = [key for _, key in sorted(seen)]
    assert unsorted != sorted(unsorted)


@pytest.mark.parametrize("lengths", [[[1], [2]], [1, -2], ["a"], None])
def test_lengths_that_are_no_row_of_numbers_are_refused(lengths: Any) -> None:
    with pytest.raises(UsageError, match="one non-negative number for each sample"):
        LengthBucketBatchSampler(lengths, 2)


def test_without_samples_there_are_no_batches() -> None:
    assert list(LengthBucketBatchSampler([], 2, **ALONE)) == []
    assert len(MaxTokensBatchSampler([], 2, **ALONE)) == 0


@given(
    total=st.integers(1, 400),
    block=st.integers(1, 60),
    window=st.integers(1, 6),
    seed=st.integers(0, 99),
    epoch=st.integers(0, 3),
)
@settings(max_examples=200)
def test_a_window_of_blocks_is_left_before_the_next_begins(
    total: int, block: int, window: int, seed: int, epoch: int
) -> None:
    sampler = BlockShuffleSampler(total, block, window=window, seed=seed, **ALONE)
    sampler.set_epoch(epoch)
    keys = np.asarray(list(sampler))
    assert sorted(keys.tolist()) == list(range(total))
    order = list(dict.fromkeys((keys // block).tolist()))
    blocks = -(-total // block)
    assert sorted(order) == list(range(blocks))
    done, start = 0, 0
    while done < blocks:
        used: set[int] = set()
        while start < total and (keys[start] // block in used or len(used) < min(window, blocks - done)):
            used.add(int(keys[start] // block))
            start += 1
        done += len(used)
    assert start == total


def test_the_order_of_blocks_is_shuffled() -> None:
    keys = list(BlockShuffleSampler(1000, 10, window=1, **ALONE))
    order = list(dict.fromkeys(key // 10 for key in keys))
    assert order != sorted(order)
    assert keys[:10] != sorted(keys[:10])


def test_an_order_of_blocks_can_be_entered_anywhere() -> None:
    sampler = BlockShuffleSampler(1003, 10, window=7, **ALONE)
    whole = sampler.keys_at(0, np.arange(1003))
    places = Permutation(1003, 1).at(np.arange(1003))
    assert sampler.keys_at(0, places).tolist() == whole[places].tolist()
