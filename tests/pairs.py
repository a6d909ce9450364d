"""Fewer cases than all combinations, for parameters of which the code of one does not see the other."""

from __future__ import annotations

import itertools
from collections import Counter
from collections.abc import Iterable
from typing import Any


def in_turn(*dimensions: Iterable[Any]) -> list[tuple[Any, ...]]:
    """Returns tuples of one value a dimension, as many as the longest has values; the others begin anew at their end.

    So each value is in one of them. The last tuple has the last value of each dimension, since `make test` runs the
    last case.
    """
    values = [list(dimension) for dimension in dimensions]
    count = max(map(len, values))
    return [tuple(one[-number % len(one)] for one in values) for number in range(count, 0, -1)]


def pairwise(*dimensions: Iterable[Any]) -> list[tuple[Any, ...]]:
    """Returns tuples of one value a dimension: of any two dimensions, each two values are together in one of them.

    So a fault that needs two values is found, in about as many cases as the two longest dimensions have pairs. They
    come in the order of the product. The last one has the last value of each dimension, since `make test` runs the
    last case.
    """
    values = [list(dimension) for dimension in dimensions]
    product = list(itertools.product(*(range(len(one)) for one in values)))[::-1]
    pairs = {row: set(itertools.combinations(enumerate(row), 2)) for row in product}
    found: list[tuple[int, ...]] = []
    counts = Counter(dict.fromkeys(set().union(*pairs.values()), 0))

    def gain(row: tuple[int, ...]) -> tuple[int, int]:
        """How many pairs are new, and of as many: how rare they are so far, so that all values take turns."""
        times = [counts[pair] for pair in pairs[row]]
        return times.count(0), -sum(times)

    while 0 in counts.values():
        best = max(product, key=gain)
        counts.update(pairs[best])
        found.append(best)
    return [tuple(one[place] for one, place in zip(values, row, strict=True)) for row in sorted(found)]
