"""Batches that are planned for a window of the shuffled order at a time, and dealt to the ranks in turn."""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Callable, Iterator
from itertools import cycle, islice
from typing import Any, Protocol, Unpack

import numpy as np

from headrace.core.randomness.counter_based import stream_key, words_at
from headrace.core.world import World
from headrace.samplers.frameworks import SplitOverRanks
from headrace.samplers.permutation import Permutation
from headrace.samplers.positions import local_range
from headrace.samplers.sampler import Dealing, ElasticSampler, Keys, State, positive

SAMPLES, BATCHES, GROUPS, WITHIN, PACKS = range(5)
"""What is shuffled."""


class Batch(list[int]):
    """The keys of a batch.

    Attributes:
        positions: the samples' positions in the shuffled order, int64, shape (len(self),).

    Args:
        keys: of the samples, int64, shape (n,).
        positions: likewise.

    Examples:
        >>> headrace.samplers.Batch(np.array([7, 3]), np.array([0, 1]))
        [7, 3]
    """

    positions: Keys

    def __init__(self, keys: Keys, positions: Keys) -> None:
        super().__init__(keys.tolist())
        self.positions = positions

    def __reduce__(self) -> Any:
        return Batch, (np.asarray(self, np.int64), self.positions)


class PlannedWindow(Protocol):
    """The batches of one window."""

    @property
    def number(self) -> int:
        """Of the window, counted from the beginning of the epoch."""

    def __len__(self) -> int:
        """Tells how many batches there are."""

    def batch(self, number: int) -> Batch:
        """Returns batch `number`, counted in the order in which they come."""


