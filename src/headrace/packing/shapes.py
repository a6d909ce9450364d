"""Chooses few lengths to pad to: those that pad least, exactly, from how many rows there are of each length."""

from __future__ import annotations

from typing import Any

import numpy as np
import numpy.typing as npt

Numbers = npt.NDArray[np.int64]

LONGEST = 1 << 24
"""The longest row of which lengths are chosen: there is a number for each length."""

AT_ONCE = 1 << 20
"""Lengths that are counted at a time: `bincount` makes a copy of 8 bytes for each."""


def counts_of(lengths: npt.NDArray[Any], most: int) -> Numbers:
    """Returns how many there are of each length up to `most`, shape (longest + 1,). lengths: not negative."""
    counts = np.zeros(1, np.int64)
    for begin in range(0, len(lengths), AT_ONCE):
        some = lengths[begin : begin + AT_ONCE]
        if some.max() > most:
            some = some[some <= most]
        some = np.bincount(some)
        if len(some) > len(counts):
            counts, some = some, counts
        counts[: len(some)] += some
    return counts


def best_lengths(counts: Numbers, most: int) -> list[int]:
    """Returns at most `most` lengths, ascending, so that rows which are padded to the next of them take the least.

    The longest row is one of them. counts: as `counts_of` returns them.

    A dynamic program: the rows up to length x take the least of `before(y) + x * (rows longer than y, up to x)` over
    all y < x. As functions of x these are lines, whose slopes fall with y, so each step keeps the lower hull of the
    lines (the "convex hull trick") and all of it takes `most` times the number of different lengths.
    """
    lengths = np.flatnonzero(counts).tolist()
    if not lengths:
        return []
    rows = np.cumsum(counts[lengths]).tolist()

    # Of rows up to each length, with one more shape at each step: what they take, and the shape before the last one.
    takes = [length * many for length, many in zip(lengths, rows, strict=True)]
    steps: list[list[int]] = [[-1] * len(lengths)]
    while len(steps) < min(most, len(lengths)):
        takes, before = _with_one_more(lengths, rows, takes)
        steps.append(before)

    chosen = []
    at = len(lengths) - 1
    for before in reversed(steps):
        if at >= 0:
            chosen.append(lengths[at])
            at = before[at]
    return chosen[::-1]


def _with_one_more(lengths: list[int], rows: list[int], takes: list[int]) -> tuple[list[int], list[int]]:
    """Returns what rows up to each length take with one more shape, and the number of the shape before the last."""
    best = [takes[0]]
    before = [-1]
    # The hull: numbers of lengths, each the best one before x from some x on.
    hull: list[int] = []
    front = 0
    for number in range(1, len(lengths)):
        new = number - 1
        while len(hull) - front > 1 and not _is_needed(hull[-2], hull[-1], new, rows, takes):
            hull.pop()
        hull.append(new)

        x = lengths[number]
        while len(hull) - front > 1 and _at(hull[front + 1], x, rows, takes) <= _at(hull[front], x, rows, takes):
            front += 1
        best.append(_at(hull[front], x, rows, takes) + x * rows[number])
        before.append(hull[front])
    return best, before


def _at(number: int, x: int, rows: list[int], takes: list[int]) -> int:
    return takes[number] - x * rows[number]


def _is_needed(first: int, middle: int, last: int, rows: list[int], takes: list[int]) -> bool:
    """Tells whether the line in the middle is anywhere below the others. All numbers are whole: nothing is rounded."""
    left = (takes[middle] - takes[first]) * (rows[last] - rows[middle])
    right = (takes[last] - takes[middle]) * (rows[middle] - rows[first])
    return left < right
