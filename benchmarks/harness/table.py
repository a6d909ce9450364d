"""What a benchmark measured, as data: kept as JSON, and made into text and pictures.

rows = [Row("2 workers", {"torch": [810.0, 813.0], "headrace": [1256.0, 1235.0]})]
Table("photographs, batches of 64", "images/s", rows, "Every batch was compared with its source.")
"""

from __future__ import annotations

import statistics
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any, Literal

OURS = "headrace"


@dataclass
class Row:
    """One line: what was measured of each contender in this setting.

    figures: by contender, the single values, one for each round, in the order of the rounds. missing: why there are
    none of some.
    """

    title: str
    figures: dict[str, list[float]]
    missing: dict[str, str] = field(default_factory=dict)


@dataclass
class Table:
    """A comparison in one unit. Ratios are those of `headrace` to the others; pictures show them to `base`."""

    title: str
    unit: str
    rows: list[Row]
    checked: str
    """What was compared with what, so that the figures are those of a loader that delivers the right data."""
    better: Literal["more", "less"] = "more"
    base: str = "torch"
    notes: list[str] = field(default_factory=list)
    """Sentences with figures that are no comparison."""

    @property
    def columns(self) -> list[str]:
        """The contenders: the base, headrace, and the others as they come."""
        names = dict.fromkeys(name for row in self.rows for name in (*row.figures, *row.missing))
        first = [name for name in (self.base, OURS) if name in names]
        return [*dict.fromkeys(first), *(name for name in names if name not in first)]

    def is_ours(self, name: str) -> bool:
        """Whether a contender is headrace, set up in some way."""
        return name.split(",")[0] == OURS and name != self.base

    def ratios(self, row: Row, one: str, other: str) -> list[float]:
        """Returns how many times as good `one` is as `other`: of each round, or of the medians where rounds differ."""
        ours, theirs = row.figures.get(one, []), row.figures.get(other, [])
        if not ours or not theirs:
            return []
        if len(ours) != len(theirs):
            ours, theirs = [statistics.median(ours)], [statistics.median(theirs)]
        pairs = zip(ours, theirs, strict=True)
        return [a / b if self.better == "more" else b / a for a, b in pairs if a > 0 and b > 0]

    def as_json(self) -> dict[str, Any]:
        """Returns it as JSON knows it, with the mean, the standard deviation and the median of all values."""
        rows = [
            {
                "title": row.title,
                "figures": {name: summary(values) for name, values in row.figures.items()},
                "missing": row.missing,
            }
            for row in self.rows
        ]
        words = {name: getattr(self, name) for name in ("title", "unit", "better", "base", "columns")}
        return {**words, "rows": rows, "checked": self.checked, "notes": self.notes}

    @classmethod
    def from_json(cls, given: dict[str, Any]) -> Table:
        """Returns the table that `as_json` returned."""
        rows = [
            Row(row["title"], {name: one["values"] for name, one in row["figures"].items()}, row["missing"])
            for row in given["rows"]
        ]
        words = {name: given[name] for name in ("title", "unit", "checked", "better", "base", "notes")}
        return cls(**words, rows=rows)


def summary(values: Sequence[float]) -> dict[str, Any]:
    """Returns the mean, the standard deviation, the median, and the values."""
    spread = statistics.stdev(values) if len(values) > 1 else 0.0
    return {
        "mean": statistics.mean(values),
        "std": spread,
        "median": statistics.median(values),
        "values": list(values),
    }


def decimals(value: float) -> int:
    """Returns how many decimals a figure deserves: three digits, none beyond a hundred."""
    size = abs(value)
    return 0 if size >= 100 else 1 if size >= 10 else 2 if size >= 0.1 or size == 0 else 4


def number(value: float, places: int | None = None) -> str:
    """Returns a figure with that many decimals."""
    return f"{value:,.{decimals(value) if places is None else places}f}"
