"""Spans: finite ranges of a log that never ends. Within a span everything is as in a map-style dataset.

A span takes one range of positions from each partition of a log. Its records are numbered: partition by partition, in
each by position. Those numbers are its rows; the order of training is a permutation of them.
"""

from __future__ import annotations

import functools
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, NamedTuple, Protocol

import numpy as np
import numpy.typing as npt

Rows = npt.NDArray[np.int64]


class NothingYetError(Exception):
    """What comes next is not there yet: ask again later. Never reaches a user."""


class Range(NamedTuple):
    """A range of positions of a partition, which may be empty: `start` <= position < `stop`."""

    partition: int
    start: int
    stop: int


@dataclass(frozen=True)
class Span:
    """One span. `number` counts spans of an epoch from 0 on, `first` the samples before it."""

    number: int
    first: int
    """The place of its first sample among all samples of the epoch."""
    count: int
    """How many samples it has. Ranges may have gaps, so that it is not their length."""
    ranges: tuple[Range, ...]
    """One for each partition, also for those of which it has nothing: the next span goes on behind them."""
    schema: str = ""
    """What samples look like, of sources that say it; the same for all spans."""
    lost: bool = False
    """Whether records of it are gone that were there before, so that its samples are passed over."""

    @property
    def stop(self) -> int:
        """The place behind its last sample."""
        return self.first + self.count

    def following(self) -> dict[int, int]:
        """Returns for each partition where the next span begins."""
        return {part.partition: part.stop for part in self.ranges}

    def to_state(self) -> dict[str, Any]:
        """Returns it as plain values."""
        ranges = [list(part) for part in self.ranges]
        counts = {"number": self.number, "first": self.first, "count": self.count}
        return {**counts, "ranges": ranges, "schema": self.schema}

    @staticmethod
    def of_state(state: dict[str, Any]) -> Span:
        """Returns the span that `to_state` has described. Raises `KeyError`, `TypeError`, `ValueError` for others."""
        ranges = tuple(Range(*map(int, part)) for part in state["ranges"])
        return Span(int(state["number"]), int(state["first"]), int(state["count"]), ranges, str(state["schema"]))


@dataclass(frozen=True, repr=False)
class SpanKey:
    """The key of one sample of a log: its span, and its row in it. `feed` says where the span can be had."""

    feed: Any
    span: Span
    row: int

    def __repr__(self) -> str:
        return f"span {self.span.number}, row {self.row}"


@dataclass(frozen=True)
class SpanKeys:
    """The keys of a batch: rows of one span, or of several that follow each other."""

    feed: Any
    """Where the spans can be had; the same for all of an epoch."""
    parts: tuple[tuple[Span, Rows], ...]
    """Rows int64 [n] of each span, in the order of the batch."""
    length: int = field(init=False)

    def __post_init__(self) -> None:
        object.__setattr__(self, "length", sum(len(rows) for _, rows in self.parts))

    def __len__(self) -> int:
        return self.length

    def __iter__(self) -> Iterator[SpanKey]:
        for span, rows in self.parts:
            for row in rows.tolist():
                yield SpanKey(self.feed, span, row)

    def tolist(self) -> list[SpanKey]:
        """Returns the keys of the samples."""
        return list(self)

    @staticmethod
    def of(keys: Sequence[SpanKey]) -> SpanKeys:
        """Returns the keys of a batch from those of its samples, at least one."""
        parts: list[tuple[Span, Rows]] = []
        rows: list[int] = []
        for place, key in enumerate(keys):
            rows.append(key.row)
            is_last_of_span = place + 1 == len(keys) or keys[place + 1].span != key.span
            if is_last_of_span:
                parts.append((key.span, np.array(rows, np.int64)))
                rows = []

        return SpanKeys(keys[0].feed, tuple(parts))


@dataclass(frozen=True)
class Beginning:
    """Where an epoch begins or goes on."""

    identity: dict[str, str] = field(default_factory=dict)
    """Of the log in which it began; empty: it begins now."""
    begin: dict[int, int] | None = None
    """The first position of the epoch in each partition; None: where the source is to begin."""
    end: dict[int, int] | None = None
    """The position behind the last one of the epoch; None: there is none, or it is to be looked up."""
    spans: tuple[Span, ...] = ()
    """Spans that were closed before and are needed again."""
    after: Span | None = None
    """The span behind which it goes on, if all of that was delivered; None: there is none, or `spans` say it."""

    @property
    def known(self) -> tuple[Span, ...]:
        """The spans that say where the log goes on."""
        if self.spans or self.after is None:
            return self.spans
        return (self.after,)

    def from_position(self, position: int) -> Beginning:
        """Returns the same without the spans that are over at a place among all samples."""
        over = [span for span in self.spans if span.stop <= position]
        after = self.after
        if over:
            after = over[-1]
        return replace(self, spans=self.spans[len(over) :], after=after)


class SpanSupply(Protocol):
    """Gives the spans of one epoch, one after the other. Belongs to the thread that iterates."""

    feed: Any
    """Says where the spans can be had."""
    beginning: Beginning
    """Where the epoch began, as far as it is known yet."""

    def next_span(self) -> Span | None:
        """Returns the next span; None at the end. Raises `NothingYetError`, and what is wrong with the source."""

    def wait(self, timeout: float | None) -> None:
        """Waits until there may be a span, at most so many seconds; None: as long as it takes."""

    def fileno(self) -> int:
        """Returns a descriptor that can be read from when there may be a span; -1: there is none."""

    def passed(self, number: int) -> None:
        """Says that the spans before this one are not needed any more."""

    def reads(self) -> Any:
        """Returns what was read so far: `telemetry.live_reads.LiveReads`."""

    def close(self) -> None:
        """Ends it."""


@functools.lru_cache(maxsize=4)
def everything(count: int) -> Rows:
    """Returns 0 .. count-1, which nobody may change."""
    rows = np.arange(count, dtype=np.int64)
    rows.flags.writeable = False
    return rows
