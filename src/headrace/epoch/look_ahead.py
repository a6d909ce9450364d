"""Indices that are drawn before they are needed, so that somebody can begin to read what they stand for."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterator
from typing import Any, Protocol

AT_ONCE = 8
"""Indices that are drawn at most when one is asked for: the first batch is not to wait for a thousand others."""


class ReadsAhead(Protocol):
    """Is told which indices come next."""

    def has_room(self) -> bool:
        """Tells whether it wants to know of a further index."""

    def announce(self, position: int, index: Any) -> None:
        """Is told the index at a position of the epoch. Positions come in order, from 0 on."""

    def ended(self) -> None:
        """Is told that there are no further indices, whenever there is room for more. The next epoch may be known."""

    def passed(self, position: int) -> None:
        """Is told that the batch at a position has left for the loop."""


class LookAhead:
    """An iterator over indices that is ahead of the one who asks. Where the sampler has a state, it goes with each."""

    def __init__(
        self, indices: Iterator[Any], checkpoint: Callable[[], Any] | None, listener: ReadsAhead, first: int
    ) -> None:
        """checkpoint: notes where the sampler is; None: it has no state. first: the position of the next index."""
        self._indices = indices
        self._checkpoint = checkpoint
        self._listener = listener
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
        for _ in range(AT_ONCE):
            if self._ended:
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
