"""One table of behaviour for every way to start workers: forked, spawned, from a fork server, and as threads."""

import importlib
import multiprocessing
import random
import warnings
from collections import Counter
from collections.abc import Callable, Iterator
from functools import partial
from itertools import chain
from typing import Any, NamedTuple

import numpy as np
import pytest
import torch
from torch.utils.data import Dataset, IterableDataset, get_worker_info

from .running import failure_of, numbers, told

multiprocessing.get_context("forkserver").set_forkserver_preload(["torch.utils.data", "headrace"])


class Squares(Dataset[Any]):
    def __len__(self) -> int:
        return 10

    def __getitem__(self, index: int) -> Any:
        if index == 7:
            raise KeyError("seven")
        return index * index


class Point(NamedTuple):
    x: int
    y: torch.Tensor


class Points(Squares):
    def __getitem__(self, index: int) -> Point:
        return Point(index, torch.full((2,), float(index)))


class Draws(Squares):
    def __getitem__(self, index: int) -> torch.Tensor:
        return torch.tensor([random.random(), float(np.random.rand()), float(torch.rand(()))], dtype=torch.float64)


class Told(Squares):
    label = -1

    def __getitem__(self, index: int) -> list[Any]:
        info: Any = get_worker_info()
        return [info.id, info.num_workers, info.seed, info.dataset is self, self.label]


class Stream(IterableDataset[int]):
    def __iter__(self) -> Iterator[int]:
        return iter(range(5))


class SplitStream(IterableDataset[int]):
    def __iter__(self) -> Iterator[int]:
        info: Any = get_worker_info()
        return iter(range(info.id, 7, info.num_workers))


class SizedStream(Stream):
    def __len__(self) -> int:
        return 3


def label(worker: int) -> None:
    info: Any = get_worker_info()
    info.dataset.label = worker * 10


def plain(samples: Any) -> Any:
    return samples


Make = Callable[..., Any]


def shuffled(make: Make) -> Any:
    generator = torch.Generator().manual_seed(4)
    return numbers(make(range(10), batch_size=4, shuffle=True, generator=generator))


def short_end(make: Make) -> Any:
    return numbers(make(range(10), batch_size=4)), numbers(make(range(10), batch_size=4, drop_last=True))


def chosen_batches(make: Make) -> Any:
    return numbers(make(range(10), batch_sampler=[[3, 1], [4], [9, 9, 9], []], collate_fn=plain))


def single_samples(make: Make) -> Any:
    return numbers(make(range(3), batch_size=None))


def named_tuples(make: Make) -> Any:
    return [(type(batch).__name__, numbers(batch)) for batch in make(Points(), batch_size=2, sampler=[2, 5, 1])]


def whole_streams(make: Make) -> Any:
    return numbers(make(Stream(), batch_size=2)), numbers(make(Stream(), batch_size=2, drop_last=True))


def split_streams(make: Make) -> Any:
    return numbers(make(SplitStream(), batch_size=2))


def out_of_order(make: Make) -> Any:
    loader = make(range(10), batch_size=2, in_order=False)
    return sorted(numbers(loader)), sorted(numbers(loader))


def persistent_epochs(make: Make) -> Any:
    loader = make(range(5), batch_size=2, persistent_workers=True)
    return [numbers(loader) for _ in range(3)]


def after_an_error(make: Make) -> Any:
    iterator = iter(make(Squares(), batch_size=2, collate_fn=plain))
    seen: list[Any] = [next(iterator) for _ in range(3)]
    text = told(failure_of(KeyError, lambda: next(iterator)))
    return [*seen, "Caught KeyError in DataLoader worker process 1." in text and "seven" in text, *iterator]


def told_to_workers(make: Make) -> Any:
    loader = make(
        Told(), sampler=[0, 1, 2], worker_init_fn=label, generator=torch.Generator().manual_seed(9), batch_size=None
    )
    base = int(torch.empty((), dtype=torch.int64).random_(generator=torch.Generator().manual_seed(9)).item())
    return [[a, b, seed - base, c, d] for a, b, seed, c, d in loader]


def two_iterators(make: Make) -> Any:
    loader = make(range(6), batch_size=2)
    return [numbers(pair) for pair in zip(loader, loader, strict=True)]


def broken_off(make: Make) -> Any:
    loader = make(range(1000), batch_size=2)
    return [next(iter(loader)).tolist() for _ in range(2)]


def length_exceeded(make: Make) -> Any:
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        loader = make(SizedStream(), batch_size=None)
        counts = len(loader), len(list(loader))
    return counts, Counter(
        str(warning.message).split(" was reported")[0][:13] for warning in caught if warning.category is UserWarning
    )


