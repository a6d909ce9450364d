"""Rows of tables that follow each other come the short way: the same rows, and what the reader keeps stays as it is."""

from __future__ import annotations

import tempfile
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import headrace
from headrace import open_writer
from headrace.data.formats.columns import Keys, value_of
from headrace.data.formats.registry import open_reader
from headrace.types import Block, Field, Ragged, Schema

COUNT = 24
TABLE = pa.table(
    {
        "number": pa.array(range(COUNT), pa.int64()),
        "truth": pa.array([number % 3 == 0 for number in range(COUNT)]),
        "text": pa.array([f"é{number}" * (number % 4) for number in range(COUNT)]),
        "list": pa.array([list(range(number % 5)) for number in range(COUNT)], pa.large_list(pa.int32())),
    }
)


def write(path: Path, portions: list[int]) -> None:
    """Writes the table in record batches of these lengths, and one of the rest."""
    with pa.OSFile(str(path), "wb") as file, pa.ipc.new_file(file, TABLE.schema) as writer:
        start = 0
        for portion in (*portions, COUNT):
            writer.write_table(TABLE.slice(start, portion))
            start = min(start + portion, COUNT)


def rows(reader: Any, keys: Keys) -> list[list[Any]]:
    block = reader.fetch(keys, reader.schema.names)
    assert all(len(column) == len(keys) for column in block.columns.values())
    made = []
    for place in range(len(keys)):
        values = [value_of(field, block.columns[field.name], place) for field in reader.schema]
        made.append([value.tolist() if hasattr(value, "tolist") else value for value in values])
    return made


@settings(max_examples=60, deadline=None)
@given(st.lists(st.integers(1, 9), max_size=3), st.integers(0, COUNT - 1), st.integers(0, COUNT))
def test_neighbours_are_the_rows_that_come_one_by_one(portions: list[int], start: int, count: int) -> None:
    keys = np.arange(start, min(start + count, COUNT))
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder, "table.arrow")
        write(path, portions)
        reader = open_reader(str(path), trust=False)
        found = rows(reader, keys)
        assert found == [rows(reader, keys[place : place + 1])[0] for place in range(len(keys))]
        assert found == rows(reader, keys[::-1].copy())[::-1]
        assert [row[0] for row in found] == keys.tolist()
        assert [row[2] for row in found] == TABLE["text"].take(keys).to_pylist()


@pytest.mark.parametrize("form", ["arrow", "parquet"])
def test_a_streamed_batch_may_be_written_to(form: str, tmp_path: Path) -> None:
    schema = Schema(
        (
            Field("truth", "fixed", np.dtype("?")),
            Field("number", "fixed", np.dtype("i8")),
            Field("list", "ragged", np.dtype("i4")),
        )
    )
    writer = open_writer(str(tmp_path / f"table.{form}"), schema, form)
    columns: dict[str, Any] = {"truth": np.ones(20, bool), "number": np.arange(20)}
    writer.append(Block(schema, columns | {"list": Ragged(np.arange(40, dtype=np.int32), np.arange(0, 41, 2))}))
    writer.seal()
    data = headrace.open(tmp_path / f"table.{form}")
    loader = headrace.DataLoader(data.stream(), batch_size=5)
    for batch in loader:
        batch["truth"][...] = False
        batch["number"][...] = -1
        batch["list"].values[...] = -1
    seen = list(loader)
    assert all(bool(batch["truth"].all()) for batch in seen)
    assert [number for batch in seen for number in batch["number"].tolist()] == list(range(20))
    assert [number for batch in seen for number in batch["list"].values.flatten().tolist()] == list(range(40))


@pytest.mark.parametrize("form", ["arrow", "parquet"])
def test_a_step_may_write_into_a_whole_table(form: str, tmp_path: Path) -> None:
    schema = Schema((Field("truth", "fixed", np.dtype("?")), Field("list", "ragged", np.dtype("i4"))))
    writer = open_writer(str(tmp_path / f"table.{form}"), schema, form)
    values = Ragged(np.arange(40, dtype=np.int32), np.arange(0, 41, 2))
    writer.append(Block(schema, {"truth": np.ones(20, bool), "list": values}))
    writer.seal()

    def clear(block: dict[str, Any]) -> dict[str, Any]:
        assert block["truth"].all()
        assert block["list"].values.tolist() == list(range(40))
        block["truth"][...] = False
        block["list"].values[...] = 0
        return block

    data = headrace.open(tmp_path / f"table.{form}").map(clear, batched=True)
    loader = headrace.DataLoader(data, batch_size=20)
    for _ in range(2):
        (batch,) = loader
        assert not batch["truth"].any()
        assert not batch["list"].values.any()
