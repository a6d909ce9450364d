"""The table at the end of a run."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass

from tests.clients.other_tools.comparison import Outcome
from tests.clients.other_tools.tools import Tool

RESULTS = ("equal", "refused", "told", "fault")


@dataclass(frozen=True)
class Row:
    """What came of the files of one tool."""

    form: str
    writer: str
    values: int
    results: Counter[str]

    @classmethod
    def of(cls, tool: Tool, outcomes: Sequence[Outcome]) -> Row:
        """Counts outcomes: kinds of values by result, and all values together."""
        values = sum(len(outcome.written.values) for outcome in outcomes)
        return cls(tool.form, tool.writer, values, Counter(outcome.result for outcome in outcomes))

    @property
    def kinds(self) -> int:
        """How many kinds of values, each in a file of its own."""
        return self.results.total()


ROWS: list[Row] = []
"""In the order in which the tests ran."""


def lines() -> list[str]:
    """Returns the table as text, with a line for all together."""
    found = [f"{'form':<12} {'writer':<34} {'kinds':>6} {'values':>7} " + " ".join(f"{one:>8}" for one in RESULTS)]
    total = sum((row.results for row in ROWS), Counter[str]())
    for row in [*ROWS, Row("all", "", sum(row.values for row in ROWS), total)]:
        counts = " ".join(f"{row.results[one]:>8}" for one in RESULTS)
        found.append(f"{row.form:<12} {row.writer:<34} {row.kinds:>6} {row.values:>7} {counts}")
    return found
