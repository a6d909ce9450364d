"""`headrace.open(stack=)`: several columns of numbers come as one."""

from __future__ import annotations

import pickle
import tempfile
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch.utils.data import DataLoader as TorchLoader

import headrace
from headrace import open_writer
from headrace.data.formats.columns import ragged_from
from headrace.errors import StaleCacheError, UsageError
from headrace.types import Block, Field, Schema

NAMES = ("a", "b", "c", "d")
COUNT = 50
FORMATS = ["arrow", "parquet", "csv", "jsonl", "npz", "memmap"]


def columns_of(dtype: str = "float32", count: int = COUNT) -> dict[str, Any]:
    """Returns columns whose numbers tell their row and column, and the row itself."""
    made = {name: (np.arange(count) * 10 + place).astype(dtype) for place, name in enumerate(NAMES)}
    return made | {"row": np.arange(count)}


def write(folder: Path, form: str, columns: dict[str, Any], portion: int = COUNT) -> str:
    fields = tuple(Field(name, "fixed", column.dtype) for name, column in columns.items())
    ending = {"memmap": ""}.get(form, f".{form}")
    path = str(folder / f"table{ending}")
    writer = open_writer(path, Schema(fields), form)
    count = len(columns["row"])
    for start in range(0, count, portion):
        part = {name: column[start : start + portion] for name, column in columns.items()}
        writer.append(Block(Schema(fields), part))
    writer.seal()
    return path


def expected(columns: dict[str, Any], names: Sequence[str], rows: Any) -> Any:
    return np.stack([columns[name] for name in names], 1)[np.asarray(rows)]


def assert_stacked(loader: Any, columns: dict[str, Any], names: Sequence[str]) -> list[int]:
    """Compares all batches with their columns, and returns the rows that came."""
    came: list[int] = []
    for batch in loader:
        assert set(batch) == set(columns) - set(names) | {"x"}
        want = expected(columns, names, batch["row"].numpy())
        assert isinstance(batch["x"], torch.Tensor)
        assert batch["x"].is_contiguous()
        assert (batch["x"].numpy().dtype, batch["x"].shape) == (want.dtype, want.shape)
        assert np.array_equal(batch["x"].numpy(), want)
        came += batch["row"].tolist()
    return came


@pytest.mark.parametrize("form", FORMATS)
def test_a_batch_holds_the_columns_side_by_side_in_their_order(form: str, tmp_path: Path) -> None:
    columns = columns_of("int64" if form in ("csv", "jsonl") else "float32")
    names = ["c", "a", "d"]
    data = headrace.open(write(tmp_path, form, columns), stack={"x": names})
    assert data.schema.names == ("x", "b", "row")
    assert data.schema["x"].shape == (3,)
    assert "x: " in repr(data)
    assert "(c, a, d)" in repr(data)
    assert sorted(assert_stacked(headrace.DataLoader(data, 8, shuffle=True), columns, names)) == list(range(COUNT))
    for shuffle in (0, 20):
        came = assert_stacked(headrace.DataLoader(data.stream(shuffle=shuffle), 8), columns, names)
        assert sorted(came) == list(range(COUNT))
        assert (came == list(range(COUNT))) == (shuffle == 0)


@settings(max_examples=60, deadline=None)
@given(
    st.lists(st.sampled_from(NAMES), min_size=1, max_size=4, unique=True),
    st.sampled_from(["?", "u1", "i2", "i4", "i8", "f4", "f8"]),
    st.sampled_from(["arrow", "npz"]),
    st.integers(1, 40),
    st.lists(st.integers(-COUNT, COUNT - 1), min_size=1, max_size=30),
)
def test_rows_are_those_of_the_single_columns(
    names: list[str], dtype: str, form: str, portion: int, keys: list[int]
) -> None:
    columns = columns_of(dtype)
    with tempfile.TemporaryDirectory() as folder:
        path = write(Path(folder), form, columns, portion)
        data = headrace.open(path, stack={"x": names})
        want = expected(columns, names, keys)
        batch = data.fetch_batch(keys, headrace.data.stored.OwnMemory())
        assert np.array_equal(batch["x"].numpy(), want)
        assert batch["x"].numpy().dtype == want.dtype
        for sample, row in zip(data.__getitems__(keys), want, strict=True):
            assert np.array_equal(sample["x"], row)
            assert sample["x"].dtype == want.dtype
        block = data.block(data.checked(keys))
        assert block is not None
        assert np.array_equal(block.columns["x"], want)


