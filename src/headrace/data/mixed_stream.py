"""Several streams as one: at each sample, the source comes that is furthest behind its share."""

from __future__ import annotations

import functools
from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

import numpy as np

from headrace.core.changing_weights import AskedWeights, Unit, WhenExhausted, in_order
from headrace.core.errors import StateError, UsageError
from headrace.core.protocols import says_yes, tell_epoch
from headrace.core.randomness.counter_based import uniforms_at
from headrace.core.sharding import Part, current_part
from headrace.data.sample_tokens import tokens_of
from headrace.data.stream_pass import StreamPass
from headrace.data.stream_steps import FluentStream
from headrace.samplers.sampler import digest_of
from headrace.samplers.weighted import checked_weights


class MixRules(NamedTuple):
    """What decides which source comes next."""

    names: list[str] | None
    size: int
    """How many sources there are."""
    rows: list[tuple[int, list[float]]]
    """The weights that hold from some counts on; of weights that are asked for, those at the beginning."""
    asked: AskedWeights | None
    unit: Unit
    length: Callable[[Any], int] | None
    when_exhausted: WhenExhausted
    window: int

    def checked(self, row: Any, place: str = "weights=") -> list[float]:
        """Returns weights with a sum of 1. Raises `UsageError` if they do not fit. place: where they come from."""
        weights = checked_weights(in_order(row, self.names, place=place), "stream", place=place)
        if len(weights) != self.size:
            raise UsageError.about(
                "these weights do not fit",
                place=place,
                found=f"{len(weights)} weights",
                expected=f"one for each of the {self.size} streams",
                fix="give as many weights as streams, in the same order",
            )
        return (weights / weights.sum()).tolist()  # type: ignore[no-any-return]

    def digest(self, row: int) -> int | None:
        """Returns a number by which a state tells the weights up to a row from others; None: they are asked for."""
        if self.asked is not None:
            return None
        # Another machine may round in another way.
        numbers = [[since, *np.round(weights, 12)] for since, weights in self.rows[: row + 1]]
        return digest_of(np.concatenate(numbers))

    def cost(self, sample: Any) -> float:
        """Returns what a sample counts."""
        if self.unit == "samples":
            return 1.0
        # An empty document counts, too: a source of such would otherwise stay behind its share for ever.
        return float(max(tokens_of(sample, self.length, "headrace.mix(length=)"), 1))


class MixedStream(FluentStream):
    """Samples of several streams; made by `headrace.mix`.

    Args:
        streams: the sources.
        rules: what decides which of them comes next.

    Examples:
        >>> np.save("x.npy", np.arange(3))
        >>> stream = headrace.open("x.npy").stream()
        >>> mixed = headrace.mix([stream, stream.map(lambda value: -value, on="data")], weights=[1, 1])
        >>> [int(sample["data"]) for sample in mixed][:4]
        [0, 0, 1, -1]
    """

    def __init__(self, streams: Sequence[Any], rules: MixRules) -> None:
        self._streams = tuple(streams)
        self._rules = rules

    def __iter__(self) -> MixedIterator:
        return MixedIterator(self._streams, self._rules, _part())

    def set_epoch(self, epoch: int) -> None:
        """Tells the streams the number of the epoch."""
        for stream in self._streams:
            tell_epoch(stream, epoch)

    @property
    def lies_elsewhere(self) -> bool:
        """Whether samples are read from an object store or a server."""
        return any(says_yes(stream, "lies_elsewhere") for stream in self._streams)

    def encoded(self, part: str | int | None) -> MixedStream:
        streams = []
        for stream in self._streams:
            if isinstance(stream, FluentStream):
                stream = stream.encoded(part)
            streams.append(stream)

        return MixedStream(streams, self._rules)

    def __repr__(self) -> str:
        return f"mixture of {len(self._streams)} streams"


def _part() -> Part:
    """Returns the place of this worker. It is not asked for to split anything: that is left to the streams."""
    return current_part()


