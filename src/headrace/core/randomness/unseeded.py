"""Batches without seeds: most datasets draw no random numbers, and seeding for each sample takes twenty times as long.

With `seed=` a batch is first made as if there were none. If anybody has drawn from a global generator meanwhile, or
asked for `headrace.rng()`, the batch is thrown away and made again, seeded sample by sample, and so are all after it.
"""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any, Literal

from headrace.core.randomness.generator_moves import GeneratorMoves
from headrace.core.randomness.own_generators import OwnGenerators
from headrace.core.randomness.rng import begin_unseeded, end_unseeded, global_states_kept

Verdict = Literal["good", "again", "seed"]
"""What becomes of a batch that was made without seeds: it is good; it is made in the same way again, since it is not
known who drew; it is made with seeds."""


@dataclass
class Seeding:
    """What is known of the random numbers that a dataset draws. Shared by a loader and its iterators."""

    tries_without: bool = True
    """Whether batches are made without seeds first: nobody has seen the dataset draw."""


class Unseeded:
    """Whether batches of one worker are made without seeds, and what was noticed of them. Used in its thread."""

    def __init__(self, own: OwnGenerators | None = None, *, here: bool = False, shared: bool = False) -> None:
        """own: the generators of the dataset. here: all belong to the user's own program, so they are put back.

        shared: other threads draw from them too, so a move says nothing of this one; see `SharedDraws`.
        """
        self.own = OwnGenerators() if own is None else own
        self._has_own = bool(self.own)
        self._own_before: list[Any] = []
        self.first = True
        """Whether batches are made without seeds first."""
        self.drew = False
        """Whether a batch had to be made again, with seeds."""
        self._here = here
        self._moves = None if shared else GeneratorMoves()

    def begin(self) -> bool:
        """A batch is made without seeds from here on. False: draws could not be told, so it must be seeded."""
        if self._moves is not None and not self._moves.begin():
            return False

        begin_unseeded()
        if self._has_own:
            self._own_before = self.own.states()
        return True

    def end(self) -> Verdict:
        """The batch is made. Returns what becomes of it."""
        asked = end_unseeded()
        drew_from_own = self._has_own and self.own.states() != self._own_before
        if drew_from_own and self._here:
            self.own.restore(self._own_before)
        moved = False
        if self._moves is not None:
            moved = self._moves.happened()
            if moved and not self._moves.is_sure:
                self._moves.look_before()
                return "again"

            if moved and self._here:
                self._moves.undo()

        if not (asked or moved or drew_from_own):
            return "good"

        self.first = False
        self.drew = True
        return "seed"

    def seeding(self) -> contextlib.AbstractContextManager[None]:
        """Returns what is around the seeding of samples while batches are usually made without."""
        if self._here:
            return self._all_kept()
        return contextlib.nullcontext()

    @contextlib.contextmanager
    def _all_kept(self) -> Iterator[None]:
        with global_states_kept(), self.own.kept():
            yield
