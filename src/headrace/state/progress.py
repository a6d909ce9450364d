"""What of an epoch has reached the user. Pure bookkeeping: batches that were only prefetched do not count.

A signal may interrupt the bookkeeping at any line, and its handler may raise. So every change that counts is one
assignment, and recording the same delivery again changes nothing.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any, NamedTuple


class Draw(NamedTuple):
    """What an index sampler gave: how many samples, and the sampler's state after it (None: it has none)."""

    samples: int
    sampler: Any


class Delivery(NamedTuple):
    """A batch that goes to the user: its number in the epoch, the lane that made it, and the lane's state after it."""

    number: int
    lane: int
    state: Any


class Reached(NamedTuple):
    """How far the deliveries have come without a gap."""

    batches: int
    samples: int
    sampler: Any
    """The state of the sampler behind them; None: it has none."""


class MapProgress:
    """Progress through the indices of a sampler, which are numbered 0, 1, 2, ... over the whole epoch.

    All numbers below `batches` are delivered, and those in `beyond`, which is empty if batches come in order.
    """

    def __init__(self, batches: int = 0, samples: int = 0, sampler: Any = None, beyond: Iterable[int] = ()) -> None:
        self._reached = Reached(batches, samples, sampler)
        self.beyond = set(beyond)
        self.lanes: dict[int, Any] = {}
        self._drawn: dict[int, Draw] = {}

    @property
    def batches(self) -> int:
        """How many batches are delivered without a gap."""
        return self._reached.batches

    @property
    def samples(self) -> int:
        """How many samples they had."""
        return self._reached.samples

    @property
    def sampler(self) -> Any:
        """The state of the sampler behind them; None: it has none."""
        return self._reached.sampler

    def draw(self, number: int, draw: Draw) -> bool:
        """Records that index `number` was drawn. False: its batch was delivered before the state was saved."""
        self._drawn[number] = draw
        if number not in self.beyond:
            return True
        self._advance()
        return False

    def deliver(self, delivery: Delivery) -> None:
        """Records that a batch was delivered; again, if it was recorded before, which changes nothing."""
        number = delivery.number
        if delivery.state is not None:
            self.lanes[delivery.lane] = delivery.state
        if number < self.batches:
            return
        if number > self.batches or self.beyond:
            self.beyond.add(number)
            self._advance()
            return
        self._pass(number)  # in order, as nearly always

    def _advance(self) -> None:
        while self.batches in self.beyond and self.batches in self._drawn:
            number = self.batches
            self._pass(number)
            self.beyond.discard(number)

    def _pass(self, number: int) -> None:
        """Counts the batch that comes next."""
        draw, reached = self._drawn[number], self._reached
        self._reached = Reached(number + 1, reached.samples + draw.samples, draw.sampler)
        self._drawn.pop(number, None)


class StreamProgress:
    """Progress through an iterable data set, lane by lane. `batches` counts those of all lanes.

    `begun`: how many batches were delivered before this run of the epoch began.
    """

    def __init__(self, lanes: Mapping[int, Any], batches: int = 0, next_lane: int = 0, latest: Any = None) -> None:
        self.lanes = dict(lanes)
        self.begun = batches
        self._reached = (batches, next_lane, latest)

    @property
    def batches(self) -> int:
        """How many batches are delivered."""
        return self._reached[0]

    @property
    def next_lane(self) -> int:
        """The lane whose batch comes next."""
        return self._reached[1]

    @property
    def latest(self) -> Any:
        """The state of the lane that made the last batch."""
        return self._reached[2]

    def deliver(self, delivery: Delivery, lanes: int) -> None:
        """Records the next batch of one of `lanes`; again, if it was recorded before, which changes nothing."""
        if delivery.number < self.batches:
            return
        self.lanes[delivery.lane] = delivery.state
        self._reached = (delivery.number + 1, (delivery.lane + 1) % max(lanes, 1), delivery.state)

    def end(self, states: Mapping[int, Any]) -> None:
        """Records the states of lanes behind the ends of their streams, once all their batches are delivered."""
        self.lanes.update(states)
