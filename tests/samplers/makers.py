"""One sampler of each kind, for the tests that all of them must pass."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

from headrace.core.randomness.counter_based import words_at
from headrace.samplers import (
    BlockShuffleSampler,
    ClassBalancedSampler,
    DistributedSampler,
    ElasticSampler,
    LengthBucketBatchSampler,
    MaxTokensBatchSampler,
    MixtureSampler,
    PackedBatchSampler,
    WeightedSampler,
)

Maker = Callable[..., ElasticSampler]

ALONE: dict[str, Any] = {"rank": 0, "world_size": 1}

TOTAL = 1301
"""Samples: more than the first chunk of 256 keys, on each of four ranks."""

LENGTHS = 1 + words_at(0, np.arange(TOTAL)).astype(np.int64) % 59
LABELS = np.asarray(list("aabbbbc"))[words_at(1, np.arange(TOTAL)).astype(np.int64) % 7]


def growing(position: int) -> list[int]:
    """Weights of a mixture from a position on."""
    return [1, 2, 1 + position // 100]


MAKERS: dict[str, Maker] = {
    "shuffled": lambda **more: DistributedSampler(TOTAL, **more),
    "in order": lambda **more: DistributedSampler(TOTAL, shuffle=False, **more),
    "blocks": lambda **more: BlockShuffleSampler(TOTAL, 16, window=3, **more),
    "weighted": lambda **more: WeightedSampler(np.arange(TOTAL), 1400, **more),
    "weighted, no replacement": lambda **more: WeightedSampler(np.arange(TOTAL), 1200, replacement=False, **more),
    "balanced": lambda **more: ClassBalancedSampler(LABELS, **more),
    "bucketed": lambda **more: LengthBucketBatchSampler(LENGTHS, 4, window=32, **more),
    "bucketed, drop last": lambda **more: LengthBucketBatchSampler(LENGTHS, 4, drop_last=True, **more),
    "max tokens": lambda **more: MaxTokensBatchSampler(LENGTHS, 240, window=64, **more),
    "max tokens, skip": lambda **more: MaxTokensBatchSampler(LENGTHS, 40, window=64, too_long="skip", **more),
    "packed": lambda **more: PackedBatchSampler(LENGTHS, 120, window=300, balance="tokens", **more),
    "packed, split": lambda **more: PackedBatchSampler(LENGTHS, 100, 2, fit="split", window=200, **more),
    "mixture": lambda **more: MixtureSampler([900, 390, 11], [1, 2, 3], **more),
    "mixture, schedule": lambda **more: MixtureSampler([900, 390, 11], {0: [1, 2, 3], 300: [5, 1, 0]}, **more),
    "mixture, asked": lambda **more: MixtureSampler([900, 390, 11], growing, window=100, **more),
    "mixture, drop": lambda **more: MixtureSampler([900, 390, 11], [1, 2, 3], when_exhausted="drop", **more),
}

BATCHES = ["bucketed", "bucketed, drop last", "max tokens", "max tokens, skip", "packed", "packed, split"]

every_sampler = pytest.mark.parametrize("make", MAKERS.values(), ids=MAKERS.keys())
every_sampler_of_keys = pytest.mark.parametrize(
    "make", [make for name, make in MAKERS.items() if name not in BATCHES], ids=[n for n in MAKERS if n not in BATCHES]
)


def everything(make: Maker, size: int, uneven: str = "pad", epoch: int = 0) -> list[Any]:
    """What all ranks yield in one epoch, step by step."""
    ranks = [make(rank=rank, world_size=size, uneven=uneven) for rank in range(size)]
    for sampler in ranks:
        sampler.set_epoch(epoch)
    return dealt([list(sampler) for sampler in ranks])


def dealt(by_rank: list[list[Any]]) -> list[Any]:
    """What the ranks yield, in the order of the positions."""
    steps = max(len(part) for part in by_rank)
    return [part[step] for step in range(steps) for part in by_rank if step < len(part)]
