"""Which of several sources comes next, so that each gets its share at all times: pure numbers.

Positions are cut into blocks of 256. Block b draws one ticket from each of 256 equal strata of [0, 1), all at the same
place within their stratum, in random order; a ticket belongs to the source in whose interval it falls. So in each block
a source comes as often as its share asks for, rounded down or up. Which of the two decides the place within the strata;
it runs through the van der Corput sequence (Niederreiter, "Random number generation and quasi-Monte Carlo methods",
1992, chapter 3), scrambled by the key. So the rounding evens out: after B blocks no source is off its share by more
than 2 + log2(B) * 2/3 samples, and it can be counted, without going through the blocks, how often a source came.
"""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

from headrace.core.randomness.counter_based import words_at

STRATA = 256
BITS = 32
"""How finely a stratum is divided: after 2**32 blocks the places come again."""

ONE = STRATA << BITS
"""Shares are whole numbers that sum up to this: 2**40."""

MASK = (1 << BITS) - 1

Ints = npt.NDArray[np.int64]


def shares_of(weights: npt.NDArray[np.float64]) -> Ints:
    """Returns weights as shares of `ONE`, shape (sources,); a weight of 0 stays 0, one below 2**-40 may become 0."""
    sums = np.cumsum(weights)
    edges = np.ceil(sums / sums[-1] * ONE).astype(np.int64)
    shares: Ints = np.diff(edges, prepend=0)
    return shares


class Quota:
    """The source at every position of an endless sequence, for one key. Holds two words a source."""

    def __init__(self, shares: Ints, key: int) -> None:
        self.shares = shares
        self._edges = np.cumsum(shares)
        self._key = key
        self._scramble = int(words_at(key, np.array([0]))[0]) & MASK

    def at(self, positions: Ints) -> tuple[Ints, Ints]:
        """Returns for each position, shape (n,), the source and how often it came before. Costs whole blocks."""
        blocks, rows = np.unique(positions // STRATA, return_inverse=True)
        sources = self._sources(blocks)
        order = np.argsort(sources, axis=1, kind="stable")
        grouped = np.take_along_axis(sources, order, 1)
        places = np.arange(STRATA)
        # Sorted by source, the places of a source are a run: how often it came before is how far into its run one is.
        starts = np.maximum.accumulate(np.where(np.diff(grouped, prepend=-1, axis=1) > 0, places, 0), axis=1)
        earlier = np.empty(sources.shape, np.int64)
        np.put_along_axis(earlier, order, places - starts, 1)

        columns = positions % STRATA
        found = sources[rows, columns].astype(np.int64)
        return found, self.before_blocks(blocks)[rows, found] + earlier[rows, columns]

    def before(self, position: int) -> Ints:
        """Returns how often each source comes before `position`, shape (sources,). Takes microseconds at any place."""
        block = np.array([position // STRATA])
        started = self._sources(block)[0, : position % STRATA]
        counts: Ints = self.before_blocks(block)[0] + np.bincount(started, minlength=len(self.shares))
        return counts

    def _sources(self, blocks: Ints) -> npt.NDArray[np.int32]:
        """Returns the sources of whole blocks, shape (blocks, STRATA)."""
        strata = np.argsort(words_at(self._key, 1 + blocks[:, None] * STRATA + np.arange(STRATA)), axis=1)
        tickets = (strata << BITS) + self._places(blocks)[:, None]
        return np.searchsorted(self._edges, tickets, side="right").astype(np.int32)

    def _places(self, blocks: Ints) -> Ints:
        """Returns where in their strata the tickets of blocks are, in units of 2**-BITS; shape (blocks,)."""
        return _reversed(blocks & MASK) ^ self._scramble

    def before_blocks(self, blocks: Ints) -> Ints:
        """Returns how often each source comes before blocks, shape (blocks, sources)."""
        whole = self._edges >> BITS
        rest = self._edges & MASK
        counts = blocks[:, None] * whole + (blocks[:, None] >> BITS) * rest
        # The blocks before b are a run of 2**j for each bit j of b. Its places are o, o + step, o + 2 * step, ...
        numbers = blocks & MASK
        backward = _reversed(blocks & MASK)
        for bit in range(int(numbers.max(initial=0)).bit_length()):
            step = 1 << (BITS - bit)
            first = ((backward & (step // 2 - 1)) ^ self._scramble) & (step - 1)
            # How many of them are below `rest`.
            below = (rest - first[:, None] + step - 1) >> (BITS - bit)
            counts += below * ((numbers >> bit) & 1)[:, None]

        return np.diff(counts, prepend=0, axis=1)


def _reversed(numbers: Ints) -> Ints:
    """Returns numbers of `BITS` bits with their bits in reverse order."""
    for width, mask in ((1, 0x55555555), (2, 0x33333333), (4, 0x0F0F0F0F), (8, 0x00FF00FF), (16, 0x0000FFFF)):
        numbers = ((numbers & mask) << width) | ((numbers >> width) & mask)
    return numbers