@pytest.mark.parametrize("streamed", [False, True])
def test_columns_are_stacked_in_workers(streamed: bool, tmp_path: Path) -> None:
    columns = columns_of()
    data: Any = headrace.open(write(tmp_path, "parquet", columns), stack={"x": ["b", "a"]})
    if streamed:
        data = data.stream(shuffle=5)
    came = assert_stacked(headrace.DataLoader(data, 8, num_workers=2), columns, ["b", "a"])
    assert sorted(came) == list(range(COUNT))


def test_torchs_loader_gets_the_same_samples(tmp_path: Path) -> None:
    columns = columns_of()
    data = headrace.open(write(tmp_path, "arrow", columns), stack={"x": ["a", "d"]})
    assert len(assert_stacked(TorchLoader(data, 8), columns, ["a", "d"])) == COUNT
    assert len(assert_stacked(TorchLoader(data.stream(), 8), columns, ["a", "d"])) == COUNT


def test_a_stream_goes_on_behind_any_batch(tmp_path: Path) -> None:
    columns = columns_of()
    path = write(tmp_path, "arrow", columns, 20)

    def made() -> Any:
        stream = headrace.open(path, stack={"x": list(NAMES)}).stream(shuffle=10)
        return headrace.DataLoader(stream, 7, seed=1)

    whole = assert_stacked(made(), columns, NAMES)
    loader = made()
    iterator = iter(loader)
    head = [next(iterator)["row"].tolist() for _ in range(3)]
    again = made()
    again.load_state_dict(loader.state_dict())
    assert [row for rows in head for row in rows] + assert_stacked(again, columns, NAMES) == whole


def test_several_stacks_may_share_columns_and_numbers_may_be_converted(tmp_path: Path) -> None:
    columns = columns_of()
    path = write(tmp_path, "arrow", columns)
    data = headrace.open(path, stack={"x": ["a", "b"], "y": ("b", "c"), "d": ["d"]}).astype(x=torch.float64)
    assert data.schema.names == ("x", "y", "d", "row")
    batch = next(iter(headrace.DataLoader(data, 4)))
    assert (batch["x"].dtype, batch["y"].dtype, batch["d"].shape) == (torch.float64, torch.float32, (4, 1))
    assert np.array_equal(batch["x"].numpy(), expected(columns, "ab", range(4)))
    assert np.array_equal(batch["y"].numpy(), expected(columns, "bc", range(4)))
    assert data[3]["x"].dtype == np.float64
    assert next(iter(data.stream()))["x"].dtype == np.float64


def test_only_named_columns_are_read(tmp_path: Path) -> None:
    columns = columns_of()
    data = headrace.open(write(tmp_path, "parquet", columns), ["b", "a"], stack={"x": ["a", "b"]})
    assert data.stored_names == ("b", "a")
    assert np.array_equal(data[4]["x"], expected(columns, "ab", 4))


def test_stacked_data_can_be_pickled(tmp_path: Path) -> None:
    columns = columns_of()
    data = headrace.open(write(tmp_path, "arrow", columns), stack={"x": ["c", "b"]})
    _ = data[0]
    for one in (pickle.loads(pickle.dumps(data)), pickle.loads(pickle.dumps(data.stream()))):
        assert assert_stacked(headrace.DataLoader(one, 8), columns, "cb") == list(range(COUNT))


def test_steps_get_the_stacked_column_and_a_cache_knows_which_columns_are_in_it(tmp_path: Path) -> None:
    columns = columns_of()
    path = write(tmp_path, "arrow", columns)

    def total(block: dict[str, Any]) -> dict[str, Any]:
        block["x"] *= 1  # memory of its own
        return {"row": block["row"], "total": block["x"].sum(1)}

    def made(names: list[str]) -> Any:
        step = headrace.step(total, batched=True, version="1")
        opened = headrace.open(path, stack={"x": names})
        return headrace.Staged(opened, initial_transform=[step], cache=tmp_path / "cache")

    for _ in range(2):
        batch = next(iter(headrace.DataLoader(made(["a", "b"]), 8)))
        assert np.array_equal(batch["total"].numpy(), expected(columns, "ab", range(8)).sum(1))
    with pytest.raises(StaleCacheError):
        made(["b", "a"])
    mapped = headrace.open(path, stack={"x": ["a", "b"]}).map(total, batched=True)
    assert np.array_equal(next(iter(headrace.DataLoader(mapped, 8)))["total"].numpy(), batch["total"].numpy())


