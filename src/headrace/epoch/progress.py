"""What of an epoch has reached the user. Pure bookkeeping: batches that were only prefetched do not count.

A signal may interrupt the bookkeeping at any line, and its handler may raise. So every change that counts is one
assignment, and recording the same delivery again changes nothing.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any

from headrace.epoch.deferral import Deferral

Draw = tuple[int, Any]
"""What an index sampler gave: how many samples, and where the sampler is after it (None: it has no state)."""


Delivery = tuple[int, int, Any]
"""A batch that goes to the user: its number in the epoch, the replica that made it, and the replica's state after
it."""


class MapProgress:
    """Progress through the indices of a sampler, which are numbered 0, 1, 2, ... over the whole epoch.

    All numbers below `batches` are delivered, and those in `beyond`, which is empty if batches come in order.
    """

    deferral: Deferral | None = None
    """Which batches come later than the sampler said; None: none do."""

    def __init__(self, batches: int = 0, samples: int = 0, sampler: object = None, beyond: Iterable[int] = ()) -> None:
        # The three change together or not at all: one instruction replaces a tuple, and a signal comes before or after.
        self.reached = (batches, samples, sampler)
        """`batches`, `samples` and `sampler`."""

        self.beyond = set(beyond)
        self.replicas: dict[int, Any] = {}
        self.drawn: dict[int, Draw] = {}
        """What was drawn and is not delivered, by number."""

    @property
    def batches(self) -> int:
        """How many batches are delivered without a gap."""
        return self.reached[0]

    @property
    def samples(self) -> int:
        """How many samples they had."""
        return self.reached[1]

    @property
    def sampler(self) -> Any:
        """The state of the sampler behind them; None: it has none."""
        return self.reached[2]

    def draw(self, number: int, draw: Draw) -> bool:
        """Records that index `number` was drawn. False: its batch was delivered before the state was saved."""
        self.drawn[number] = draw
        if number not in self.beyond:
            return True
        self._advance()
        return False

    def is_next(self, delivery: Delivery | None) -> bool:
        """Tells whether a batch comes in order, as all before it did, and without a state of its replica."""
        if delivery is None or delivery[2] is not None or self.beyond:
            return False
        return delivery[0] == self.reached[0]

    def deliver(self, delivery: Delivery) -> None:
        """Records that a batch was delivered; again, if it was recorded before, which changes nothing."""
        number, replica, state = delivery
        if state is not None:
            self.replicas[replica] = state

        batches, samples, _ = self.reached
        if number == batches and not self.beyond:  # in order, as nearly always
            drawn = self.drawn
            more, sampler = drawn[number]
            # First the progress, then the tidying: interrupted in between, a draw is left over, which harms nobody. The
            # other way round, the delivery could not be recorded again.
            self.reached = (number + 1, samples + more, sampler)
            del drawn[number]
        elif number >= batches:
            self.beyond.add(number)
            self._advance()

    def _advance(self) -> None:
        while self.batches in self.beyond and self.batches in self.drawn:
            number = self.batches
            self._pass(number)
            # Last: should a signal come before it, the number lies below `batches`, and is never looked at again.
            self.beyond.discard(number)

    def _pass(self, number: int) -> None:
        """Counts the batch that comes next."""
        samples, sampler = self.drawn[number]
        self.reached = (number + 1, self.reached[1] + samples, sampler)
        self.drawn.pop(number, None)


class StreamProgress:
    """Progress through an iterable dataset, replica by replica. `batches` counts those of all replicas.

    `begun`: how many batches were delivered before this run of the epoch began.
    """

    def __init__(
        self, replicas: Mapping[int, Any], batches: int = 0, next_replica: int = 0, latest: object = None
    ) -> None:
        self.replicas = dict(replicas)
        self.begun = batches
        self._reached = (batches, next_replica, latest)

    @property
    def batches(self) -> int:
        """How many batches are delivered."""
        return self._reached[0]

    @property
    def next_replica(self) -> int:
        """The replica whose batch comes next."""
        return self._reached[1]

    @property
    def sampler(self) -> None:
        """None: a stream has no sampler."""

    @property
    def latest(self) -> Any:
        """The state of the replica that made the last batch."""
        return self._reached[2]

    def deliver(self, delivery: Delivery, replicas: int) -> None:
        """Records the next batch of one of `replicas`; again, if it was recorded before, which changes nothing."""
        number, replica, state = delivery
        if number < self.batches:
            return
        self.replicas[replica] = state
        self._reached = (number + 1, (replica + 1) % max(replicas, 1), state)

    def end(self, states: Mapping[int, Any]) -> None:
        """Records the states of replicas behind the ends of their streams, once all their batches are delivered."""
        self.replicas.update(states)
