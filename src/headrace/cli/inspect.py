"""`headrace inspect`: what stored data hold: columns, figures over some rows, rows, and a sheet of pictures."""

from __future__ import annotations

import json
import math
import warnings
from collections import Counter
from collections.abc import Iterator, Sequence
from io import BytesIO
from pathlib import Path
from typing import Any

import numpy as np
from rich.box import SIMPLE_HEAD
from rich.console import Console
from rich.filesize import decimal
from rich.table import Table

from headrace.core.errors import DatasetError, HeadraceError, SampleError, UsageError, explain
from headrace.core.extras import extra
from headrace.core.printable import printable
from headrace.data import stored
from headrace.data.formats import flat
from headrace.data.formats.columns import Array, Block, Column, Keys, Ragged
from headrace.data.formats.manifest import manifest_path
from headrace.data.formats.protocol import Reader
from headrace.data.formats.registry import format_named
from headrace.data.formats.schema import Field
from headrace.data.formats.tables import BlockReader
from headrace.data.images import decode_image, holds_images
from headrace.measure.bench.disk import bytes_of_files, files_at
from headrace.telemetry.formatting import some
from headrace.telemetry.terminal import Terminal

ROWS = 1000
"""Rows over which figures are made, at most."""

BLOCKS = 16
"""Where only whole blocks can be read, so many are at most."""

PORTION = 64 << 20
"""Bytes that are read at a time; figures are made over at most eight times as many."""

VALUES = 20
"""Whole numbers of up to so many different values are counted like classes."""

LONGEST = 1000
"""Characters of a text in the JSON output."""

SHOWN = 48
"""Characters of a value in the table of rows."""

WIDE = 8
"""Columns from which on rows are printed from top to bottom."""

PICTURES, ACROSS, TILE, CAPTION = 64, 8, 128, 16
"""Of a contact sheet: pictures at most, in a row, the side of one and the height of the text below, in pixels."""


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
) -> int:
    """Prints what some data hold to standard output, and returns the exit status 0.

    samples: how many of the first rows are printed; sheet: an image file to be made of up to 64 pictures. Raises
    `HeadraceError` if the data cannot be read, or there are no pictures for a sheet.
    """
    console = Terminal()
    try:
        data = stored.open(uri, columns, format=format, trust=trust, decode=False, dtype=dtype)
        about = _about(uri, data.reader, data.schema.names, max(samples, 0))
        if sheet is not None:
            about["sheet"] = {"file": str(sheet), "pictures": make_sheet(data.reader, data.schema.names, sheet)}
    except OSError as error:
        if isinstance(error, HeadraceError):
            raise
        place = error.filename or uri
        cure = "correct the path, or let this user read it"
        found = error.strerror or error
        raise DatasetError(explain("cannot read the data", place=place, found=found, cure=cure)) from error

    if json_output:
        text = json.dumps(about, indent=2, allow_nan=False)
        console.out(text, highlight=False)
    else:
        _print(console, about)

    return 0


def _title(format: str) -> str:
    """Returns what a form is called; flat files of numbers are known to no list, since nothing in them says so."""
    if format == flat.NAME:
        return "flat file of numbers"
    return format_named(format).TITLE


def _about(uri: str, reader: Reader, names: Sequence[str], samples: int) -> dict[str, Any]:
    """Returns all there is to say, as plain values."""
    files = files_at(uri)
    schema = reader.schema.only(names)
    tallies = {field.name: Tally(field) for field in schema}
    for block in _portions(reader, names, looked_at(reader), limit=8 * PORTION):
        for name, tally in tallies.items():
            tally.add(block.columns[name])

    first = _portions(reader, names, np.arange(min(samples, len(reader))))
    rows = [[_plain(field, row[field.name]) for field in schema] for block in first for row in block]
    return {
        "format": reader.format,
        "title": _title(reader.format),
        "place": uri,
        "samples": len(reader),
        "bytes": bytes_of_files(files) if files else None,
        "files": len(files) if files else None,
        "manifest": manifest_path(Path(uri).expanduser()).is_file(),
        "looked_at": max((tally.rows for tally in tallies.values()), default=0),
        "columns": [field.to_json() | {"type": str(field)} | tallies[field.name].result() for field in schema],
        "rows": [dict(zip(schema.names, row, strict=True)) for row in rows],
    }


def looked_at(reader: Reader) -> Keys:
    """Returns up to `ROWS` samples spread over the data; from a few blocks where only whole ones can be read."""
    if not isinstance(reader, BlockReader):
        return spread(len(reader), ROWS)

    blocks = [reader.blocks()[number] for number in spread(len(reader.blocks()), BLOCKS)]
    rows = [one.start + spread(len(one), math.ceil(ROWS / len(blocks))) for one in blocks]
    if rows:
        return np.concatenate(rows)[:ROWS]
    return np.empty(0, np.int64)


