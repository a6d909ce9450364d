"""JSON lines as the json module, pandas, polars and duckdb write them. The json module reads them back."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from tests.clients.other_tools.comparison import COLUMN, Written
from tests.clients.other_tools.csv_files import frame
from tests.clients.other_tools.tools import tool

VALUES: Mapping[str, Sequence[str]] = {
    "whole numbers": ["1", "-2", "0"],
    "minus zero": ["-0", "1"],
    "minus zero with a point": ["-0.0", "1.5"],
    "64 bits": ["9223372036854775807", "-9223372036854775808"],
    "beyond 64 bits": ["9223372036854775808", "1"],
    "70 bits": ["1180591620717411303425", "1"],
    "fractions": ["0.1", "1e-3", "-2.5E+10"],
    "17 digits": ["0.12345678901234568", "1234567890.1234567"],
    "30 digits": ["0.123456789012345678901234567890", "1.5"],
    "whole numbers and fractions": ["1", "2.5"],
    "fractions and whole numbers": ["2.5", "1"],
    "a large number and a fraction": ["9007199254740993", "0.5"],
    "beyond a float": ["1e400", "1.5"],
    "NaN": ["NaN", "1.5"],
    "Infinity": ["Infinity", "-Infinity"],
    "true and false": ["true", "false"],
    "true and a number": ["true", "1"],
    "a number and a word": ["1", '"a"'],
    "numbers as words": ['"1"', '"2"'],
    "null among numbers": ["1", "null"],
    "null among fractions": ["1.5", "null"],
    "null among words": ['"a"', "null"],
    "null among lists": ["[1]", "null"],
    "nothing but null": ["null", "null"],
    "dates": ['"2024-02-29"', '"1969-12-31"'],
    "dates and a word": ['"2024-02-29"', '"unknown"'],
    "moments": ['"2024-02-29T10:00:00"', '"2024-02-29T10:00:01"'],
    "moments with a space": ['"2024-02-29 10:00:00"', '"2024-02-29 10:00:01"'],
    "moments with fractions": ['"2024-02-29T10:00:00.500"', '"2024-02-29T10:00:00"'],
    "moments with Z": ['"2024-02-29T10:00:00Z"', '"2024-02-29T10:00:01Z"'],
    "times": ['"10:30"', '"11:45"'],
    "words": ['"a"', '"Grüße"', '"日本 🙂"'],
    "escapes": [r'"\u00fc\n\t\"\\\/"', r'"\ud83d\ude42"'],
    "half a surrogate": [r'"\ud800"', '"a"'],
    "a NUL": [r'"a\u0000b"', '"c"'],
    "empty words": ['""', '"a"'],
    "a long word": [f'"{"x" * 100_000}"', '"y"'],
    "lists": ["[1, 2]", "[]", "[3]"],
    "lists of one length": ["[1, 2]", "[3, 4]"],
    "lists of fractions": ["[1.5, 2]", "[3]"],
    "lists of words": ['["a", "b"]', "[]"],
    "lists of dates": ['["2024-02-29"]', "[]"],
    "lists with null": ["[1, null]", "[2]"],
    "lists of true and false": ["[true]", "[false, true]"],
    "lists of lists": ["[[1, 2], [3, 4]]", "[[5, 6]]"],
    "lists of lists of any length": ["[[1], [3, 4]]", "[]"],
    "nothing but empty lists": ["[]", "[]"],
    "mixed lists": ['[1, "a"]', "[2]"],
    "objects": ['{"a": 1}', '{"a": 2}'],
    "objects with other keys": ['{"a": 1}', '{"b": 2}'],
    "empty objects": ["{}", "{}"],
    "lists of objects": ['[{"a": 1}]', "[]"],
    "a list and a number": ["[1]", "2"],
}
"""For each kind, the values of a column, as JSON."""

ROW = f'{{"row": 0, "{COLUMN}": 1}}\n'
LINES: Mapping[str, tuple[bytes, Sequence[Any]]] = {
    "blank lines": (ROW.replace("\n", "\n\n").encode() * 2, [1, 1]),
    "lines end in CR LF": (ROW.replace("\n", "\r\n").encode() * 2, [1, 1]),
    "no end of the last line": ((ROW * 2).rstrip().encode(), [1, 1]),
    "a mark of UTF-8": (b"\xef\xbb\xbf" + ROW.encode(), [1]),
    "UTF-16": (ROW.encode("utf-16"), [1]),
    "Latin-1": (f'{{"{COLUMN}": "Grüße"}}\n'.encode("latin-1"), ["Grüße"]),
    "spaces": (f' {{ "{COLUMN}" : 1 }} \n'.encode(), [1]),
    "no line breaks": ((f'{{"{COLUMN}": 1}}' * 2).encode(), [1, 1]),
    "over several lines": (json.dumps({COLUMN: 1, "b": [1, 2]}, indent=2).encode() + b"\n", [1]),
    "an array of objects": (json.dumps([{COLUMN: 1}, {COLUMN: 2}]).encode(), [1, 2]),
    "an array over several lines": (json.dumps([{COLUMN: 1}, {COLUMN: 2}], indent=1).encode(), [1, 2]),
    "numbers alone": (b"1\n2\n", [1, 2]),
    "lists alone": (b"[1]\n[2]\n", [[1], [2]]),
    "a comment": (b"// made by a tool\n" + ROW.encode(), [1]),
    "a comma at the end": (ROW.replace("}", ",}").encode(), [1]),
    "a key that is missing": ((ROW + '{"row": 1}\n').encode(), [1, None]),
    "a key more": ((f'{{"{COLUMN}": 1}}\n' + ROW).encode(), [1, 1]),
    "keys in another order": ((ROW + f'{{"{COLUMN}": 2, "row": 1}}\n').encode(), [1, 2]),
    "a key twice": (f'{{"{COLUMN}": 1, "{COLUMN}": 2}}\n'.encode(), [2]),
    "a key with an escape": (f'{{"\\u0071{COLUMN[1:]}": 1}}\n'.encode(), [1]),
    "an empty key": (f'{{"": 0, "{COLUMN}": 1}}\n'.encode(), [1]),
    "a key with a line": (f'{{"a\\nb": 0, "{COLUMN}": 1}}\n'.encode(), [1]),
    "a fraction late": ((f'{{"{COLUMN}": 1}}\n' * 300 + f'{{"{COLUMN}": 1.5}}\n').encode(), [1] * 300 + [1.5]),
    "a word late": ((f'{{"{COLUMN}": 1}}\n' * 300 + f'{{"{COLUMN}": "a"}}\n').encode(), [1] * 300 + ["a"]),
}
"""For each kind, the bytes of a file, and the values of its column."""


def read(path: Path) -> list[Any]:
    """Returns the column as the json module reads it; whole numbers among fractions are such, too."""
    values = [json.loads(line)[COLUMN] for line in path.read_text().splitlines()]
    if {type(value) for value in values} == {int, float}:
        return [float(value) for value in values]
    return [[float(one) for one in value] if _is_mixed(value) else value for value in values]


def _is_mixed(value: Any) -> bool:
    return isinstance(value, list) and {type(one) for one in value} == {int, float}


@tool("jsonl", "json module")
def json_module(folder: Path) -> Iterator[Written]:
    for number, (kind, values) in enumerate(VALUES.items()):
        path = folder / f"{number}.jsonl"
        path.write_text("".join(f'{{"row": {row}, "{COLUMN}": {value}}}\n' for row, value in enumerate(values)))
        found = read(path)
        if kind == "lists of fractions":
            found = [[1.5, 2.0], [3.0]]
        yield Written(kind, path, found, names=("in row",))


@tool("jsonl", "lines, by hand")
def json_lines(folder: Path) -> Iterator[Written]:
    for number, (kind, (data, values)) in enumerate(LINES.items()):
        path = folder / f"{number}.jsonl"
        path.write_bytes(data)
        if kind == "a fraction late":
            values = [float(value) for value in values]
        # A line that cannot be parsed has no column: its number, or what it lacks, names it.
        words = ("in row", "'row'")
        if kind in ("UTF-16", "Latin-1"):
            words = ("UTF-8", "utf-8", "encod")
        yield Written(kind, path, values, names=words)


@tool("jsonl", "pandas, polars, duckdb", "pandas", "polars", "duckdb")
def other_json(folder: Path) -> Iterator[Written]:
    import duckdb
    import polars as pl
    import pyarrow as pa

    for name, series in frame().items():
        path = folder / f"{name}-pandas.jsonl"
        series.to_frame(COLUMN).to_json(path, orient="records", lines=True)
        yield Written(f"{name}, pandas", path, read(path))
        path = folder / f"{name}-iso.jsonl"
        series.to_frame(COLUMN).to_json(path, orient="records", lines=True, date_format="iso")
        yield Written(f"{name}, pandas, dates of ISO", path, read(path))
        if name == "half":
            continue
        table = pa.table({COLUMN: pa.array(series)})
        path = folder / f"{name}-polars.jsonl"
        pl.DataFrame(table).write_ndjson(path)
        yield Written(f"{name}, polars", path, read(path))
        path = folder / f"{name}-duckdb.jsonl"
        with duckdb.connect() as connection:
            connection.register("given", table)
            connection.execute(f"COPY (SELECT * FROM given) TO '{path}' (FORMAT json)")
        yield Written(f"{name}, duckdb", path, read(path))
    path = folder / "records.json"
    frame()[["int"]].rename(columns={"int": COLUMN}).to_json(path, orient="records")
    yield Written("records in one array, .json", path, [1, 2], names=("array", "object a line"))
