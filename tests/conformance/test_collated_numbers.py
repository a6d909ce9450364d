"""Numbers of Python's own are collated as torch collates them."""

from __future__ import annotations

import math
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch.utils.data import default_collate
from torch.utils.data._utils.collate import default_collate_fn_map

from headrace.batches.collate import SlotCollate
from headrace.shared_memory.leases import LocalMemory

NUMBERS = (
    st.integers(-(1 << 70), 1 << 70)
    | st.integers(-(1 << 63), (1 << 63) - 1)
    | st.booleans()
    | st.floats(allow_subnormal=True)
    | st.sampled_from([np.int32(3), np.float64(0.5), np.bool_(True)])
)


def outcome(collate: Any, batch: list[Any]) -> Any:
    """Returns what collation gives, NaN made comparable, or the kind of its error."""
    try:
        made = collate(list(batch))
    except (TypeError, ValueError, RuntimeError, OverflowError) as error:
        return type(error)
    return made.dtype, made.shape, [str(number) for number in made.tolist()]


@given(
    st.lists(NUMBERS, min_size=1, max_size=5)
    | st.lists(st.integers(-(1 << 63), (1 << 63) - 1), min_size=1, max_size=70)
    | st.lists(st.floats(), min_size=1, max_size=70)
)
def test_a_batch_of_numbers_is_what_torch_makes_of_it(batch: list[Any]) -> None:
    assert outcome(SlotCollate(LocalMemory()), batch) == outcome(default_collate, batch)


def test_numbers_within_samples_are_collated_as_torch_does() -> None:
    samples = [(torch.ones(3), 7, {"weight": 0.5, "name": "a"}), (torch.zeros(3), -1, {"weight": math.pi, "name": "b"})]
    (images, labels, named), expected = SlotCollate(LocalMemory())(samples), default_collate(samples)
    assert torch.equal(images, expected[0])
    assert (labels.dtype, labels.tolist()) == (torch.int64, [7, -1])
    assert (named["weight"].dtype, named["weight"].tolist()) == (torch.float64, [0.5, math.pi])
    assert named["name"] == ["a", "b"]


def test_batches_of_numbers_can_be_resized_as_torch_s() -> None:
    batch = SlotCollate(LocalMemory())([1, 2, 3])
    assert batch.resize_(100).shape == (100,)
    assert batch[:3].tolist() == [1, 2, 3]


@pytest.mark.parametrize(("kind", "batch"), [(int, [1, 2]), (float, [0.5, 1.5])])
def test_a_rule_of_the_user_s_for_numbers_is_obeyed(
    kind: type, batch: list[Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(default_collate_fn_map, kind, lambda numbers, *, collate_fn_map=None: sum(numbers))
    collate = SlotCollate(LocalMemory())
    assert collate(batch) == sum(batch)
    assert collate([(batch[0], "a"), (batch[1], "b")]) == [sum(batch), ("a", "b")]


def test_plain_numbers_take_the_short_way(monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(*_: Any, **__: Any) -> None:
        raise AssertionError("torch's own rule was asked")

    monkeypatch.setattr("headrace.batches.collate_scalars.torch_collate_int", refuse)
    monkeypatch.setattr("headrace.batches.collate_scalars.torch_collate_float", refuse)
    assert SlotCollate(LocalMemory())([(1, 0.5)] * 2)[0].tolist() == [1, 1]