def spread(length: int, count: int) -> Keys:
    """Returns up to `count` whole numbers from 0 to length-1, evenly spread and ascending."""
    if length <= count:
        return np.arange(length)
    return np.linspace(0, length - 1, count).astype(np.int64)


def _portions(reader: Reader, names: Sequence[str], keys: Keys, limit: float = math.inf) -> Iterator[Block]:
    """Reads samples some at a time, and fewer of them, equally spread, if they have more bytes than `limit`."""
    size = 1
    if len(keys):
        one = reader.fetch(keys[:1], names).take(np.zeros(1, np.int64))
        size = max(sum(one.columns[name].nbytes for name in names), 1)

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
            self._least, self._most = min(self._least, flat.min().item()), max(self._most, flat.max().item())
            self._sum += float(flat.sum(dtype=np.float64))
            self._count += len(flat)

    def result(self) -> dict[str, Any]:
        """Returns the figures: `length` or `value`, and `counts`, where there are such."""
        figures: dict[str, Any] = {}
        if self._count:
            mean = self._sum / self._count
            figures = {"min": self._least, "mean": mean if math.isfinite(mean) else None, "max": self._most}

        result: dict[str, Any] = {"value" if self._field.kind == "fixed" else "length": figures}
        if self._missing:
            result["not_finite"] = self._missing

        if self._values is not None:
            names = self._field.labels
            known = dict.fromkeys(range(len(names)), 0) | dict(sorted(self._values.items()))
            labels = {number: names[number] if 0 <= number < len(names) else str(number) for number in known}
            result["counts"] = [{"label": labels[number], "count": count} for number, count in known.items()]

        return result


# -- values ------------------------------------------------------------------------------------------------------------


def _plain(field: Field, value: Any) -> Any:
    """Returns a value as JSON can hold it: long ones shortened."""
    if field.kind == "text":
        return _cut(value, LONGEST)
    if field.kind == "bytes":
        return {"bytes": len(value), "image": kind_of_image(value)}

    if np.ndim(value) == 0:
        number = value.item()
        if field.labels and 0 <= number < len(field.labels):
            name = field.labels[number]
        else:
            name = None

        if math.isfinite(number):
            finite = number
        else:
            finite = str(number)

        if name is None:
            return finite
        return {"value": number, "label": name}

    first = [one if math.isfinite(one) else str(one) for one in value.reshape(-1)[:8].tolist()]
    return {"dtype": value.dtype.name, "shape": list(value.shape), "first": first}


def kind_of_image(data: bytes) -> str | None:
    """Returns format and size of an encoded image, such as "JPEG 640x480"; None if it is none, or without Pillow."""
    try:
        from PIL import Image
    except ImportError:
        return None

    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # of size and of metadata: the header alone is read
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
    first = ", ".join(_shown(one) for one in value["first"][: 8 if count <= 8 else 3])
    shape = "x".join(map(str, value["shape"]))
    return f"[{shape}] {first}{', ...' if count > 8 else ''}"


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

    title = f"Columns; figures over {some(about['looked_at'], 'row')}"
    table = Table("name", "type", "", "min", "mean", "max", title=title, title_justify="left", box=SIMPLE_HEAD)
    for column in about["columns"]:
        if "length" in column:
            what = "length"
        else:
            what = "value"

        figures = [_shown(column[what][one]) if column[what] else "-" for one in ("min", "mean", "max")]
        _add_row(table, escaped(column["name"]), column["type"], what, *figures)

    console.print(table)
    for column in about["columns"]:
        if "counts" in column:
            counts = "  ".join(f"{_cut(escaped(one['label']), 30)}: {one['count']:,}" for one in column["counts"])
            console.out(f"{escaped(column['name'])}: {_cut(counts, 2000)}", highlight=False)

        if "not_finite" in column:
            line = f"{escaped(column['name'])}: {column['not_finite']:,} numbers are infinite or not a number"
            console.out(line, highlight=False)

    if about["rows"]:
        console.print(_table_of_rows(about["rows"]))
    if "sheet" in about:
        line = f"{about['sheet']['pictures']} pictures in {about['sheet']['file']}"
        console.out(escaped(line), highlight=False)


def _table_of_rows(rows: Sequence[dict[str, Any]]) -> Table:
    names = list(rows[0])
    numbers = [str(number) for number in range(len(rows))]
    cells = [[_shown(row[name]) for name in names] for row in rows]
    heads = [escaped(name) for name in names]
    sides = numbers
    if len(names) > WIDE:
        heads, sides, cells = sides, heads, [list(column) for column in zip(*cells, strict=True)]

    table = Table(title="Rows", title_justify="left", box=SIMPLE_HEAD)
    for head in ("", *heads):
        table.add_column(_plain_text(head), overflow="fold")

    for side, row in zip(sides, cells, strict=True):
        _add_row(table, side, *row)

    return table


