"""Names and texts beyond ASCII are packed the same in a locale of ASCII, where Python's own encoding is another."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest

from headrace.data.convert.verify import verify
from headrace.data.formats.columns import Block, ragged_from
from headrace.data.formats.columns.schema import Field, Schema
from tests.data.formats.samples import assert_same, read, write

ASCII = {"LC_ALL": "C", "PYTHONUTF8": "0", "PYTHONCOERCECLOCALE": "0"}

PROGRAM = """
import sys
from headrace.data.convert.pack import pack
from headrace.data.convert.plan import PackOptions
from headrace.data.convert.verify import verify
from headrace.core.errors import UsageError

if __name__ == "__main__":
    assert sys.getfilesystemencoding() == "ascii"
    folder = sys.argv[1]
    for source, target, form in (
        ("keys.arrow", "keys.tar", "webdataset"),
        ("keys.arrow", "shards", "webdataset"),
        ("names.arrow", "files", "folder"),
        ("columns.arrow", "columns", "memmap"),
        ("columns.arrow", "columns.npz", "npz"),
    ):
        pack(f"{folder}/{source}", f"{folder}/{target}", PackOptions(format=form))
        assert verify(f"{folder}/{target}").sound
    try:
        pack(f"{folder}/keys.arrow", sys.argv[2], PackOptions(format="webdataset"))
    except UsageError as error:
        assert "PYTHONUTF8=1" in str(error)
    else:
        raise SystemExit("a target that Arrow cannot be told was not refused")
"""


def texts(*columns: str) -> Schema:
    return Schema(tuple(Field(name, "text") for name in columns))


@pytest.mark.thorough
def test_packing_in_a_locale_of_ascii_gives_what_packing_in_utf_8_gives(tmp_path: Path) -> None:
    for name, schema, first in (("keys", texts("__key__", "text"), "grün"), ("names", texts("path", "text"), "ü.txt")):
        values = {schema.names[0]: [first, f"b{first}"], "text": ["é", "日本"]}
        columns = {field.name: ragged_from(field, values[field.name]) for field in schema}
        write("arrow", tmp_path / f"{name}.arrow", [Block(schema, columns)])
    number = Schema((Field("größe", "fixed", np.dtype(np.int64)),))
    write("arrow", tmp_path / "columns.arrow", [Block(number, {"größe": np.arange(3)})])

    (tmp_path / "program.py").write_text(PROGRAM)
    done = subprocess.run(
        [sys.executable, tmp_path / "program.py", tmp_path, tmp_path / "é.tar"],
        env=os.environ | ASCII, capture_output=True, timeout=100, check=False,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr.decode(errors="replace")

    for source, target in (
        ("keys", "keys.tar"),
        ("keys", "shards"),
        ("names", "files"),
        ("columns", "columns"),
        ("columns", "columns.npz"),
    ):
        assert verify(str(tmp_path / target)).sound
        packed, given = read(tmp_path / target), read(tmp_path / f"{source}.arrow")
        order = np.argsort([str(row) for row in packed]), np.argsort([str(row) for row in given])
        assert_same(packed.take(order[0]), given.take(order[1]))
