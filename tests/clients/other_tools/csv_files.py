"""CSV and TSV as tools and spreadsheets write it. pandas reads it back, told the dialect where there is one."""

from __future__ import annotations

import csv
import datetime
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from tests.clients.other_tools.comparison import COLUMN, Written
from tests.clients.other_tools.tools import tool

CELLS: Mapping[str, Sequence[str]] = {
    "whole numbers": ["1", "-2", "0"],
    "with a plus": ["+5", "+6"],
    "leading zeros": ["007", "010"],
    "minus zero": ["-0", "1"],
    "64 bits": ["9223372036854775807", "-9223372036854775808"],
    "beyond 64 bits": ["9223372036854775808", "1"],
    "70 bits": ["1180591620717411303425", "1"],
    "20 digits of text and numbers": ["12345678901234567890", "a"],
    "fractions": ["0.1", "1e-3", "-2.5E+10"],
    "17 digits": ["0.12345678901234568", "1234567890.1234567"],
    "no digit before or behind the point": [".5", "5.", "-.5"],
    "whole numbers and fractions": ["1", "2.5"],
    "a large number and a fraction": ["9007199254740993", "0.5"],
    "infinite": ["inf", "-inf", "1.5"],
    "Infinity": ["Infinity", "-Infinity", "1.5"],
    "smaller than a float": ["1e-400", "1.0"],
    "not a number": ["nan", "1.5"],
    "NaN and NA": ["NaN", "NA", "1.5"],
    "hexadecimal": ["0x10", "0x20"],
    "underscores": ["1_000", "2_000"],
    "commas of thousands": ["1,234", "2,345"],
    "decimal commas": ["1,5", "2,5"],
    "percent": ["5%", "10%"],
    "money": ["$5", "$10"],
    "spaces around numbers": [" 5", "6 "],
    "true and false": ["true", "false"],
    "True and False": ["True", "False"],
    "TRUE and FALSE": ["TRUE", "FALSE"],
    "yes and no": ["yes", "no"],
    "T and F": ["T", "F"],
    "0 and 1": ["0", "1"],
    "true and 1": ["true", "1"],
    "dates": ["2024-02-29", "1969-12-31"],
    "dates and a word": ["2024-02-29", "unknown"],
    "dates with slashes": ["02/29/2024", "12/31/1969"],
    "moments": ["2024-02-29 10:00:00", "2024-02-29 10:00:01"],
    "moments with T": ["2024-02-29T10:00:00", "2024-02-29T10:00:01"],
    "moments with fractions": ["2024-02-29 10:00:00.5", "2024-02-29 10:00:00"],
    "moments with Z": ["2024-02-29T10:00:00Z", "2024-02-29T10:00:01Z"],
    "moments with a zone": ["2024-02-29 10:00:00+02:00", "2024-02-29 10:00:01+02:00"],
    "times": ["10:30", "11:45"],
    "times with seconds": ["10:30:15", "11:45:00"],
    "durations": ["1 days 02:00:00", "0 days 00:00:01"],
    "words": ["a", "Grüße", "日本 🙂"],
    "quotes": ['a "b" c', '"'],
    "commas": ["a,b", "c"],
    "lines": ["a\nb", "c\r\nd", "e"],
    "spaces around words": [" a", "b ", "c"],
    "tabs": ["a\tb", "c"],
    "backslashes": ["a\\n", "\\"],
    "single quotes": ["'a'", "b"],
    "empty words": ["", "a", ""],
    "words that mean nothing there": ["NA", "null", "None", "nan", "", "a"],
    "a number among words": ["1", "a"],
    "JSON": ['{"a": [1, 2]}', "{}"],
    "lists of Python": ["[1, 2]", "[3]"],
    "formulas": ["=1+1", "@a"],
    "control characters": ["a\x01b", "c\x7f"],
    "a long word": ["x" * 100_000, "y"],
    "empty places among numbers": ["1", "", "3"],
    "empty places among fractions": ["1.5", "", "3.5"],
    "empty places among true and false": ["true", "", "false"],
}
"""For each kind of value, the cells of a column, as text."""


