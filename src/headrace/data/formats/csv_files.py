"""CSV and TSV: one sample a line. The first line names the columns."""

from __future__ import annotations

import csv
import functools
import threading
from collections.abc import Sequence
from pathlib import Path
from typing import Literal

import numpy as np
import pyarrow as pa
import pyarrow.csv

from headrace.core.shortage import check_shortage
from headrace.data.formats.columns.block import Block
from headrace.data.formats.columns.large_integers import check_csv
from headrace.data.formats.columns.schema import Field, Schema
from headrace.data.formats.columns.text_tables import BLOCK, TextFormat, text_at
from headrace.data.formats.guards.limits import COLUMNS


def _parse(delimiter: str, file: str, known: Schema | None) -> pa.Table:
    """Reads a file whose first line names the columns."""
    if known is None:
        types = None
    else:
        types = {}
        for field in known:
            types[field.name] = _csv_type(field)

    if Path(file).stat().st_size == 0:
        raise ValueError("an empty file, without a line of column names")

    # Arrow takes some kilobytes for each column before it looks at the second line: a line of commas would take all.
    with Path(file).open("rb") as stream:
        names = stream.readline(BLOCK).count(delimiter.encode()) + 1

    if names > COLUMNS:
        raise ValueError(f"{names:,} columns, of {COLUMNS:,} at most")

    _check_threads(file)
    read = pyarrow.csv.ReadOptions(block_size=BLOCK, encoding="utf8")
    parse = pyarrow.csv.ParseOptions(delimiter=delimiter, newlines_in_values=True)
    table = pyarrow.csv.read_csv(
        file,
        read_options=read,
        parse_options=parse,
        convert_options=pyarrow.csv.ConvertOptions(column_types=types, strings_can_be_null=False),
    )
    if known is not None and table.column_names != list(known.names):
        raise ValueError(f"columns {table.column_names} instead of {list(known.names)}")
    if len(set(table.column_names)) != table.num_columns:
        raise ValueError(f"a column name comes twice: {table.column_names}")
    if known is None:
        check_csv(file, table, read, parse)
    return table


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
