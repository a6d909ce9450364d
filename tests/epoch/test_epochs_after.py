"""The epochs after the resumed one: the same as in a run that was never interrupted, wherever the state was taken."""

from __future__ import annotations

import json
import warnings
from collections.abc import Callable, Iterator
from typing import Any, NamedTuple

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

import headrace

from .datasets import Drawing, Rows, Stream
from .test_resume import ByNumPy, lists

pytestmark = [
    pytest.mark.filterwarnings("ignore:This DataLoader will create"),
    pytest.mark.filterwarnings("ignore:.*cannot say where it was"),
]

LENGTH, SIZE, EPOCHS = 18, 4, 4
BATCHES = 5


class Crew(NamedTuple):
    """Who makes batches."""

    workers: int
    backend: str
    persistent: bool

    def options(self) -> dict[str, Any]:
        kept = {"persistent_workers": True} if self.persistent else {}
        return {"num_workers": self.workers, "backend": self.backend, **kept}


CREWS = [
    Crew(0, "process", False),
    Crew(1, "process", False),
    Crew(2, "process", True),
    Crew(2, "thread", False),
    Crew(2, "thread", True),
]

crews = st.sampled_from(CREWS)


def generator(seed: int) -> torch.Generator:
    return torch.Generator().manual_seed(seed)


class Foreign(torch.utils.data.Sampler[int]):
    """A sampler without a length, in an order that its own generator decides, drawn when the iteration begins."""

    def __init__(self, seed: int) -> None:
        self.generator = generator(seed)

    def __iter__(self) -> Iterator[int]:
        return iter(torch.randperm(LENGTH, generator=self.generator).tolist())


ORDERS: dict[str, Callable[[int], dict[str, Any]]] = {
    "in order": lambda seed: {},
    "generator": lambda seed: {"shuffle": True, "generator": generator(seed)},
    "sampler": lambda seed: {"sampler": torch.utils.data.RandomSampler(range(LENGTH), generator=generator(seed))},
    "both": lambda seed: {
        "sampler": torch.utils.data.RandomSampler(range(LENGTH), generator=generator(seed)),
        "generator": generator(seed + 100),
    },
    "foreign": lambda seed: {"sampler": Foreign(seed)},
    "weighted": lambda seed: {
        "sampler": torch.utils.data.WeightedRandomSampler([1.0] * LENGTH, LENGTH, generator=generator(seed))
    },
    "seed": lambda seed: {"shuffle": True, "seed": 5},
    "seed and sampler": lambda seed: {
        "sampler": torch.utils.data.RandomSampler(range(LENGTH), generator=generator(seed)),
        "seed": 5,
    },
}


def made(order: str, crew: Crew, seed: int) -> Any:
    data = Drawing(LENGTH) if order.startswith("seed") else Rows(LENGTH)
    return headrace.DataLoader(data, batch_size=SIZE, **ORDERS[order](seed), **crew.options())


class Taken(NamedTuple):
    """A run that was never interrupted, and the state that was taken from it."""

    epochs: list[list[Any]]
    state: Any
    rest: list[list[Any]]
    """What is to come after the state: the rest of its epoch, if there is one, and the epochs after it."""


def straight(loader: Any, epoch: int, stop: int, *, at_end: bool) -> Taken:
    """Runs all epochs; takes a state in one of them.

    Behind `stop` batches (-1: before the epoch begins), or (`at_end`) behind its StopIteration.
    """
    epochs: list[list[Any]] = []
    state: Any = None
    for number in range(EPOCHS):
        batches = []
        if number == epoch and stop == -1 and not at_end:
            state = json.loads(json.dumps(loader.state_dict()))
        iterator = iter(loader)
        for count in range(BATCHES + 1):
            if number == epoch and count == stop and not at_end:
                state = json.loads(json.dumps(loader.state_dict()))
            batch = next(iterator, None)
            if batch is not None:
                batches.append(batch.tolist())
        if number == epoch and at_end:
            state = json.loads(json.dumps(loader.state_dict()))
        epochs.append(batches)
    began = [] if at_end or stop == BATCHES else [epochs[epoch][max(stop, 0) :]]
    return Taken(epochs, state, began + epochs[epoch + 1 :])


