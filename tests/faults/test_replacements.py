"""What takes the place of a bad sample: at random, from what the sampler draws from, the same each time."""

from __future__ import annotations

from collections import Counter
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch.utils.data import (
    BatchSampler,
    DistributedSampler,
    RandomSampler,
    SequentialSampler,
    SubsetRandomSampler,
    WeightedRandomSampler,
)

import headrace
from headrace.faults.replacements import TRIES, Replacements, replacements_of

DATA = list(range(1000))


@given(
    size=st.integers(1, 300),
    seed=st.integers(0, 5),
    position=st.integers(0, 1 << 40),
    batch=st.lists(st.integers(0, 299)),
)
@settings(max_examples=60, deadline=None)
def test_candidates_are_few_within_the_data_and_the_same_each_time(
    size: int, seed: int, position: int, batch: list[int]
) -> None:
    bad = position % size
    first = list(Replacements(size).candidates(bad, seed, 0, position, batch=batch))
    assert first == list(Replacements(size).candidates(bad, seed, 0, position, batch=batch))
    assert len(first) <= TRIES
    assert set(first) <= set(range(size)) - {bad}
    if size <= TRIES:
        assert sorted(first) == [key for key in range(size) if key != bad]
        assert [key in batch for key in first] == sorted(key in batch for key in first)
    elif size > 4 * len(batch):
        assert not set(first) & set(batch)


def test_no_sample_is_favoured_and_no_neighbour_comes_again_and_again() -> None:
    replacements = Replacements(50)
    drawn = Counter(next(replacements.candidates(-1, 0, 0, position, batch=[])) for position in range(50_000))
    assert set(drawn) == set(range(50))
    assert max(drawn.values()) < 1.2 * 1000
    assert min(drawn.values()) > 0.8 * 1000
    offsets = Counter((next(Replacements(1000).candidates(0, 0, 0, key, batch=[])) - key) % 1000 for key in range(1000))
    assert max(offsets.values()) < 15


def test_without_a_population_each_key_of_the_batch_comes_once() -> None:
    assert sorted(Replacements().candidates(0, 0, 0, 1, batch=["a", "b", "c"])) == ["a", "b", "c"]
    assert list(Replacements().candidates(0, 0, 0, 1, batch=[])) == []


@pytest.mark.thorough
@pytest.mark.parametrize(
    ("sampler", "expected"),
    [
        (SequentialSampler(DATA), range(1000)),
        (RandomSampler(DATA), range(1000)),
        (DistributedSampler(DATA, num_replicas=2, rank=0), range(1000)),  # type: ignore[arg-type]
        (headrace.samplers.DistributedSampler(DATA, rank=0, world_size=2), range(1000)),
        (SubsetRandomSampler([3, 5, 900]), [3, 5, 900]),
        (WeightedRandomSampler(torch.ones(1000).tolist(), 1000), None),
        ([4, 2, 7], None),
    ],
    ids=lambda value: type(value).__name__,
)
def test_the_population_is_what_the_sampler_draws_from(sampler: Any, expected: Any) -> None:
    for index_sampler in (sampler, BatchSampler(sampler, 4, drop_last=False)):
        replacements = replacements_of(index_sampler, DATA)
        drawn = {key for position in range(3000) for key in replacements.candidates(-1, position, batch=[])}
        assert drawn == (set(expected) if expected is not None else set())


def test_excluded_samples_are_no_spares() -> None:
    replacements = replacements_of(SequentialSampler(DATA), DATA, np.array([1, 2, 3]))
    drawn = {key for position in range(3000) for key in replacements.candidates(-1, position, batch=[])}
    assert drawn == set(DATA) - {1, 2, 3}


@pytest.mark.parametrize("packed", [False, True])
def test_what_is_bad_in_a_mixture_is_replaced_from_its_source(packed: bool) -> None:
    sampler: Any = headrace.samplers.MixtureSampler([300, 0, 700], [1, 0, 5])
    if packed:
        sampler = headrace.samplers.PackedBatchSampler([1] * 1000, 8, order=sampler)
    replacements = replacements_of(sampler, DATA)
    for bad, source in ((0, range(300)), (299, range(300)), (300, range(300, 1000)), (999, range(300, 1000))):
        drawn = {key for position in range(500) for key in replacements.candidates(bad, position, batch=[])}
        assert drawn == set(source) - {bad}
    assert list(replacements.candidates(5, 0, batch=[5, 800]))[TRIES:] in ([5, 800], [800, 5])
