"""Order and seeds, number by number: computed here once more, and compared with the original's."""

import random
from collections.abc import Iterator
from typing import Any

import numpy as np
import pytest
import torch
from torch.utils.data import (
    DataLoader,
    DistributedSampler,
    RandomSampler,
    SubsetRandomSampler,
    WeightedRandomSampler,
    get_worker_info,
)
from torch.utils.data._utils.worker import _generate_state

from tests.pairs import in_turn

from .datasets import Drawing, EagerShuffle, Numbers, Witness, tag_with_seed
from .running import forked, processes_only, with_and_without_workers


def seeded(seed: int) -> torch.Generator:
    return torch.Generator().manual_seed(seed)


def draw_seed(generator: torch.Generator | None = None) -> int:
    """An int64 from the generator, or else from the global one: what each epoch takes first."""
    return int(torch.empty((), dtype=torch.int64).random_(generator=generator).item())


def order_of(loader: Any) -> list[int]:
    return [int(number) for batch in loader for number in batch]


def rows_of(loader: Any) -> Iterator[dict[str, Any]]:
    """The samples of a `Witness`, one dictionary each."""
    for batch in loader:
        for row in zip(*(column.tolist() for column in batch.values()), strict=True):
            yield dict(zip(batch, row, strict=True))


@pytest.fixture
def python_and_numpy_seeded() -> Iterator[None]:
    states = random.getstate(), np.random.get_state()
    random.seed(11)
    np.random.seed(11)
    yield
    random.setstate(states[0])
    np.random.set_state(states[1])


@with_and_without_workers
def test_a_generator_fixes_the_order_of_every_epoch(Loader: Any, num_workers: int) -> None:
    mirror = seeded(3)
    expected = []
    for _ in range(3):
        draw_seed(mirror)
        expected.append(torch.randperm(10, generator=mirror).tolist())
        torch.randperm(10, generator=mirror)  # drawn for a remainder that is empty
    loader = Loader(Numbers(10), batch_size=4, shuffle=True, generator=seeded(3), **forked(num_workers))
    assert expected == [order_of(loader) for _ in range(3)]


@with_and_without_workers
def test_the_global_seed_fixes_the_order_of_every_epoch(Loader: Any, num_workers: int) -> None:
    torch.manual_seed(4)
    expected = []
    for _ in range(3):
        draw_seed()
        expected.append(torch.randperm(10, generator=seeded(draw_seed())).tolist())
    torch.manual_seed(4)
    loader = Loader(Numbers(10), batch_size=4, shuffle=True, **forked(num_workers))
    assert expected == [order_of(loader) for _ in range(3)]


@with_and_without_workers
def test_sampling_with_replacement_draws_in_chunks_of_32(Loader: Any, num_workers: int) -> None:
    mirror = seeded(5)
    expected = torch.cat([torch.randint(10, (size,), generator=mirror) for size in (32, 32, 6)]).tolist()
    sampler = RandomSampler(Numbers(10), replacement=True, num_samples=70, generator=seeded(5))
    loader = Loader(Numbers(10), batch_size=8, sampler=sampler, **forked(num_workers))
    assert expected == order_of(loader)


@with_and_without_workers
def test_more_samples_than_there_are_draws_one_permutation_after_the_other(Loader: Any, num_workers: int) -> None:
    mirror = seeded(6)
    expected = torch.cat([torch.randperm(4, generator=mirror) for _ in range(3)]).tolist()[:10]
    sampler = RandomSampler(Numbers(4), num_samples=10, generator=seeded(6))
    assert expected == order_of(Loader(Numbers(4), batch_size=3, sampler=sampler, **forked(num_workers)))


@with_and_without_workers
def test_a_random_subset_is_one_permutation(Loader: Any, num_workers: int) -> None:
    indices = [9, 7, 5, 3, 1]
    expected = [indices[place] for place in torch.randperm(5, generator=seeded(7)).tolist()]
    sampler = SubsetRandomSampler(indices, generator=seeded(7))
    assert expected == order_of(Loader(Numbers(10), batch_size=2, sampler=sampler, **forked(num_workers)))


@with_and_without_workers
def test_weighted_sampling_is_one_draw_of_a_multinomial(Loader: Any, num_workers: int) -> None:
    weights = torch.tensor([0.1, 0.5, 0.0, 2.0], dtype=torch.float64)
    expected = torch.multinomial(weights, 9, True, generator=seeded(8)).tolist()
    sampler = WeightedRandomSampler(weights.tolist(), 9, generator=seeded(8))
    assert expected == order_of(Loader(Numbers(4), batch_size=2, sampler=sampler, **forked(num_workers)))


