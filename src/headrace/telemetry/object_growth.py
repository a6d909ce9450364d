"""Large lists of Python objects in a dataset, which grow in each worker: found, and told with figures."""

from __future__ import annotations

import sys
from collections.abc import Collection
from itertools import islice

from headrace.core.errors import warn

LARGE = 256 << 20
"""Bytes of Python objects that are worth a warning."""

LOOKED_AT = 1000


def warn_of_objects(dataset: object, workers: int) -> None:
    """Warns if a dataset holds large lists, tuples, sets or dicts of Python objects, as attributes."""
    for name, count, nbytes in large_collections(dataset):
        warn(
            f"{type(dataset).__name__}.{name} holds {count:,} Python objects, some {nbytes / 1e9:.1f} GB. A worker "
            f"that reads them copies them page by page, since reading changes their reference counts: up to "
            f"{nbytes * workers / 1e9:.1f} GB more in {workers} workers. "
            f"`headrace.compact({name})` holds the same in a few arrays, which all workers share."
        )


def large_collections(dataset: object, deep: int = 8) -> list[tuple[str, int, int]]:
    """Returns (attribute, objects, bytes) of the collections of a dataset, or of the one that it wraps."""
    found = []
    for name, value in getattr(dataset, "__dict__", {}).items():
        # At some 50 bytes an object, most collections are too short to be looked into.
        if isinstance(value, (list, tuple, set, frozenset, dict)) and len(value) * 50 > LARGE:
            nbytes = _bytes_of(value)
            if nbytes > LARGE:
                found.append((name, len(value), nbytes))

    # The limit is for datasets that hold themselves.
    inner = getattr(dataset, "dataset", None)
    if found or inner is None or not deep:
        return found
    return large_collections(inner, deep - 1)


def _bytes_of(values: Collection[object]) -> int:
    """Returns what a collection takes, from some of its entries: numbers below 257 and the like are shared."""
    entries = _some_entries(values)
    sizes: dict[int, int] = {}
    parts = 0
    for entry in entries:
        for part in _parts(entry):
            sizes[id(part)] = sys.getsizeof(part)
            parts += 1

    # The same few objects again and again: their pages are copied once.
    if len(sizes) < 0.5 * parts:
        return sys.getsizeof(values)
    return int(sys.getsizeof(values) + sum(sizes.values()) / len(entries) * len(values))


def _some_entries(values: Collection[object]) -> list[object]:
    """Returns about `LOOKED_AT` entries: evenly spread ones where there are indices, otherwise the first ones."""
    if isinstance(values, (list, tuple)):
        return list(values[:: max(len(values) // LOOKED_AT, 1)])
    if isinstance(values, dict):
        return list(islice(values.items(), LOOKED_AT))
    return list(islice(values, LOOKED_AT))


def _parts(entry: object) -> list[object]:
    if isinstance(entry, (tuple, list)):
        return [entry, *entry]
    return [entry]