@pytest.mark.thorough
@pytest.mark.parametrize("order", ORDERS)
@given(
    before=crews,
    after=crews,
    epoch=st.integers(0, 2),
    stop=st.integers(-1, BATCHES),
    at_end=st.booleans(),
    twice=st.booleans(),
)
@settings(deadline=None, max_examples=25)
def test_all_that_is_to_come_comes_as_without_an_interruption(
    order: str, before: Crew, after: Crew, epoch: int, stop: int, at_end: bool, twice: bool
) -> None:
    taken = straight(made(order, before, 1), epoch, stop, at_end=at_end)
    resumed = made(order, after, 2)
    resumed.load_state_dict(taken.state)
    if twice:  # through a second state, taken before anything else happens
        again = made(order, before, 3)
        again.load_state_dict(resumed.state_dict())
        resumed = again
    assert [lists(resumed) for _ in taken.rest] == taken.rest


@pytest.mark.thorough
@given(before=crews, after=crews, epoch=st.integers(0, 1), stop=st.integers(1, BATCHES), at_end=st.booleans())
@settings(deadline=None, max_examples=25)
@pytest.mark.parametrize("by_numpy", [False, True])
def test_an_order_of_the_global_generators_goes_on_if_they_are_restored_too(
    by_numpy: bool, before: Crew, after: Crew, epoch: int, stop: int, at_end: bool
) -> None:
    """As a checkpoint does it: the generators' states are saved beside the loader's, and put back."""
    import numpy as np

    def loader(crew: Crew) -> Any:
        options: dict[str, Any] = {"sampler": ByNumPy(LENGTH)} if by_numpy else {"shuffle": True}
        return headrace.DataLoader(Rows(LENGTH), batch_size=SIZE, **options, **crew.options())

    torch.manual_seed(1)
    np.random.seed(1)
    first = loader(before)
    state = generators = None
    epochs = []
    for number in range(EPOCHS):
        batches = []
        iterator = iter(first)
        for count in range(BATCHES + 1):
            if number == epoch and count == stop and not at_end:
                state, generators = first.state_dict(), (torch.get_rng_state(), np.random.get_state())
            batches += [batch.tolist() for batch in [next(iterator, None)] if batch is not None]
        if number == epoch and at_end:
            state, generators = first.state_dict(), (torch.get_rng_state(), np.random.get_state())
        epochs.append(batches)
    rest = ([] if at_end or stop == BATCHES else [epochs[epoch][stop:]]) + epochs[epoch + 1 :]
    resumed = loader(after)
    assert generators is not None
    torch.set_rng_state(generators[0])
    np.random.set_state(generators[1])
    resumed.load_state_dict(state)
    assert [lists(resumed) for _ in rest] == rest


@pytest.mark.thorough
@given(before=crews, after=crews, epoch=st.integers(0, 2), stop=st.integers(0, 6), at_end=st.booleans())
@settings(deadline=None, max_examples=25)
@pytest.mark.parametrize("shard", [None, "auto"])
def test_streams_come_as_without_an_interruption(
    shard: Any, before: Crew, after: Crew, epoch: int, stop: int, at_end: bool
) -> None:
    """Nobody knows how long a stream is; a state behind its last batch is the beginning of the next epoch as well."""

    def loader(crew: Crew) -> Any:
        return headrace.DataLoader(Stream(12), batch_size=2, seed=3, shard=shard, **crew.options())

    first = loader(before)
    epochs, state = [], None
    for number in range(EPOCHS):
        batches = []
        iterator = iter(first)
        for count in range(40):
            if number == epoch and count == stop and not at_end:
                state = first.state_dict()
            batch = next(iterator, None)
            if batch is None:
                break
            batches.append(batch.tolist())
        if number == epoch and at_end:
            state = first.state_dict()
        epochs.append(batches)
    if shard is None and max(before.workers, 1) != max(after.workers, 1):
        return  # then each worker has a stream of its own, and other workers have others
    over = at_end or stop >= len(epochs[epoch])
    rest = ([] if over else [epochs[epoch][stop:]]) + epochs[epoch + 1 :]
    resumed = loader(after)
    resumed.load_state_dict(state)
    assert [lists(resumed) for _ in rest] == rest


