"""CSV and TSV: one sample a line. The first line names the columns."""

from __future__ import annotations

import csv
import functools
import logging
import re
import threading
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Literal

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.csv

from headrace.core.errors import FormatError
from headrace.core.process.shortage import check_shortage
from headrace.data.formats.arrow.exact_numbers import is_time
from headrace.data.formats.columns.block import Block
from headrace.data.formats.columns.large_integers import check_csv
from headrace.data.formats.columns.schema import Field, Schema
from headrace.data.formats.columns.text_tables import BLOCK, WIDE_MARKS, TextFormat, text_at, with_names
from headrace.data.formats.guards.limits import COLUMNS

LOGGER = logging.getLogger("headrace")

OTHERS = ";\t|"
"""What stands between the columns of some files that are named `.csv`."""

HINT = re.compile(rb"sep=(.)\r?\n?")
"""A first line by which Excel is told what stands between columns."""

HEXADECIMAL = re.compile(rb"0[xX][0-9a-fA-F]")

TRUE = ["true", "True", "TRUE"]
FALSE = ["false", "False", "FALSE"]


def _parse(delimiter: str, file: str, known: Schema | None) -> pa.Table:
    """Reads a file whose first line names the columns."""
    skipped, delimiter = _beginning(file, delimiter, guess=known is None)
    _check_threads(file)
    read = pyarrow.csv.ReadOptions(block_size=BLOCK, encoding="utf8", skip_rows=skipped)
    parse = pyarrow.csv.ParseOptions(delimiter=delimiter, newlines_in_values=True)
    if known is not None:
        table = _read(file, read, parse, {field.name: _csv_type(field) for field in known})
        if table.column_names != list(known.names):
            raise ValueError(f"columns {table.column_names} instead of {list(known.names)}")
        return table

    table = _read(file, read, parse, {})
    if len(set(table.column_names)) != table.num_columns:
        raise ValueError(f"a column name comes twice: {table.column_names}")

    # Arrow makes a number of what looks like a time, in a unit that depends on the other rows.
    texts = [field.name for field in table.schema if is_time(field.type)]
    # It makes numbers of 0x10, too.
    whole = [field.name for field in table.schema if pa.types.is_integer(field.type)]
    if whole and _holds_hexadecimal(file):
        texts += whole
    if texts:
        as_text = _read(file, read, parse, dict.fromkeys(texts, pa.string()))
        kept = [name for name in texts if _is_text(table, as_text, name)]
        if len(kept) == len(texts):
            table = as_text
        elif kept:
            table = _read(file, read, parse, dict.fromkeys(kept, pa.string()))

    for field in table.schema:
        if pa.types.is_binary(field.type):
            raise _no_utf8(f"{file}, column {field.name!r}", f"bytes such as {_not_utf8(table.column(field.name))!r}")

    check_csv(file, table, read, parse)
    return table.rename_columns(with_names(table.column_names))


def _beginning(file: str, delimiter: str, *, guess: bool) -> tuple[int, str]:
    """Returns how many lines stand before the names of the columns, and what stands between these.

    guess: whether that may be another character than `delimiter`. Raises `ValueError` and `FormatError`.
    """
    if Path(file).stat().st_size == 0:
        raise ValueError("an empty file, without a line of column names")

    with Path(file).open("rb") as stream:
        head = stream.readline(BLOCK)
        hint = HINT.fullmatch(head)
        if hint is not None:
            head = stream.readline(BLOCK)

    if head.startswith(WIDE_MARKS) or b"\0" in head:
        raise _no_utf8(file, "text in UTF-16")
    if hint is not None:
        delimiter = hint[1].decode("latin-1")
    elif guess:
        delimiter = _delimiter_of(head, delimiter, file)

    # Arrow takes some kilobytes for each column before it looks at the second line: a line of commas would take all.
    names = head.count(delimiter.encode()) + 1
    if names > COLUMNS:
        raise ValueError(f"{names:,} columns, of {COLUMNS:,} at most")
    return int(hint is not None), delimiter


def _read(
    file: str,
    read: pyarrow.csv.ReadOptions,
    parse: pyarrow.csv.ParseOptions,
    types: Mapping[str, pa.DataType],
) -> pa.Table:
    convert = pyarrow.csv.ConvertOptions(
        column_types=dict(types), strings_can_be_null=False, true_values=TRUE, false_values=FALSE
    )
    return pyarrow.csv.read_csv(file, read_options=read, parse_options=parse, convert_options=convert)


