"""Batches that are joined from parts, against those that are collated at once."""

from __future__ import annotations

from collections import namedtuple
from collections.abc import Sequence
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch.utils.data import default_collate

from headrace.batches.join import NotAlikeError, join

Point = namedtuple("Point", ["x", "name"])

KINDS: dict[str, Any] = {
    "tensor": lambda key: torch.full((2, 3), float(key)),
    "scalar tensor": lambda key: torch.tensor(key, dtype=torch.int16),
    "empty tensor": lambda key: torch.empty(0),
    "array": lambda key: np.full(4, key, np.uint8),
    "int": lambda key: key,
    "float": lambda key: key / 3,
    "bool": lambda key: key % 2 == 0,
    "text": lambda key: f"sample {key}",
    "bytes": lambda key: bytes([key]),
    "pair": lambda key: (torch.tensor([key]), f"label {key}"),
    "dict": lambda key: {"x": torch.ones(3) * key, "deep": {"y": key, "names": [str(key), str(key + 1)]}},
    "list": lambda key: [key, float(key)],
    "named": lambda key: Point(torch.tensor([1.5 * key]), str(key)),
    "empty list": lambda key: [],
}


def equal(one: Any, other: Any) -> bool:
    """Whether two batches are the same, types included."""
    if type(one) is not type(other):
        return False
    if isinstance(one, torch.Tensor):
        return one.dtype == other.dtype and one.shape == other.shape and torch.equal(one, other)
    if isinstance(one, dict):
        return list(one) == list(other) and all(equal(one[name], other[name]) for name in one)
    if isinstance(one, (list, tuple)):
        return len(one) == len(other) and all(map(equal, one, other))
    return bool(one == other)


def parts_of(samples: Sequence[Any], owners: Sequence[int]) -> list[tuple[list[int], Any]]:
    """Returns each owner's rows with what they are collated to."""
    parts = []
    for owner in dict.fromkeys(owners):
        rows = [row for row, other in enumerate(owners) if other == owner]
        parts.append((rows, default_collate([samples[row] for row in rows])))
    return parts


@given(st.sampled_from(sorted(KINDS)), st.lists(st.integers(0, 3), min_size=1, max_size=9))
def test_a_joined_batch_is_the_batch(kind: str, owners: list[int]) -> None:
    samples = [KINDS[kind](key) for key in range(len(owners))]
    assert equal(join(parts_of(samples, owners), len(samples)), default_collate(samples))


@given(st.lists(st.sampled_from([1, 2.5, True, 0]), min_size=2, max_size=8), st.data())
def test_mixed_numbers_are_as_collated_at_once_or_refused(samples: list[Any], data: st.DataObject) -> None:
    owners = [data.draw(st.integers(0, 2)) for _ in samples]
    try:
        joined = join(parts_of(samples, owners), len(samples))
    except NotAlikeError:
        return
    assert equal(joined, default_collate(samples))


def test_a_row_that_two_workers_made_comes_once() -> None:
    whole = torch.arange(6).reshape(3, 2)
    assert equal(join([([0, 1], whole[:2].clone()), ([1, 2], whole[1:].clone())], 3), whole)


@pytest.mark.parametrize(
    ("one", "other"),
    [
        (torch.zeros(1, 2), torch.zeros(1, 3)),
        (torch.zeros(1), torch.zeros(1, dtype=torch.int64)),
        (torch.zeros(1), ["text"]),
        ({"a": torch.zeros(1)}, {"b": torch.zeros(1)}),
        ([torch.zeros(1)], [torch.zeros(1), torch.zeros(1)]),
        (torch.zeros(2), torch.zeros(1)),
        (torch.tensor(0.0), torch.tensor(0.0)),
        (object(), object()),
        (["a", "b"], ["c"]),
    ],
)
def test_parts_that_differ_are_refused(one: Any, other: Any) -> None:
    with pytest.raises(NotAlikeError):
        join([([0], one), ([1], other)], 2)