@with_and_without_workers
@pytest.mark.parametrize("rank", [0, 1])
def test_a_distributed_sampler_follows_its_epoch(Loader: Any, num_workers: int, rank: int) -> None:
    sampler = DistributedSampler(Numbers(9), num_replicas=2, rank=rank, seed=20)
    loader = Loader(Numbers(9), batch_size=2, sampler=sampler, **forked(num_workers))
    expected, actual = [], []
    for epoch in range(2):
        whole = torch.randperm(9, generator=seeded(20 + epoch)).tolist()
        expected.append((whole + whole[:1])[rank::2])
        sampler.set_epoch(epoch)
        actual.append(order_of(loader))
    assert expected == actual


def sampled(dataset_size: int, kind: str) -> dict[str, Any]:
    """Loader options with a new sampler of that kind, all without a generator of their own."""
    dataset = Numbers(dataset_size)
    options: dict[str, dict[str, Any]] = {
        "sequence": {},
        "shuffle": {"shuffle": True},
        "generator": {"shuffle": True, "generator": seeded(1)},
        "generator_only": {"generator": seeded(1)},
        "replacement": {"sampler": RandomSampler(dataset, replacement=True, num_samples=40)},
        "subset": {"sampler": SubsetRandomSampler(range(0, dataset_size, 2))},
        "weighted": {"sampler": WeightedRandomSampler([1.0] * dataset_size, 9)},
        "distributed": {"sampler": DistributedSampler(dataset, num_replicas=2, rank=1)},
        "eager": {"sampler": EagerShuffle(dataset_size)},
    }
    return options[kind]


KINDS = [
    *("sequence", "shuffle", "generator", "generator_only", "replacement"),
    *("subset", "weighted", "distributed", "eager"),
]


@with_and_without_workers
@pytest.mark.parametrize(("kind", "batch_size"), in_turn(KINDS, [3, None]))
def test_order_and_global_generator_are_those_of_the_original(
    Loader: Any, num_workers: int, kind: str, batch_size: int | None
) -> None:
    runs = []
    for loader_class in (DataLoader, Loader):
        torch.manual_seed(9)
        options = sampled(12, kind)
        loader = loader_class(Numbers(12), batch_size=batch_size, **options, **forked(num_workers))
        epochs = [[batch.tolist() for batch in loader] for _ in range(2)]
        generator = options.get("generator", torch.default_generator)
        runs.append((epochs, torch.get_rng_state().tolist(), generator.get_state().tolist()))
    assert runs[0] == runs[1]


@with_and_without_workers
def test_an_epoch_left_half_way_leaves_the_global_generator_as_the_original(Loader: Any, num_workers: int) -> None:
    states = []
    for loader_class in (DataLoader, Loader):
        torch.manual_seed(10)
        iterator = iter(loader_class(Numbers(40), batch_size=2, shuffle=True, **forked(num_workers)))
        next(iterator)
        states.append(torch.get_rng_state().tolist())
    assert states[0] == states[1]


@with_and_without_workers
def test_asking_for_an_iterator_draws_one_number_for_the_seed(Loader: Any, num_workers: int) -> None:
    torch.manual_seed(12)
    draw_seed()
    expected = torch.get_rng_state()
    torch.manual_seed(12)
    iterator = iter(Loader(Numbers(4), **forked(num_workers)))
    assert torch.equal(expected, torch.get_rng_state())
    assert len(list(iterator)) == 4
    assert torch.equal(expected, torch.get_rng_state())


@with_and_without_workers
def test_a_generator_leaves_the_global_one_alone(Loader: Any, num_workers: int) -> None:
    before = torch.get_rng_state()
    list(Loader(Numbers(8), shuffle=True, generator=seeded(2), **forked(num_workers)))
    assert torch.equal(before, torch.get_rng_state())


@with_and_without_workers
def test_constructing_a_loader_draws_nothing(Loader: Any, num_workers: int) -> None:
    generator = seeded(2)
    before = torch.get_rng_state(), generator.get_state()
    loader = Loader(Numbers(8), shuffle=True, generator=generator, **forked(num_workers))
    assert len(loader) == 8
    assert torch.equal(before[0], torch.get_rng_state())
    assert torch.equal(before[1], generator.get_state())


@with_and_without_workers
def test_python_and_numpy_generators_of_the_main_process_are_not_touched(
    Loader: Any, num_workers: int, python_and_numpy_seeded: None
) -> None:
    expected = random.Random(11).random(), np.random.RandomState(11).random_sample()
    list(Loader(Numbers(8), shuffle=True, **forked(num_workers)))
    assert expected == (random.random(), np.random.random())


