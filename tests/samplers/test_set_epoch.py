"""The epoch that a script sets on a sampler is in the loader's state, also before the first batch."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

import headrace
from headrace.samplers import DistributedSampler, LengthBucketBatchSampler, MixtureSampler, PackedBatchSampler

LENGTHS = [3, 9, 4, 7, 1, 8, 2, 6] * 5
ALONE: dict[str, Any] = {"rank": 0, "world_size": 1}


def mixture() -> MixtureSampler:
    return MixtureSampler([20, 20], lambda position: [1, 2 + position % 3], **ALONE)


MAKERS: dict[str, Callable[[], dict[str, Any]]] = {
    "single keys": lambda: {"sampler": DistributedSampler(40, **ALONE)},
    "buckets": lambda: {"batch_sampler": LengthBucketBatchSampler(LENGTHS, 4, **ALONE)},
    "packs": lambda: {"batch_sampler": PackedBatchSampler(LENGTHS, 10, window=15, **ALONE)},
    "mixture": lambda: {"sampler": mixture()},
    "packs of a mixture": lambda: {
        "batch_sampler": PackedBatchSampler(LENGTHS, 10, window=15, order=mixture(), **ALONE)
    },
}


def loader_of(kind: str) -> tuple[headrace.DataLoader[Any], Any]:
    made = MAKERS[kind]()
    loader = headrace.DataLoader(list(range(40)), collate_fn=list, **made)
    return loader, next(iter(made.values()))


@pytest.mark.parametrize("kind", MAKERS)
def test_a_state_before_the_first_batch_has_the_epoch_of_the_sampler(kind: str) -> None:
    loader, sampler = loader_of(kind)
    first = list(loader)
    sampler.set_epoch(3)
    iterator = iter(loader)
    state = loader.state_dict()
    third = list(iterator)
    assert third != first

    again, _ = loader_of(kind)
    again.load_state_dict(state)
    assert list(again) == third


@pytest.mark.parametrize("kind", MAKERS)
def test_so_has_one_of_a_loader_that_has_begun_no_epoch(kind: str) -> None:
    loader, sampler = loader_of(kind)
    sampler.set_epoch(3)
    state = loader.state_dict()
    expected = list(loader)
    again, _ = loader_of(kind)
    again.load_state_dict(state)
    assert list(again) == expected
