"""What all samplers share: the same order for any chunking and any number of ranks, and a resume anywhere."""

from __future__ import annotations

import json
import pickle
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from headrace.core.errors import StateError, UsageError
from headrace.samplers import (
    BlockShuffleSampler,
    ClassBalancedSampler,
    DistributedSampler,
    ElasticSampler,
    LengthBucketBatchSampler,
    MaxTokensBatchSampler,
    MixtureSampler,
    WeightedSampler,
)

LENGTHS = np.random.default_rng(0).integers(1, 60, 301)
LABELS = np.random.default_rng(1).choice(list("aabbbbc"), 301)

MAKERS: dict[str, Callable[..., ElasticSampler]] = {
    "shuffled": lambda **more: DistributedSampler(301, **more),
    "in order": lambda **more: DistributedSampler(301, shuffle=False, **more),
    "blocks": lambda **more: BlockShuffleSampler(301, 16, window=3, **more),
    "weighted": lambda **more: WeightedSampler(np.arange(301), 350, **more),
    "weighted, no replacement": lambda **more: WeightedSampler(np.arange(301), 200, replacement=False, **more),
    "balanced": lambda **more: ClassBalancedSampler(LABELS, **more),
    "bucketed": lambda **more: LengthBucketBatchSampler(LENGTHS, 4, window=32, **more),
    "max tokens": lambda **more: MaxTokensBatchSampler(LENGTHS, 240, window=64, **more),
    "mixture": lambda **more: MixtureSampler([200, 90, 11], [1, 2, 3], 3001, **more),
}

every_sampler = pytest.mark.parametrize("make", MAKERS.values(), ids=MAKERS.keys())


def everything(make: Callable[..., ElasticSampler], size: int, uneven: str = "pad", epoch: int = 0) -> list[Any]:
    """What all ranks yield in one epoch, step by step."""
    ranks = [make(rank=rank, world_size=size, uneven=uneven) for rank in range(size)]
    for sampler in ranks:
        sampler.set_epoch(epoch)
    return dealt([list(sampler) for sampler in ranks])


def dealt(by_rank: list[list[Any]]) -> list[Any]:
    steps = max(len(part) for part in by_rank)
    return [part[step] for step in range(steps) for part in by_rank if step < len(part)]


