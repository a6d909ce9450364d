"""`seed=`: orders and random numbers are functions of (seed, epoch, position), and of nothing else."""

from __future__ import annotations

import json
import multiprocessing
import random
from typing import Any

import numpy as np
import pytest
import torch
from torch.utils.data import Dataset, RandomSampler

import headrace
from headrace.core.errors import UsageError
from tests.epoch.datasets import Drawing, DrawingEverywhere, Epochs, Stream
from tests.pairs import pairwise

pytestmark = pytest.mark.filterwarnings("ignore:This DataLoader will create")

CREWS = [
    (0, "process", "fork"),
    (1, "process", "fork"),
    (3, "process", "fork"),
    (2, "process", "spawn"),
    (1, "thread", None),
    (3, "thread", None),
]
PROCESSES = [crew for crew in CREWS if crew[1] == "process"]
"""For datasets that draw from the global generators, which threads share: there they are an error."""


def made(dataset: Any, resources: Any = CREWS[0], **options: Any) -> Any:
    number, backend, method = resources
    number = options.pop("num_workers", number)
    more = {"multiprocessing_context": method, "persistent_workers": True} if number else {}
    return headrace.DataLoader(
        dataset, num_workers=number, backend=backend, **{"seed": 11, "batch_size": 8, **more, **options}
    )


def as_bytes(loader: Any, epochs: int = 2) -> list[bytes]:
    """Every byte of every batch."""
    return [batch.numpy().tobytes() for _ in range(epochs) for batch in loader]


class NoisyCollate:
    """A collate function that draws, too."""

    def __call__(self, samples: list[torch.Tensor]) -> torch.Tensor:
        return torch.stack(samples) + int(headrace.rng().integers(1 << 30))


class Together(Drawing):
    """Loads a batch at once."""

    def __getitems__(self, keys: list[int]) -> list[torch.Tensor]:
        numbers = headrace.rng().integers(1 << 40, size=len(keys)).tolist()
        return [torch.tensor(pair) for pair in zip(keys, numbers, strict=True)]


EPOCHS: dict[str, tuple[Any, dict[str, Any]]] = {
    "shuffled": (Drawing(61), {"shuffle": True}),
    "single": (Drawing(61), {"shuffle": True, "batch_size": None}),
    "sampler": (Drawing(61), {"sampler": list(range(60, 0, -3))}),
    "getitems": (Together(61), {"shuffle": True}),
    "collate": (Drawing(61), {"collate_fn": NoisyCollate()}),
    "everywhere": (DrawingEverywhere(61), {"shuffle": True}),
    "stream": (Stream(61), {"shard": "auto"}),
}
SPAWNED = ("collate", "everywhere", "stream")
"""What spawned workers load, too; each start takes seconds. They draw with functions of the user in all ways."""


def crews_for(epoch: str) -> list[Any]:
    crews = PROCESSES[1:] if epoch == "everywhere" else CREWS[1:]
    return [crew for crew in crews if "spawn" not in crew or epoch in SPAWNED]


@pytest.mark.parametrize(
    ("epoch", "resources"),
    [(epoch, crew) for epoch in EPOCHS for crew in crews_for(epoch)],
    ids=str,
)
def test_an_epoch_is_byte_identical_whoever_loads_it(epoch: str, resources: Any) -> None:
    dataset, options = EPOCHS[epoch]
    expected = as_bytes(made(dataset, **options))
    assert as_bytes(made(dataset, resources, **options)) == expected
    assert len(set(expected)) == len(expected), "numbers repeat"


def test_seeds_and_epochs_differ() -> None:
    assert len({*as_bytes(made(Drawing(8), shuffle=True), 2), *as_bytes(made(Drawing(8), seed=12), 1)}) == 3


@pytest.mark.parametrize(
    ("everywhere", "resources"),
    [*((False, crew) for crew in CREWS), *((True, crew) for crew in PROCESSES)],
    ids=str,
)
def test_the_global_generators_are_neither_drawn_from_nor_seeded_here(everywhere: bool, resources: Any) -> None:
    dataset = DrawingEverywhere(30) if everywhere else Drawing(30)

    def states() -> list[Any]:
        numpy_state: Any = np.random.get_state(legacy=False)
        return [random.getstate(), numpy_state["state"]["key"].tolist(), torch.get_rng_state().tolist()]

    before, expected = states(), as_bytes(made(dataset, shuffle=True))
    random.random()
    torch.manual_seed(5)
    between = states()
    assert as_bytes(made(dataset, resources, shuffle=True)) == expected
    assert states() == between != before


@pytest.mark.parametrize("resources", CREWS, ids=str)
def test_set_epoch_reaches_the_data_set_also_in_workers_that_are_kept(resources: Any) -> None:
    loader = made(Epochs(16), resources)
    seen = []
    for epoch in (None, None, 7, None, 3):
        if epoch is not None:
            loader.set_epoch(epoch)
        seen.append({int(number) for batch in loader for number in batch[:, 1]})
    assert seen == [{0}, {1}, {7}, {8}, {3}]


