"""Large lists of Python objects in a dataset, which grow in each worker: found, and told with figures."""

from __future__ import annotations

import sys
import warnings
from itertools import islice
from typing import Any

LARGE = 256 << 20
"""Bytes of Python objects that are worth a warning."""

LOOKED_AT = 1000


def warn_of_objects(dataset: Any, workers: int) -> None:
    """Warns if a dataset holds large lists, tuples, sets or dicts of Python objects, as attributes."""
    for name, count, nbytes in large_collections(dataset):
        warnings.warn(
            f"{type(dataset).__name__}.{name} holds {count:,} Python objects, some {nbytes / 1e9:.1f} GB. A worker "
            f"that reads them copies them page by page, since reading changes their reference counts: up to "
            f"{nbytes * workers / 1e9:.1f} GB more in {workers} workers. "
            f"`headrace.compact({name})` holds the same in a few arrays, which all workers share.",
            stacklevel=2,
        )


def large_collections(dataset: Any, deep: int = 8) -> list[tuple[str, int, int]]:
    """Returns (attribute, objects, bytes) of the collections of a dataset, or of the one that it wraps."""
    found = []
    for name, value in getattr(dataset, "__dict__", {}).items():
        if isinstance(value, (list, tuple, set, frozenset, dict)) and len(value) * 50 > LARGE:
            nbytes = _bytes_of(value)
            if nbytes > LARGE:
                found.append((name, len(value), nbytes))

    inner = getattr(dataset, "dataset", None)
    return found or (large_collections(inner, deep - 1) if inner is not None and deep else [])


def _bytes_of(values: Any) -> int:
    """Returns what a collection takes, from some of its entries: numbers below 257 and the like are shared."""
    looked_at = list(islice(values.items() if isinstance(values, dict) else values, LOOKED_AT))
    if isinstance(values, (list, tuple)):
        looked_at = list(values[:: max(len(values) // LOOKED_AT, 1)])

    distinct = {id(part): sys.getsizeof(part) for one in looked_at for part in _parts(one)}
    share = len(distinct) / max(sum(1 for one in looked_at for _ in _parts(one)), 1)
    if share < 0.5:  # the same few objects again and again: pages that are copied once
        return sys.getsizeof(values)
    return int(sys.getsizeof(values) + sum(distinct.values()) / len(looked_at) * len(values))


def _parts(value: Any) -> list[Any]:
    if isinstance(value, (tuple, list)):
        return [value, *value]
    return [value]
