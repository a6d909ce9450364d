"""What of an epoch has reached the user. Pure bookkeeping: batches that were only prefetched do not count."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any, NamedTuple


class Draw(NamedTuple):
    """What an index sampler gave: how many samples, and the sampler's state after it (None: it has none)."""

    samples: int
    sampler: Any


class MapProgress:
    """Progress through the indices of a sampler, which are numbered 0, 1, 2, ... over the whole epoch.

    All numbers below `batches` are delivered, and those in `beyond`, which is empty if batches come in order.
    """

    def __init__(self, batches: int = 0, samples: int = 0, sampler: Any = None, beyond: Iterable[int] = ()) -> None:
        self.batches = batches
        self.samples = samples
        self.sampler = sampler
        self.beyond = set(beyond)
        self.lanes: dict[int, Any] = {}
        self._drawn: dict[int, Draw] = {}

    def draw(self, number: int, draw: Draw) -> bool:
        """Records that index `number` was drawn. False: its batch was delivered before the state was saved."""
        self._drawn[number] = draw
        if number not in self.beyond:
            return True
        self._advance()
        return False

    def deliver(self, number: int, lane: int, state: Any) -> None:
        """Records that the batch of index `number` was delivered, by a lane whose state is now `state`."""
        if state is not None:
            self.lanes[lane] = state
        if number == self.batches and not self.beyond:  # in order, as nearly always
            self._count(self._drawn.pop(number))
            return
        self.beyond.add(number)
        self._advance()

    def _advance(self) -> None:
        while self.batches in self.beyond and self.batches in self._drawn:
            self.beyond.discard(self.batches)
            self._count(self._drawn.pop(self.batches))

    def _count(self, draw: Draw) -> None:
        self.batches += 1
        self.samples += draw.samples
        self.sampler = draw.sampler


class StreamProgress:
    """Progress through an iterable data set, lane by lane. `batches` counts those of all lanes."""

    def __init__(self, lanes: Mapping[int, Any], batches: int = 0, next_lane: int = 0, latest: Any = None) -> None:
        self.lanes = dict(lanes)
        self.batches = self.begun = batches
        self.next_lane = next_lane
        self.latest = latest

    def deliver(self, lane: int, lanes: int, state: Any) -> None:
        """Records a batch of `lane`, one of `lanes`, whose state is now `state`."""
        self.batches += 1
        self.lanes[lane] = self.latest = state
        self.next_lane = (lane + 1) % max(lanes, 1)