@processes_only
def test_each_worker_is_seeded_from_the_base_seed_and_its_number(Loader: Any) -> None:
    base = draw_seed(seeded(13))
    expected = [
        (
            base + worker,
            random.Random(base + worker).random(),
            np.random.RandomState(_generate_state(base, worker)).random_sample(),
            float(torch.rand((), generator=seeded(base + worker))),
        )
        for worker in range(2)
    ]
    loader = Loader(Drawing(2), generator=seeded(13), collate_fn=tuple, **forked(2))
    assert expected == [sample for (sample,) in loader]


@processes_only
def test_what_workers_draw_is_what_the_workers_of_the_original_draw(Loader: Any) -> None:
    runs = []
    for loader_class in (DataLoader, Loader):
        torch.manual_seed(14)
        loader = loader_class(Drawing(12), batch_size=2, shuffle=True, collate_fn=tuple, **forked(2))
        runs.append([sample for _ in range(2) for batch in loader for sample in batch])
    assert runs[0] == runs[1]


def test_without_workers_samples_draw_from_the_generators_of_the_main_process(
    Loader: Any, python_and_numpy_seeded: None
) -> None:
    torch.manual_seed(15)
    draw_seed()
    mirrors = random.Random(11), np.random.RandomState(11)
    expected = [(15, mirrors[0].random(), mirrors[1].random_sample(), float(torch.rand(()))) for _ in range(3)]
    torch.manual_seed(15)
    assert expected == [sample for (sample,) in Loader(Drawing(3), collate_fn=tuple)]


@processes_only
def test_workers_are_seeded_anew_in_each_epoch(Loader: Any) -> None:
    loader = Loader(Drawing(2), generator=seeded(16), collate_fn=tuple, **forked(2))
    mirror = seeded(16)
    bases = [draw_seed(mirror) for _ in range(2)]
    seeds = [[sample[0] for (sample,) in loader] for _ in range(2)]
    assert [[base, base + 1] for base in bases] == seeds


@processes_only
def test_persistent_workers_are_not_seeded_again(Loader: Any) -> None:
    loader = Loader(Drawing(2), generator=seeded(17), collate_fn=tuple, persistent_workers=True, **forked(2))
    base = draw_seed(seeded(17))
    generators = [seeded(base), seeded(base + 1)]
    expected = [
        [(base + worker, float(torch.rand((), generator=generators[worker]))) for worker in range(2)] for _ in range(3)
    ]
    assert expected == [[(sample[0], sample[3]) for (sample,) in loader] for _ in range(3)]


def test_persistent_workers_draw_the_base_seed_only_once(Loader: Any) -> None:
    generator = seeded(18)
    loader = Loader(Numbers(2), generator=generator, persistent_workers=True, **forked(2))
    list(loader)
    after_first = generator.get_state()
    list(loader)
    assert torch.equal(after_first, generator.get_state())


def test_worker_info_tells_number_count_seed_and_dataset(Loader: Any) -> None:
    base = draw_seed(seeded(19))
    loader = Loader(Witness(4), generator=seeded(19), **forked(2))
    expected = [(worker, 2, base + worker, True) for worker in (0, 1, 0, 1)]
    assert expected == [(row["worker"], row["workers"], row["seed"], row["own_dataset"]) for row in rows_of(loader)]


def test_worker_info_cannot_be_changed(Loader: Any) -> None:
    loader = Loader([0], collate_fn=try_to_change_worker_info, **forked(1))
    assert list(loader) == ["refused"]


def try_to_change_worker_info(samples: list[int]) -> str:
    info = get_worker_info()
    assert info is not None
    try:
        info.id = 5
    except (AttributeError, RuntimeError):
        return "refused"
    return "accepted"


@with_and_without_workers
def test_there_is_no_worker_info_in_the_main_process(Loader: Any, num_workers: int) -> None:
    seen = [get_worker_info()]
    for _ in Loader(Numbers(4), **forked(num_workers)):
        seen.append(get_worker_info())
    seen.append(get_worker_info())
    assert seen == [None] * 6


def test_there_is_no_worker_info_in_a_dataset_without_workers(Loader: Any) -> None:
    assert {-1} == {row["worker"] for row in rows_of(Loader(Witness(3)))}


@processes_only
def test_a_worker_is_seeded_before_its_init_function_runs(Loader: Any) -> None:
    base = draw_seed(seeded(21))
    loader = Loader(Witness(2), generator=seeded(21), worker_init_fn=tag_with_seed, **forked(2))
    assert [base, base + 1] == [row["tag"] for row in rows_of(loader)]
