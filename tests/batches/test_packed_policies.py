"""Packs whose documents are bad, and packs that nobody collates as such."""

from __future__ import annotations

import functools
from typing import Any

import numpy as np
import pytest
import torch

import headrace
from headrace.core.errors import SampleError
from headrace.samplers import PackedBatchSampler
from tests.batches.test_collate_packed import Documents
from tests.samplers.makers import ALONE

COLUMNS = {
    "number": lambda key, tokens: key,
    "pixels": lambda key, tokens: np.zeros((2, 3), np.float32),
    "name": lambda key, tokens: str(key),
    "rewards": lambda key, tokens: np.zeros((len(tokens), 2), np.float32),
    "labels": lambda key, tokens: tokens,
}
COLLATE = functools.partial(headrace.collate_packed, per_token=["rewards"])


def kinds_of(batch: dict[str, Any]) -> dict[str, Any]:
    return {name: getattr(value, "dtype", type(value)) for name, value in batch.items()}


@pytest.mark.parametrize("fit", ["best", "split"])
@pytest.mark.parametrize("workers", [2, 0])
@pytest.mark.parametrize("bad", [(1, 2, 5), (0, 1, 2)])
@pytest.mark.quick
def test_a_batch_of_bad_documents_alone_has_all_columns(bad: tuple[int, ...], workers: int, fit: Any) -> None:
    dataset = Documents([6] * 8, bad=bad, **COLUMNS)
    sampler = PackedBatchSampler(dataset.lengths, 6, fit=fit, shuffle=False, **ALONE)
    loader = headrace.DataLoader(
        dataset, batch_sampler=sampler, collate_fn=COLLATE, on_error="skip", num_workers=workers
    )
    batches = list(loader)
    assert len(batches) == 8
    good = next(batch for batch in batches if len(batch["number"]))
    assert [kinds_of(batch) for batch in batches] == [kinds_of(good)] * 8
    empty = [batch for batch in batches if not len(batch["number"])]
    assert len(empty) == 3
    for batch in empty:
        assert batch["input_ids"].tolist() == [[0] * 6]
        assert (batch["labels"] == -100).all()
        assert (batch["document_ids"] == -1).all()
        assert batch["cu_seqlens"].tolist() == [0, 6]
        assert batch["pixels"].shape == (0, 3)
        assert batch["rewards"].shape == (1, 6, 2)
        assert batch["name"] == []
    assert loader.faults.bad == 3


def test_the_same_holds_where_collation_refuses_them() -> None:
    dataset = [{"input_ids": [1, 2, 3], "number": key} for key in range(4)]
    dataset[2]["input_ids"] = [1.0, 2.0, 3.0]
    sampler = PackedBatchSampler([3] * 4, 3, shuffle=False, **ALONE)
    loader = headrace.DataLoader(dataset, batch_sampler=sampler, collate_fn=headrace.collate_packed, on_error="skip")
    assert [batch["number"].tolist() for batch in loader] == [[0], [1], [], [3]]


def test_without_any_good_document_a_batch_is_padding() -> None:
    dataset = Documents([3, 3], bad=(0, 1), **COLUMNS)
    sampler = PackedBatchSampler(dataset.lengths, 3, shuffle=False, **ALONE)
    batches = list(headrace.DataLoader(dataset, batch_sampler=sampler, collate_fn=COLLATE, on_error="skip"))
    assert [batch["input_ids"].tolist() for batch in batches] == [[[0, 0, 0]]] * 2
    assert "number" not in batches[0]


@pytest.mark.parametrize("action", ["raise", "skip", "replace"])
def test_default_collation_of_a_batch_sampler_of_packs_names_collate_packed(action: Any) -> None:
    dataset = [torch.arange(length) for length in (2, 3, 4, 5)]
    sampler = PackedBatchSampler([2, 3, 4, 5], 20, shuffle=False, **ALONE)
    with pytest.raises(RuntimeError, match="equal size") as caught:
        list(headrace.DataLoader(dataset, batch_sampler=sampler, on_error=action))
    assert sum("collate_packed" in note for note in caught.value.__notes__) == 1


def test_documents_of_equal_length_may_be_stacked() -> None:
    dataset = [torch.arange(3) for _ in range(4)]
    sampler = PackedBatchSampler([3] * 4, 6, shuffle=False, **ALONE)
    assert [batch.shape for batch in headrace.DataLoader(dataset, batch_sampler=sampler)] == [(2, 3)] * 2


def test_a_document_without_a_key_is_named_by_its_place() -> None:
    with pytest.raises(SampleError, match="document 1 of the batch"):
        headrace.collate_packed([[1, 2], [1.5, 2.5]])
