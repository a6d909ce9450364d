"""The sections of docs/benchmarks/figures.md that are made from results: what stands between two markers."""

from __future__ import annotations

import re
import statistics
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Any

from benchmarks.harness.table import OURS, Row, Table, decimals, number

NAMES = {
    "numpy": "NumPy",
    "webdataset": "WebDataset",
    "pillow": "Pillow",
    "opencv-python-headless": "OpenCV",
    "litdata": "LitData",
    "mosaicml-streaming": "Streaming",
}
WIDE = 3
"""So many contenders stand side by side; more of them below each other, unless none is compared with another."""


def section(result: dict[str, Any], picture: str | None) -> str:
    """Returns the Markdown of one result: commands, machine, tables, what was checked, and a picture."""
    tables = [Table.from_json(one) for one in result["tables"]]
    parts = ["```\n" + "\n".join(result["commands"]) + "\n```"]
    if result.get("quick"):
        parts.append("**Small sizes, to try the commands: these figures say nothing.**")
    parts.append(_about(result))
    parts += map(paragraph, tables)
    parts += [checked] if (checked := checks(tables)) else []
    if picture:
        parts.append(f"![How headrace and others compare, drawn]({picture})")
    return "\n\n".join(parts)


def checks(tables: Iterable[Table]) -> str:
    """Returns the sentences that say what was checked."""
    return " ".join(dict.fromkeys(table.checked for table in tables if table.checked))


def _about(result: dict[str, Any]) -> str:
    machine, versions = result["machine"], result["versions"]
    where = f"{machine['cpu']}, {machine['cores']} cores, {machine['memory'] / 1e9:.0f} GB, {machine['system']}"
    return f"{where}; " + ", ".join(f"{NAMES.get(name, name)} {version}" for name, version in versions.items()) + "."


def _words(table: Table) -> str:
    rounds = sorted({len(values) for row in table.rows for values in row.figures.values()})
    several = f"{rounds[0]} to {rounds[-1]}" if rounds and rounds[0] != rounds[-1] else str(rounds[-1] if rounds else 0)
    spread = f", mean (standard deviation) of {several} runs" if rounds and rounds[-1] > 1 else ""
    return f"{table.unit}, {table.better} is better{spread}"


def paragraph(table: Table) -> str:
    """Returns the Markdown of one table, with its title and its notes."""
    parts = [f"**{table.title}**, {_words(table)}:", markdown(table)]
    parts += ["\n".join(f"- {note}" for note in table.notes)] if table.notes else []
    return "\n\n".join(parts)


def markdown(table: Table) -> str:
    """Returns the table with torch or another base beside headrace, and how many times as good headrace is."""
    few = len(table.columns) <= WIDE or not _pairs(table)
    side_by_side = few and any(row.title for row in table.rows)
    cells = list(_wide(table) if side_by_side else _long(table))
    words = sum(1 for name in cells[0] if not name)
    rule = ["---"] * words + ["---:"] * (len(cells[0]) - words)
    return "\n".join("| " + " | ".join(line) + " |" for line in (cells[0], rule, *cells[1:]))


def _pairs(table: Table) -> list[tuple[str, str]]:
    """Returns which contenders are compared, headrace first: above 1, headrace is better."""
    columns = table.columns
    pairs = [(OURS, name) for name in columns if not table.is_ours(name)]
    pairs += [(name, table.base) for name in columns if table.is_ours(name) and name != OURS]
    return [(one, other) for one, other in pairs if {one, other} <= {*columns} and one != other]


def _wide(table: Table) -> Iterator[list[str]]:
    columns, pairs = table.columns, _pairs(table)
    heads = ["ratio"] if len(pairs) == 1 else [f"{one} to {other}" for one, other in pairs]
    yield ["", *columns, *heads]
    for row in table.rows:
        figures = [_figure(row, name) for name in columns]
        yield [row.title, *figures, *(_ratio(table, row, *pair) for pair in pairs)]


def _long(table: Table) -> Iterator[list[str]]:
    several = len(table.rows) > 1
    has_variants = any(table.is_ours(name) and name != OURS for name in table.columns)
    to_base = [f"to {table.base}"] if has_variants else []
    yield ["", *([""] if several else []), table.unit, f"{OURS} to it", *to_base]
    for row in table.rows:
        names = [name for name in table.columns if name in row.figures or name in row.missing]
        for place, name in enumerate(names):
            title = [row.title if place == 0 else ""] if several else []
            is_variant = table.is_ours(name) and name != OURS
            ours = "" if is_variant or name == OURS else _ratio(table, row, OURS, name)
            variant = [_ratio(table, row, name, table.base) if is_variant else ""] if has_variants else []
            yield [*title, name, _figure(row, name), ours, *variant]


def _figure(row: Row, name: str) -> str:
    values = row.figures.get(name)
    if not values:
        return row.missing.get(name, "")
    mean = statistics.mean(values)
    if len(values) == 1:
        return number(mean)
    return f"{number(mean)} ({number(statistics.stdev(values), decimals(mean))})"


def _ratio(table: Table, row: Row, one: str, other: str) -> str:
    ratios = table.ratios(row, one, other)
    return times(statistics.median(ratios)) if ratios else ""


def times(ratio: float) -> str:
    """Returns a ratio as text: 0.97x, 5.27x, 30.8x."""
    return f"{ratio:,.{3 if ratio < 0.1 else 2 if ratio < 10 else 1 if ratio < 100 else 0}f}x"


def names_in(text: str) -> list[str]:
    """Returns the names of the sections that a page has markers for."""
    return re.findall(r"^<!-- begin (\S+) -->$", text, re.MULTILINE)


def replaced(text: str, name: str, inside: str) -> str:
    """Returns the page with this between the markers of a section. Raises `SystemExit` if it has no such markers."""
    begin, end = f"<!-- begin {name} -->\n", f"<!-- end {name} -->\n"
    if text.count(begin) != 1 or text.count(end) != 1 or text.index(begin) > text.index(end):
        raise SystemExit(f"the page needs one line '{begin.strip()}' and after it one line '{end.strip()}'")
    head, rest = text.split(begin)
    return f"{head}{begin}\n{inside.strip()}\n\n{end}{rest.split(end)[1]}"


def put(page: Path, name: str, inside: str) -> None:
    """Writes a section of a page anew."""
    page.write_text(replaced(page.read_text(), name, inside))
