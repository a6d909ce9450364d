"""Arrow's values of types that are none of ours: times in one unit, decimals, tensors, arrays and images of others."""

from __future__ import annotations

import datetime
import io
from decimal import Decimal
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.feather
import pyarrow.parquet as pq
import pytest
from hypothesis import given
from hypothesis import strategies as st
from PIL import Image

import headrace
from headrace.core.errors import FormatError
from headrace.data.formats.arrow.exact_numbers import decimals

WHEN = datetime.datetime(2024, 1, 5, 10, 0, 0, 500_000)
MICROSECONDS = 1_704_448_800_500_000
TIMES: dict[str, tuple[pa.Array, int]] = {
    "s": (pa.array([datetime.datetime(2024, 1, 5, 10)], pa.timestamp("s")), MICROSECONDS - 500_000),
    "ms": (pa.array([WHEN], pa.timestamp("ms")), MICROSECONDS),
    "us": (pa.array([WHEN], pa.timestamp("us")), MICROSECONDS),
    "ns": (pa.array([WHEN], pa.timestamp("ns")), MICROSECONDS),
    "zone": (pa.array([WHEN], pa.timestamp("ns", "Europe/Berlin")), MICROSECONDS),
    "date32": (pa.array([WHEN.date()]), 19_727),
    "date64": (pa.array([WHEN.date()], pa.date64()), 19_727),
    "time32": (pa.array([datetime.time(10, 30)], pa.time32("s")), 37_800_000_000),
    "time64": (pa.array([datetime.time(10, 30)], pa.time64("ns")), 37_800_000_000),
    "duration": (pa.array([datetime.timedelta(seconds=3)], pa.duration("ms")), 3_000_000),
}


def write(array: pa.Array, path: Path) -> Path:
    """Writes a column `x`, by the ending of the path."""
    table = pa.table({"x": array})
    if path.suffix == ".parquet":
        pq.write_table(table, path)
    else:
        pyarrow.feather.write_feather(table, path, compression="uncompressed")
    return path


def values(path: Path) -> list[Any]:
    """Returns the column sample by sample, after comparing it with that of a batch."""
    dataset = headrace.open(path)
    found = [np.asarray(sample["x"]).tolist() for sample in dataset]
    batch = next(iter(headrace.DataLoader(dataset, len(dataset))))["x"]
    assert str(np.asarray(batch).tolist()) == str(found)
    return found


@pytest.mark.quick
@pytest.mark.parametrize("form", ["arrow", "parquet"])
@pytest.mark.parametrize("kind", TIMES)
def test_times_have_one_unit_whatever_a_file_has_them_in(kind: str, form: str, tmp_path: Path) -> None:
    array, expected = TIMES[kind]
    assert values(write(array, tmp_path / f"x.{form}")) == [expected]


def test_digits_of_a_time_are_not_cut_off(tmp_path: Path) -> None:
    path = write(pa.array([1_704_448_800_500_000_001], pa.timestamp("ns")), tmp_path / "x.arrow")
    with pytest.raises(FormatError, match="1704448800500000001"):
        headrace.open(path)[0]


@pytest.mark.quick
@pytest.mark.parametrize("form", ["arrow", "parquet"])
def test_ids_of_many_digits_stay_apart(form: str, tmp_path: Path) -> None:
    ids = [Decimal(2**60 + 1), Decimal(2**60 + 2), Decimal(-(2**63))]
    assert values(write(pa.array(ids, pa.decimal128(20, 0)), tmp_path / f"x.{form}")) == list(map(int, ids))
    path = write(pa.array([Decimal(2**63)], pa.decimal128(20, 0)), tmp_path / f"y.{form}")
    with pytest.raises(FormatError, match=str(2**63)):
        headrace.open(path)[0]


@given(st.lists(st.none() | st.decimals(-(10**20), 10**20, allow_nan=False, places=6), min_size=1, max_size=9))
def test_fractions_are_the_nearest_floating_point(numbers: list[Decimal | None]) -> None:
    array = pa.array([None, *numbers], pa.decimal128(38, 6)).slice(1)
    expected = [np.nan if number is None else float(number) for number in numbers]
    assert np.array_equal(decimals(array), expected, equal_nan=True)


def test_decimals_of_more_digits_than_floating_point_are_told(tmp_path: Path) -> None:
    path = write(pa.array([Decimal("0.1")], pa.decimal128(38, 18)), tmp_path / "x.parquet")
    with pytest.warns(UserWarning, match="x .decimal128"):
        dataset = headrace.open(path)
    assert dataset[0]["x"] == 0.1


def test_a_tensor_with_a_permutation_is_turned(tmp_path: Path) -> None:
    kind = pa.fixed_shape_tensor(pa.float32(), [3, 4], permutation=[1, 0])
    stored = pa.array(np.arange(24, dtype=np.float32).reshape(2, 12).tolist(), pa.list_(pa.float32(), 12))
    array = pa.ExtensionArray.from_storage(kind, stored)
    assert values(write(array, tmp_path / "x.arrow")) == array.to_numpy_ndarray().tolist()


def test_words_of_a_dictionary_may_be_views(tmp_path: Path) -> None:
    words = pa.array(["a", "a long word, which lies elsewhere"], pa.string_view())
    array = pa.DictionaryArray.from_arrays(pa.array([1, 0, 1], pa.int8()), words)
    dataset = headrace.open(write(array, tmp_path / "x.arrow"))
    assert [sample["x"] for sample in dataset] == [words[1].as_py(), "a", words[1].as_py()]


def test_images_of_hugging_face_are_images(tmp_path: Path) -> None:
    stream = io.BytesIO()
    Image.new("RGB", (4, 3), (9, 8, 7)).save(stream, "PNG")
    kind = pa.struct([("bytes", pa.binary()), ("path", pa.string())])
    image = pa.array([{"bytes": stream.getvalue(), "path": None}], kind)
    pq.write_table(pa.table({"image": image}), tmp_path / "x.parquet")
    assert headrace.open(tmp_path / "x.parquet")[0]["image"].tolist() == [[[9, 8, 7]] * 4] * 3

    elsewhere = pa.array([{"bytes": None, "path": "photos/0.jpg"}], kind)
    pq.write_table(pa.table({"image": elsewhere}), tmp_path / "y.parquet")
    with pytest.raises(FormatError, match=r"photos/0\.jpg"):
        headrace.open(tmp_path / "y.parquet")[0]


@pytest.mark.parametrize("shape", [(2, 3), (None, 3)])
def test_arrays_of_hugging_face_are_arrays(shape: tuple[int | None, int], tmp_path: Path) -> None:
    datasets = pytest.importorskip("datasets")
    rows = [np.arange(6.0).reshape(2, 3).tolist(), np.arange(6.0, 12).reshape(2, 3).tolist()]
    features = datasets.Features({"x": datasets.Array2D(shape, "float64")})
    datasets.Dataset.from_dict({"x": rows}, features=features).save_to_disk(tmp_path / "data")
    assert [sample["x"].tolist() for sample in headrace.open(tmp_path / "data")] == rows


@pytest.mark.parametrize("form", ["arrow", "parquet"])
def test_a_name_that_comes_twice_is_said(form: str, tmp_path: Path) -> None:
    table = pa.table([pa.array([1]), pa.array([2])], names=["x", "x"])
    if form == "parquet":
        pq.write_table(table, tmp_path / "x.parquet")
    else:
        with pa.ipc.new_file(tmp_path / "x.arrow", table.schema) as file:
            file.write_table(table)
    with pytest.raises(FormatError, match="'x' 2 times"):
        headrace.open(tmp_path / f"x.{form}")
