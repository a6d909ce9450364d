"""Generators that datasets and transforms hold: found, seeded for each sample, and put back."""

from __future__ import annotations

import random
import types
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

import headrace
from headrace.core.errors import UsageError
from headrace.core.randomness.own_generators import LONGEST, OwnGenerators, generators_of
from headrace.data.stored import StoredDataset

MAKERS: dict[str, Any] = {
    "PCG64": lambda: np.random.default_rng(1),
    "Philox": lambda: np.random.Generator(np.random.Philox(1)),
    "MT19937": lambda: np.random.Generator(np.random.MT19937(1)),
    "SFC64": lambda: np.random.Generator(np.random.SFC64(1)),
    "RandomState": lambda: np.random.RandomState(1),
    "Random": lambda: random.Random(1),
    "torch": lambda: torch.Generator().manual_seed(1),
}


def drawn(generator: Any) -> float:
    """A number from a generator of any kind, and a normal deviate, of which some keep a second one."""
    if isinstance(generator, torch.Generator):
        return float(torch.rand((), generator=generator, dtype=torch.float64))
    if isinstance(generator, random.Random):
        return generator.random() + generator.gauss(0, 1)
    return float(generator.random() + generator.standard_normal())


class Augmented(torch.utils.data.Dataset[torch.Tensor]):
    """Sample i is i and a number from the generator of a transform, which a list of transforms holds."""

    def __init__(self, kind: str) -> None:
        self.transforms = [types.SimpleNamespace(generator=MAKERS[kind]())]

    def __len__(self) -> int:
        return 40

    def __getitem__(self, index: int) -> torch.Tensor:
        return torch.tensor([index, drawn(self.transforms[0].generator)], dtype=torch.float64)


def test_generators_are_found_where_transforms_keep_them() -> None:
    generator = np.random.default_rng()
    transform = types.SimpleNamespace(random_generator=generator, py_random=random.Random())
    dataset = types.SimpleNamespace(transform=transform, steps=[{"a": transform}, (MAKERS["torch"](),)], words=["x"])
    outer = types.SimpleNamespace(dataset=types.SimpleNamespace(dataset=dataset))
    found = dict(generators_of(outer))
    name = "SimpleNamespace.dataset.dataset"
    assert set(found) == {f"{name}.transform.random_generator", f"{name}.transform.py_random", f"{name}.steps[1][0]"}
    assert found[f"{name}.transform.random_generator"] is generator


def test_data_and_circles_are_passed_over() -> None:
    ring: Any = types.SimpleNamespace(rows=[MAKERS["Random"]()] * (LONGEST + 1), kind=random.Random, hidden=None)
    ring.ring = ring
    assert generators_of(ring, None, 3) == []


@pytest.mark.quick
@pytest.mark.parametrize("kind", MAKERS)
def test_a_seed_decides_on_the_numbers_and_states_come_back(kind: str) -> None:
    generator = MAKERS[kind]()
    own = OwnGenerators(types.SimpleNamespace(generator=generator))
    drawn(generator)
    before = own.states()
    with own.kept():
        own.seed(7)
        first = [drawn(generator) for _ in range(3)]
        own.seed(8)
        assert drawn(generator) not in first
        own.seed(7)
        assert [drawn(generator) for _ in range(3)] == first
        assert own.states() != before
    assert own.states() == before


def test_what_seeds_itself_is_passed_over() -> None:
    step = types.SimpleNamespace(generator=random.Random(), seeds_itself=True)
    assert generators_of(types.SimpleNamespace(step=step)) == []


def test_data_that_draw_no_numbers_are_passed_over_unless_a_subclass_may(tmp_path: Path) -> None:
    class Noisy(StoredDataset):
        def __getitem__(self, index: int) -> Any:
            return super().__getitem__(index)

    np.save(tmp_path / "a.npy", np.zeros(4))
    stored = headrace.open(tmp_path / "a.npy")
    assert generators_of(stored) == []
    stored.generator = random.Random()
    assert generators_of(stored) == []
    stored.__class__ = Noisy
    assert [found.generator for found in generators_of(stored)] == [stored.generator]


def test_two_generators_of_a_dataset_draw_different_numbers() -> None:
    pair = [random.Random(), random.Random()]
    OwnGenerators(types.SimpleNamespace(pair=pair)).seed(3)
    assert pair[0].random() != pair[1].random()


def test_generators_that_cannot_be_seeded_are_left_alone() -> None:
    assert not OwnGenerators(types.SimpleNamespace(random=random.SystemRandom()))


@pytest.mark.quick(kind="PCG64")
@pytest.mark.parametrize("kind", MAKERS)
@pytest.mark.parametrize("workers", [1, 3])
@pytest.mark.filterwarnings("ignore:This DataLoader will create")
def test_with_a_seed_numbers_are_those_of_the_sample_for_any_workers_and_behind_a_resume(
    kind: str, workers: int
) -> None:
    def loader(number: int) -> Any:
        return headrace.DataLoader(
            Augmented(kind), 4, shuffle=True, seed=5, num_workers=number, persistent_workers=number > 0
        )

    alone = loader(0)
    epochs = [[batch.tolist() for batch in alone] for _ in range(2)]
    numbers = [number for epoch in epochs for batch in epoch for _, number in batch]
    assert len(set(numbers)) == len(numbers)

    with_workers = loader(workers)
    assert [[batch.tolist() for batch in with_workers] for _ in range(2)] == epochs
    batches = iter(with_workers)
    third = [next(batches).tolist() for _ in range(4)]
    resumed = loader(0)
    resumed.load_state_dict(with_workers.state_dict())
    assert third + [batch.tolist() for batch in resumed] == [batch.tolist() for batch in alone]


@pytest.mark.parametrize("kind", MAKERS)
def test_with_a_seed_they_are_an_error_in_threads_which_share_them(kind: str) -> None:
    loader = headrace.DataLoader(Augmented(kind), 4, seed=5, num_workers=2, backend="thread")
    with pytest.raises(UsageError, match=r"one that the dataset holds(?s:.*)headrace\.rng\(\)"):
        next(iter(loader))


def test_the_generator_is_put_back_where_the_program_has_it_too() -> None:
    dataset = Augmented("PCG64")
    generator = dataset.transforms[0].generator
    before = generator.bit_generator.state
    list(headrace.DataLoader(dataset, 4, seed=5))
    assert generator.bit_generator.state == before