@pytest.mark.parametrize("resources", CREWS, ids=str)
def test_set_epoch_reaches_the_data_set_without_a_seed_when_it_is_called(resources: Any) -> None:
    loader = made(Epochs(16), resources, seed=None)
    seen = []
    for epoch in (None, 7, None):
        if epoch is not None:
            loader.set_epoch(epoch)
        seen.append({int(number) for batch in loader for number in batch[:, 1]})
    assert seen == [{-1}, {7}, {7}]


def test_an_epoch_can_be_had_again() -> None:
    loader = made(Drawing(20), shuffle=True)
    epochs = [as_bytes(loader, 1) for _ in range(3)]
    loader.set_epoch(1)
    assert as_bytes(loader, 2) == epochs[1] + epochs[2]


@pytest.mark.parametrize("resources", CREWS[:2], ids=str)
def test_a_sampler_of_torch_keeps_its_own_order(resources: Any) -> None:
    sampler = RandomSampler(range(30), generator=torch.Generator().manual_seed(1))
    expected = torch.randperm(30, generator=torch.Generator().manual_seed(1)).tolist()
    assert torch.cat(list(made(Drawing(30), resources, sampler=sampler)))[:, 0].tolist() == expected


def test_random_numbers_of_workers_differ_without_a_seed() -> None:
    batches = list(made(Drawing(8), CREWS[2], seed=None, batch_size=1, persistent_workers=False))
    assert len({int(batch[0, 1]) for batch in batches}) == 8


class Waiting(Dataset[int]):
    """Sample 0 is ready only when sample 4 has been asked for, which in turn would come to the same worker."""

    def __init__(self, asked: Any) -> None:
        self.asked = asked

    def __len__(self) -> int:
        return 6

    def __getitem__(self, index: int) -> int:
        if index == 4:
            self.asked.set()
        if index == 0:
            self.asked.wait()
        return index


def test_work_goes_to_whoever_is_free_and_comes_in_order() -> None:
    dataset = Waiting(multiprocessing.get_context("fork").Event())
    loader = made(dataset, CREWS[2], num_workers=2, batch_size=1, prefetch_factor=3)
    assert torch.cat(list(loader)).tolist() == list(range(6))


@pytest.mark.parametrize("wrong", [1.5, "1", True])
def test_a_seed_is_a_whole_number(wrong: Any) -> None:
    with pytest.raises(UsageError, match="a whole number, or None"):
        made(Drawing(3), seed=wrong)


class DrawingLater(Drawing):
    """Draws random numbers from its sample 40 on only, from a generator of choice."""

    def __init__(self, length: int, source: str) -> None:
        super().__init__(length)
        self.source = source

    def __getitem__(self, index: int) -> Any:
        drawn = 0.0
        if index >= 40:
            ways: dict[str, Any] = {
                "python": random.random,
                "numpy": np.random.random_sample,
                "torch": lambda: torch.rand((), dtype=torch.float64).item(),
                "headrace": lambda: headrace.rng().random(),
            }
            drawn = ways[self.source]()
        return torch.tensor([float(index), drawn], dtype=torch.float64)


@pytest.mark.parametrize(
    ("resources", "source", "loop_draws"),
    [*pairwise(PROCESSES, ["python", "numpy", "torch", "headrace"], [False, True]), (CREWS[-1], "headrace", False)],
    ids=str,
)
def test_a_data_set_that_begins_to_draw_later_gets_its_seeds(resources: Any, source: str, loop_draws: bool) -> None:
    def batches(*crews: Any) -> list[bytes]:
        found = []
        for batch in made(DrawingLater(192, source), *crews, batch_size=4):
            if loop_draws:
                torch.rand(3)
                random.random()
                np.random.rand()
            found.append(batch)
        return as_bytes(found, 1)

    plain, ours = batches(), batches(resources)
    assert ours == plain
    assert len(set(ours)) == len(ours)


def test_what_is_known_of_a_data_set_s_draws_is_remembered() -> None:
    loader = made(Drawing(24), shuffle=True)
    list(loader)
    assert not loader._session.seeding.tries_without
    quiet = made(list(range(24)), shuffle=True)
    list(quiet)
    assert quiet._session.seeding.tries_without


@pytest.mark.parametrize("kind", [np.int64, np.int32, np.uint8])
def test_a_seed_may_be_one_of_numpy_s_numbers(kind: type[np.integer[Any]]) -> None:
    orders = []
    for seed in (3, kind(3)):
        loader = headrace.DataLoader(torch.arange(40), batch_size=4, shuffle=True, seed=seed)  # type: ignore[arg-type]
        orders.append(torch.cat(list(loader)).tolist())
        json.dumps(loader.state_dict())
    assert orders[0] == orders[1]
