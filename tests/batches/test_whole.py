"""Datasets that make whole batches: when they are asked to, and that the batches are those of single samples."""

from __future__ import annotations

import gc
import traceback
import warnings
from collections.abc import Iterator
from itertools import islice
from typing import Any

import numpy as np
import pytest
import torch
from torch.utils.data import ConcatDataset, Dataset, Subset, WeightedRandomSampler, default_collate, random_split
from torch.utils.data._utils.collate import collate_tensor_fn, default_collate_fn_map

import headrace
from headrace.batches.whole_batches import fetches_batches, whole_batches
from headrace.core.batch_memory import BatchMemory

LENGTH, WIDTH = 46, 700
WAYS: dict[str, dict[str, Any]] = {
    "inline": {},
    "fork": {"num_workers": 2, "multiprocessing_context": "fork"},
    "spawn": {"num_workers": 2, "multiprocessing_context": "spawn"},
    "threads": {"num_workers": 2, "backend": "thread"},
}
QUICK = [way for way in WAYS if way != "spawn"]
MOST = [*QUICK, pytest.param("spawn", marks=pytest.mark.stress)]
"""Ways for what was shown to be the same by `WAYS` for another case."""


@pytest.fixture(autouse=True)
def forks_may_have_threads() -> Iterator[None]:
    warnings.filterwarnings("ignore", "This process .* is multi-threaded", DeprecationWarning)
    yield
    gc.collect()


class Single(Dataset[dict[str, Any]]):
    """Samples one by one: what the batches should be."""

    made_by = 0

    def __init__(self, length: int = LENGTH) -> None:
        self.values = torch.arange(length * WIDTH, dtype=torch.float32).reshape(length, WIDTH)

    def __len__(self) -> int:
        return len(self.values)

    def __getitem__(self, key: int) -> dict[str, Any]:
        if key == 13 and len(self) == 20:
            raise KeyError("unlucky")
        return {"key": int(key), "values": self.values[key], "made_by": self.made_by}


class Whole(Single):
    """The same by whole batches; `made_by` tells which way was taken."""

    def __getitem__(self, key: int) -> dict[str, Any]:
        return super().__getitem__(key)

    def fetch_batch(self, keys: Any, out: BatchMemory) -> dict[str, Any]:
        keys = torch.as_tensor(np.array(keys, np.int64))
        if len(self) == 20 and 13 in keys:
            raise KeyError("unlucky")
        values = out.empty((len(keys), WIDTH), torch.float32)
        torch.index_select(self.values, 0, keys % len(self), out=values)
        return {"key": keys, "values": values, "made_by": torch.full((len(keys),), 1 - self.made_by)}


def loader(dataset: Any, way: str = "inline", batch_size: int = 4, **more: Any) -> Any:
    return headrace.DataLoader(dataset, batch_size, **WAYS[way], **more)


def is_whole(batch: dict[str, Any]) -> bool:
    return bool((torch.as_tensor(batch["made_by"]) == 1).all())


def plain(batches: Any) -> list[tuple[list[int], list[list[float]]]]:
    return [(batch["key"].tolist(), batch["values"][:, :2].tolist()) for batch in batches]


def doubled(samples: list[dict[str, Any]]) -> dict[str, Any]:
    batch: dict[str, Any] = default_collate(samples)
    return batch | {"values": batch["values"] * 2}


# -- when ------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("way", WAYS)
def test_default_collation_takes_whole_batches(way: str) -> None:
    assert all(map(is_whole, loader(Whole(), way)))
    assert not any(map(is_whole, loader(Single(), way)))


@pytest.mark.parametrize("way", QUICK)
def test_a_collate_fn_of_the_user_s_is_called_with_samples(way: str) -> None:
    batches = list(loader(Whole(), way, collate_fn=doubled))
    assert not any(map(is_whole, batches))
    assert torch.equal(torch.cat([batch["values"] for batch in batches]), Whole().values * 2)


@pytest.mark.parametrize("way", QUICK)
def test_torch_s_default_given_by_name_is_the_default_too(way: str) -> None:
    assert all(map(is_whole, loader(Whole(), way, collate_fn=default_collate)))


@pytest.mark.parametrize("way", QUICK)
@pytest.mark.parametrize("kind", [torch.Tensor, int, dict])
def test_a_registry_that_the_user_has_changed_is_obeyed(way: str, kind: type, monkeypatch: pytest.MonkeyPatch) -> None:
    def own(batch: Any, *, collate_fn_map: Any = None) -> Any:
        return "own"

    monkeypatch.setitem(default_collate_fn_map, kind, own)
    first = next(iter(loader(Whole(), way)))
    values = {torch.Tensor: lambda: first["values"], int: lambda: first["key"], dict: lambda: first}
    assert values[kind]() == "own"


