"""Batches that come later than the sampler said, because they were not ready, and what comes in their place.

A batch that is late changes places with the next one that is ready. Both keep their samples, and each sample keeps its
random numbers. So a sample has a place in the epoch, at which it is delivered, and a position, from which its random
numbers follow. A state holds both, for samples that are still to come. Each place has one sample at any time, so that
other ranks can go on from a state, and with batches of another size.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt

from headrace.batches.index import Positioned

FARTHEST = 64
"""Turns by which a batch may come later than the sampler said."""

Moved = Sequence[Any]
"""What a state holds of a sample: its place, its position, its key, and whether this rank has taken it already."""


class Placed(NamedTuple):
    """A batch, and the places of its samples."""

    places: range | npt.NDArray[np.int64] | Sequence[int]
    content: Positioned

    @property
    def is_moved(self) -> bool:
        """Whether its samples do not lie where the sampler put them."""
        return self.places is not self.content.positions


class Deferral:
    """Which batch comes in whose turn. Batches have numbers, see `MapProgress`; turns and tasks are the window's."""

    def __init__(self, moved: Iterable[Moved] = (), *, allowed: bool, batched: bool) -> None:
        """Args:

        moved: of the state from which the epoch goes on.
        allowed: whether batches may change places from here on.
        batched: whether an index has several keys.
        """
        self.allowed = allowed
        self._batched = batched
        self._coming = {place: (position, key) for place, position, key, _ in moved}
        # Both change in one assignment: a signal handler may raise between any two, and the state must fit what comes.
        self._now: tuple[dict[int, int], dict[int, Placed]] = ({}, {})

    # -- what the sampler gives ----------------------------------------------------------------------------------------

    def take(self, number: int, index: Positioned) -> Positioned:
        """Returns a batch of the sampler's with the samples that lie at its places now."""
        places = index.positions
        if not self._coming:
            if self.allowed:
                self._now[1][number] = Placed(places, index)
            return index

        index = self._with_moved(index)
        self._now[1][number] = Placed(places, index)
        # Only now: a state that is taken in between has them twice, which does no harm.
        for place in map(int, places):
            self._coming.pop(place, None)
        return index

    def _with_moved(self, index: Positioned) -> Positioned:
        places = list(map(int, index.positions))
        found = [(row, *self._coming[place]) for row, place in enumerate(places) if place in self._coming]
        if not found:
            return index
        if not self._batched:
            ((_, position, key),) = found
            return Positioned(key, [position])  # type: ignore[arg-type]  # any sequence will do

        keys = index.index.copy() if isinstance(index.index, np.ndarray) else list(index.index)
        for row, position, key in found:
            places[row] = position
            keys[row] = key
        return Positioned(keys, places)  # type: ignore[arg-type]  # any sequence will do

    def passed(self, number: int) -> None:
        """Forgets a batch that the loop has got."""
        self._now[1].pop(number, None)

    # -- who comes in whose turn ---------------------------------------------------------------------------------------

    def task_in(self, turn: int) -> int:
        """Returns the task whose batch comes in a turn."""
        return self._now[0].get(turn, turn)

    def may_swap(self, number: int, other: int) -> bool:
        """Tells whether two batches may change places: they are of one size, and a state can hold their keys."""
        placed = self._now[1]
        if number not in placed or other not in placed:
            return False
        one, two = placed[number], placed[other]
        return len(one.places) == len(two.places) and self._can_be_kept(one) and self._can_be_kept(two)

    def swap(self, turns: tuple[int, int], numbers: tuple[int, int]) -> None:
        """Has the batch that comes next change places with one of a later turn.

        turns: of both, the next one first. numbers: of the batches that the sampler gave for these turns.
        """
        tasks, placed = self._now
        first, second = turns
        one, two = (placed[number] for number in numbers)
        tasks = {turn: task for turn, task in tasks.items() if turn >= first}
        tasks |= {first: self.task_in(second), second: self.task_in(first)}
        swapped = {numbers[0]: Placed(one.places, two.content), numbers[1]: Placed(two.places, one.content)}
        self._now = (tasks, {**placed, **swapped})

    def _can_be_kept(self, placed: Placed) -> bool:
        keys = placed.content.index
        if isinstance(keys, np.ndarray):
            return keys.dtype.kind in "iu"
        return all(isinstance(key, (int, str)) for key in self._keys_of(placed))

    def _keys_of(self, placed: Placed) -> list[Any]:
        keys = placed.content.index
        if not self._batched:
            return [keys]
        return keys.tolist() if isinstance(keys, np.ndarray) else list(keys)

    # -- what a state holds --------------------------------------------------------------------------------------------

    def moved_from(self, batches: int) -> list[list[Any]]:
        """Returns the samples that do not lie where the sampler put them, from batch number `batches` on."""
        moved = {place: [place, position, key, False] for place, (position, key) in self._coming.items()}
        for number, placed in list(self._now[1].items()):
            if number < batches or not placed.is_moved:
                continue
            positions = map(int, placed.content.positions)
            for place, position, key in zip(map(int, placed.places), positions, self._keys_of(placed), strict=True):
                moved[place] = [place, position, key, True]
        return [moved[place] for place in sorted(moved)]


def merged(parts: Iterable[Sequence[Moved]]) -> list[list[Any]]:
    """Joins what the states of all ranks hold. What a rank has taken already, it knows better than the others."""
    joined: dict[int, Moved] = {}
    for part in parts:
        for entry in part:
            if entry[3] or entry[0] not in joined:
                joined[entry[0]] = entry
    return [[place, *joined[place][1:3], False] for place in sorted(joined)]