@pytest.mark.parametrize("seed", [None, 4])
@pytest.mark.parametrize("crew", CREWS)
def test_a_framework_that_sets_the_epoch_gets_the_epoch_that_it_sets(crew: Crew, seed: int | None) -> None:
    """It resumes behind the last batch of epoch 1 and goes on with epoch 2; with or without a known length."""
    for sized in (True, False):

        def loader(crew: Crew, sized: bool = sized) -> Any:
            sampler = headrace.samplers.DistributedSampler(LENGTH, seed=2)
            batches = torch.utils.data.BatchSampler(sampler, SIZE, drop_last=False)
            return headrace.DataLoader(
                Drawing(LENGTH) if seed is not None else Rows(LENGTH),
                batch_sampler=batches if sized else Endless(batches),  # type: ignore[arg-type]
                seed=seed,
                **crew.options(),
            )

        first = loader(crew)
        epochs, state = [], None
        for number in range(4):
            first.set_epoch(number)
            iterator = iter(first)
            epochs.append([next(iterator).tolist() for _ in range(BATCHES)])
            if number == 1:
                state = first.state_dict()
            assert next(iterator, None) is None
        resumed = loader(Crew(0, "process", False))
        resumed.load_state_dict(state)
        following = []
        for number in (2, 3):
            resumed.set_epoch(number)
            following.append(lists(resumed))
        assert following == epochs[2:]


@pytest.mark.parametrize("workers", [0, 1])
@pytest.mark.parametrize("stop", [0, 1, BATCHES])
@pytest.mark.parametrize("number", [0, 1, 2])
def test_an_epoch_that_does_not_come_is_told(number: int, stop: int, workers: int) -> None:
    def loader() -> headrace.DataLoader[Any]:
        return headrace.DataLoader(Rows(LENGTH), SIZE, shuffle=True, seed=2, num_workers=workers)

    first = loader()
    epochs = [lists(first) for _ in range(3)]
    first = loader()
    iterator = iter(first)
    for _ in range(stop):
        next(iterator)
    resumed = loader()
    resumed.load_state_dict(first.state_dict())
    resumed.set_epoch(number)
    in_the_middle = stop not in (0, BATCHES)
    with warnings.catch_warnings(record=True) as told:
        warnings.simplefilter("always")
        rest = lists(resumed)
    assert rest == (epochs[0][stop:] if in_the_middle else epochs[number])
    about = [str(one.message) for one in told if "set_epoch" in str(one.message)]
    comes_again = stop == BATCHES and number == 0
    assert len(about) == ((in_the_middle and number != 0) or comes_again)
    where = "past the end of epoch 0" if comes_again else "in the middle of epoch 0"
    assert all(f"set_epoch({number}) was called" in text and where in text for text in about)


class Endless:
    """A batch sampler that does not say how long it is; not endless, but nobody knows."""

    def __init__(self, batches: Any) -> None:
        self.batches = batches
        self.sampler = batches.sampler

    def __iter__(self) -> Iterator[list[int]]:
        return iter(self.batches)


@pytest.mark.parametrize("crew", CREWS)
def test_portions_end_where_they_end(crew: Crew) -> None:
    def loader(crew: Crew) -> Any:
        return headrace.DataLoader(Rows(LENGTH), batch_size=SIZE, seed=1, batches_per_epoch=3, **crew.options())

    first = loader(crew)
    epochs = []
    states = []
    for _ in range(4):
        iterator = iter(first)
        epochs.append([next(iterator).tolist() for _ in range(3)])
        states.append(first.state_dict())
        assert next(iterator, None) is None
    for number, state in enumerate(states[:3]):
        resumed = loader(Crew(0, "process", False))
        resumed.load_state_dict(state)
        assert [lists(resumed) for _ in epochs[number + 1 :]] == epochs[number + 1 :]


class Draws(torch.utils.data.IterableDataset[torch.Tensor]):
    """Random numbers of its worker."""

    def __iter__(self) -> Iterator[torch.Tensor]:
        return iter(torch.rand(6))


class RowsDraw(Rows):
    def __getitem__(self, index: int) -> torch.Tensor:
        return torch.rand(())