class WindowedBatchSampler(ElasticSampler, SplitOverRanks):
    """Plans the batches of a window of the shuffled order at a time.

    A plan depends on nothing but the arguments, the epoch and the number of the window. The ranks get batches in turn,
    so `uneven` counts batches. Every rank plans every window. Starts and resumes at once: a state is two numbers, the
    window and the batch in it. Without `shuffle`, windows follow the order of the dataset.
    """

    def __init__(self, samples: int, window: int, *, shuffle: bool, seed: int, **dealing: Unpack[Dealing]) -> None:
        super().__init__(seed=seed, **dealing)
        self.window = positive("window", window)
        self.shuffle = shuffle
        self._samples = samples
        """How many samples of the shuffled order are used."""
        self._now: State = self._beginning()

    @property
    @abstractmethod
    def samples_of_dataset(self) -> int:
        """How many samples the dataset must have."""

    @abstractmethod
    def _plan(self, epoch: int, number: int, keys: Keys, positions: Keys) -> PlannedWindow:
        """Returns the batches of window `number`. keys, positions: of its samples in the shuffled order."""

    @abstractmethod
    def _total(self, epoch: int) -> int:
        """Returns how many batches there are in an epoch, over all ranks."""

    def __iter__(self) -> Iterator[Batch]:
        # A copy: the state that the iteration began from may be asked for again.
        start = dict(self._begin())
        now = dict(start)
        self._now = now
        end = {"window": self._windows, "batch": 0}
        steps = self._steps(self.epoch, start, self.world)
        step = next(steps, None)
        while step is not None:
            mine, place = step
            # One step ahead: so the state behind the last batch says that nothing is left.
            step = next(steps, None)
            if mine is not None:
                now.update(place if step is not None else end)
                yield mine[0].batch(mine[1])

        now.update(end)

    def _steps(
        self, epoch: int, start: State, world: World
    ) -> Iterator[tuple[tuple[PlannedWindow, int] | None, State]]:
        """Yields what this rank gets in each step of all ranks, and the place behind the step.

        That is a window and the number of a batch in it; None: only other ranks get one.
        """
        mine = None
        held = 0
        for window, number in self._batches(epoch, start):
            if held == world.rank:
                mine = window, number
            held += 1
            if held == world.size:
                yield mine, self._place(window, number + 1)
                mine = None
                held = 0

        if not held or self.uneven == "drop":
            return
        # Ranks that have none in the last step take batches from the beginning of the epoch, each of them another one.
        if mine is None and self.uneven == "pad":
            first = self._batches(epoch, self._beginning(), again=True)
            mine = next(islice(cycle(first), world.rank - held, None))
        yield mine, self._place(window, number + 1)

    def __len__(self) -> int:
        return len(local_range(0, self._total(self.epoch), self.world, self.uneven))

    @property
    def _windows(self) -> int:
        return -(-self._samples // self.window)

    def _batches(self, epoch: int, start: State, *, again: bool = False) -> Iterator[tuple[PlannedWindow, int]]:
        """Yields all batches of all ranks from `start` on: the window, and the number within it.

        again: whether these windows have been begun before, on all ranks.
        """
        for number in range(start["window"], self._windows):
            if not again:
                self._begin_window(epoch, number)
            window = self._window(epoch, number)
            if number == start["window"]:
                first = start["batch"]
            else:
                first = 0

            for batch in range(first, len(window)):
                yield window, batch

    def _window(self, epoch: int, number: int) -> PlannedWindow:
        start = number * self.window
        positions = np.arange(start, min(start + self.window, self._samples), dtype=np.int64)
        return self._plan(epoch, number, self._keys_at(epoch, positions), positions)

    def _begin_window(self, epoch: int, number: int) -> None:
        """Is called before a window is planned whose batches will come."""

    def _keys_at(self, epoch: int, positions: Keys) -> Keys:
        """Returns which samples come at some positions of the order, int64 [len(positions)]."""
        if not self.shuffle:
            return positions
        return Permutation(self.samples_of_dataset, self._stream(SAMPLES, epoch)).at(positions)

    def _place(self, window: PlannedWindow, batch: int) -> State:
        """Returns the state of this place. batch: the next one, or behind the last one of the window."""
        return {"window": window.number, "batch": batch}

    def _beginning(self) -> State:
        return {"window": 0, "batch": 0}

    def _go_to(self, state: State) -> None:
        self._now = dict(state)

    def _reached(self) -> State:
        return dict(self._now)

    def _is_end(self, state: State) -> bool:
        return bool(state["window"] >= self._windows)

    def follow(self) -> Callable[[], Any]:
        now = self._now
        rest = {"sampler": self.name, **self._identity(), "epoch": self.epoch}
        return lambda: {**rest, **now}


def shuffled(numbers: Keys, stream: int) -> Keys:
    """Returns the numbers in a random order."""
    return numbers[np.argsort(words_at(stream, numbers), kind="stable")]


def group_of(batches: int) -> int:
    """Returns how many neighbours of a window's batches, sorted by cost, stay together, so that ranks get like ones.

    An eighth of the batches, rounded down to a power of two. It suits as many ranks, or half as many, and so on.
    """
    return 1 << max((batches // 8).bit_length() - 1, 0)


def shuffled_in_groups(batches: int, group: int, stream: int) -> Keys:
    """Returns the numbers from 0 to batches-1 in a random order, in which neighbours stay together.

    What fills no group comes last.
    """
    grouped = batches - batches % group
    groups = shuffled(np.arange(grouped // group), stream_key(stream, GROUPS))
    # To exchange batches by bits keeps pairs together, pairs of pairs, and so on; no rank always gets the costliest.
    masks = words_at(stream_key(stream, WITHIN), groups).astype(np.int64) & (group - 1)
    within = _back_and_forth(group) ^ masks[:, None]
    rest = shuffled(np.arange(grouped, batches), stream)
    return np.concatenate([(groups[:, None] * group + within).ravel(), rest])


def _back_and_forth(count: int) -> Keys:
    """Returns the numbers below a power of two so that, of two blocks of any power of two, the second turns back.

    A rank that gets the costliest of its neighbours in one step gets the least costly in the next. This is the inverse
    of the Gray code.
    """
    numbers = np.arange(count)
    return np.argsort(numbers ^ (numbers >> 1))
