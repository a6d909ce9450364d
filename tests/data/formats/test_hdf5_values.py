"""HDF5 as others write it: types below NumPy's, arrays as values, links, and values that lie elsewhere."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest

import headrace
from headrace.core.errors import FormatError

h5py = pytest.importorskip("h5py")


def _bfloat16(kind: Any) -> None:
    kind.set_fields(15, 7, 8, 0, 7)
    kind.set_ebias(127)


def _float8(kind: Any) -> None:
    kind.set_fields(7, 3, 4, 0, 3)
    kind.set_size(1)
    kind.set_ebias(7)


def _twelve_bits(kind: Any) -> None:
    kind.set_precision(12)
    kind.set_offset(4)


TYPES = {
    "bfloat16": (h5py.h5t.IEEE_F16LE, _bfloat16, [1.0, 2.0, -3.5]),
    "float8": (h5py.h5t.IEEE_F16LE, _float8, [1.0, 2.0, -3.5]),
    "12 bits of 16": (h5py.h5t.STD_I16LE, _twelve_bits, [1, -2, 300]),
}


@pytest.mark.quick
@pytest.mark.parametrize("chunked", [False, True])
@pytest.mark.parametrize("name", TYPES)
def test_a_type_that_numpy_has_not_is_read_as_h5py_reads_it(name: str, chunked: bool, tmp_path: Path) -> None:
    base, change, values = TYPES[name]
    kind = base.copy()
    change(kind)
    with h5py.File(tmp_path / "x.h5", "w") as file:
        layout = h5py.h5p.create(h5py.h5p.DATASET_CREATE)
        if chunked:
            layout.set_chunk((2,))
        dataset = h5py.h5d.create(file.id, b"x", kind, h5py.h5s.create_simple((3,)), layout)
        dataset.write(h5py.h5s.ALL, h5py.h5s.ALL, np.array(values))
    with h5py.File(tmp_path / "x.h5") as file:
        expected = file["x"][()].tolist()
    assert expected == values
    dataset = headrace.open(tmp_path / "x.h5")
    assert [sample["x"].item() for sample in dataset] == expected
    assert next(iter(headrace.DataLoader(dataset, 3)))["x"].tolist() == expected


def test_arrays_as_values_and_names_of_offsets_are_columns(tmp_path: Path) -> None:
    with h5py.File(tmp_path / "x.h5", "w") as file:
        file.create_dataset("x", (4,), np.dtype(("<i4", (2, 3))))
        file["x"][...] = np.arange(24).reshape(4, 2, 3)
        file.create_dataset("y.offsets", data=np.arange(4), chunks=(2,))
    sample = headrace.open(tmp_path / "x.h5")[1]
    assert sample["x"].tolist() == [[6, 7, 8], [9, 10, 11]]
    assert sample["y.offsets"] == 1


def test_every_name_of_a_dataset_is_a_column(tmp_path: Path) -> None:
    with h5py.File(tmp_path / "x.h5", "w") as file:
        file["x"] = np.arange(3)
        file["same"] = file["x"]
        file["soft"] = h5py.SoftLink("/x")
        file["nowhere"] = h5py.SoftLink("/gone")
        file.create_group("deep")["round"] = file["/"]
    dataset = headrace.open(tmp_path / "x.h5")
    assert sorted(dataset.schema.names) == ["same", "soft", "x"]
    assert [dict(sample) for sample in dataset] == [dict.fromkeys(dataset.schema.names, row) for row in range(3)]


@pytest.mark.quick
@pytest.mark.parametrize("kind", ["external link", "virtual", "external"])
def test_values_that_lie_elsewhere_are_refused_by_name_and_may_be_left_out(kind: str, tmp_path: Path) -> None:
    with h5py.File(tmp_path / "other.h5", "w") as file:
        file["x"] = np.arange(3)
    with h5py.File(tmp_path / "x.h5", "w") as file:
        file["y"] = np.arange(3)
        if kind == "external link":
            file["x"] = h5py.ExternalLink("other.h5", "/x")
        elif kind == "virtual":
            layout = h5py.VirtualLayout((3,), "i8")
            layout[:] = h5py.VirtualSource(tmp_path / "other.h5", "x", (3,))
            file.create_virtual_dataset("x", layout)
        else:
            file.create_dataset("x", (3,), "i8", external=[(str(tmp_path / "raw"), 0, h5py.h5f.UNLIMITED)])
    with pytest.raises(FormatError, match="other files, which are not opened: x"):
        headrace.open(tmp_path / "x.h5")
    assert [sample["y"] for sample in headrace.open(tmp_path / "x.h5", columns=["y"])] == [0, 1, 2]


LZO = 305
"""The number of a filter that neither HDF5 nor hdf5plugin has."""


def _packed_elsewhere(path: Path, chunks: list[bytes | None]) -> None:
    """Writes a dataset of chunks of two values, each packed by LZO, or, if None, as it is."""
    with h5py.File(path, "w") as file:
        layout = h5py.h5p.create(h5py.h5p.DATASET_CREATE)
        layout.set_chunk((2,))
        layout.set_filter(LZO, h5py.h5z.FLAG_OPTIONAL)
        space = h5py.h5s.create_simple((2 * len(chunks),))
        dataset = h5py.h5d.create(file.id, b"x", h5py.h5t.NATIVE_INT64, space, layout)
        for number, chunk in enumerate(chunks):
            values = np.arange(2 * number, 2 * number + 2).tobytes()
            dataset.write_direct_chunk((2 * number,), chunk or values, int(chunk is None))


@pytest.mark.quick
def test_an_error_names_the_filter_that_a_dataset_needs(tmp_path: Path) -> None:
    _packed_elsewhere(tmp_path / "x.h5", [b"packed", None])
    with pytest.raises(FormatError, match=f"dataset 'x'(.|\n)*number {LZO}(.|\n)*gzip") as error:
        headrace.open(tmp_path / "x.h5")
    assert "restore" not in str(error.value)


def test_chunks_that_a_missing_filter_left_as_they_are_can_be_read(tmp_path: Path) -> None:
    _packed_elsewhere(tmp_path / "x.h5", [None, None])
    assert [int(sample["x"]) for sample in headrace.open(tmp_path / "x.h5")] == [0, 1, 2, 3]


def test_a_later_chunk_that_needs_a_missing_filter_names_it(tmp_path: Path) -> None:
    _packed_elsewhere(tmp_path / "x.h5", [None, b"packed"])
    dataset = headrace.open(tmp_path / "x.h5")
    with pytest.raises(FormatError, match=f"dataset 'x', samples 0 to 3(.|\n)*number {LZO}") as error:
        dataset[2]
    assert "restore" not in str(error.value)
