"""`headrace.shard`: each item to exactly one worker of all ranks."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from itertools import chain
from types import ModuleType
from typing import Any, Literal

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch.utils.data import IterableDataset

import headrace
from headrace.core.errors import UsageError
from headrace.core.sharding import WorkerContext, enter_place, place_kept, splits_itself
from headrace.core.world import World


def parts(items: Any, by: Literal["interleave", "block"], ranks: int, workers: int) -> list[list[Any]]:
    """What each worker of each rank gets."""
    got = []
    for rank in range(ranks):
        for worker in range(workers):
            with place_kept():
                enter_place(WorkerContext(World(rank, ranks), worker, workers))
                got.append(list(headrace.shard(items, by=by)))
    return got


@given(st.integers(0, 60), st.integers(1, 5), st.integers(1, 4), st.sampled_from(["interleave", "block"]))
def test_every_item_comes_to_exactly_one_worker(count: int, ranks: int, workers: int, by: Any) -> None:
    got = parts(range(count), by, ranks, workers)
    assert sorted(chain.from_iterable(got)) == list(range(count))
    lengths = [len(part) for part in got]
    assert max(lengths) - min(lengths) <= 1
    if by == "block":
        assert all(part == list(range(part[0], part[0] + len(part))) for part in got if part)


def test_items_may_be_an_iterator_unless_blocks_are_wanted() -> None:
    with place_kept():
        enter_place(WorkerContext(World(1, 2)))
        assert list(headrace.shard(iter(range(5)))) == [1, 3]
        with pytest.raises(UsageError, match=r"(?s)by='block' and items of type list_iterator.*make a list"):
            headrace.shard(iter([1]), by="block")
        with pytest.raises(UsageError, match="by='files'"):
            headrace.shard([1], by="files")  # type: ignore[arg-type]


class Reader:
    """Stands where a framework's class reads a stream."""

    def read(self) -> list[int]:
        return list(headrace.shard(range(8)))


@pytest.mark.parametrize(
    ("module", "name", "expected"),
    [
        ("accelerate.data_loader", "DataLoaderDispatcher", [0, 1, 2, 3, 4, 5, 6, 7]),
        ("accelerate.data_loader", "IterableDatasetShard", None),
        ("transformers.trainer_pt_utils", "IterableDatasetShard", None),
        ("accelerate.data_loader", "DataLoaderShard", [1, 3, 5, 7]),
    ],
)
def test_what_a_framework_splits_over_the_ranks_is_not_split_twice(
    module: str, name: str, expected: list[int] | None, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(sys.modules, module, ModuleType(module))
    monkeypatch.setenv("RANK", "1")
    monkeypatch.setenv("WORLD_SIZE", "2")
    reader = type(name, (Reader,), {"__module__": module})()
    if expected is None:
        with pytest.raises(UsageError, match="split over the ranks twice"):
            reader.read()
    else:
        assert reader.read() == expected
    monkeypatch.setenv("WORLD_SIZE", "1")
    monkeypatch.setenv("RANK", "0")
    assert reader.read() == list(range(8))


@pytest.mark.parametrize("options", [{}, {"seed": 1}, {"num_workers": 1, "backend": "thread"}])
def test_sharding_outside_of_a_loader_splits_over_the_ranks(options: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    assert len(list(headrace.DataLoader(range(4), **options))) == 4  # type: ignore[arg-type, var-annotated]
    assert list(headrace.shard(range(4))) == [0, 1, 2, 3]
    monkeypatch.setenv("RANK", "1")
    monkeypatch.setenv("WORLD_SIZE", "3")
    assert list(headrace.shard(range(8))) == [1, 4, 7]
    monkeypatch.setenv("RANK", "3")
    with pytest.raises(UsageError, match=r"(?s)RANK='3', WORLD_SIZE='3'.*0 <= RANK < WORLD_SIZE"):
        list(headrace.shard(range(8)))


class Asking(IterableDataset[int]):
    """Splits itself as torch's documentation shows."""

    def __iter__(self) -> Iterator[int]:
        info = torch.utils.data.get_worker_info()
        return iter(range(0 if info is None else info.id, 10))


class Nested(IterableDataset[int]):
    """Splits itself in a function within a method of a base class."""

    def lines(self) -> Iterator[int]:
        def dealt() -> Iterator[int]:
            yield from headrace.shard(range(10))

        return dealt()

    def __iter__(self) -> Iterator[int]:
        return self.lines()


class Inherited(Nested):
    """As its base."""


class Around(IterableDataset[int]):
    """Leaves it to what it holds."""

    def __init__(self, held: IterableDataset[int]) -> None:
        self.held, self.me = held, self

    def __iter__(self) -> Iterator[int]:
        return iter(self.held)


class Whole(IterableDataset[int]):
    """Gives everything to everyone."""

    def __iter__(self) -> Iterator[int]:
        return iter(range(10))


def test_whether_a_stream_splits_itself_is_seen_in_its_methods() -> None:
    whole = Whole()
    whole.around = Around(whole)  # type: ignore[attr-defined]  # each holds the other
    streams = [Asking(), Nested(), Inherited(), Around(Asking()), whole, Around(whole)]
    assert [splits_itself(stream) for stream in streams] == [True, True, True, True, False, False]
