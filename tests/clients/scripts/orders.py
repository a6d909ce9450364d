"""The loaders that the scripts of `test_orders.py` give to a framework: every kind of order, shard and stream."""

from __future__ import annotations

import itertools
import json
import os
from collections.abc import Callable, Iterator
from functools import partial
from typing import Any

import torch
from reporting import Numbers
from torch.utils.data import IterableDataset

import headrace
from headrace import samplers

LENGTH = 48
BATCH = 4
MOVED = 1000
LENGTHS = [3 + number % 5 for number in range(LENGTH)]
CLASSES = [number % 3 for number in range(LENGTH)]


class Stream(IterableDataset[tuple[torch.Tensor, int]]):
    """The samples of `Numbers`, in their order."""

    def __iter__(self) -> Iterator[tuple[torch.Tensor, int]]:
        numbers = Numbers(LENGTH)
        return iter([numbers[index] for index in range(LENGTH)])

    def __len__(self) -> int:
        return LENGTH


def moved(batch: Any) -> Any:
    """Changes the numbers of a batch, on its device."""
    features, numbers = batch
    return features, numbers + MOVED


SAMPLERS: dict[str, Callable[..., Any]] = {
    "DistributedSampler": partial(samplers.DistributedSampler, LENGTH),
    "BlockShuffleSampler": partial(samplers.BlockShuffleSampler, LENGTH, block_size=4, window=4),
    "WeightedSampler": partial(samplers.WeightedSampler, [1.0 + number for number in range(LENGTH)]),
    "ClassBalancedSampler": partial(samplers.ClassBalancedSampler, CLASSES),
    "MixtureSampler": partial(samplers.MixtureSampler, [16, LENGTH - 16], [1.0, 2.0], LENGTH),
}
BATCH_SAMPLERS: dict[str, Callable[..., Any]] = {
    "LengthBucketBatchSampler": partial(samplers.LengthBucketBatchSampler, LENGTHS, BATCH, window=16),
    "MaxTokensBatchSampler": partial(samplers.MaxTokensBatchSampler, LENGTHS, 5 * BATCH, max_samples=BATCH, window=16),
}
PLAIN: dict[str, dict[str, Any]] = {
    "in order": {},
    "shuffle": {"shuffle": True},
    "seed": {"shuffle": True, "seed": 7},
    "on_error": {"on_error": "skip"},
    "exclude": {"on_error": headrace.OnError(exclude=[0, 1, 2, 3])},
    "auto": {"shuffle": True, "shard": "auto"},
    "device": {"shuffle": True, "device": "cpu", "device_transform": moved},
}
STREAMS: dict[str, dict[str, Any]] = {"stream": {}, "stream, auto": {"shard": "auto"}}
ORDERS = [*PLAIN, *SAMPLERS, *STREAMS, *BATCH_SAMPLERS]


def loader(order: str, **more: Any) -> headrace.DataLoader[Any]:
    """Returns a new loader with this order. more: further arguments."""
    if order in BATCH_SAMPLERS:
        return headrace.DataLoader(Numbers(LENGTH), batch_sampler=BATCH_SAMPLERS[order](), **more)
    if order in SAMPLERS:
        return headrace.DataLoader(Numbers(LENGTH), BATCH, sampler=SAMPLERS[order](), **more)
    if order in STREAMS:
        return headrace.DataLoader(Stream(), BATCH, **STREAMS[order], **more)
    return headrace.DataLoader(Numbers(LENGTH), BATCH, **PLAIN[order], **more)


def whole(order: str) -> list[int]:
    """Returns the samples of an epoch, all ranks together, in ascending order."""
    if order in SAMPLERS:
        return sorted(SAMPLERS[order](rank=0, world_size=1))
    if order in BATCH_SAMPLERS:
        return sorted(itertools.chain.from_iterable(BATCH_SAMPLERS[order](rank=0, world_size=1)))
    if order == "device":
        return [number + MOVED for number in range(LENGTH)]
    on_error = headrace.OnError.of(PLAIN.get(order, {}).get("on_error", "raise"))
    return sorted(set(range(LENGTH)) - set(on_error.exclude or ()))


def tell(said: dict[str, Any]) -> None:
    """Says one thing in one line, at once, so that lines of several ranks do not mix."""
    os.write(1, f"cell {json.dumps(said)}\n".encode())