def test_a_registry_that_is_as_it_was_again_is_no_obstacle(monkeypatch: pytest.MonkeyPatch) -> None:
    with monkeypatch.context() as changed:
        changed.setitem(default_collate_fn_map, torch.Tensor, lambda batch, *, collate_fn_map=None: "own")
        assert next(iter(loader(Whole())))["values"] == "own"
    assert default_collate_fn_map[torch.Tensor] is collate_tensor_fn
    assert is_whole(next(iter(loader(Whole()))))


@pytest.mark.parametrize("way", QUICK)
def test_single_samples_and_batches_of_the_user_s_own_size_are_as_before(way: str) -> None:
    singles = list(loader(Whole(), way, batch_size=None))
    assert [sample["key"] for sample in singles] == list(range(LENGTH))
    sampled = headrace.DataLoader(Whole(), batch_sampler=[[5, 3], [-1]], **WAYS[way])
    assert [batch["values"][:, 0].tolist() for batch in sampled] == [[3500.0, 2100.0], [(LENGTH - 1) * 700.0]]


class Shifted(Dataset[Any]):
    """Hands on whatever the dataset in it has, but for its samples."""

    def __init__(self, inner: Single) -> None:
        self.inner = inner

    def __len__(self) -> int:
        return len(self.inner)

    def __getitem__(self, key: int) -> Any:
        return self.inner[key]["values"] + 1

    def __getattr__(self, name: str) -> Any:
        if name.startswith("__") or name == "inner":
            raise AttributeError(name)
        return getattr(self.inner, name)


class Overridden(Whole):
    def __getitem__(self, key: int) -> Any:
        return super().__getitem__(key)["values"] + 1


class OverriddenTogether(Whole):
    def __getitems__(self, keys: list[int]) -> Any:
        return [self[key]["values"] + 1 for key in keys]


@pytest.mark.parametrize("dataset", [Shifted(Whole()), Overridden(), OverriddenTogether()],
                         ids=["wrapper", "subclass", "subclass with __getitems__"])  # fmt: skip
def test_samples_that_the_user_has_changed_are_not_passed_over(dataset: Any) -> None:
    for data in (dataset, Subset(dataset, range(LENGTH))):
        assert torch.equal(torch.cat(list(loader(data))), Whole().values + 1)


# -- subsets ---------------------------------------------------------------------------------------------------------


def subsets() -> dict[str, tuple[Any, Any]]:
    """Subsets of both datasets: by whole batches, and by single samples."""
    both = Whole(), Single()
    generators = [torch.Generator().manual_seed(4) for _ in both]
    halves = [random_split(one, [0.5, 0.5], generator) for one, generator in zip(both, generators, strict=True)]
    numbers = [40, 3, 3, 17, 0, 45, 8]
    made = {
        "list": [Subset(one, numbers) for one in both],
        "range": [Subset(one, range(40, 3, -2)) for one in both],
        "array": [Subset(one, np.array(numbers)) for one in both],  # type: ignore[arg-type]
        "tensor": [Subset(one, torch.tensor(numbers)) for one in both],  # type: ignore[arg-type]
        "counted from the end": [Subset(one, [-1, -LENGTH, 2]) for one in both],
        "empty": [Subset(one, []) for one in both],
        "nested": [Subset(Subset(one, range(40, 3, -1)), [30, 2, 7, -1, 0]) for one in both],
        "split": [split[1] for split in halves],
        "split twice": [Subset(Subset(split[0], range(1, 20)), range(0, 19, 3)) for split in halves],
    }
    return {name: (one, other) for name, (one, other) in made.items()}


@pytest.mark.parametrize("way", QUICK)
@pytest.mark.parametrize("kind", subsets())
def test_a_subset_makes_the_whole_batches_of_its_samples(kind: str, way: str) -> None:
    whole, single = subsets()[kind]
    batches = list(loader(whole, way))
    assert plain(batches) == plain(loader(single))
    assert all(map(is_whole, batches))


def test_a_key_outside_of_a_subset_is_refused() -> None:
    batches = headrace.DataLoader(Subset(Whole(), [1, 2, 3]), batch_sampler=[[0, 3]])
    with pytest.raises(IndexError):
        list(batches)


class Twice(Subset[Any]):
    def __getitems__(self, indices: list[int]) -> list[Any]:
        return [{**self.dataset[self.indices[index]], "twice": True} for index in indices]