@every_sampler
@given(size=st.integers(1, 7), epoch=st.integers(0, 3))
@settings(max_examples=8, deadline=None)
def test_all_ranks_together_yield_what_one_would(make: Any, size: int, epoch: int) -> None:
    alone = everything(make, 1, epoch=epoch)
    assert everything(make, size, "keep", epoch) == alone
    padded = everything(make, size, "pad", epoch)
    assert padded[: len(alone)] == alone
    assert len(padded) == -(-len(alone) // size) * size
    assert everything(make, size, "drop", epoch) == alone[: len(alone) // size * size]


@every_sampler
@pytest.mark.parametrize("uneven", ["pad", "drop", "keep"])
def test_the_length_of_a_sampler_is_what_it_yields(make: Any, uneven: str) -> None:
    for rank in range(3):
        sampler = make(rank=rank, world_size=3, uneven=uneven)
        assert len(list(sampler)) == len(sampler)


@every_sampler
def test_padding_repeats_what_came_first(make: Any) -> None:
    if make is MAKERS["mixture"]:
        return  # goes on drawing instead
    alone = everything(make, 1)
    size = next(size for size in range(2, 9) if len(alone) % size)
    padding = everything(make, size)[len(alone) :]
    assert padding == alone[: len(padding)]


@every_sampler
@given(before=st.integers(1, 4), after=st.integers(1, 4), share=st.floats(0, 1), epoch=st.integers(0, 2))
@settings(max_examples=15, deadline=None)
def test_any_number_of_ranks_goes_on_where_others_stopped(
    make: Any, before: int, after: int, share: float, epoch: int
) -> None:
    alone = everything(make, 1, epoch=epoch)
    steps = int(share * (len(alone) // before))
    states = []
    for rank in range(before):
        sampler = make(rank=rank, world_size=before)
        sampler.set_epoch(epoch)
        iterator = iter(sampler)
        for _ in range(steps):
            next(iterator)
        states.append(json.loads(json.dumps(sampler.state_dict())))
    assert states == [states[0]] * before
    resumed = [make(rank=rank, world_size=after, uneven="keep") for rank in range(after)]
    for sampler in resumed:
        sampler.load_state_dict(states[0])
    assert dealt([list(sampler) for sampler in resumed]) == alone[steps * before :]


@every_sampler
def test_a_resumed_iteration_is_resumed_once(make: Any) -> None:
    if make is MAKERS["mixture"]:
        return  # never begins anew
    sampler = make(rank=0, world_size=1)
    iterator = iter(sampler)
    next(iterator), next(iterator)
    again = make(rank=0, world_size=1)
    again.load_state_dict(sampler.state_dict())
    assert len(list(again)) == len(again) - 2
    assert list(again) == everything(make, 1)


@every_sampler
def test_epochs_differ_and_come_again(make: Any) -> None:
    if make is MAKERS["in order"]:
        return
    assert everything(make, 1, epoch=1) != everything(make, 1, epoch=0)
    assert everything(make, 1, epoch=1) == everything(make, 1, epoch=1)


@every_sampler
def test_seeds_give_different_orders(make: Any) -> None:
    if make is MAKERS["in order"]:
        return
    assert list(make(rank=0, world_size=1, seed=1)) != list(make(rank=0, world_size=1, seed=2))


@every_sampler
def test_samplers_can_be_pickled(make: Any) -> None:
    sampler = pickle.loads(pickle.dumps(make(rank=1, world_size=2)))
    assert list(sampler) == list(make(rank=1, world_size=2))


@every_sampler
def test_a_state_of_another_sampler_is_refused(make: Any) -> None:
    state = make(rank=0, world_size=1, seed=5).state_dict()
    with pytest.raises(StateError, match=r"(?s)another sampler.*place:.*found:.*5.*expected:.*cure:"):
        make(rank=0, world_size=1, seed=6).load_state_dict(state)


@every_sampler
def test_an_unknown_word_for_the_uneven_end_is_refused(make: Any) -> None:
    with pytest.raises(UsageError, match="'pad', 'drop' or 'keep'"):
        make(rank=0, world_size=1, uneven="wrap")


@every_sampler
def test_an_impossible_rank_is_refused(make: Any) -> None:
    with pytest.raises(UsageError, match="0 <= rank < world_size"):
        make(rank=2, world_size=2)


def test_two_iterations_at_once_do_not_disturb_each_other() -> None:
    sampler = DistributedSampler(1000, rank=0, world_size=1)
    expected = list(sampler)
    assert list(zip(sampler, sampler, strict=True)) == [(key, key) for key in expected]


def test_the_ranks_come_from_the_launcher(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("RANK", "1")
    monkeypatch.setenv("WORLD_SIZE", "2")
    assert list(DistributedSampler(6, shuffle=False)) == [1, 3, 5]


def test_ranks_that_make_no_sense_are_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("RANK", "two")
    monkeypatch.setenv("WORLD_SIZE", "2")
    with pytest.raises(UsageError, match=r"(?s)RANK='two'.*torchrun"):
        len(DistributedSampler(6))


def test_a_thousand_million_samples_start_at_once_from_a_small_state() -> None:
    sampler = DistributedSampler(10**9, rank=0, world_size=1)
    iterator = iter(sampler)
    expected = [next(iterator) for _ in range(70_000)]
    state = json.dumps(sampler.state_dict())
    assert len(state) < 2048
    again = DistributedSampler(10**9, rank=0, world_size=1)
    again.load_state_dict(json.loads(state))
    assert next(iter(again)) == next(iterator)
    assert len(set(expected)) == 70_000


@pytest.mark.parametrize("make", [MAKERS["shuffled"], MAKERS["blocks"], MAKERS["weighted"]], ids=["all", "blocks", "w"])
def test_the_loader_of_torch_takes_them(make: Any) -> None:
    sampler = make(rank=0, world_size=1)
    loader = torch.utils.data.DataLoader(torch.arange(301), batch_size=10, sampler=sampler)
    assert torch.cat(list(loader)).tolist() == list(sampler)