def read(path: Path, **dialect: Any) -> list[Any]:
    """Returns the column as pandas reads it: empty cells are text, except among numbers."""
    import pandas as pd

    if dialect.get("engine") != "python":
        dialect["float_precision"] = "round_trip"
    found = pd.read_csv(path, keep_default_na=False, **dialect)[COLUMN]
    if found.dtype == object or isinstance(found.dtype, pd.StringDtype):
        filled = pd.read_csv(path, **dialect)[COLUMN]
        if filled.dtype.kind in "if":
            found = filled
    return [value if isinstance(value, str) else np.asarray(value).item() for value in found]


@tool("csv", "csv module", "pandas")
def csv_module(folder: Path) -> Iterator[Written]:
    for ending, delimiter in (("csv", ","), ("tsv", "\t")):
        for number, (kind, cells) in enumerate(CELLS.items()):
            path = folder / f"{number}.{ending}"
            with path.open("w", newline="", encoding="utf-8") as file:
                writer = csv.writer(file, delimiter=delimiter)
                writer.writerow(["row", COLUMN])
                writer.writerows(enumerate(cells))
            values = read(path, sep=delimiter)
            if kind == "with a plus":
                # As every number with more than digits and a minus.
                values = list(map(float, values))
            yield Written(f"{kind}, {ending}", path, values)
    for name in ("QUOTE_ALL", "QUOTE_NONNUMERIC"):
        for kind in ("whole numbers", "fractions", "dates", "words", "true and false"):
            path = folder / f"{name}-{kind}.csv"
            with path.open("w", newline="", encoding="utf-8") as file:
                csv.writer(file, quoting=getattr(csv, name)).writerows([[COLUMN], *([cell] for cell in CELLS[kind])])
            yield Written(f"{kind}, {name}", path, read(path))


