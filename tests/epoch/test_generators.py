"""Random generators without `seed=`: a resumed run draws what the uninterrupted run draws, in every later epoch."""

from __future__ import annotations

import copy
from collections.abc import Callable, Iterator
from typing import Any

import numpy as np
import pytest
import torch
from torch.utils.data import Dataset, IterableDataset, Sampler

import headrace
from tests.pairs import pairwise

pytestmark = pytest.mark.filterwarnings("ignore:.*cannot say where it was")

EPOCHS = 4


class DrawingStream(IterableDataset[int]):
    """Each worker draws its samples from its own global generator."""

    def __iter__(self) -> Iterator[int]:
        for _ in range(6):
            yield int(torch.randint(1 << 40, ()))


class ShuffledStream(IterableDataset[int]):
    """Draws its order when the first sample is asked for, and yields sorted positions after it."""

    def __iter__(self) -> Iterator[int]:
        yield from torch.randperm(12).tolist()


class StreamOfState(IterableDataset[int]):
    """Draws each sample; its state holds the global generator and the position."""

    def __init__(self) -> None:
        self.position = 0

    def __iter__(self) -> StreamOfState:
        self.position = 0
        return self

    def __next__(self) -> int:
        if self.position == 12:
            raise StopIteration
        self.position += 1
        return int(torch.randint(1 << 40, ()))

    def state_dict(self) -> dict[str, Any]:
        return {"position": self.position, "generator": torch.get_rng_state()}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        self.position = state["position"]
        torch.set_rng_state(state["generator"])


class DrawnWhenMade:
    """An iterator that draws its order when it is made, and has a state."""

    def __init__(self) -> None:
        self.order = torch.randperm(12).tolist()

    def __iter__(self) -> DrawnWhenMade:
        return self

    def __next__(self) -> int:
        if not self.order:
            raise StopIteration
        return int(self.order.pop())

    def state_dict(self) -> dict[str, Any]:
        return {"order": list(self.order)}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        self.order = list(state["order"])


class OrderedWhenMade(IterableDataset[int]):
    """Its iterators draw from the global generator when they are made."""

    def __iter__(self) -> Iterator[int]:
        return DrawnWhenMade()


class StatelessOrder(IterableDataset[int]):
    """Draws its order from the global generator in `__iter__`, and has no state."""

    def __iter__(self) -> Iterator[int]:
        return iter(torch.randperm(12).tolist())


class RowsOfState(Dataset[int]):
    """Draws each sample; its state is the global generator."""

    def __len__(self) -> int:
        return 12

    def __getitem__(self, index: int) -> list[int]:
        return [index, int(torch.randint(1 << 40, ()))]

    def state_dict(self) -> dict[str, Any]:
        return {"generator": torch.get_rng_state()}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        torch.set_rng_state(state["generator"])


class Kept(Sampler[int]):
    """A sampler in order, with a state."""

    def __init__(self) -> None:
        self.given = 0

    def __len__(self) -> int:
        return 12

    def __iter__(self) -> Kept:
        return self

    def __next__(self) -> int:
        if self.given == 12:
            self.given = 0
            raise StopIteration
        self.given += 1
        return self.given - 1

    def state_dict(self) -> dict[str, int]:
        return {"given": self.given}

    def load_state_dict(self, state: dict[str, int]) -> None:
        self.given = state["given"]


class Taken:
    """A run without an interruption, and what was saved of it: a state, and the global generator beside it."""

    def __init__(self, loader: Any, epoch: int, stop: int | None) -> None:
        """stop: how many batches of the epoch were delivered; None: it was gone through to its end."""
        self.epochs: list[list[Any]] = []
        for number in range(EPOCHS):
            iterator = iter(loader)
            batches: list[Any] = []
            while True:
                if number == epoch and len(batches) == stop:
                    self._save(loader)
                batch = next(iterator, None)
                if batch is None:
                    break
                batches.append(batch)
            if number == epoch and stop is None:
                self._save(loader)
            self.epochs.append(batches)
        over = stop is None or stop == len(self.epochs[epoch])
        began = [] if over else [self.epochs[epoch][stop:]]
        self.rest = began + self.epochs[epoch + 1 :]

    def _save(self, loader: Any) -> None:
        self.state = copy.deepcopy(loader.state_dict())
        self.generator = torch.get_rng_state()


def as_is(batch: Any) -> Any:
    return batch


