"""`headrace inspect`: what stored data hold: columns, figures over some rows, rows, and a sheet of pictures."""

from __future__ import annotations

import json
import math
import warnings
from collections.abc import Mapping, Sequence
from io import BytesIO
from pathlib import Path
from typing import Any

import numpy as np
from rich.box import SIMPLE_HEAD
from rich.console import Console
from rich.filesize import decimal
from rich.table import Table
from rich.text import Text

from headrace.core.errors import DatasetError, HeadraceError, UsageError
from headrace.core.text.printable import printable
from headrace.core.text.urls import shown_url
from headrace.data import opening
from headrace.data.contact_sheet import make_sheet
from headrace.data.formats import flat
from headrace.data.formats.columns.schema import Field
from headrace.data.formats.protocol import Reader
from headrace.data.formats.registry import format_named
from headrace.data.formats.sql import tables
from headrace.data.live.schemes import is_log
from headrace.data.tally import PORTION, Tally, looked_at, portions
from headrace.measure.bench.disk import Footprint, footprint_of
from headrace.sources.sql.recognition import is_sql
from headrace.storage.locations import local_path
from headrace.telemetry.formatting import some
from headrace.telemetry.terminal import Terminal

LONGEST = 1000
"""Characters of a text in the JSON output."""

SHOWN = 48
"""Characters of a value in the table of rows."""

WIDE = 8
"""Columns from which on rows are printed from top to bottom."""


def run_inspect(  # noqa: PLR0913 - the options of the command
    uri: str,
    *,
    columns: list[str] | None,
    samples: int,
    format: str | None,
    trust: bool,
    sheet: Path | None,
    json_output: bool,
    dtype: str | None = None,
    options: Mapping[str, object] | None = None,
    rows: Mapping[str, Any] | None = None,
) -> int:
    """Prints what some data hold to standard output, and returns the exit status 0.

    samples: how many of the first rows are printed; sheet: an image file to be made of up to 64 pictures; rows: of a
    database, the query, the table and the key. Raises
    `HeadraceError` if the data cannot be read, or there are no pictures for a sheet.
    """
    if is_log(uri):
        from headrace.cli.inspect_log import run_inspect_log

        return run_inspect_log(uri, samples=samples, json_output=json_output, options=options)

    console = Terminal()
    try:
        if dtype is not None:
            _refuse_beside_dtype({"format": format, "columns": columns, **(rows or {})})
            data = opening.open_tokens(uri, dtype, options=options)
        else:
            data = opening.open(uri, columns, format=format, trust=trust, decode=False, options=options, **(rows or {}))
        about = _about(uri, data.reader, data.schema.names, max(samples, 0), options)
        if sheet is not None:
            about["sheet"] = {"file": str(sheet), "pictures": make_sheet(data.reader, data.schema.names, sheet)}
    except OSError as error:
        # Some of headrace's own errors are OSErrors as well. They say already what is wrong.
        if isinstance(error, HeadraceError):
            raise
        place = error.filename or shown_url(uri)
        fix = "correct the path, or let this user read it"
        found = error.strerror or error
        raise DatasetError.about("cannot read the data", place=place, found=found, fix=fix) from error

    if json_output:
        text = json.dumps(about, indent=2, allow_nan=False)
        console.out(text, highlight=False)
    else:
        _print(console, about)

    return 0


def _refuse_beside_dtype(given: Mapping[str, Any]) -> None:
    """Raises `UsageError` for options that mean nothing for a flat file of numbers."""
    names = [f"--{name}" for name, value in given.items() if value not in (None, flat.NAME)]
    if names:
        found = f"--dtype with {', '.join(names)}"
        fix = "leave --dtype out for other formats"
        raise UsageError.about(
            "wrong options", place="headrace inspect", found=found, expected="--dtype alone", fix=fix
        )


def _title(format: str) -> str:
    """Returns what a form is called; flat files of numbers are known to no list, since nothing in them says so."""
    if format == flat.NAME:
        return "flat file of numbers"
    if format == tables.NAME:
        return tables.TITLE
    return format_named(format).TITLE


def _about(
    uri: str, reader: Reader, names: Sequence[str], samples: int, options: Mapping[str, object] | None
) -> dict[str, Any]:
    """Returns all there is to say, as plain values."""
    size = None
    count = None
    found = Footprint(0, 0, False)
    if not is_sql(uri):
        found = footprint_of(uri, options)
    if found.files:
        size = found.bytes
        count = found.files

    schema = reader.schema.only(names)
    tallies = {field.name: Tally(field) for field in schema}
    for block in portions(reader, names, looked_at(reader), limit=8 * PORTION):
        for name, tally in tallies.items():
            tally.add(block.columns[name])

    rows = []
    for block in portions(reader, names, np.arange(min(samples, len(reader)))):
        for row in block:
            rows.append({field.name: _plain(field, row[field.name]) for field in schema})

    looked_at_rows = 0
    columns = []
    for field in schema:
        tally = tallies[field.name]
        looked_at_rows = max(looked_at_rows, tally.rows)
        columns.append(field.to_json() | {"type": str(field)} | tally.result())

    return {
        "format": reader.format,
        "title": _title(reader.format),
        "place": shown_url(local_path(uri)),
        "samples": len(reader),
        "bytes": size,
        "files": count,
        "manifest": found.has_manifest,
        "looked_at": looked_at_rows,
        "columns": columns,
        "rows": rows,
    }


# -- values ------------------------------------------------------------------------------------------------------------


