"""Whether anybody draws from the global generators while one thread of several works: threads share them."""

from __future__ import annotations

from typing import Any

from headrace.core.randomness.generator_moves import GeneratorMoves
from headrace.core.randomness.global_turns import global_turn
from headrace.core.randomness.rng import comparable_states


class SharedDraws:
    """Looks before and behind each piece of work of one thread. Used in that thread."""

    def __init__(self) -> None:
        self._moves = GeneratorMoves()
        self._states: list[Any] = []

    def begin(self) -> None:
        """A piece of work begins."""
        # Others that hold the turn have seeded the generators for a sample of theirs, and put them back.
        with global_turn():
            if self._moves.happened():
                self._moves.look_before()  # the program itself has drawn since
            self._states = []
            if not self._moves.begin():
                self._states = comparable_states()

    def happened(self) -> bool:
        """Tells whether the generators have moved since `begin`."""
        with global_turn():
            if self._states:
                return comparable_states() != self._states
            moved = self._moves.happened()
        if moved:
            self._moves.look_before()
        return moved
