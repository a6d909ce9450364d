"""Large lists of Python objects in a dataset are told with figures, once, and only where workers would copy them."""

from __future__ import annotations

import gc
import warnings
from collections.abc import Iterator
from typing import Any

import numpy as np
import pytest
import torch
from torch.utils.data import Dataset, Subset

import headrace
from headrace.telemetry import object_growth as objects
from headrace.telemetry.object_growth import large_collections, warn_of_objects

COUNT = 3000


@pytest.fixture(autouse=True)
def little_is_large(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(objects, "LARGE", 100_000)


@pytest.fixture(autouse=True)
def forks_may_have_threads(little_is_large: None) -> Iterator[None]:
    warnings.filterwarnings("ignore", "This process .* is multi-threaded", DeprecationWarning)
    yield
    gc.collect()


class Holding(Dataset[torch.Tensor]):
    """A dataset with something in it."""

    def __init__(self, **held: Any) -> None:
        vars(self).update(held)

    def __len__(self) -> int:
        return 8

    def __getitem__(self, index: int) -> torch.Tensor:
        return torch.tensor(index)


def strings(count: int = COUNT) -> list[str]:
    return [f"sentence number {number:06d}, of its own" for number in range(count)]


def told(loader: Any, epochs: int = 1) -> list[str]:
    """Iterates a loader. Returns the warnings about objects."""
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        for _ in range(epochs):
            list(loader)
    return [str(one.message) for one in caught if "Python objects" in str(one.message)]


def loader(dataset: Any, **more: Any) -> Any:
    options = {"num_workers": 2, "multiprocessing_context": "fork"} | more
    return headrace.DataLoader(dataset, 4, **{name: value for name, value in options.items() if value is not None})


HELD: dict[str, Any] = {
    "list": strings(),
    "tuple": tuple(strings()),
    "set": set(strings()),
    "frozenset": frozenset(strings()),
    "dict": dict.fromkeys(strings(), 1),
    "pairs": [(text, number) for number, text in enumerate(strings(), 1000)],
    "arrays": [np.zeros(4) for _ in range(COUNT)],
}


@pytest.mark.parametrize("kind", HELD)
def test_a_large_collection_is_found_with_its_name_and_figures(kind: str) -> None:
    found = large_collections(Holding(few=[1, 2], samples=HELD[kind]))
    assert [(name, count) for name, count, _ in found] == [("samples", COUNT)]
    assert 100_000 < found[0][2] < 2_000_000


def test_the_figure_is_about_what_the_objects_take() -> None:
    values = [bytes(1000) for _ in range(COUNT)]
    ((_, _, nbytes),) = large_collections(Holding(values=values))
    assert 0.95 < nbytes / (COUNT * (1033 + 8)) < 1.05


@pytest.mark.parametrize(
    "held",
    [
        np.arange(1_000_000),
        torch.arange(1_000_000),
        headrace.compact(strings()),
        headrace.compact([f"folder/{text}" for text in strings()]),
        headrace.compact([(text, 1) for text in strings()]),
        strings(100),
        [None] * COUNT,
        ["x" * 100_000] * COUNT,
        [number % 10 for number in range(COUNT)],
        "x" * 1_000_000,
        None,
    ],
    ids=["array", "tensor", "compact strings", "compact paths", "compact tuples", "few", "one object",
         "one large object", "few objects", "one string", "nothing"],
)  # fmt: skip
def test_what_does_not_grow_is_not_told(held: Any) -> None:
    assert large_collections(Holding(held=held)) == []


def test_data_sets_inside_of_others_are_searched_too() -> None:
    inner = Holding(texts=strings())
    assert [name for name, _, _ in large_collections(Subset(Subset(inner, [0]), [0]))] == ["texts"]


def test_data_sets_that_refer_to_each_other_are_searched_once() -> None:
    one, other = Holding(), Holding()
    one.dataset, other.dataset = other, one  # type: ignore[attr-defined]
    assert large_collections(one) == []


def test_the_warning_says_what_how_much_and_what_to_do() -> None:
    dataset = Holding(texts=strings())
    ((_, _, nbytes),) = large_collections(dataset)
    with pytest.warns(UserWarning, match="Python objects") as caught:
        warn_of_objects(dataset, 8)
    text = str(caught[0].message)
    for part in ("Holding.texts", "3,000 Python objects", "8 workers", "headrace.compact(texts)",
                 f"{nbytes / 1e9:.1f} GB", f"{nbytes * 8 / 1e9:.1f} GB"):  # fmt: skip
        assert part in text


def test_a_loader_with_processes_tells_once() -> None:
    made = loader(Holding(texts=strings()))
    assert len(told(made, epochs=3)) == 1
    assert told(made) == []
    assert len(told(loader(Holding(texts=strings())))) == 1


@pytest.mark.parametrize("more", [{"backend": "thread", "multiprocessing_context": None},
                                  {"num_workers": 0, "multiprocessing_context": None},
                                  {"backend": "inline"}])  # fmt: skip
def test_without_worker_processes_nothing_is_told(more: dict[str, Any]) -> None:
    assert told(loader(Holding(texts=strings()), **more)) == []


def test_a_loader_over_compacted_data_tells_nothing() -> None:
    assert told(loader(Holding(texts=headrace.compact(strings()), labels=np.zeros(COUNT)))) == []