@pytest.mark.thorough
@pytest.mark.parametrize(
    ("epoch", "stop", "dataset", "own"),
    [
        (epoch, stop, dataset, own)
        for (epoch, stop), dataset, own in pairwise(
            [(0, 0), (1, 3), (1, None)], [DrawingStream, ShuffledStream], [True, False]
        )
    ],
)
def test_workers_of_a_stream_get_the_base_seeds_of_a_run_without_interruption(
    epoch: int, stop: int | None, dataset: Any, own: bool
) -> None:
    """A stream without a state that is read again draws its order and its samples again, from the same seeds."""

    def loader(seed: int) -> Any:
        generator = torch.Generator().manual_seed(seed) if own else None
        return headrace.DataLoader(dataset(), batch_size=2, collate_fn=as_is, generator=generator, num_workers=2)

    torch.manual_seed(3)
    taken = Taken(loader(3), epoch, stop)
    torch.set_rng_state(taken.generator)
    resumed = loader(4)
    resumed.load_state_dict(taken.state)
    assert [list(resumed) for _ in taken.rest] == taken.rest


@pytest.mark.parametrize("stop", [0, 4, None])
def test_a_sampler_with_a_state_does_not_change_the_base_seeds(stop: int | None) -> None:
    def loader(seed: int) -> Any:
        generator = torch.Generator().manual_seed(seed)
        return headrace.DataLoader(
            DrawnRows(), batch_size=2, num_workers=2, sampler=Kept(), generator=generator, collate_fn=as_is
        )

    taken = Taken(loader(3), 1, stop)
    resumed = loader(4)
    resumed.load_state_dict(taken.state)
    following = [list(resumed) for _ in taken.rest]
    skipped = int(stop is not None and stop > 0)  # the rest of an interrupted epoch has new seeds
    assert following[skipped:] == taken.rest[skipped:]


class DrawnRows(RowsOfState):
    """The same samples, without a state."""

    state_dict = None  # type: ignore[assignment]
    load_state_dict = None  # type: ignore[assignment]

    def __getattribute__(self, name: str) -> Any:
        if name in {"state_dict", "load_state_dict"}:
            raise AttributeError(name)
        return super().__getattribute__(name)


INLINE: dict[str, Callable[[], Any]] = {
    "state sets the generator": StreamOfState,
    "iterator draws when it is made": OrderedWhenMade,
    "stream without a state draws when it is iterated": StatelessOrder,
    "stream without a state draws at its first sample": ShuffledStream,
    "rows set the generator": RowsOfState,
}


@pytest.mark.parametrize("made", INLINE)
@pytest.mark.parametrize(("epoch", "stop"), [(0, 0), (0, 1), (1, 0), (1, 2), (1, 6), (1, None)])
def test_without_workers_the_global_generator_is_where_the_uninterrupted_run_had_it(
    made: str, epoch: int, stop: int | None
) -> None:
    """What a dataset draws or sets while it is resumed must not shift what is drawn after it.

    Checkpoints put the global generator back as well. Where the user does not, only the rest of the epoch is promised.
    """

    def loader() -> Any:
        dataset = INLINE[made]()
        options = {"shuffle": True} if isinstance(dataset, RowsOfState) else {}
        return headrace.DataLoader(dataset, batch_size=2, collate_fn=as_is, **options)

    torch.manual_seed(3)
    taken = Taken(loader(), epoch, stop)
    torch.manual_seed(1000)
    torch.set_rng_state(taken.generator)
    resumed = loader()
    resumed.load_state_dict(copy.deepcopy(taken.state))
    assert [list(resumed) for _ in taken.rest] == taken.rest

    if stop == 0 and made == "stream without a state draws at its first sample":
        return  # nothing was drawn that a state could hold
    torch.manual_seed(1000)
    resumed = loader()
    resumed.load_state_dict(taken.state)
    rest = taken.rest[: int(stop is not None and stop < len(taken.epochs[epoch]))]
    assert [list(resumed) for _ in rest] == rest, "without the global generator"


def test_a_resumed_iterator_that_draws_leaves_the_generators_of_the_user_alone() -> None:
    loader = headrace.DataLoader(OrderedWhenMade(), batch_size=2)
    iterator = iter(loader)
    next(iterator)
    state = loader.state_dict()
    resumed = headrace.DataLoader(OrderedWhenMade(), batch_size=2)
    resumed.load_state_dict(state)
    torch.manual_seed(7)
    np.random.seed(7)
    expected = torch.get_rng_state()
    iter(resumed)
    assert torch.equal(torch.get_rng_state(), expected)