def _holds_hexadecimal(file: str) -> bool:
    """Tells whether a number such as 0x10 may stand in a file."""
    with Path(file).open("rb") as stream:
        while chunk := stream.read(BLOCK):
            # To look for a single letter takes no time to speak of.
            if (b"x" in chunk or b"X" in chunk) and HEXADECIMAL.search(chunk):
                return True

    return False


def _is_text(table: pa.Table, as_text: pa.Table, name: str) -> bool:
    """Tells whether a column that Arrow takes for times or numbers is text."""
    if is_time(table.schema.field(name).type):
        return True
    return bool(pc.any(pc.match_substring_regex(as_text.column(name), "(?i)0x")).as_py())


def _delimiter_of(head: bytes, delimiter: str, file: str) -> str:
    """Returns what stands between columns: another character, which the log tells, if the usual one never does."""
    if delimiter.encode() in head:
        return delimiter

    counts = {other: head.count(other.encode()) for other in OTHERS if other != delimiter}
    found = max(counts, key=counts.__getitem__)
    if counts[found] == 0:
        return delimiter

    told = "%s: its first line has no %r; columns are separated by %r. A number with a comma in it is read as text."
    LOGGER.warning(told, file, delimiter, found)
    return found


def _not_utf8(column: pa.ChunkedArray) -> bytes:
    """Returns the first value of a column that is no UTF-8."""
    for value in column.to_pylist():
        try:
            value.decode()
        except UnicodeDecodeError:
            return bytes(value[:60])

    return b""


def _no_utf8(place: str, found: str) -> FormatError:
    fix = "write it in UTF-8, as by iconv -f LATIN1 -t UTF-8; or read it with pandas and its encoding="
    return FormatError.about("this text is in another encoding", place=place, found=found, expected="UTF-8", fix=fix)


def _check_threads(file: str) -> None:
    """Raises `MachineError` where no thread can be started: Arrow's reader of CSV would end the process there."""
    try:
        probe = threading.Thread(target=int)
        probe.start()
    except RuntimeError as error:
        check_shortage(error, file, "reading this text table")
        raise

    probe.join()


def _csv_type(field: Field) -> pa.DataType:
    if field.kind == "text":
        return pa.large_string()
    if field.dtype == np.float16:
        return pa.float32()
    return pa.from_numpy_dtype(field.dtype)


class CsvFile:
    """A growing file of delimited text."""

    def __init__(self, delimiter: str, path: Path, schema: Schema) -> None:
        self._schema = schema
        self.length = 0
        self._file = path.open("w", encoding="utf-8", newline="")
        self._delimiter = delimiter
        self._write([list(schema.names)])

    def append(self, block: Block) -> None:
        """Adds samples at the end."""
        columns = []
        for field in self._schema:
            columns.append(_cells(field, block))

        self._write(list(zip(*columns, strict=True)))
        self.length += len(block)

    def _write(self, rows: Sequence[Sequence[str]]) -> None:
        # A lone carriage return ends a line for those who read, but before Python 3.13 the writer does not quote a cell
        # for it. Other blocks stay as they are, so that files without such text are the same bytes as ever.
        quoting: Literal[0, 1] = csv.QUOTE_MINIMAL
        for row in rows:
            if any("\r" in cell for cell in row):
                quoting = csv.QUOTE_ALL
                break

        writer = csv.writer(self._file, delimiter=self._delimiter, lineterminator="\n", quoting=quoting)
        writer.writerows(rows)

    def close(self) -> None:
        """Completes the file."""
        self._file.close()


def _cells(field: Field, block: Block) -> list[str]:
    """Returns the texts of one column, a cell for each sample. Raises `FormatError` for text that is no UTF-8."""
    if field.kind == "text":
        texts = []
        for index in range(len(block)):
            texts.append(text_at(field, block, index))
        return texts

    numbers = np.asarray(block.columns[field.name])
    if numbers.dtype.kind == "b":
        words: list[str] = np.where(numbers, "true", "false").tolist()
        return words

    # `str` of a NumPy scalar writes the fewest digits that give the same number of that type again; `tolist` first
    # would widen float32 and float16, and write digits that they do not have.
    return list(map(str, numbers))


def _refusal(field: Field) -> str | None:
    """Returns why delimited text cannot hold a field."""
    if field.kind == "text":
        return None
    if field.kind == "fixed" and not field.shape:
        return None
    return "delimited text holds one number or string a cell"


def _delimited(name: str, title: str, delimiter: str) -> TextFormat:
    parse = functools.partial(_parse, delimiter)
    write = functools.partial(CsvFile, delimiter)
    return TextFormat(name, title, (f".{name}",), parse, write, _refusal)


CSV = _delimited("csv", "CSV text", ",")
TSV = _delimited("tsv", "TSV text", "\t")
