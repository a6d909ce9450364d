"""The order of data that never end: span by span, each shuffled by itself, dealt out to the ranks in turn."""

from __future__ import annotations

import contextlib
import functools
from collections import deque
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any, NamedTuple

import numpy as np

from headrace.core.randomness.counter_based import stream_key
from headrace.core.spans import Beginning, NothingYetError, Rows, Span, SpanKey, SpanKeys, SpanSupply, everything
from headrace.core.world import World
from headrace.samplers.frameworks import SplitOverRanks
from headrace.samplers.permutation import Permutation
from headrace.samplers.positions import Uneven, local_range
from headrace.samplers.sampler import ORDER, ElasticSampler, State

KEPT_ORDER = 1 << 20
"""Samples of a span up to which its order is computed at once and kept; 8 bytes each."""


class LiveSampler(ElasticSampler, SplitOverRanks):
    """All samples of a log, in spans. Each span comes in an order of its own, or in that of the log.

    Its indices are `SpanKeys`. It has no length. The state holds the spans that are not over, so that they are read
    again after a resume; as JSON it grows by 20 to 50 bytes for each partition of the log.
    """

    takes_all_alike = True

    def __init__(
        self,
        supply: Callable[[Beginning, int], SpanSupply],
        *,
        endless: bool,
        shuffle: bool = False,
        seed: int = 0,
        rank: int | None = None,
        world_size: int | None = None,
        uneven: Uneven = "pad",
    ) -> None:
        """supply: begins an epoch, of which it is given the number. endless: whether an epoch has no end."""
        super().__init__(seed=seed, rank=rank, world_size=world_size, uneven=uneven)
        self.shuffle = shuffle
        self.endless = endless
        self._supply_of = supply
        self._running: LiveBatches | None = None
        self._resumed = Beginning()
        self._position = 0

    def set_epoch(self, epoch: int) -> None:
        """See `ElasticSampler.set_epoch`. Data without an end go on: they have one epoch only."""
        if self.endless:
            self.epoch = epoch
            return

        # Frameworks say the number of an epoch once more when it has begun.
        if epoch != self.epoch or self._running is None or not self._running.is_going:
            super().set_epoch(epoch)

    def __iter__(self) -> Iterator[SpanKey]:
        for keys in WaitingBatches(self.key_batches(1, drop_last=False)):
            yield from keys

    def key_batches(self, size: int, *, drop_last: bool) -> LiveBatches:
        """Returns the batches of an epoch, of `size` samples each, as `SpanKeys`."""
        position = self._begin()["position"]
        beginning = self._resumed
        supply = functools.partial(self._supply_of, beginning, self.epoch)
        epoch = self.epoch
        if self.endless:
            epoch = 0
        # The batches do not hold the sampler: a loader that is dropped is to close its connections at once.
        order = SpanOrder(self.shuffle, functools.partial(stream_key, self.seed, ORDER), epoch)
        running = LiveBatches(order, supply, position, beginning, Dealt(size, self.world, self.uneven, drop_last))
        running.endless = self.endless
        self._running = running
        return running

    def reads(self) -> Any:
        """Returns what was read of the epoch; None: nothing yet. See `SpanSupply.reads`."""
        if self._running is None:
            return None
        return self._running.reads()

    def close(self) -> None:
        """Ends the epoch that runs: nothing more is read."""
        if self._running is not None:
            self._running.close()

    # -- state ---------------------------------------------------------------------------------------------------------

    def checkpoint(self) -> Any:
        if self._running is None:
            return self.epoch, self._position, self._resumed
        return self.epoch, *self._running.checkpoint()

    def follow(self) -> Callable[[], Any]:
        if self._running is None:
            return self.checkpoint
        epoch, running = self.epoch, self._running
        return lambda: (epoch, *running.checkpoint())

    def state_dict(self) -> State:
        return self.state_at(self.checkpoint())

    def state_at(self, checkpoint: Any) -> State:
        if isinstance(checkpoint, dict):
            return checkpoint

        epoch, position, beginning = checkpoint
        return {
            "sampler": self.name,
            **self._identity(),
            "epoch": epoch,
            "position": position,
            "source": dict(beginning.identity),
            "begin": _pairs(beginning.begin),
            "end": _pairs(beginning.end),
            "spans": [span.to_state() for span in beginning.known],
        }

    def load_state_dict(self, state_dict: State) -> None:
        super().load_state_dict(state_dict)
        self._resumed = _beginning_of(state_dict).from_position(state_dict["position"])
        self._running = None

    def check_state(self, state: Any) -> None:
        super().check_state(state)
        try:
            beginning = _beginning_of(state)
        except (KeyError, TypeError, ValueError) as error:
            self._refuse("this state is damaged", error, "where the epoch began, and the spans that are not over")

        spans = beginning.spans
        if spans and not spans[0].first <= state["position"] <= spans[-1].stop:
            found = f"position {state['position']}"
            self._refuse("this state is damaged", found, f"one from {spans[0].first} to {spans[-1].stop}")

    def __getstate__(self) -> dict[str, Any]:
        """Leaves out what reads: a copy begins where this one would begin anew."""
        return {**vars(self), "_running": None, "_resumed": self._same_records()}

    def _identity(self) -> State:
        return {"seed": self.seed, "shuffle": self.shuffle}

    def _go_to(self, state: State) -> None:
        self._position = state["position"]
        if not state["position"]:
            # A further epoch of data with an end is made of the same records.
            self._resumed = self._same_records()
        # Whoever still iterates goes on: its connection is closed when it is dropped.
        self._running = None

    def _same_records(self) -> Beginning:
        if self._running is None:
            known = self._resumed
        else:
            known = self._running.beginning
        return Beginning(known.identity, known.begin, known.end)

    def _reached(self) -> State:
        return {"position": self.checkpoint()[1]}


