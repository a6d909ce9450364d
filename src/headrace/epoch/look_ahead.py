"""Indices that are drawn before they are needed, so that somebody can begin to read what they stand for."""

from __future__ import annotations

import itertools
import time
from collections import deque
from collections.abc import Callable, Iterator
from typing import Any, Protocol

AT_ONCE = 8
"""Indices that are drawn when one is asked for: the first batch is not to wait for a thousand others."""

FIRST_DRAW = 0.02
"""Seconds for which it goes on at the first time. What is known together can be read together."""


class HearsBatches(Protocol):
    """Is told which batches have left."""

    def passed(self, position: int) -> None:
        """Is told that the batch at a position has left for the loop."""


class ReadsAhead(HearsBatches, Protocol):
    """Is told which indices come next."""

    def has_room(self) -> bool:
        """Tells whether it wants to know of a further index."""

    def announce(self, position: int, index: Any) -> None:
        """Is told the index at a position of the epoch. Positions come in order, from 0 on."""

    def ended(self) -> None:
        """Is told that there are no further indices, whenever there is room for more. The next epoch may be known."""

    def drawn(self) -> None:
        """Is told that no further index is drawn for now."""


class LookAhead:
    """An iterator over indices that is ahead of the one who asks. Where the sampler has a state, it goes with each."""

    def __init__(
        self, indices: Iterator[Any], checkpoint: Callable[[], Any] | None, listener: ReadsAhead, first: int
    ) -> None:
        """checkpoint: notes where the sampler is; None: it has no state. first: the position of the next index."""
        self._indices = indices
        self._checkpoint = checkpoint
        self._listener = listener
        self._first = first
        self._next = first
        self._drawn: deque[tuple[Any, Any]] = deque()
        self._ended = False
        self._state: Any = None

    def __iter__(self) -> LookAhead:
        return self

    def __next__(self) -> Any:
        self._draw()
        if not self._drawn:
            raise StopIteration

        index, self._state = self._drawn.popleft()
        return index

    def state(self) -> Any:
        """Returns where the sampler was behind the index that was given last."""
        return self._state

    def _draw(self) -> None:
        try:
            self._draw_several()
        finally:
            self._listener.drawn()

    def _draw_several(self) -> None:
        until = 0.0
        is_first = self._next == self._first
        if is_first:
            until = time.perf_counter() + FIRST_DRAW

        for count in itertools.count():
            if count >= AT_ONCE and time.perf_counter() >= until:
                return
            if self._ended:
                # Who looks at one batch of a short epoch, and leaves, may never come to the next one.
                if not is_first:
                    self._listener.ended()
                return
            if self._drawn and not self._listener.has_room():
                return

            try:
                index = next(self._indices)
            except StopIteration:
                self._ended = True
                continue

            state = None
            if self._checkpoint is not None:
                state = self._checkpoint()

            self._drawn.append((index, state))
            self._listener.announce(self._next, index)
            self._next += 1