def nothing_at_all(make: Make) -> Any:
    return list(make([], batch_size=2)), len(make([], batch_size=2))


TABLE: list[tuple[Callable[[Make], Any], Any]] = [
    (short_end, ([[0, 1, 2, 3], [4, 5, 6, 7], [8, 9]], [[0, 1, 2, 3], [4, 5, 6, 7]])),
    (chosen_batches, [[3, 1], [4], [9, 9, 9], []]),
    (single_samples, [0, 1, 2]),
    (named_tuples, [("Point", [[2, 5], [[2.0, 2.0], [5.0, 5.0]]]), ("Point", [[1], [[1.0, 1.0]]])]),
    (whole_streams, ([[0, 1], [0, 1], [2, 3], [2, 3], [4], [4]], [[0, 1], [0, 1], [2, 3], [2, 3]])),
    (split_streams, [[0, 2], [1, 3], [4, 6], [5]]),
    (out_of_order, ([[0, 1], [2, 3], [4, 5], [6, 7], [8, 9]],) * 2),
    (persistent_epochs, [[[0, 1], [2, 3], [4]]] * 3),
    (after_an_error, [[0, 1], [4, 9], [16, 25], True, [64, 81]]),
    (told_to_workers, [[0, 2, 0, True, 0], [1, 2, 1, True, 10], [0, 2, 0, True, 0]]),
    (two_iterators, [[[0, 1]] * 2, [[2, 3]] * 2, [[4, 5]] * 2]),
    (broken_off, [[0, 1]] * 2),
    (length_exceeded, ((3, 10), Counter({"Length of Ite": 7}))),
    (nothing_at_all, ([], 0)),
]

SLOW = [("torch.utils.data", "spawn"), ("torch.utils.data", "forkserver")]
STARTS = [
    ("torch.utils.data", "fork"),
    *SLOW,
    *(("headrace", method) for method in ("fork", "spawn", "forkserver")),
    (f"{__package__}.threads", None),
]

SPAWNED = {named_tuples, split_streams, after_an_error, told_to_workers}
"""What spawned workers of headrace do: classes, errors and functions of the user travel there by their names. The rest
is a stress test, since each start takes seconds; workers of a fork server, which get all in the same way, do it all."""


def name_of(start: tuple[str, str | None]) -> str:
    return f"{start[0].removesuffix('.utils.data').split('.')[-1]}-{start[1]}"


def case(start: tuple[str, str | None], *row: Any) -> Any:
    """Returns a parameter, which is a stress test if it takes seconds."""
    spared = start in SLOW or (start == ("headrace", "spawn") and row and row[0] not in SPAWNED)
    name = "-".join([name_of(start), *(behaviour.__name__ for behaviour in row[:1])])
    return pytest.param(start, *row, id=name, marks=pytest.mark.stress if spared else ())


@pytest.fixture(params=[case(start) for start in STARTS])
def make(request: pytest.FixtureRequest) -> Make:
    """Makes a loader with two workers that are started in one of the ways."""
    module, method = request.param
    return partial(importlib.import_module(module).DataLoader, num_workers=2, multiprocessing_context=method)


@pytest.mark.parametrize(
    ("make", "behaviour", "expected"), [case(start, *row) for start in STARTS for row in TABLE], indirect=["make"]
)
def test_workers_behave_alike_however_they_are_started(make: Make, behaviour: Any, expected: Any) -> None:
    assert behaviour(make) == expected


def test_a_shuffle_draws_the_same_however_workers_are_started(make: Make) -> None:
    generator = torch.Generator().manual_seed(4)
    torch.empty((), dtype=torch.int64).random_(generator=generator)  # the workers' base seed
    assert list(chain.from_iterable(shuffled(make))) == torch.randperm(10, generator=generator).tolist()


def test_worker_processes_draw_what_the_seed_says_however_they_are_started(make: Make) -> None:
    if "threads" in make.func.__module__:  # type: ignore[attr-defined]
        return
    drawn = torch.cat(list(make(Draws(), batch_size=1, sampler=[0, 1], generator=torch.Generator().manual_seed(2))))
    base = int(torch.empty((), dtype=torch.int64).random_(generator=torch.Generator().manual_seed(2)).item())
    expected = []
    for worker in range(2):
        python, own = random.Random(base + worker), torch.Generator().manual_seed(base + worker)
        expected.append([python.random(), float(torch.rand((), generator=own))])
    assert drawn[:, [0, 2]].tolist() == expected
    assert drawn[0, 1] != drawn[1, 1]
