"""Files of one dataset that differ: joined by name and by the type that holds all values, or named; never narrowed."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.feather
import pyarrow.parquet as pq
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

import headrace
from headrace.core.errors import FormatError
from headrace.data.formats.columns import exactly, widest
from headrace.data.formats.columns.schema import NUMBERS

WIDER = [
    (torch.uint8, torch.int64, 300),
    (torch.int8, torch.int64, -300),
    (torch.int32, torch.int64, 2**40 + 1),
    (torch.float16, torch.float32, 1e6),
    (torch.float32, torch.float64, 1 + 1e-12),
]


def _values(dataset: Any, name: str = "x") -> list[Any]:
    return [np.asarray(sample[name]).tolist() for sample in dataset]


@pytest.mark.quick(wide=[torch.float64])
@pytest.mark.parametrize("ragged", [False, True])
@pytest.mark.parametrize(("usual", "wide", "value"), WIDER, ids=str)
def test_a_sample_of_a_wider_type_is_not_narrowed(
    usual: torch.dtype, wide: torch.dtype, value: float, ragged: bool, tmp_path: Path
) -> None:
    for number in range(40):
        length = number % 3 + 1 if ragged else 2
        torch.save({"x": torch.full((length,), 5, dtype=usual)}, tmp_path / f"{number:03}.pt")
    looked_at = headrace.open(tmp_path)
    # Whichever file it is: those whose types are looked at when the data are opened, and others.
    for number in range(40):
        length = number % 3 + 1 if ragged else 2
        file = tmp_path / f"{number:03}.pt"
        torch.save({"x": torch.full((length,), value, dtype=wide)}, file)
        with pytest.raises(FormatError, match=str(wide).removeprefix("torch.")) as caught:
            looked_at[number]
        assert str(file) in str(caught.value)
        opened = headrace.open(tmp_path)
        try:
            assert opened[number]["x"].tolist() == [value] * length
            batch = next(iter(headrace.DataLoader(opened, 40, collate_fn=list)))
            assert batch[number]["x"].tolist() == [value] * length
        except FormatError as error:
            assert str(file) in str(error)
        torch.save({"x": torch.full((length,), 5, dtype=usual)}, file)


def test_numbers_that_a_narrower_type_holds_are_the_same(tmp_path: Path) -> None:
    for number in range(40):
        kind = torch.int64 if number == 39 else torch.int32
        torch.save({"x": torch.tensor([number, -number], dtype=kind)}, tmp_path / f"{number:03}.pt")
    assert _values(headrace.open(tmp_path)) == [[number, -number] for number in range(40)]


@given(data=st.data())
def test_exactly_keeps_each_number_or_refuses(data: st.DataObject) -> None:
    one, other = data.draw(st.sampled_from(NUMBERS)), data.draw(st.sampled_from(NUMBERS))
    raw = data.draw(st.binary(min_size=8, max_size=8 * 4).filter(lambda raw: len(raw) % 8 == 0))
    values = np.frombuffer(raw, np.uint8 if one.kind == "b" else one)
    values = (values & 1).astype(bool) if one.kind == "b" else values
    try:
        changed = exactly(values, other)
    except ValueError:
        assert one != other
        return
    assert changed.dtype == other
    for before, after in zip(values.tolist(), changed.tolist(), strict=True):
        assert before == after or (before != before and after != after)
        assert isinstance(before, float) == isinstance(after, float)


@pytest.mark.parametrize("one", NUMBERS, ids=str)
def test_the_widest_type_holds_the_limits_of_both(one: np.dtype[Any]) -> None:
    for other in NUMBERS:
        wide = widest([one, other])
        if wide is None:
            continue
        for kind in (one, other):
            limits = np.array([0, 1]) if kind.kind == "b" else (np.finfo if kind.kind == "f" else np.iinfo)(kind)
            ends = limits if kind.kind == "b" else [limits.min, limits.max]
            assert exactly(np.array(ends, kind), wide).tolist() == np.array(ends, kind).tolist()


FIRST = pa.table({"x": pa.array([1, 2])})
CATEGORIES = pa.array(["a", "b"]).dictionary_encode()
MANY = pa.DictionaryArray.from_arrays(pa.array(np.arange(300), pa.int16()), pa.array([f"w{k}" for k in range(300)]))
TOGETHER: dict[str, tuple[pa.Table, pa.Table, list[Any]]] = {
    "not null": (FIRST, pa.table([pa.array([3])], schema=pa.schema([pa.field("x", pa.int64(), False)])), [1, 2, 3]),
    "narrower": (FIRST, pa.table({"x": pa.array([5], pa.int32())}), [1, 2, 5]),
    "wider": (pa.table({"x": pa.array([5], pa.int8())}), pa.table({"x": [2**40]}), [5, 2**40]),
    "floats": (pa.table({"x": pa.array([0.5], pa.float32())}), pa.table({"x": [0.1, None]}), [0.5, 0.1, np.nan]),
    "words": (pa.table({"x": ["a"]}), pa.table({"x": pa.array(["b"], pa.large_string())}), ["a", "b"]),
    "categories": (pa.table({"x": CATEGORIES}), pa.table({"x": MANY}), ["a", "b", *(f"w{k}" for k in range(300))]),
    "order": (pa.table({"x": [1], "y": [7]}), pa.table({"y": [8], "x": [2]}), [1, 2]),
    "metadata": (FIRST, FIRST.replace_schema_metadata({"k": "v"}), [1, 2, 1, 2]),
    "no value in the first": (pa.table({"x": pa.nulls(2)}), pa.table({"x": [0.5, 1.5]}), [np.nan, np.nan, 0.5, 1.5]),
    "no value in the second": (pa.table({"x": [0.5, 1.5]}), pa.table({"x": pa.nulls(1)}), [0.5, 1.5, np.nan]),
    "units": (
        pa.table({"x": pa.array([1_000], pa.timestamp("ms"))}),
        pa.table({"x": pa.array([2], pa.timestamp("s"))}),
        [1_000_000, 2_000_000],
    ),
}
APART: dict[str, tuple[pa.Table, pa.Table, tuple[str, str]]] = {
    "whole and fractions": (FIRST, pa.table({"x": [0.5]}), ("int64", "double")),
    "words and numbers": (FIRST, pa.table({"x": ["a"]}), ("int64", "string")),
    "signed and unsigned": (FIRST, pa.table({"x": pa.array([2**63], pa.uint64())}), ("int64", "uint64")),
    "times and numbers": (FIRST, pa.table({"x": pa.array([1], pa.timestamp("us"))}), ("int64", "timestamp")),
    "zones": (
        pa.table({"x": pa.array([1], pa.timestamp("us"))}),
        pa.table({"x": pa.array([1], pa.timestamp("us", "UTC"))}),
        ("timestamp[us]", "timestamp[us, tz=UTC]"),
    ),
    "a further column": (FIRST, pa.table({"x": [1], "z": [2]}), ("'z'", "has not")),
    "a missing column": (pa.table({"x": [1], "z": [2]}), FIRST, ("'z'", "no column")),
}


def _write(form: str, folder: Path, *tables: pa.Table) -> Path:
    for number, table in enumerate(tables):
        if form == "parquet":
            pq.write_table(table, folder / f"part-{number}.parquet")
        else:
            pyarrow.feather.write_feather(table, folder / f"part-{number}.arrow", compression="uncompressed")
    return folder


@pytest.mark.quick
@pytest.mark.parametrize("form", ["arrow", "parquet"])
@pytest.mark.parametrize("kind", TOGETHER)
def test_files_that_any_reader_joins_are_joined(kind: str, form: str, tmp_path: Path) -> None:
    first, second, expected = TOGETHER[kind]
    dataset = headrace.open(_write(form, tmp_path, first, second))
    assert np.array_equal(np.array(_values(dataset), object).astype(str), np.array(expected, object).astype(str))
    batches = [np.asarray(batch["x"]).tolist() for batch in headrace.DataLoader(dataset, len(dataset))]
    assert str(batches) == str([expected])


@pytest.mark.quick
@pytest.mark.parametrize("form", ["arrow", "parquet"])
@pytest.mark.parametrize("kind", APART)
def test_files_that_do_not_go_together_are_named_with_both_types(kind: str, form: str, tmp_path: Path) -> None:
    first, second, told = APART[kind]
    with pytest.raises(FormatError) as caught:
        headrace.open(_write(form, tmp_path, first, second))
    assert all(word in str(caught.value) for word in ("part-0", "part-1", *told)), str(caught.value)


@pytest.mark.parametrize("form", ["arrow", "parquet"])
def test_whole_numbers_beside_none_are_kept_and_the_holes_named(form: str, tmp_path: Path) -> None:
    path = _write(form, tmp_path, pa.table({"x": pa.nulls(2)}), pa.table({"x": [1, 2]}))
    with pytest.raises(FormatError, match="column has holes") as caught:
        headrace.open(path)[0]
    assert "part-0" in str(caught.value)


@pytest.mark.parametrize("form", ["arrow", "parquet"])
def test_columns_leaves_out_what_differs(form: str, tmp_path: Path) -> None:
    (tmp_path / "in").mkdir()
    path = _write(form, tmp_path / "in", pa.table({"x": [1], "y": ["a"]}), pa.table({"x": [2], "y": [0.5], "z": [3]}))
    assert _values(headrace.open(path, columns=["x"])) == [1, 2]
    headrace.pack(path, tmp_path / "out.npz", headrace.PackOptions("npz", columns=("x",)), workers=1)
    assert _values(headrace.open(tmp_path / "out.npz")) == [1, 2]


def test_classes_of_other_names_are_no_classes_of_one_dataset(tmp_path: Path) -> None:
    for number, labels in enumerate((("cat", "dog"), ("dog", "cat"))):
        schema = headrace.types.Schema((headrace.types.Field("label", "fixed", np.dtype(np.int64), (), labels),))
        writer = headrace.open_writer(tmp_path / f"{number}.parquet", schema, "parquet")
        writer.append(headrace.types.Block(schema, {"label": np.array([0])}))
        writer.seal()
    with pytest.raises(FormatError, match=r"1\.parquet"):
        headrace.open(tmp_path / "*.parquet")


TEXTS = {
    "csv": ("x,y\n1,a\n", "y,x\nb,0.5\n", [1.0, 0.5]),
    "jsonl": ('{"x": 1, "y": "a"}\n', '{"y": "b", "x": 0.5}\n', [1.0, 0.5]),
}


@pytest.mark.quick
@pytest.mark.parametrize("form", TEXTS)
def test_texts_are_joined_as_one_file_of_all_rows_would_be_read(form: str, tmp_path: Path) -> None:
    first, second, expected = TEXTS[form]
    (tmp_path / f"0.{form}").write_text(first)
    (tmp_path / f"1.{form}").write_text(second)
    assert _values(headrace.open(tmp_path)) == expected
    assert _values(headrace.open(tmp_path), "y") == ["a", "b"]


def test_a_whole_number_that_fractions_would_round_is_named(tmp_path: Path) -> None:
    (tmp_path / "0.csv").write_text("x\n9007199254740993\n")
    (tmp_path / "1.csv").write_text("x\n0.5\n")
    with pytest.raises(FormatError, match="9007199254740993") as caught:
        headrace.open(tmp_path)
    assert "0.csv, column 'x'" in str(caught.value)


def _npz(path: Path, arrays: dict[str, Any]) -> Path:
    np.savez(path / "data.npz", **arrays)
    return path / "data.npz"


def _npy(path: Path, arrays: dict[str, Any]) -> Path:
    for name, array in arrays.items():
        np.save(path / f"{name}.npy", array)
    return path


def _hdf5(path: Path, arrays: dict[str, Any]) -> Path:
    h5py = pytest.importorskip("h5py")
    with h5py.File(path / "data.h5", "w") as file:
        for name, array in arrays.items():
            file[name] = array.astype("S") if array.dtype == object else array
    return path / "data.h5"


BESIDE: dict[str, Any] = {
    "another length": np.zeros(7),
    "a single number": np.array(0.5),
    "complex numbers": np.zeros(30, complex),
}


@pytest.mark.quick
@pytest.mark.parametrize("write", [_npz, _npy, _hdf5])
@pytest.mark.parametrize("kind", BESIDE)
def test_columns_leaves_out_arrays_that_do_not_fit(kind: str, write: Any, tmp_path: Path) -> None:
    arrays = {"x": np.arange(30.0), "y": np.arange(30), "beside": BESIDE[kind]}
    path = write(tmp_path, arrays)
    dataset = headrace.open(path, columns=["y", "x"])
    assert list(dataset[3]) == ["y", "x"]
    assert (_values(dataset), _values(dataset, "y")) == (list(range(30)), list(range(30)))


@pytest.mark.parametrize("write", [_npz, _npy, _hdf5])
def test_an_error_of_lengths_says_which_belong_together(write: Any, tmp_path: Path) -> None:
    path = write(tmp_path, {"x_train": np.zeros(30), "y_train": np.zeros(30), "x_test": np.zeros(7)})
    with pytest.raises(FormatError, match=r"columns=\['x_train', 'y_train'\]"):
        headrace.open(path)


def test_a_pickle_beside_wanted_columns_is_not_opened(tmp_path: Path) -> None:
    np.savez(tmp_path / "data.npz", x=np.arange(3), names=np.array([{}, 1, "a"], object))
    assert _values(headrace.open(tmp_path / "data.npz", columns=["x"])) == [0, 1, 2]
    with pytest.raises(FormatError, match="pickle"):
        headrace.open(tmp_path / "data.npz")
