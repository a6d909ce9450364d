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
