"""Whole numbers of text that 64 bits cannot hold: Arrow would make floating point of them without a word."""

from __future__ import annotations

import json
import re
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.csv

from headrace.core.errors import FormatError

LIMIT = 2.0**63
WHOLE = re.compile(r"\s*[+-]?\d+\s*")


def suspects(table: pa.Table) -> list[str]:
    """Returns the columns of floating point with numbers so large that they may have been whole ones: quick."""
    suspects = []
    for name in table.column_names:
        if _is_suspect(table.column(name)):
            suspects.append(name)

    return suspects


def _is_suspect(column: pa.ChunkedArray) -> bool:
    for chunk in column.chunks:
        leaf = chunk
        while pa.types.is_list(leaf.type):
            leaf = leaf.flatten()
        if not pa.types.is_float64(leaf.type):
            return False

        values = np.asarray(leaf.drop_null())
        if ((np.abs(values) >= LIMIT) & np.isfinite(values)).any():
            return True

    return False


def check_csv(file: str, table: pa.Table, read: pyarrow.csv.ReadOptions, parse: pyarrow.csv.ParseOptions) -> None:
    """Raises `FormatError` if a column of whole numbers became floating point. read, parse: Arrow's options."""
    for name in suspects(table):
        # The file is read once more, for this column alone: a float no longer says which digits it was made of.
        options = pyarrow.csv.ConvertOptions(
            include_columns=[name], column_types={name: pa.large_string()}, strings_can_be_null=False
        )
        texts = pyarrow.csv.read_csv(file, read_options=read, parse_options=parse, convert_options=options).column(0)
        too_large = _first_too_large(pc.fill_null(texts, "").to_pylist())
        if too_large is not None:
            row, text = too_large
            raise _too_large(file, name, row, text)


def _first_too_large(texts: Iterable[str]) -> tuple[int, str] | None:
    """Returns row and text of the first number that 64 bits cannot hold; None if a text is no whole number."""
    numbers = []
    for row, text in enumerate(texts):
        digits = text.strip()
        if not digits:
            continue
        # One fraction in a column makes it floating point, and then nobody counts on all digits.
        if not WHOLE.fullmatch(digits):
            return None
        numbers.append((row, digits))

    for row, digits in numbers:
        if not _fits(int(digits)):
            return row, digits

    return None


def check_json(file: str, table: pa.Table) -> None:
    """Raises `FormatError` if a column of whole numbers became floating point."""
    names = suspects(table)
    if not names:
        return

    found: dict[str, tuple[int, int]] = {}
    fractional = set()
    for row, sample in enumerate(_rows(file)):
        for name in names:
            for value in _leaves(sample.get(name)):
                if isinstance(value, float):
                    fractional.add(name)
                elif not _fits(value):
                    found.setdefault(name, (row, value))

    for name in names:
        if name in found and name not in fractional:
            row, value = found[name]
            raise _too_large(file, name, row, str(value))


def _rows(file: str) -> Iterator[dict[str, Any]]:
    with Path(file).open(encoding="utf-8") as lines:
        for line in lines:
            if line.strip():
                yield json.loads(line)


def _leaves(value: object) -> Iterator[int | float]:
    if isinstance(value, list):
        for entry in value:
            yield from _leaves(entry)
    elif isinstance(value, (int, float)) and not isinstance(value, bool):
        yield value


def _fits(value: int) -> bool:
    return -(1 << 63) <= value < 1 << 63


def _too_large(file: str, name: str, row: int, text: str) -> FormatError:
    if len(text) <= 80:
        shown = text
    else:
        shown = f"{text[:80]} ... ({len(text):,} digits)"

    return FormatError.about(
        "a whole number is too large",
        place=f"{file}, sample {row}, column {name!r}",
        found=shown,
        expected="whole numbers from -2**63 to 2**63 - 1; others would lose their last digits",
        fix="store the column as text (with a letter in front, say), or with a decimal point if it may be rounded",
    )
