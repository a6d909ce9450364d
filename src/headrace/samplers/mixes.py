"""Which source comes at which position, where the weights change on the way, and where sources come to their ends."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import NamedTuple, Self

import numpy as np
import numpy.typing as npt

from headrace.core.changing_weights import WhenExhausted
from headrace.samplers.quota import ONE, STRATA, Ints, Quota, shares_of
from headrace.samplers.sampler import digest_of

FARTHEST = 1 << 61
"""The last position at which an end is looked for."""

WAYS = 16
"""Places that are looked at together."""

OFF = 16
"""How many samples a source is off its share, at most places."""


class Mix(NamedTuple):
    """The weights from one position on, counted over all epochs; and how often each source came before it."""

    quota: Quota
    since: int
    counts: Ints
    ahead: Ints
    """How much more often each source came before `since` than it would have with these weights."""

    @classmethod
    def of(cls, quota: Quota, since: int, counts: Ints) -> Mix:
        """Returns the mix of these weights."""
        return cls(quota, since, counts, counts - quota.before(since))

    def at(self, positions: Ints) -> tuple[Ints, Ints]:
        """Returns for each position the source, and how often it came before."""
        sources, counts = self.quota.at(positions)
        return sources, counts + self.ahead[sources]

    def before(self, position: int) -> Ints:
        """Returns how often each source came before `position`."""
        return self.quota.before(position) + self.ahead

    def before_blocks(self, blocks: Ints) -> Ints:
        """Returns how often each source came before blocks of `STRATA` positions, shape (blocks, sources)."""
        return self.quota.before_blocks(blocks) + self.ahead


class Mixes:
    """Mixes in the order of the positions that they hold from, one at least. The first holds before its own, too."""

    def __init__(self, row: Sequence[Mix]) -> None:
        self.row = tuple(row)
        self._later = np.array([mix.since for mix in self.row[1:]], np.int64)

    @property
    def last(self) -> Mix:
        """The one that holds at the end."""
        return self.row[-1]

    def number_at(self, position: int) -> int:
        """Returns which one holds at a position."""
        return int(np.searchsorted(self._later, position, side="right"))

    def holding(self, position: int) -> Mix:
        """Returns the one that holds at a position."""
        return self.row[self.number_at(position)]

    def at(self, positions: Ints) -> tuple[Ints, Ints]:
        """Returns for each position, shape (n,), the source, and how often it came before."""
        if len(self.row) == 1 or not positions.size:
            return self.row[0].at(positions)

        numbers = np.searchsorted(self._later, positions, side="right")
        first = int(numbers.min())
        if first == numbers.max():
            return self.row[first].at(positions)

        sources = np.empty(positions.shape, np.int64)
        counts = np.empty(positions.shape, np.int64)
        for number in np.unique(numbers).tolist():
            places = np.flatnonzero(numbers == number)
            sources[places], counts[places] = self.row[number].at(positions[places])
        return sources, counts

    def before(self, position: int) -> Ints:
        """Returns how often each source came before `position`."""
        return self.holding(position).before(position)

    def changed(self, quota: Quota, here: int) -> Self:
        """Returns these mixes up to a position, and other weights from there on."""
        if here == 0:
            counts = np.zeros_like(self.row[0].counts)
        else:
            # Weights that held later only were never less than nothing before.
            counts = np.maximum(self.before(here), 0)
        row = [mix for mix in self.row if mix.since < here]
        return type(self)([*row, Mix.of(quota, here, counts)])

    def told_before(self, position: int) -> dict[str, int]:
        """Returns what a state tells of the weights that begin before a position, to know others by.

        Those that hold from the beginning are always among them.
        """
        rows = [np.append(mix.since, mix.quota.shares) for mix in self.row if mix.since < max(position, 1)]
        return {"until": position, "rows": digest_of(np.concatenate(rows))}

    def until(self, position: int) -> Self:
        """Returns those that have begun at a position: at least the first."""
        return type(self)(self.row[: self.number_at(position) + 1])

    def kept(self, epoch: int, window: int) -> Self:
        """Returns those that hold from the beginning of a window on, and the one at the beginning of the epoch."""
        first = self.number_at(epoch)
        begun = self.number_at(window)
        return type(self)([*self.row[first : min(first + 1, begun)], *self.row[begun:]])


class MixPlan(NamedTuple):
    """What turns weights that are known beforehand into mixes."""

    quota: Callable[[Ints], Quota]
    """Makes a sequence of these shares."""
    lengths: Ints
    """Samples of each source."""
    costs: npt.NDArray[np.float64]
    """What a sample of each source counts in a schedule: 1, or its tokens on average."""
    when_exhausted: WhenExhausted

    def of(self, rows: Sequence[tuple[int, Ints]]) -> tuple[Mixes, int | None]:
        """Returns the mixes of a schedule, and where the epoch ends; None: nothing but the caller ends it.

        rows: shares, each with what was counted before they hold.
        """
        mixes: list[Mix] = []
        position = 0
        counts = np.zeros_like(self.lengths)
        is_through = self.lengths == 0
        number = 0
        while True:
            shares = np.where(is_through, 0, rows[number][1])
            while not shares.any():
                # All that these weights are for are through: the next ones hold at once.
                number += 1
                if number == len(rows):
                    return Mixes(mixes), position
                shares = np.where(is_through, 0, rows[number][1])

            mix = Mix.of(self.quota(shares_of(shares.astype(np.float64))), position, counts)
            mixes.append(mix)
            change = None
            if number + 1 < len(rows):
                change = self._reached(mix, rows[number + 1][0])

            end = None
            if self.when_exhausted != "repeat":
                end = self._first_end(mix, change, is_through)
            if end is not None:
                position = end
                counts = mix.before(end)
                is_through = counts >= self.lengths
                if self.when_exhausted == "stop":
                    return Mixes(mixes), position
            elif change is not None:
                number += 1
                position = change
                counts = mix.before(change)
            else:
                return Mixes(mixes), None

    def _reached(self, mix: Mix, count: int) -> int:
        """Returns the position from which a schedule has a row that holds from `count` on."""
        left = count - float(mix.counts @ self.costs)
        per_sample = float(mix.quota.shares / ONE @ self.costs)
        return mix.since + max(int(np.ceil(left / per_sample)), 0)

    def _first_end(self, mix: Mix, change: int | None, is_through: npt.NDArray[np.bool_]) -> int | None:
        """Returns the position behind the last sample of the source that ends first; None: none by `change`."""
        wanted = ~is_through & (mix.quota.shares > 0)
        if change is not None and not (mix.before(change) >= self.lengths)[wanted].any():
            return None

        def ends_before(blocks: Ints) -> npt.NDArray[np.bool_]:
            is_through: npt.NDArray[np.bool_] = mix.before_blocks(blocks)[:, wanted] >= self.lengths[wanted]
            return np.asarray(is_through.any(axis=1))

        # No source is through where block `low` begins, and one is where block `high` begins. Most ends are near where
        # a source would end that comes evenly.
        each = ONE / mix.quota.shares[wanted]
        even = (self.lengths - mix.counts)[wanted] * each
        near = min(float(even.min()), FARTHEST)
        slack = OFF * float(each[np.argmin(even)])
        low = mix.since // STRATA
        high = (mix.since + int(near + slack)) // STRATA + 1
        nearer = (mix.since + int(near - slack)) // STRATA
        if nearer > low and not ends_before(np.array([nearer]))[0]:
            low = nearer
        while not ends_before(np.array([high]))[0]:
            if high * STRATA >= FARTHEST:
                return None
            low, high = high, 2 * high - low + 1

        while high - low > 1:
            blocks = np.unique(low + (high - low) * np.arange(1, WAYS, dtype=object) // WAYS).astype(np.int64)
            blocks = np.array([low, *blocks[blocks > low].tolist(), high])
            first = 1 + int(np.argmax([*ends_before(blocks[1:-1]).tolist(), True]))
            low, high = int(blocks[first - 1]), int(blocks[first])

        positions = np.arange(max(low * STRATA, mix.since), high * STRATA)
        sources, counts = mix.at(positions)
        is_last = wanted[sources] & (counts + 1 >= self.lengths[sources])
        return int(positions[np.argmax(is_last)]) + 1
