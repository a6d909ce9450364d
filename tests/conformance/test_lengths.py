"""Lengths that torch never asks for may be missing, or raise."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest
import torch
from torch.utils.data import Dataset

from tests.pairs import in_turn

from .running import forked, with_and_without_workers


class Endless(Dataset[torch.Tensor]):
    """Has keys, and no length."""

    def __getitem__(self, index: int) -> torch.Tensor:
        return torch.tensor(index)


class Refusing(Endless):
    """Has a length that raises."""

    def __len__(self) -> int:
        raise NotImplementedError("nobody counted these")


class RefusingSampler(torch.utils.data.Sampler[int]):
    """A sampler that cannot say how long it is."""

    def __iter__(self) -> Iterator[int]:
        return iter([3, 1, 2])

    def __len__(self) -> int:
        raise ValueError("nobody knows")


class Unsized:
    """A sampler that is not a class of torch's, and has no length."""

    def __iter__(self) -> Iterator[int]:
        return iter([3, 1, 2])


WAYS: list[dict[str, Any]] = [
    {"batch_sampler": [[0, 1], [2]]},
    {"sampler": [3, 1, 2], "batch_size": 2},
    {"sampler": RefusingSampler(), "batch_size": 2},
    {"sampler": Unsized(), "batch_size": 2},
    {"sampler": RefusingSampler(), "batch_size": None},
]


@pytest.mark.parametrize(("way", "dataset"), in_turn(WAYS, [Endless, Refusing]))
@with_and_without_workers
def test_a_length_that_nobody_needs_is_not_asked_for(Loader: Any, dataset: Any, way: Any, num_workers: int) -> None:
    loader = Loader(dataset(), **forked(num_workers), **way)
    expected = [[0, 1], [2]] if "batch_sampler" in way else [[3, 1], [2]]
    if way.get("batch_size", 1) is None:
        expected = [3, 1, 2]
    for _ in range(2):
        assert [batch.tolist() for batch in loader] == expected