@pytest.mark.parametrize("dataset", [Draws, lambda: RowsDraw(6)], ids=["stream", "rows"])
@pytest.mark.parametrize("ended", [1, 2])
def test_workers_that_would_have_lived_on_do_not_draw_the_numbers_of_an_earlier_epoch(dataset: Any, ended: int) -> None:
    """A script that seeds the generator at its beginning does so again in the resumed run."""

    def loader() -> Any:
        torch.manual_seed(0)
        return headrace.DataLoader(dataset(), batch_size=3, num_workers=2, persistent_workers=True)

    whole = loader()
    seen = [lists(whole) for _ in range(ended)]
    state = whole.state_dict()
    resumed = loader()
    resumed.load_state_dict(state)
    first = lists(resumed)
    again = loader()
    again.load_state_dict(state)
    assert first not in seen
    assert lists(again) == first
    seen.append(first)
    state = resumed.state_dict()
    resumed = loader()
    resumed.load_state_dict(state)
    assert lists(resumed) not in seen


class TellsItsEpoch(torch.utils.data.Sampler[int]):
    """An order of its own, as samplers of others have theirs: a permutation seeded by the number that it is told."""

    def __init__(self) -> None:
        self.epoch = 0

    def __len__(self) -> int:
        return LENGTH

    def set_epoch(self, epoch: int) -> None:
        self.epoch = epoch

    def __iter__(self) -> Iterator[int]:
        return iter(torch.randperm(LENGTH, generator=torch.Generator().manual_seed(self.epoch)).tolist())


class StreamOfEpoch(torch.utils.data.IterableDataset[int]):
    """A stream whose values tell the epoch."""

    epoch = 0

    def set_epoch(self, epoch: int) -> None:
        self.epoch = epoch

    def __iter__(self) -> Iterator[int]:
        return iter(range(100 * self.epoch, 100 * self.epoch + LENGTH))


TOLD: dict[str, Callable[[int | None], dict[str, Any]]] = {
    "sampler": lambda seed: {"dataset": Rows(LENGTH), "sampler": TellsItsEpoch()},
    "stream": lambda seed: {"dataset": StreamOfEpoch()},
    "shuffle": lambda seed: {
        "dataset": Rows(LENGTH), "shuffle": True,
        "generator": torch.Generator().manual_seed(3) if seed is None else None,
    },
}  # fmt: skip


@pytest.mark.quick(portion=5)
@pytest.mark.parametrize("order", TOLD)
@pytest.mark.parametrize("seed", [None, 0])
@pytest.mark.parametrize("portion", [None, 1, 2, BATCHES - 1, BATCHES + 1, 5, 2 * BATCHES + 1])
@pytest.mark.parametrize("sets", [True, False])
def test_whoever_sets_the_epoch_resumes_what_would_have_come(
    order: str, seed: int | None, portion: int | None, sets: bool
) -> None:
    """A script that calls `set_epoch` with each epoch, or never does; also in epochs that are no passes."""

    def loader() -> headrace.DataLoader[Any]:
        return headrace.DataLoader(batch_size=SIZE, seed=seed, batches_per_epoch=portion, **TOLD[order](seed))

    def train(loader: headrace.DataLoader[Any], epochs: range, stop: tuple[int, int] = (-1, 0)) -> tuple[Any, Any]:
        came, state = [], None
        for epoch in epochs:
            if sets:
                loader.set_epoch(epoch)
            batches = []
            for batch in loader:
                batches.append(batch.tolist())
                if stop == (epoch, len(batches)):
                    state = loader.state_dict()
            came.append(batches)
        return came, state

    whole, _ = train(loader(), range(5))
    for epoch in range(3):
        for count in {1, 2, len(whole[epoch]) - 1, len(whole[epoch])} & {*range(1, len(whole[epoch]) + 1)}:
            _, state = train(loader(), range(epoch + 1), (epoch, count))
            over = count == len(whole[epoch])
            expected = whole[epoch + 1 :] if over else [whole[epoch][count:], *whole[epoch + 1 :]]
            resumed = loader()
            resumed.load_state_dict(state)
            with warnings.catch_warnings():
                warnings.filterwarnings("error", ".*set_epoch")
                assert train(resumed, range(epoch + over, 5))[0] == expected, (epoch, count)
