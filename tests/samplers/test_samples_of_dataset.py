"""A sampler that was made for more or fewer samples than the dataset has is an error."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
from torch.utils.data import BatchSampler, ConcatDataset, RandomSampler

from headrace.core.errors import UsageError
from headrace.loader.samplers import check_samples
from headrace.samplers import (
    BlockShuffleSampler,
    ClassBalancedSampler,
    LengthBucketBatchSampler,
    MaxTokensBatchSampler,
    MixtureSampler,
    PackedBatchSampler,
    WeightedSampler,
)

MAKERS: dict[str, Callable[[int], tuple[Any, Any]]] = {
    "lengths": lambda count: (None, LengthBucketBatchSampler(np.arange(count) + 1, batch_size=4)),
    "tokens": lambda count: (None, MaxTokensBatchSampler(np.arange(count) + 1, max_tokens=5000)),
    "packed": lambda count: (None, PackedBatchSampler(np.arange(count) + 1, budget=5000)),
    "labels": lambda count: (ClassBalancedSampler(np.arange(count) % 3), None),
    "weights": lambda count: (WeightedSampler(np.ones(count), num_samples=10), None),
    "blocks": lambda count: (BlockShuffleSampler(count, 8), None),
    "in batches": lambda count: (None, BatchSampler(ClassBalancedSampler(np.arange(count) % 3), 4, False)),
    "sources": lambda count: (MixtureSampler([range(10), range(count - 10)], [0.5, 0.5]), None),
}


@pytest.mark.parametrize("kind", MAKERS)
@pytest.mark.parametrize("count", [900, 999, 1001, 2000])
def test_a_dataset_with_a_wrong_number_of_samples_is_an_error(kind: str, count: int) -> None:
    with pytest.raises(UsageError, match="made for another dataset") as caught:
        check_samples(range(1000), *MAKERS[kind](count))
    assert f"{count:,} samples" in str(caught.value)


@pytest.mark.parametrize("kind", MAKERS)
def test_a_dataset_with_the_expected_number_of_samples_is_fine(kind: str) -> None:
    check_samples(range(1000), *MAKERS[kind](1000))
    check_samples(ConcatDataset([range(400), range(600)]), *MAKERS[kind](1000))  # type: ignore[list-item]


def test_samplers_of_others_are_not_asked() -> None:
    check_samples(range(1000), RandomSampler(range(900)), None)
    check_samples(range(1000), None, None)
    check_samples(range(1000), None, [[1, 2], [3]])