def _plain(field: Field, value: Any) -> Any:
    """Returns a value as JSON can hold it: long ones shortened."""
    if field.kind == "text":
        return _cut(value, LONGEST)
    if field.kind == "bytes":
        return {"bytes": len(value), "image": kind_of_image(value)}

    if np.ndim(value) == 0:
        # Data may hold numbers for which no label was stored: they are shown as they are.
        number = value.item()
        if field.labels and 0 <= number < len(field.labels):
            return {"value": number, "label": field.labels[number]}
        return _finite(number)

    first = list(map(_finite, value.reshape(-1)[:8].tolist()))
    return {"dtype": value.dtype.name, "shape": list(value.shape), "first": first}


def _finite(number: float) -> float | str:
    """Returns a number as JSON can hold it: infinity and NaN as text."""
    if math.isfinite(number):
        return number
    return str(number)


def kind_of_image(data: bytes) -> str | None:
    """Returns format and size of an encoded image, such as "JPEG 640x480"; None if it is none, or without Pillow."""
    try:
        from PIL import Image
    except ImportError:
        return None

    try:
        with warnings.catch_warnings():
            # Pillow warns of large sizes and odd metadata. Only the header is read here, so neither matters.
            warnings.simplefilter("ignore")
            with Image.open(BytesIO(data)) as image:
                return f"{image.format} {image.width}x{image.height}"
    except (OSError, ValueError, SyntaxError, EOFError, Image.DecompressionBombError):
        return None


def escaped(text: str) -> str:
    r"""Returns a text with what is not printable as \x1b, \n or \u202e, so that it does nothing to a terminal."""
    return printable(text, kept="")


def _shown(value: Any) -> str:
    """Returns a plain value as a cell of a table."""
    if value is None:
        return "-"
    if isinstance(value, str):
        return _cut(escaped(value))
    if isinstance(value, float):
        return f"{value:.6g}"
    if not isinstance(value, dict):
        return str(value)
    if "bytes" in value:
        return value["image"] or f"{value['bytes']:,} bytes"
    if "label" in value:
        return _cut(escaped(f"{value['value']} ({value['label']})"))

    count = math.prod(value["shape"])
    if count <= 8:
        most, rest = 8, ""
    else:
        most, rest = 3, ", ..."

    first = ", ".join(map(_shown, value["first"][:most]))
    shape = "x".join(map(str, value["shape"]))
    return f"[{shape}] {first}{rest}"


def _cut(text: str, length: int = SHOWN) -> str:
    if len(text) <= length:
        return text
    return text[: length - 3] + "..."


# -- printing ----------------------------------------------------------------------------------------------------------


def _print(console: Console, about: dict[str, Any]) -> None:
    if about["bytes"] is None:
        size = "size unknown"
    else:
        size = f"{decimal(about['bytes'])} in {some(about['files'], 'file')}"

    if about["manifest"]:
        manifest = "with a manifest"
    else:
        manifest = "no manifest"

    for line in (
        about["place"],
        f"{about['format']}: {about['title']}, {some(about['samples'], 'sample')}, {size}, {manifest}",
    ):
        console.out(escaped(line), highlight=False)

    console.print(_table_of_columns(about))
    for column in about["columns"]:
        _print_counts(console, column)

    if about["rows"]:
        console.print(_table_of_rows(about["rows"]))
    if "sheet" in about:
        line = f"{about['sheet']['pictures']} pictures in {about['sheet']['file']}"
        console.out(escaped(line), highlight=False)


def _table_of_columns(about: dict[str, Any]) -> Table:
    title = f"Columns; figures over {some(about['looked_at'], 'row')}"
    table = Table("name", "type", "", "min", "mean", "max", title=title, title_justify="left", box=SIMPLE_HEAD)
    for column in about["columns"]:
        # Columns whose entries differ in length have figures of their lengths, and not of what is in them.
        if "length" in column:
            what = "length"
        else:
            what = "value"

        figures = []
        for name in ("min", "mean", "max"):
            if column[what]:
                figures.append(_shown(column[what][name]))
            else:
                figures.append("-")

        _add_row(table, escaped(column["name"]), column["type"], what, *figures)

    return table


def _print_counts(console: Console, column: dict[str, Any]) -> None:
    name = escaped(column["name"])
    if "counts" in column:
        entries = []
        for entry in column["counts"]:
            label = _cut(escaped(entry["label"]), 30)
            entries.append(f"{label}: {entry['count']:,}")

        console.out(f"{name}: {_cut('  '.join(entries), 2000)}", highlight=False)

    if "not_finite" in column:
        line = f"{name}: {column['not_finite']:,} numbers are infinite or not a number"
        console.out(line, highlight=False)


def _table_of_rows(rows: Sequence[dict[str, Any]]) -> Table:
    names = list(map(escaped, rows[0]))
    numbers = list(map(str, range(len(rows))))
    cells = []
    for row in rows:
        cells.append(list(map(_shown, row.values())))

    # A terminal has room for many rows and for few columns.
    heads = names
    sides = numbers
    if len(names) > WIDE:
        heads = numbers
        sides = names
        cells = list(map(list, zip(*cells, strict=True)))

    table = Table(title="Rows", title_justify="left", box=SIMPLE_HEAD)
    for head in ("", *heads):
        table.add_column(Text(head), overflow="fold")

    for side, cells_of_row in zip(sides, cells, strict=True):
        _add_row(table, side, *cells_of_row)

    return table


def _add_row(table: Table, *cells: str) -> None:
    # As `Text`: rich would take [brackets] in the user's data for its markup.
    table.add_row(*map(Text, cells))
