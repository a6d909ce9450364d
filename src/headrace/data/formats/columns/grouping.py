"""Keys by the piece that they lie in: each piece is read once, and its samples go back to where they belong."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from headrace.data.formats.columns import Keys


def grouped(keys: Keys, starts: Keys) -> list[tuple[int, Keys, Keys]]:
    """Groups keys by the piece they lie in: (piece, keys within it, their places among `keys`); pieces ascending.

    starts: the first key of each piece, and the end of the last [pieces + 1].
    """
    pieces = np.searchsorted(starts, keys, "right") - 1
    order = np.argsort(pieces, kind="stable")
    ordered = pieces[order]
    edges = np.flatnonzero(np.diff(ordered)) + 1
    groups: list[tuple[int, Keys, Keys]] = []
    # np.split would make one empty group of no keys.
    if len(keys) == 0:
        return groups

    for positions in np.split(order, edges):
        piece = int(pieces[positions[0]])
        groups.append((piece, keys[positions] - starts[piece], positions))

    return groups


def rows_of(groups: Sequence[tuple[int, Keys, Keys]], count: int) -> Keys:
    """Returns, for each of `count` results, its row once the samples of all groups lie one group after the other."""
    rows = np.empty(count, np.int64)
    first = 0
    for _, keys, positions in groups:
        rows[positions] = np.arange(first, first + len(keys))
        first += len(keys)

    return rows