class MixedIterator:
    """One pass over a mixture.

    Each source has a credit: what it should have got so far, less what it got. Of those that take part, the one with
    the largest credit comes next. So after any sample no source is more than a few samples off its share.
    """

    def __init__(self, streams: Sequence[Any], rules: MixRules, part: Part) -> None:
        self._rules = rules
        self._parts = part.parts
        names: Sequence[str | int] = rules.names or range(len(streams))
        self._sources = [StreamPass(stream, name) for stream, name in zip(streams, names, strict=True)]
        self._credit = [0.0] * len(streams)
        self._takes_part = [True] * len(streams)
        self._counted = 0.0
        self._given = 0
        self._row = 0
        # A state is made behind each batch, and the row changes rarely.
        self._digest_of = functools.lru_cache(maxsize=1)(rules.digest)
        self._asked_at: int | None = None
        self._weights = rules.rows[0][1]
        self._shares: list[float] | None = None
        self._is_over = False
        self._last: StreamPass | None = None
        # A rare source shall not come in all workers of all ranks at the same time.
        self._debts = [0.0] * len(streams)
        if part.number:
            self._debts = uniforms_at(part.number, np.arange(len(streams))).tolist()

    def __iter__(self) -> MixedIterator:
        return self

    def __next__(self) -> Any:
        while not self._is_over:
            shares = self._shares_here()
            number = self._farthest_behind(shares)
            if number is None:
                self._is_over = True
                break

            source = self._sources[number]
            try:
                sample = source.next()
            except StopIteration:
                self._end(number)
                continue

            cost = self._rules.cost(sample)
            credit = self._credit
            if self._given == 0:
                credit = [have - debt * cost for have, debt in zip(credit, self._debts, strict=True)]
            self._credit = [have + share * cost for have, share in zip(credit, shares, strict=True)]
            self._credit[number] -= cost
            self._counted += cost
            self._given += 1
            self._last = source
            return sample

        raise StopIteration

    def _farthest_behind(self, shares: list[float]) -> int | None:
        """Returns the source with the largest credit, of equal ones that with the largest share; None: no share is."""
        wanted = [number for number, share in enumerate(shares) if share > 0]
        return max(wanted, key=lambda number: (self._credit[number], shares[number]), default=None)

    def place_of_last(self, part: str | int | None) -> str:
        """Returns where the last sample comes from. part: a column, if only one is meant."""
        if self._last is None:
            return "a sample"
        return self._last.place_of_last(part)

    def _shares_here(self) -> list[float]:
        """Returns the shares of the sources that take part, with a sum of 1; zeros if there is nothing left."""
        self._renew()
        if self._shares is not None:
            return self._shares

        rows = self._rules.rows
        shares = self._of_those_that_take_part(self._weights)
        while not any(shares) and self._row + 1 < len(rows):
            # All that these weights are for are through: the next ones hold at once.
            self._row += 1
            self._weights = rows[self._row][1]
            shares = self._of_those_that_take_part(self._weights)

        total = sum(shares) or 1.0
        self._shares = [share / total for share in shares]
        return self._shares

    def _of_those_that_take_part(self, weights: Sequence[float]) -> list[float]:
        return [weight if takes_part else 0.0 for weight, takes_part in zip(weights, self._takes_part, strict=True)]

    def _renew(self) -> None:
        """Takes up the weights that hold from here on. Other workers are taken to be as far as this one."""
        rules = self._rules
        count = round(self._counted * self._parts)
        if rules.asked is not None:
            window = max(rules.window // self._parts, 1)
            begin = self._given - self._given % window
            if self._asked_at is None or begin > self._asked_at:
                self._asked_at = begin
                weights = rules.asked.at(count, rules.checked)
                if weights is not None:
                    self._weights = weights
                    self._shares = None
            return

        while self._row + 1 < len(rules.rows) and rules.rows[self._row + 1][0] <= count:
            self._row += 1
            self._weights = rules.rows[self._row][1]
            self._shares = None

    def _end(self, number: int) -> None:
        """Does what is to be done when a source has come to its end."""
        source = self._sources[number]
        if self._rules.when_exhausted == "stop":
            self._is_over = True
        elif self._rules.when_exhausted == "drop" or source.is_at_beginning:
            # A source that has nothing for this worker is never asked again.
            self._takes_part[number] = False
            self._shares = None
        elif not any(self._is_awaited(one) for one in range(len(self._sources))):
            self._is_over = True
        else:
            source.begin_again()

    def _is_awaited(self, number: int) -> bool:
        """Tells whether a source has not ended yet that has a weight, or gets one later."""
        rows = [self._weights, *(row for _, row in self._rules.rows[self._row + 1 :])]
        has_weight = any(row[number] > 0 for row in rows)
        return has_weight and self._takes_part[number] and not self._sources[number].passes

    # -- state ---------------------------------------------------------------------------------------------------------

    def state_dict(self) -> dict[str, Any]:
        """Returns where the sources are, what they have got, and the weights that hold."""
        return {
            "sources": [source.state_dict() for source in self._sources],
            "credit": list(self._credit),
            "takes_part": list(self._takes_part),
            "counted": self._counted,
            "given": self._given,
            "weights": list(self._weights),
            "row": self._row,
            "rows": self._digest_of(self._row),
            "asked_at": self._asked_at,
            "over": self._is_over,
        }

    def load_state_dict(self, state_dict: dict[str, Any]) -> None:
        """Goes on behind what was given, with the weights that held there until the next window."""
        states = state_dict["sources"]
        if len(states) != len(self._sources):
            raise StateError.about(
                "this state belongs to another mixture",
                place="headrace.mix",
                found=f"a state of {len(states)} streams",
                expected=f"a state of {len(self._sources)} streams",
                fix="mix the same streams, in the same order",
            )

        own, theirs = self._rules.digest(state_dict["row"]), state_dict.get("rows")
        if own is not None and theirs is not None and own != theirs:
            raise StateError.about(
                "this state was made with other weights",
                place="headrace.mix",
                found="other weights, or other counts, up to where the state is",
                expected="the weights that held up to there",
                fix="give the weights that the run began with; for others from here on, add them to a schedule, "
                "weights={0: [...], <position>: [...]}",
            )

        for source, state in zip(self._sources, states, strict=True):
            source.load_state_dict(state)

        self._credit = list(state_dict["credit"])
        self._takes_part = list(state_dict["takes_part"])
        self._counted = state_dict["counted"]
        self._given = state_dict["given"]
        self._weights = list(state_dict["weights"])
        self._shares = None
        self._row = state_dict["row"]
        self._asked_at = state_dict["asked_at"]
        self._is_over = state_dict["over"]