PLAIN = f"row,{COLUMN}\n0,1.5\n1,2.5\n"
TEXT = f"row,{COLUMN}\n0,Grüße\n1,b\n"
WIDE = f"row;{COLUMN}\n0;1,5\n1;2,5\n"
SHEETS: Mapping[str, tuple[bytes, Mapping[str, Any]]] = {
    "lines end in CR LF": (PLAIN.replace("\n", "\r\n").encode(), {}),
    "lines end in CR": (PLAIN.replace("\n", "\r").encode(), {}),
    "no end of the last line": (PLAIN.rstrip().encode(), {}),
    "blank lines": (PLAIN.replace("\n", "\n\n").encode(), {}),
    "a blank line of spaces at the end": ((PLAIN + "  \n").encode(), {"skipfooter": 1, "engine": "python"}),
    "a mark of UTF-8": (b"\xef\xbb\xbf" + TEXT.encode(), {"encoding": "utf-8-sig"}),
    "a mark of UTF-8 before the column": (b"\xef\xbb\xbf" + f"{COLUMN}\n1\n2\n".encode(), {"encoding": "utf-8-sig"}),
    "UTF-16": (TEXT.encode("utf-16"), {"encoding": "utf-16"}),
    "UTF-16 of little end, no mark": (TEXT.encode("utf-16-le"), {"encoding": "utf-16-le"}),
    "UTF-32": (TEXT.encode("utf-32"), {"encoding": "utf-32"}),
    "Latin-1": (TEXT.encode("latin-1"), {"encoding": "latin-1"}),
    "Windows 1252": (TEXT.replace("ß", "€").encode("cp1252"), {"encoding": "cp1252"}),
    "Shift JIS": (TEXT.replace("Grüße", "日本").encode("shift_jis"), {"encoding": "shift_jis"}),
    "Latin-1 in a late line": ((TEXT.replace("Grüße", "a") + "2,b\n" * 50 + "3,ü\n").encode("latin-1"),
                               {"encoding": "latin-1"}),
    "semicolons": (WIDE.replace(",", ".").encode(), {"sep": ";"}),
    "semicolons and decimal commas": (WIDE.encode(), {"sep": ";", "decimal": ","}),
    "semicolons, text with commas": (f"row;{COLUMN}\n0;a, b\n1;c, d\n".encode(), {"sep": ";"}),
    "tabs": (PLAIN.replace(",", "\t").encode(), {"sep": "\t"}),
    "bars": (PLAIN.replace(",", "|").encode(), {"sep": "|"}),
    "spaces behind commas": (PLAIN.replace(f",{COLUMN}\n", f",{COLUMN}\n ").replace("\n1", "\n 1").encode(), {}),
    "spaces behind commas, quoted text": (f'row, {COLUMN}\n0, "a, b"\n'.encode(), {"skipinitialspace": True}),
    "a line sep=,": (("sep=,\n" + PLAIN).encode(), {"skiprows": 1}),
    "a line sep=;": (("sep=;\n" + WIDE).encode(), {"skiprows": 1, "sep": ";"}),
    "a comment first": (("# made by a tool\n" + PLAIN).encode(), {"skiprows": 1}),
    "comments between": (PLAIN.replace("\n1,", "\n# a comment\n1,").encode(), {"comment": "#"}),
    "a line of units": (PLAIN.replace("\n0", "\n-,metres\n0").encode(), {}),
    "a comma at the end of each line": (PLAIN.replace("\n", ",\n").encode(), {}),
    "a comma at the end of rows": (PLAIN.replace("5\n", "5,\n").encode(), {"index_col": False}),
    "a short row": ((PLAIN + "2\n").encode(), {}),
    "a long row": ((PLAIN + "2,3.5,9\n").encode(), {"on_bad_lines": "skip"}),
    "a row of sums": ((PLAIN + "sum,4.0\n").encode(), {}),
    "a column name twice": (f"{COLUMN},{COLUMN}\n1,2\n".encode(), {}),
    "no name of the first column": (f",{COLUMN}\n0,1.5\n1,2.5\n".encode(), {}),
    "quoted names": (PLAIN.replace(COLUMN, f'"{COLUMN}"').encode(), {}),
    "a name with a line": (f'"a\nb",{COLUMN}\n0,1\n'.encode(), {}),
    "only names": (f"row,{COLUMN}\n".encode(), {}),
    "a NUL": (f"row,{COLUMN}\n0,a\0b\n1,c\n".encode(), {"engine": "python"}),
    "a quote within a word": (f'row,{COLUMN}\n0,5" pipe\n1,b\n'.encode(), {}),
    "text behind a quote": (f'row,{COLUMN}\n0,"a"b\n1,c\n'.encode(), {}),
    "backslash before quotes": (f'row,{COLUMN}\n0,"a \\"b\\" c"\n1,d\n'.encode(), {}),
    "single quotes with commas": (f"row,{COLUMN}\n0,'a,b'\n".encode(), {"quotechar": "'"}),
    "Ctrl-Z at the end": ((PLAIN + "\x1a").encode(), {"skipfooter": 1, "engine": "python"}),
    "a number turned text late": ((f"row,{COLUMN}\n" + "0,1\n" * 300 + "1,a\n").encode(), {}),
    "a fraction late": ((f"row,{COLUMN}\n" + "0,1\n" * 300 + "1,1.5\n").encode(), {}),
}  # fmt: skip
"""For each kind, the bytes of a file, and what pandas must be told to read it rightly."""


@tool("csv", "spreadsheets, by hand", "pandas")
def spreadsheets(folder: Path) -> Iterator[Written]:
    for number, (kind, (data, dialect)) in enumerate(SHEETS.items()):
        path = folder / f"{number}.csv"
        path.write_bytes(data)
        yield Written(kind, path, read(path, **dialect), names=_words_for(dialect))


def _words_for(dialect: Mapping[str, Any]) -> tuple[str, ...]:
    """Returns by which words an error names what is not as usual: a line of a wrong number of cells has no column."""
    if "encoding" in dialect:
        return ("UTF-8", "utf-8", "encod")
    if "sep" in dialect or "decimal" in dialect:
        return ("delimit", "separat", "semicolon", "tsv", "sep=")
    return ("row #", "columns, got", "line", "sep=", "comes twice")