@dataclass(frozen=True)
class SpanOrder:
    """The order of the samples of each span of an epoch."""

    shuffles: bool
    key: Callable[[int, int], int]
    """Returns the key of a span's permutation, of its number and the epoch's."""
    epoch: int

    def permutation(self, span: Span) -> Permutation:
        """Returns the order of a span."""
        return Permutation(span.count, self.key(span.number, self.epoch))


class Dealt(NamedTuple):
    """How samples are dealt out."""

    size: int
    """Samples of a batch of one rank."""
    world: World
    uneven: Uneven
    drop_last: bool


class LiveBatches:
    """The batches of one epoch. Raises `NothingYetError` where the next one is not there yet."""

    def __init__(
        self,
        order: SpanOrder,
        supply: Callable[[], SpanSupply],
        position: int,
        beginning: Beginning,
        dealt: Dealt,
    ) -> None:
        """supply: begins at `beginning`, when the first batch is asked for. position: of the first sample, over all
        ranks."""
        self._open = supply
        self._supply: SpanSupply | None = None
        self._beginning = beginning
        self.endless = False
        """Whether there is no end."""
        self._order = order
        self._size, self._world, self._uneven, self._drop_last = dealt
        self._position = position
        self._spans: list[Span] = []
        self._orders: dict[int, Rows] = {}
        self._total: int | None = None
        self._needed_after: deque[int] = deque()  # for each batch, the first span that those behind it need
        self._first_number = 0

    def __iter__(self) -> LiveBatches:
        return self

    @property
    def is_going(self) -> bool:
        """Whether batches were drawn, and not all of them."""
        return self._supply is not None and (self._total is None or self._position < self._total)

    @property
    def supply(self) -> SpanSupply:
        """What gives the spans."""
        if self._supply is None:
            self._supply = self._open()
        return self._supply

    @property
    def beginning(self) -> Beginning:
        """Where the epoch began, as far as it is known yet."""
        if self._supply is None:
            return self._beginning
        return self._supply.beginning

    def __next__(self) -> SpanKeys:
        global_size = self._size * self._world.size
        while self._total is None and self._stop < self._position + global_size:
            self._draw()

        first = self._position
        stop = first + global_size
        mine = self._mine(first, stop)
        if not mine or (self._drop_last and len(mine) < self._size):
            if self._total is not None:
                self._position = self._total
            raise StopIteration

        keys = SpanKeys(self.supply.feed, tuple(self._parts(np.array(mine, np.int64))))
        self._position = min(stop, self._stop)
        last = keys.parts[-1][0]
        self._needed_after.append(last.number + (self._position >= last.stop))
        self._drop_spans()
        return keys

    def checkpoint(self) -> tuple[int, Beginning]:
        """Returns the position of the next sample, and what is needed to go on there."""
        known = self.beginning
        spans = tuple(self._spans) or self._beginning.known
        return self._position, Beginning(known.identity, known.begin, known.end, spans)

    def listen(self, first: int) -> LiveBatches:
        """Has `passed` count batches from this number on."""
        self._first_number = first
        return self

    def passed(self, position: int) -> None:
        """Is told that the batch with this number has left for the loop. See `epoch.look_ahead.HearsBatches`."""
        left = position - self._first_number
        needed = None
        while left >= 0 and self._needed_after:
            needed = self._needed_after.popleft()
            self._first_number += 1
            left -= 1

        if needed is not None:
            self.supply.passed(needed)

    def wait(self, timeout: float | None) -> None:
        """Waits until there may be a further batch, at most so many seconds; None: as long as it takes."""
        self.supply.wait(timeout)

    def reads(self) -> Any:
        if self._supply is None:
            return None
        return self._supply.reads()

    def close(self) -> None:
        """Ends the supply."""
        if self._supply is not None:
            self._supply.close()

    @property
    def _stop(self) -> int:
        if self._spans:
            return self._spans[-1].stop
        return self._position

    def _draw(self) -> None:
        span = self.supply.next_span()
        if span is None:
            self._total = self._stop
            return

        self._spans.append(span)
        if span.lost:
            self._position = max(self._position, span.stop)
            self._drop_spans()

    def _mine(self, first: int, stop: int) -> range:
        """Returns the positions of this rank in a batch of all ranks."""
        if self._total is None or stop <= self._total:
            return range(first + self._world.rank, stop, self._world.size)
        return local_range(first, self._total, self._world, self._uneven)[: self._size]

    def _parts(self, positions: Rows) -> Iterator[tuple[Span, Rows]]:
        for span in self._spans:
            start, stop = np.searchsorted(positions, [span.first, span.stop])
            if stop > start:
                yield span, self._rows(span, positions[start:stop] - span.first)

        # Ranks that get one sample more than there are take it from the last span.
        beyond = positions[positions >= self._stop]
        if len(beyond):
            last = self._spans[-1]
            yield last, self._rows(last, (beyond - last.first) % last.count)

    def _rows(self, span: Span, places: Rows) -> Rows:
        if not self._order.shuffles:
            return places
        if span.count > KEPT_ORDER:
            return self._order.permutation(span).at(places)

        if span.number not in self._orders:
            self._orders[span.number] = self._order.permutation(span).at(everything(span.count))
        return self._orders[span.number][places]

    def _drop_spans(self) -> None:
        """Forgets spans that are over. The last one stays: it says where the log goes on."""
        while len(self._spans) > 1 and self._spans[0].stop <= self._position:
            self._orders.pop(self._spans.pop(0).number, None)


class WaitingBatches:
    """The same batches, for those who wait for them."""

    def __init__(self, batches: LiveBatches) -> None:
        self._batches = batches

    def __iter__(self) -> WaitingBatches:
        return self

    def __next__(self) -> SpanKeys:
        while True:
            with contextlib.suppress(NothingYetError):
                return next(self._batches)
            self._batches.wait(None)


def _pairs(positions: dict[int, int] | None) -> list[list[int]] | None:
    """Returns positions as JSON knows them."""
    if positions is None:
        return None
    return [[partition, positions[partition]] for partition in sorted(positions)]


def _beginning_of(state: State) -> Beginning:
    begin = state["begin"]
    end = state["end"]
    if begin is not None:
        begin = {int(partition): int(position) for partition, position in begin}
    if end is not None:
        end = {int(partition): int(position) for partition, position in end}

    spans = tuple(Span.of_state(span) for span in state["spans"])
    identity = {str(name): str(value) for name, value in dict(state["source"]).items()}
    return Beginning(identity, begin, end, spans)
