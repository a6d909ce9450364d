"""Batches of torch's `TensorDataset`, gathered at once: those that torch's loader makes of it."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch.utils.data import DataLoader as TorchLoader
from torch.utils.data import Subset, TensorDataset, default_collate, random_split

import headrace
from headrace.batches import tensor_rows
from headrace.batches.tensor_rows import BY_TORCH, gather_rows
from headrace.core.batch_memory import OwnMemory
from headrace.core.plain_tensors import DTYPES
from headrace.shared_memory.leases import SMALL_LOCALLY

LENGTH = 23


def numbers(dtype: torch.dtype, *shape: int) -> torch.Tensor:
    made = torch.arange(LENGTH * int(np.prod(shape))).reshape(LENGTH, *shape) % 120
    return (made % 2 == 0) if dtype is torch.bool else made.to(dtype)


def same(one: Any, other: Any) -> None:
    assert type(one) is type(other) is list
    assert len(one) == len(other)
    for ours, torchs in zip(one, other, strict=True):
        assert (ours.dtype, ours.shape, ours.stride()) == (torchs.dtype, torchs.shape, torchs.stride())
        assert torch.equal(ours, torchs)
        assert ours.requires_grad == torchs.requires_grad


def is_gathered(dataset: TensorDataset) -> bool:
    return gather_rows(dataset, [0], OwnMemory()) is not None


@pytest.mark.parametrize(
    ("dtype", "workers"), [*((dtype, 0) for dtype in sorted(DTYPES, key=str)), (torch.bfloat16, 2), (torch.bool, 2)]
)
def test_batches_are_those_of_torch(dtype: torch.dtype, workers: int) -> None:
    dataset = TensorDataset(numbers(dtype), numbers(dtype, 3), numbers(dtype, 2, 1, 4), numbers(dtype, 0))
    assert is_gathered(dataset)
    ours = headrace.DataLoader(dataset, batch_size=4, num_workers=workers)
    for one, other in zip(ours, TorchLoader(dataset, batch_size=4, num_workers=workers), strict=True):
        same(one, other)


@pytest.mark.parametrize("row", [BY_TORCH, SMALL_LOCALLY])
@pytest.mark.parametrize("dtype", [torch.float32, torch.bool, torch.complex128, torch.bfloat16])
def test_large_rows_are_those_of_torch(dtype: torch.dtype, row: int) -> None:
    dataset = TensorDataset(numbers(dtype, row // 4), numbers(torch.int64))
    ours = headrace.DataLoader(dataset, batch_size=5, shuffle=True, generator=torch.Generator().manual_seed(3))
    torchs = TorchLoader(dataset, batch_size=5, shuffle=True, generator=torch.Generator().manual_seed(3))
    for one, other in zip(ours, torchs, strict=True):
        same(one, other)


@given(st.data())
def test_any_keys_in_any_order(data: st.DataObject) -> None:
    keys = data.draw(st.lists(st.integers(-LENGTH, LENGTH - 1), min_size=1, max_size=40))
    dataset = TensorDataset(numbers(torch.float32, 3), numbers(torch.int16))
    gathered = gather_rows(dataset, keys, OwnMemory())
    same(gathered, default_collate([dataset[key] for key in keys]))


def test_keys_of_many_kinds() -> None:
    dataset = TensorDataset(numbers(torch.float32, 3), numbers(torch.int64))
    keys = np.array([3, 1, 22], np.int32)
    keys.flags.writeable = False
    expected = default_collate([dataset[3], dataset[1], dataset[22]])
    same(gather_rows(dataset, keys, OwnMemory()), expected)
    for given_keys in ([True, False], [slice(2)], ["a"], [1.0], [[1, 2]], []):
        assert gather_rows(dataset, given_keys, OwnMemory()) is None
    odd = [[slice(0, 2), slice(2, 4)], [torch.tensor(3), torch.tensor(4)]]
    for one, other in zip(
        headrace.DataLoader(dataset, batch_sampler=odd), TorchLoader(dataset, batch_sampler=odd), strict=True
    ):
        same(one, other)


@pytest.mark.parametrize("workers", [0, 2])
def test_subsets_of_subsets(workers: int) -> None:
    dataset = TensorDataset(numbers(torch.float32, 3), torch.arange(LENGTH))
    first, _ = random_split(dataset, [LENGTH - 3, 3], torch.Generator().manual_seed(1))
    subset = Subset(first, [5, -1, 5, 0, 2])
    ours = headrace.DataLoader(subset, batch_size=2, num_workers=workers)
    for one, other in zip(ours, TorchLoader(subset, batch_size=2), strict=True):
        same(one, other)


@pytest.mark.parametrize("keys", [[0, LENGTH], [-LENGTH - 1]])
@pytest.mark.parametrize("workers", [0, 2])
def test_a_key_out_of_range_is_an_index_error(keys: list[int], workers: int) -> None:
    dataset = TensorDataset(torch.arange(LENGTH))
    loader = headrace.DataLoader(dataset, batch_sampler=[[1, 2], keys], num_workers=workers)
    batches = iter(loader)
    assert next(batches)[0].tolist() == [1, 2]
    with pytest.raises(IndexError, match=f"index {keys[-1]} is out of bounds for dimension 0 with size {LENGTH}"):
        next(batches)


def test_bad_keys_are_skipped_where_that_is_asked_for() -> None:
    dataset = TensorDataset(torch.arange(LENGTH))
    loader = headrace.DataLoader(dataset, batch_sampler=[[1, 99, 2]], on_error="skip")
    assert [batch[0].tolist() for batch in loader] == [[1, 2]]


class Doubled(TensorDataset):
    def __getitem__(self, index: int) -> Any:
        return tuple(2 * tensor for tensor in super().__getitem__(index))


class Marked(torch.Tensor):
    pass


UNUSUAL: dict[str, Callable[[], TensorDataset]] = {
    "a gradient": lambda: TensorDataset(numbers(torch.float32, 3).requires_grad_()),
    "a transposed tensor": lambda: TensorDataset(numbers(torch.float32, 3, 2).transpose(1, 2)),
    "channels last": lambda: TensorDataset(torch.rand(LENGTH, 3, 4, 4).to(memory_format=torch.channels_last)),
    "a class of its own": lambda: TensorDataset(numbers(torch.float32, 3).as_subclass(Marked)),
    "a rare type": lambda: TensorDataset(numbers(torch.int32).to(torch.float8_e5m2)),
    "conjugated numbers": lambda: TensorDataset(torch.rand(LENGTH, 2, dtype=torch.complex64).conj()),
}


@pytest.mark.parametrize("unusual", UNUSUAL)
def test_torch_is_asked_for_what_is_unusual(unusual: str) -> None:
    dataset = UNUSUAL[unusual]()
    assert not is_gathered(dataset)
    ours = next(iter(headrace.DataLoader(dataset, batch_size=4)))[0]
    torchs = next(iter(TorchLoader(dataset, batch_size=4)))[0]
    assert (ours.dtype, ours.stride(), type(ours)) == (torchs.dtype, torchs.stride(), type(torchs))
    assert ours.requires_grad == torchs.requires_grad
    assert ours.is_conj() == torchs.is_conj()
    if ours.dtype.itemsize == 1:
        ours, torchs = ours.float(), torchs.float()  # torch cannot compare the rare type
    assert torch.equal(ours, torchs)


def test_a_dataset_without_tensors_is_torchs() -> None:
    dataset = TensorDataset(torch.arange(3))
    dataset.tensors = ()
    loader = headrace.DataLoader(dataset, batch_sampler=[[0, 1]])
    assert list(loader) == list(TorchLoader(dataset, batch_sampler=[[0, 1]])) == [[]]


def test_what_changes_samples_or_collation_is_asked(monkeypatch: pytest.MonkeyPatch) -> None:
    calls: list[object] = []
    real = tensor_rows.gather_rows

    def counted(*given: Any) -> Any:
        calls.append(given)
        return real(*given)

    monkeypatch.setattr("headrace.batches.whole_batches.gather_rows", counted)
    values = torch.arange(6)
    assert next(iter(headrace.DataLoader(Doubled(values), batch_size=3)))[0].tolist() == [0, 2, 4]
    summed = headrace.DataLoader(TensorDataset(values), batch_size=3, collate_fn=lambda got: sum(one for (one,) in got))
    assert [int(one) for one in summed] == [3, 12]
    assert [int(one[0]) for one in headrace.DataLoader(TensorDataset(values), batch_size=None)] == [*range(6)]
    assert not calls
    assert len(list(headrace.DataLoader(TensorDataset(values), batch_size=3))) == len(calls) == 2


def test_tensors_that_are_replaced_in_an_epoch_are_seen_at_once() -> None:
    dataset = TensorDataset(torch.zeros(6))
    batches = iter(headrace.DataLoader(dataset, batch_size=3))
    assert next(batches)[0].tolist() == [0, 0, 0]
    dataset.tensors = (torch.ones(6),)
    assert next(batches)[0].tolist() == [1, 1, 1]


def test_a_batch_is_a_copy() -> None:
    values = torch.zeros(6)
    (batch,) = next(iter(headrace.DataLoader(TensorDataset(values), batch_size=3)))
    batch += 1
    assert values.tolist() == [0] * 6


@pytest.mark.parametrize("workers", [0, 2])
def test_a_seed_and_a_resume_in_mid_epoch(workers: int) -> None:
    dataset = TensorDataset(torch.arange(LENGTH))
    loader = headrace.DataLoader(dataset, batch_size=4, shuffle=True, seed=5)
    whole = [batch[0].tolist() for batch in loader]
    batches = iter(headrace.DataLoader(dataset, batch_size=4, shuffle=True, seed=5, num_workers=workers))
    assert [next(batches)[0].tolist() for _ in range(2)] == whole[:2]
    first = headrace.DataLoader(dataset, batch_size=4, shuffle=True, seed=5)
    begun = iter(first)
    next(begun)
    resumed = headrace.DataLoader(dataset, batch_size=4, shuffle=True, seed=5, num_workers=workers)
    resumed.load_state_dict(first.state_dict())
    assert [batch[0].tolist() for batch in resumed] == whole[1:]