def frame() -> Any:
    """Returns a frame with a column of each type."""
    import pandas as pd

    moment = pd.Timestamp("2024-02-29 10:00:00.5")
    return pd.DataFrame({
        "int": [1, 2], "float": [0.1, 1e300], "bool": [True, False], "text": ["a,b", 'c "d"'],
        "category": pd.Categorical(["x", "y"]), "moment": [moment, moment], "zone": [moment.tz_localize("UTC")] * 2,
        "duration": [pd.Timedelta("1h"), pd.Timedelta("2h")], "date": [datetime.date(2024, 2, 29)] * 2,
        "half": np.array([0.1, 0.2], "f2"), "float32": np.array([0.1, 0.2], "f4"), "list": [[1, 2], [3]],
        "nullable": pd.array([1, None], "Int64"), "unsigned": np.array([2**64 - 1, 1], "u8"),
    })  # fmt: skip


@tool("csv", "pandas.to_csv", "pandas")
def pandas_csv(folder: Path) -> Iterator[Written]:
    for name, series in frame().items():
        for index in (True, False):
            path = folder / f"{name}-{index}.csv"
            series.to_frame(COLUMN).to_csv(path, index=index)
            yield Written(f"{name}, index {index}", path, read(path))
    path = folder / "x.csv.gz"
    frame()[["int"]].rename(columns={"int": COLUMN}).to_csv(path)
    yield Written("gzip", path, [1, 2], names=("gzip", "compress"))
    path = folder / "decimal.csv"
    frame()[["float"]].rename(columns={"float": COLUMN}).to_csv(path, sep=";", decimal=",")
    yield Written(
        "semicolons and decimal commas",
        path,
        read(path, sep=";", decimal=","),
        names=("delimit", "separat", "semicolon"),
    )


@tool("csv", "polars, pyarrow, duckdb", "pandas", "polars", "duckdb")
def other_csv(folder: Path) -> Iterator[Written]:
    import duckdb
    import polars as pl
    import pyarrow as pa
    import pyarrow.csv

    for name, series in frame().drop(columns=["list", "half"]).items():
        table = pa.table({COLUMN: pa.array(series)})
        if name != "duration":
            path = folder / f"{name}-polars.csv"
            pl.DataFrame(table).write_csv(path)
            yield Written(f"{name}, polars", path, read(path))
        path = folder / f"{name}-duckdb.csv"
        with duckdb.connect() as connection:
            connection.register("given", table)
            connection.execute(f"COPY (SELECT * FROM given) TO '{path}' (FORMAT csv, HEADER)")
        yield Written(f"{name}, duckdb", path, read(path))
        path = folder / f"{name}-pyarrow.csv"
        try:
            pa.csv.write_csv(table, path)
        except (pa.ArrowInvalid, pa.ArrowNotImplementedError):
            continue
        yield Written(f"{name}, pyarrow", path, read(path))


@tool("csv", "several files", "pandas")
def several_files(folder: Path) -> Iterator[Written]:
    cells = {
        "whole numbers, then fractions": ("1\n2\n", "1.5\n"),
        "fractions, then whole numbers": ("1.5\n", "1\n2\n"),
        "numbers, then text": ("1\n", "a\n"),
        "a file without rows": ("", "1\n"),
        "numbers beyond 2**53, then fractions": ("9007199254740993\n", "0.5\n"),
    }
    for kind, parts in cells.items():
        path = folder / kind
        path.mkdir()
        for number, part in enumerate(parts):
            (path / f"{number}.csv").write_text(f"{COLUMN}\n{part}")
        whole = folder / f"{kind}.txt"
        whole.write_text(f"{COLUMN}\n{''.join(parts)}")
        yield Written(kind, path, read(whole), names=("1.csv",))
    path = folder / "other order"
    path.mkdir()
    (path / "0.csv").write_text(f"row,{COLUMN}\n0,1\n")
    (path / "1.csv").write_text(f"{COLUMN},row\n2,1\n")
    yield Written("columns in another order", path, [1, 2])
    path = folder / "fewer"
    path.mkdir()
    (path / "0.csv").write_text(f"row,{COLUMN}\n0,1\n")
    (path / "1.csv").write_text("row\n1\n")
    yield Written("a file without the column", path, [1, None])