def _add_row(table: Table, *cells: str) -> None:
    table.add_row(*(_plain_text(cell) for cell in cells))


def _plain_text(text: str) -> Any:
    """Returns a text in which rich looks for no markup."""
    from rich.text import Text

    return Text(text)


# -- the sheet ---------------------------------------------------------------------------------------------------------


def make_sheet(reader: Reader, names: Sequence[str], file: Path) -> int:
    """Writes a PNG of up to 64 pictures, spread over the data, with their labels below; returns how many there are.

    Raises `UsageError` if there are none, `MissingExtraError` without Pillow, `DatasetError` if it cannot be written.
    """
    image_module = extra("PIL.Image", "images")
    draw_module = extra("PIL.ImageDraw", "images")
    schema = reader.schema.only(names)
    field = next((one for one in schema if holds_images(one)), next((one for one in schema if holds_pixels(one)), None))
    if field is None or len(reader) == 0:
        if len(reader):
            found = ", ".join(f"{one.name}: {one}" for one in schema)
        else:
            found = "no samples"

        expected = "a column of encoded images (image, jpg, png ...) or of uint8, H x W, H x W x 3 or 3 x H x W"
        raise UsageError(
            explain("there are no pictures for a sheet", place=reader.place, found=found, expected=expected)
        )

    label = next((one for one in schema if one.labels), schema["label"] if "label" in schema.names else None)
    keys = spread(len(reader), PICTURES)
    across = min(ACROSS, len(keys))
    size = (across * TILE, math.ceil(len(keys) / across) * (TILE + CAPTION))
    sheet = image_module.new("RGB", size, "white")
    pen = draw_module.Draw(sheet)
    for place, key in enumerate(keys.tolist()):
        left = place % across * TILE
        top = place // across * (TILE + CAPTION)
        pixels, caption = _picture(reader, key, field, label)
        if pixels is not None:
            tile = _tile(image_module, pixels)
            sheet.paste(tile, (left + (TILE - tile.width) // 2, top + (TILE - tile.height) // 2))
        pen.text((left + 2, top + TILE + 2), caption, fill="black")

    try:
        sheet.save(file, format="PNG")
    except OSError as error:
        found = error.strerror or str(error)
        message = explain("cannot write the sheet", place=file, found=found, cure="choose another file")
        raise DatasetError(message) from error

    return len(keys)


def _picture(reader: Reader, key: int, field: Field, label: Field | None) -> tuple[Array | None, str]:
    """Returns a picture, None if it cannot be decoded, and what stands below it."""
    if label is None:
        wanted = [field.name]
    else:
        wanted = [field.name, label.name]

    row = reader.fetch(np.array([key]), wanted).row(0)
    if label is None:
        plain: Any = key
    else:
        plain = _plain(label, row[label.name])

    if isinstance(plain, dict):
        caption = plain.get("label", "")
    else:
        caption = str(plain)

    text = escaped(caption).encode("ascii", "replace").decode()  # what every font has
    try:
        return _pixels(field, row[field.name], f"{reader.place}, sample {key}"), _cut(text, TILE // 6 - 1)
    except SampleError:
        return None, "(cannot be decoded)"


def holds_pixels(field: Field) -> bool:
    """Tells whether a column holds pictures as they are: uint8, H x W, H x W x 1, H x W x 3 or 3 x H x W."""
    if field.kind != "fixed" or field.dtype != np.uint8 or min(field.shape, default=0) < 1:
        return False
    return len(field.shape) == 2 or (len(field.shape) == 3 and (field.shape[2] in (1, 3) or field.shape[0] == 3))


def _pixels(field: Field, value: Any, place: str) -> Array:
    """Returns uint8 [height, width] or [height, width, 3]."""
    if isinstance(value, bytes):
        return decode_image(value, place)
    if value.ndim == 3 and value.shape[2] not in (1, 3):
        value = value.transpose(1, 2, 0)

    if value.ndim == 3 and value.shape[2] == 1:
        pixels: Array = value[:, :, 0]
    else:
        pixels = value

    return pixels


def _tile(image_module: Any, pixels: Array) -> Any:
    """Returns a picture that fits: large ones reduced, small ones with their pixels as squares."""
    picture = image_module.fromarray(np.ascontiguousarray(pixels))
    factor = (TILE - 4) // max(picture.size)
    if factor > 1:
        return picture.resize((picture.width * factor, picture.height * factor), image_module.Resampling.NEAREST)

    picture.thumbnail((TILE - 4, TILE - 4))
    return picture