def test_without_stack_a_fingerprint_is_as_before(tmp_path: Path) -> None:
    path = write(tmp_path, "arrow", columns_of())
    plain = headrace.open(path).fingerprint()
    assert headrace.open(path, stack={}).fingerprint() == plain
    one, other = ({"x": ["a", "b"]}, {"x": ["a", "c"]})
    assert len({plain, *(headrace.open(path, stack=stack).fingerprint() for stack in (one, other))}) == 3


WRONG: list[tuple[Any, tuple[str, ...]]] = [
    (["a"], ("stack=", "found:    ['a']", "names of columns under each new name")),
    ({"x": "a"}, ("the columns of 'x': 'a'",)),
    ({"x": 3}, ("the columns of 'x': 3",)),
    ({"x": {"a": 1}}, ("the columns of 'x': {'a': 1}",)),
    ({"x": {"a"}}, ("the columns of 'x': {'a'}",)),
    ({"x": ["a", 1]}, ("1 among them",)),
    ({"": ["a"]}, ("the new name ''",)),
    ({1: ["a"]}, ("the new name 1",)),
    ({"x": []}, ("the columns of 'x': []", "one name or more, each once")),
    ({"x": ["a", "a"]}, ("the columns of 'x': ['a', 'a']",)),
    ({"x": ["a", "weigth", "q"]}, ("'weigth', 'q'", "some of a, b, weight", "did you mean 'weight'?")),
    ({"x": ["a", "zzz"]}, ("'zzz'", "correct stack=")),
    ({"x": ["a", "weight"]}, ("float32: a; int16: weight", "no number is converted unasked")),
    ({"b": ["a"]}, ("a new name is taken", "'b'", "leave that column out")),
    ({"x": ["a", "ragged", "text", "pair"]}, ("ragged: int64 x any; text: text; pair: float32 x 2", "single number")),
]


@pytest.mark.parametrize(("stack", "words"), WRONG, ids=[str(stack) for stack, _ in WRONG])
def test_what_cannot_be_stacked_is_told_with_its_fix(stack: Any, words: tuple[str, ...], tmp_path: Path) -> None:
    ragged, text = Field("ragged", "ragged", np.dtype("i8")), Field("text", "text")
    numbers = {name: np.zeros(2, np.float32) for name in "ab"} | {"weight": np.zeros(2, np.int16)}
    fields = [Field(name, "fixed", column.dtype) for name, column in numbers.items()]
    schema = Schema((*fields, ragged, text, Field("pair", "fixed", np.dtype("f4"), (2,))))
    others = {
        "ragged": ragged_from(ragged, [np.zeros(1, np.int64), np.zeros(2, np.int64)]),
        "text": ragged_from(text, ["one", "two"]),
        "pair": np.zeros((2, 2), np.float32),
    }
    writer = open_writer(str(tmp_path / "table.arrow"), schema, "arrow")
    writer.append(Block(schema, numbers | others))
    writer.seal()
    with pytest.raises(UsageError) as caught:
        headrace.open(tmp_path / "table.arrow", stack=stack)
    for word in words:
        assert word in str(caught.value)


def test_columns_that_were_not_asked_for_are_not_stacked(tmp_path: Path) -> None:
    path = write(tmp_path, "arrow", columns_of())
    with pytest.raises(UsageError, match="name them there"):
        headrace.open(path, ["a", "row"], stack={"x": ["a", "b"]})


def test_what_has_no_columns_has_none_to_stack(tmp_path: Path) -> None:
    with pytest.raises(TypeError, match=r"'stack': it is one of headrace\.open\(\)$"):
        headrace.open_tokens(tmp_path / "train.bin", "uint16", stack={"x": ["tokens"]})  # type: ignore[call-overload]
    with pytest.raises(TypeError, match=r"'stack': it is one of headrace\.open\(\)$"):
        headrace.follow("tcp://127.0.0.1:1", decode="json", stack={"x": ["a"]})
    data = headrace.open(write(tmp_path, "arrow", columns_of()), stack={"x": ["a"]})
    with pytest.raises(UsageError, match="without stack="):
        data.windows(3)


def test_a_missing_number_is_named_by_its_own_column(tmp_path: Path) -> None:
    table = pa.table({"a": pa.array([1, 2, 3]), "b": pa.array([1, None, 3])})
    with pa.OSFile(str(tmp_path / "holes.arrow"), "wb") as file, pa.ipc.new_file(file, table.schema) as writer:
        writer.write_table(table)
    data = headrace.open(tmp_path / "holes.arrow", stack={"x": ["a", "b"]})
    with pytest.raises(headrace.errors.FormatError, match="column 'b'"):
        next(iter(headrace.DataLoader(data.stream(), 3)))
