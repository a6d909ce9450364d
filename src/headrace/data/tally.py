"""What stored data hold, in figures: some rows are looked at, spread over the data, and counted column by column."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Iterator, Sequence
from typing import Any

import numpy as np

from headrace.core.randomness.counter_based import spread
from headrace.data.formats.columns import Block, Column, Field, Keys, Ragged
from headrace.data.formats.columns.tables import BlockReader
from headrace.data.formats.protocol import Reader

ROWS = 1000
"""Rows over which figures are made, at most."""

BLOCKS = 16
"""Where only whole blocks can be read, so many are at most."""

PORTION = 64 << 20
"""Bytes that are read at a time; figures are made over at most eight times as many."""

VALUES = 20
"""Whole numbers of up to so many different values are counted like classes."""


def looked_at(reader: Reader) -> Keys:
    """Returns up to `ROWS` samples spread over the data; from a few blocks where only whole ones can be read."""
    if not isinstance(reader, BlockReader):
        return spread(len(reader), ROWS)

    blocks = reader.blocks()
    chosen = spread(len(blocks), BLOCKS).tolist()
    if not chosen:
        return np.empty(0, np.int64)

    rows = []
    for number in chosen:
        block = blocks[number]
        rows.append(block.start + spread(len(block), math.ceil(ROWS / len(chosen))))

    return np.concatenate(rows)[:ROWS]


def portions(reader: Reader, names: Sequence[str], keys: Keys, limit: float = math.inf) -> Iterator[Block]:
    """Reads samples some at a time, and fewer of them, equally spread, if they have more bytes than `limit`."""
    size = 1
    if len(keys):
        sample = reader.fetch(keys[:1], names).take(np.zeros(1, np.int64))
        size = max(sample.nbytes, 1)

    if size * len(keys) > limit:
        keys = keys[spread(len(keys), max(int(limit / size), 1))]

    step = max(PORTION // size, 1)
    for start in range(0, len(keys), step):
        yield reader.fetch(keys[start : start + step], names)


class Tally:
    """Figures over the rows of one column that were looked at."""

    def __init__(self, field: Field) -> None:
        self.rows = 0
        self._field = field
        self._least = math.inf
        self._most = -math.inf
        self._sum = 0.0
        self._count = 0
        self._missing = 0
        self._values: Counter[int] | None = None
        if field.kind == "fixed" and not field.shape and field.dtype.kind in "iub":
            self._values = Counter()

    def add(self, column: Column) -> None:
        """Takes further rows into account: the lengths of what has one, the numbers of what is of one size."""
        self.rows += len(column)
        if isinstance(column, Ragged):
            numbers = column.stops - column.starts
        else:
            numbers = column

        flat = np.asarray(numbers).reshape(-1)
        if flat.dtype.kind == "b":
            flat = flat.view(np.uint8)

        if self._values is not None:
            self._values.update(flat.tolist())
            if len(self._values) > VALUES and not self._field.labels:
                self._values = None

        if flat.dtype.kind == "f":
            finite = np.isfinite(flat)
            self._missing += len(flat) - int(finite.sum())
            flat = flat[finite]

        if len(flat):
            self._least = min(self._least, flat.min().item())
            self._most = max(self._most, flat.max().item())
            # A sum beyond the largest float has no mean to show, which `result` says.
            with np.errstate(over="ignore"):
                self._sum += float(flat.sum(dtype=np.float64))
            self._count += len(flat)

    def result(self) -> dict[str, Any]:
        """Returns the figures: `length` or `value`, and `counts`, where there are such."""
        figures: dict[str, Any] = {}
        if self._count:
            mean = self._sum / self._count
            shown_mean: float | None
            if math.isfinite(mean):
                shown_mean = mean
            else:
                shown_mean = None

            figures = {"min": self._least, "mean": shown_mean, "max": self._most}

        if self._field.kind == "fixed":
            what = "value"
        else:
            what = "length"

        result: dict[str, Any] = {what: figures}
        if self._missing:
            result["not_finite"] = self._missing

        if self._values is not None:
            names = self._field.labels
            known = dict.fromkeys(range(len(names)), 0) | dict(sorted(self._values.items()))
            counts = []
            for number, count in known.items():
                label = str(number)
                if 0 <= number < len(names):
                    label = names[number]
                counts.append({"label": label, "count": count})

            result["counts"] = counts

        return result