@pytest.mark.parametrize("dataset", [Twice(Whole(), range(8)), ConcatDataset([Whole(), Whole()]), Single(),
                                     Subset(Twice(Whole(), range(8)), range(4))])  # fmt: skip
def test_wrappers_without_whole_batches_are_asked_for_samples(dataset: Any) -> None:
    assert not fetches_batches(dataset)
    assert whole_batches(dataset, default_collate) is None
    assert not any(map(is_whole, loader(dataset)))


# -- what ------------------------------------------------------------------------------------------------------------

ORDERS: dict[str, dict[str, Any]] = {
    "in order": {},
    "without the rest": {"drop_last": True},
    "shuffled": {"shuffle": True},
    "generator": {"shuffle": True, "generator": torch.Generator},
    "seed": {"shuffle": True, "seed": 3},
    "seed in order": {"seed": 3, "drop_last": True},
    "sampler": {"sampler": [5, 5, 45, 0, 17]},
    "weighted": {"sampler": WeightedRandomSampler},
}


def ordered(dataset: Any, way: str, order: str) -> Any:
    options = dict(ORDERS[order])
    if "generator" in options:
        options["generator"] = torch.Generator().manual_seed(9)
    if order == "weighted":
        options["sampler"] = WeightedRandomSampler([1.0, 2.0] * 23, 30)
    return loader(dataset, way, **options)


def states(made: Any) -> list[Any]:
    own = made.generator
    return [torch.get_rng_state().tolist(), None if own is None else own.get_state().tolist()]


@pytest.mark.parametrize("way", MOST)
@pytest.mark.parametrize("order", ORDERS)
def test_batches_and_their_order_are_those_of_single_samples_epoch_after_epoch(order: str, way: str) -> None:
    seen = []
    for dataset in (Single(), Whole()):
        torch.manual_seed(21)
        made = ordered(dataset, way, order)
        epochs = [plain(made), states(made), plain(made), states(made)]
        next(iter(made))
        seen.append([*epochs, states(made) if way == "inline" else None])
    assert seen[1] == seen[0]
    torch.manual_seed(21)
    reference = ordered(Single(), "inline", order)
    assert seen[1][0] == plain(reference)


@pytest.mark.parametrize("way", MOST)
@pytest.mark.parametrize("order", [order for order in ORDERS if order != "sampler"])
def test_an_epoch_goes_on_in_the_middle(order: str, way: str) -> None:
    torch.manual_seed(5)
    made = ordered(Whole(), way, order)
    iterator = iter(made)
    list(islice(iterator, 3))
    state = made.state_dict()
    rest = plain(iterator)
    for other in ("inline", "threads", way):
        resumed = ordered(Whole(), other, order)
        resumed.load_state_dict(state)
        batches = list(resumed)
        assert plain(batches) == rest
        assert all(map(is_whole, batches))


@pytest.mark.parametrize("way", QUICK)
@pytest.mark.parametrize("size", [4, 12])
def test_an_error_names_the_keys_of_the_batch(way: str, size: int) -> None:
    with pytest.raises(KeyError, match="unlucky") as caught:
        list(loader(Whole(20), way, batch_size=size, on_error=headrace.OnError(original=True)))
    keys = "12, 13, 14, 15" if size == 4 else "12, 13, 14, 15, 16, 17, 18, 19"
    assert f"raised while loading the batch with keys {keys}" in "".join(caught.value.__notes__)
    traceback.clear_frames(caught.tb)


@pytest.mark.parametrize("way", QUICK)
def test_an_error_names_the_keys_that_a_subset_was_asked_for(way: str) -> None:
    with pytest.raises(KeyError, match="unlucky") as caught:
        list(loader(Subset(Whole(20), [1, 2, 13, 4]), way, batch_size=2, on_error=headrace.OnError(original=True)))
    assert "the batch with keys 2, 3" in "".join(caught.value.__notes__)
    traceback.clear_frames(caught.tb)


@pytest.mark.parametrize("way", WAYS)
def test_batches_that_are_kept_do_not_change_and_may_be_written_to(way: str) -> None:
    made = loader(Whole(), way, shuffle=True)
    kept = [batch for _ in range(3) for batch in made]
    for batch in kept:
        assert torch.equal(batch["values"][:, 0], batch["key"] * float(WIDTH))
    kept[0]["values"].zero_()
    assert all(torch.equal(batch["values"][:, 0], batch["key"] * float(WIDTH)) for batch in kept[1:])
    assert torch.equal(torch.sort(torch.cat([batch["key"] for batch in loader(Whole(), way)])).values,
                       torch.arange(LENGTH))  # fmt: skip
