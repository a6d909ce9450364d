"""HDF5 files of h5py, PyTables, pandas, netCDF4 and xarray: types, layouts and filters. h5py reads them back."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import numpy as np

from tests.clients.other_tools.array_files import NUMBERS
from tests.clients.other_tools.comparison import COLUMN, Written
from tests.clients.other_tools.tools import tool

ROWS = 12


def read(path: Path, name: str = COLUMN, kind: str = "") -> list[Any]:
    """Returns a dataset as h5py reads it; text as text, of the encoding that the kind says."""
    import h5py

    with h5py.File(path) as file:
        dataset = file[name]
        if dataset.ndim == 0:
            return [dataset[()]]
        if h5py.check_string_dtype(dataset.dtype) is not None:
            return list(dataset.asstr("latin-1" if "Latin-1" in kind else None)[:])
        values = dataset[:]
        return [value.tobytes() if values.dtype.kind == "V" and not values.dtype.names else value for value in values]


def datasets() -> Iterator[tuple[str, dict[str, Any]]]:
    """For each kind, the arguments of `create_dataset`."""
    import h5py

    for code in NUMBERS:
        for order in "<>":
            data = (np.arange(ROWS) % 2).astype(f"{order}{code}")
            yield f"{order}{code}", {"data": data}
            yield f"{order}{code} in chunks", {"data": data, "chunks": (5,)}
    yield "complex64", {"data": np.ones(ROWS, "c8")}
    yield "longdouble", {"data": np.ones(ROWS, np.longdouble)}
    words = ["", "Grüße", "日本"] * 4
    yield "text of any length", {"data": words, "dtype": h5py.string_dtype()}
    yield "text of any length, ASCII", {"data": ["a", ""] * 6, "dtype": h5py.string_dtype("ascii")}
    yield "text of 20 bytes", {"data": np.array([word.encode() for word in words], h5py.string_dtype("utf-8", 20))}
    yield "bytes of 3", {"data": np.array([b"abc", b"a"] * 6, "S3")}
    yield "text of Latin-1", {"data": np.array(["ü".encode("latin-1")] * ROWS, "S3")}
    yield "text in two dimensions", {"data": np.array([[b"a", b"b"]] * ROWS, "S1")}
    yield "opaque", {"data": np.array([b"ab\0", b"\0cd"] * 6, "V3")}
    yield "truth values", {"data": np.arange(ROWS) % 2 == 0}
    enum = h5py.enum_dtype({"cat": 0, "dog": 1}, basetype="i1")
    yield "an enumeration", {"data": np.arange(ROWS) % 2, "dtype": enum}
    yield "arrays of any length", {"shape": (ROWS,), "dtype": h5py.vlen_dtype("f4")}
    yield "bytes of any length", {"shape": (ROWS,), "dtype": h5py.vlen_dtype("u1")}
    yield "words of any length in arrays", {"shape": (ROWS,), "dtype": h5py.vlen_dtype(h5py.string_dtype())}
    yield "a compound", {"data": np.zeros(ROWS, [("x", "i4"), ("y", "f8")])}
    yield "an array type", {"shape": (ROWS,), "dtype": np.dtype(("i4", (2, 3)))}
    yield "references", {"shape": (ROWS,), "dtype": h5py.ref_dtype}
    yield "region references", {"shape": (ROWS,), "dtype": h5py.regionref_dtype}
    yield "moments", {"data": np.arange(ROWS).astype("M8[s]").astype(h5py.opaque_dtype("M8[s]"))}
    yield "three dimensions", {"data": np.arange(ROWS * 6, dtype="f4").reshape(ROWS, 3, 2)}
    yield "three dimensions in chunks", {"data": np.arange(ROWS * 6).reshape(ROWS, 3, 2), "chunks": (5, 2, 2)}
    yield "never written", {"shape": (ROWS,), "dtype": "i4", "fillvalue": 7}
    yield "never written, in chunks", {"shape": (ROWS,), "dtype": "i4", "fillvalue": 7, "chunks": (5,)}
    yield "that may grow", {"data": np.arange(ROWS), "maxshape": (None,)}
    yield "no rows", {"shape": (0, 3), "dtype": "f4"}
    yield "no rows, that may grow", {"shape": (0, 3), "dtype": "f4", "maxshape": (None, 3)}
    yield "no space", {"data": h5py.Empty("f4")}
    yield "a single number", {"data": 3.5}


FILTERS: Mapping[str, dict[str, Any]] = {
    "gzip": {"compression": "gzip"}, "lzf": {"compression": "lzf"}, "shuffle": {"shuffle": True, "chunks": True},
    "checksums": {"fletcher32": True}, "gzip and shuffle": {"compression": "gzip", "shuffle": True},
    "whole numbers by offsets": {"scaleoffset": 0, "chunks": True},
}  # fmt: skip


def _fill(dataset: Any, kind: str) -> None:
    for row in range(len(dataset) if "length" in kind and "text" not in kind else 0):
        if "words" in kind:
            dataset[row] = np.array(["a", "b"][: row % 3], object)
        else:
            dataset[row] = np.arange(row % 4)


@tool("hdf5", "h5py", "h5py")
def h5py_files(folder: Path) -> Iterator[Written]:
    import h5py

    for number, (kind, arguments) in enumerate(datasets()):
        path = folder / f"{number}.h5"
        with h5py.File(path, "w") as file:
            _fill(file.create_dataset(COLUMN, **arguments), kind)
        yield Written(kind, path, read(path, kind=kind) if kind != "no space" else [])
    for name, arguments in FILTERS.items():
        path = folder / f"{name}.h5"
        with h5py.File(path, "w") as file:
            file.create_dataset(COLUMN, data=np.arange(ROWS * 40).reshape(-1, 4), **arguments)
        yield Written(name, path, read(path))


@tool("hdf5", "h5py, kinds of types below NumPy's", "h5py")
def h5py_low_level(folder: Path) -> Iterator[Written]:
    import h5py

    half = h5py.h5t.IEEE_F16LE.copy()
    half.set_fields(15, 7, 8, 0, 7)
    half.set_ebias(127)
    packed = h5py.h5t.STD_I16LE.copy()
    packed.set_precision(12)
    packed.set_offset(2)
    wide = h5py.h5t.STD_I32LE.copy()
    wide.set_size(3)
    vax = h5py.h5t.IEEE_F32LE.copy()
    vax.set_ebias(129)
    for number, (kind, type_) in enumerate(
        {"bfloat16": half, "12 bits of 16": packed, "24 bits": wide, "another bias": vax}.items()
    ):
        path = folder / f"{number}.h5"
        values = np.array([1, 2, -3, 30], "f4" if type_.get_class() == h5py.h5t.FLOAT else "i4")
        with h5py.File(path, "w") as file:
            space = h5py.h5s.create_simple((4,))
            dataset = h5py.h5d.create(file.id, COLUMN.encode(), type_, space)
            dataset.write(h5py.h5s.ALL, h5py.h5s.ALL, values)
            file["other"] = np.arange(4)
        yield Written(kind, path, _read_or(path, values.tolist()), names=("24", "i3", "precision"))


def _read_or(path: Path, values: list[Any]) -> list[Any]:
    """Returns the column as h5py reads it; what was written where h5py has no such type."""
    try:
        return [value.item() for value in read(path)]
    except TypeError:
        return values


@tool("hdf5", "hdf5plugin", "h5py", "hdf5plugin")
def plugin_files(folder: Path) -> Iterator[Written]:
    import h5py
    import hdf5plugin

    for name in ("Blosc", "Blosc2", "BZip2", "Bitshuffle", "LZ4", "Zstd", "FciDecomp", "Zfp", "SZ3"):
        path = folder / f"{name}.h5"
        kind = np.uint8 if name == "FciDecomp" else np.float32
        try:
            with h5py.File(path, "w") as file:
                data = np.arange(400).astype(kind).reshape(20, 20)
                file.create_dataset(COLUMN, data=data, chunks=(10, 20), compression=getattr(hdf5plugin, name)())
        except (ValueError, OSError, TypeError):
            continue
        yield Written(name, path, read(path))


VALUES = np.arange(ROWS)


def virtual(file: Any) -> None:
    import h5py

    layout = h5py.VirtualLayout((ROWS,), "i8")
    layout[:] = h5py.VirtualSource("other.h5", "far", (ROWS,))
    file.create_virtual_dataset(COLUMN, layout)


def external(file: Any) -> None:
    import h5py

    raw = Path(file.filename).with_suffix(".bin")
    VALUES.tofile(raw)
    file.create_dataset(COLUMN, (ROWS,), "i8", external=[(str(raw), 0, h5py.h5f.UNLIMITED)])


def compact(file: Any) -> None:
    import h5py

    layout = h5py.h5p.create(h5py.h5p.DATASET_CREATE)
    layout.set_layout(h5py.h5d.COMPACT)
    space = h5py.h5s.create_simple((ROWS,))
    dataset = h5py.h5d.create(file.id, COLUMN.encode(), h5py.h5t.NATIVE_INT64, space, layout)
    dataset.write(h5py.h5s.ALL, h5py.h5s.ALL, VALUES)


def group(file: Any) -> None:
    file["inner/" + COLUMN] = VALUES


def hard_link(file: Any) -> None:
    file["first"] = VALUES
    file[COLUMN] = file["first"]


def soft_link(file: Any) -> None:
    import h5py

    file["first"] = VALUES
    file[COLUMN] = h5py.SoftLink("/first")


def external_link(file: Any) -> None:
    import h5py

    file["first"] = VALUES
    file[COLUMN] = h5py.ExternalLink("other.h5", "far")


def scales(file: Any) -> None:
    file[COLUMN] = VALUES
    file["scale"] = VALUES * 10
    file["scale"].make_scale("a scale")
    file[COLUMN].dims[0].attach_scale(file["scale"])


def single_number_beside(file: Any) -> None:
    file.create_dataset(COLUMN, data=VALUES, chunks=(5,))
    file["mean"] = 3.5


def another_length_beside(file: Any) -> None:
    file[COLUMN] = VALUES
    file["mean"] = np.arange(3.0)


def offsets(file: Any) -> None:
    file.create_dataset("first", data=VALUES, chunks=(5,))
    file.create_dataset(f"{COLUMN}.offsets", data=VALUES, chunks=(5,))


def growing(file: Any) -> None:
    file.create_dataset(COLUMN, data=VALUES, chunks=(5,), maxshape=(None,))


STRUCTURES = (
    virtual, external, compact, group, hard_link, soft_link, external_link, scales, single_number_beside,
    another_length_beside, offsets, growing,
)  # fmt: skip


@tool("hdf5", "h5py, structures", "h5py")
def h5py_structures(folder: Path) -> Iterator[Written]:
    import h5py

    with h5py.File(folder / "other.h5", "w") as file:
        file["far"] = VALUES
    names = {"group": f"inner/{COLUMN}", "offsets": f"{COLUMN}.offsets"}
    for make in STRUCTURES:
        for version in ("earliest", "latest"):
            path = folder / f"{make.__name__}-{version}.h5"
            with h5py.File(path, "w", libver=version) as file:
                make(file)
            kind = f"{make.__name__.replace('_', ' ')}, {version}"
            yield Written(kind, path, list(VALUES), names.get(make.__name__, COLUMN), ("mean",))
    for size in (512, 1024):
        path = folder / f"block-{size}.h5"
        with h5py.File(path, "w", userblock_size=size) as file:
            file[COLUMN] = VALUES
        with path.open("r+b") as raw:
            raw.write(b"a text of the user's")
        yield Written(f"a block of {size} bytes in front", path, list(VALUES))


@tool("hdf5", "PyTables", "tables", "h5py")
def pytables_files(folder: Path) -> Iterator[Written]:
    import tables

    values = np.arange(ROWS * 3, dtype="f4").reshape(ROWS, 3)
    for name in ("zlib", "lzo", "bzip2", "blosc", "blosc2"):
        path = folder / f"{name}.h5"
        with tables.open_file(str(path), "w") as file:
            filters = tables.Filters(complevel=5, complib=name, shuffle=True)
            file.create_carray("/", COLUMN, obj=values, filters=filters, chunkshape=(5, 3))
        yield Written(f"carray, {name}", path, list(values))
    path = folder / "array.h5"
    with tables.open_file(str(path), "w") as file:
        file.create_array("/", COLUMN, values)
    yield Written("array", path, list(values))
    path = folder / "earray.h5"
    with tables.open_file(str(path), "w") as file:
        file.create_earray("/", COLUMN, tables.Float32Atom(), (0, 3)).append(values)
    yield Written("earray", path, list(values))
    path = folder / "vlarray.h5"
    with tables.open_file(str(path), "w") as file:
        array = file.create_vlarray("/", COLUMN, tables.Int32Atom())
        for row in range(4):
            array.append(np.arange(row))
    yield Written("vlarray", path, [np.arange(row, dtype="i4") for row in range(4)])
    path = folder / "table.h5"
    with tables.open_file(str(path), "w") as file:
        file.create_table("/", "samples", obj=np.zeros(3, [(COLUMN, "i4"), ("x", "f4")]))
    yield Written("table", path, [0, 0, 0], names=("samples",))
    path = folder / "truth.h5"
    with tables.open_file(str(path), "w") as file:
        file.create_array("/", COLUMN, np.arange(ROWS) % 2 == 0)
    yield Written("truth values", path, read(path))


@tool("hdf5", "pandas.to_hdf", "pandas", "tables")
def pandas_hdf(folder: Path) -> Iterator[Written]:
    import pandas as pd

    frame = pd.DataFrame({COLUMN: [1, 2, 3]})
    for form in ("fixed", "table"):
        path = folder / f"{form}.h5"
        frame.to_hdf(path, key="samples", format=form)
        yield Written(form, path, [1, 2, 3], names=("samples", "pandas"))


@tool("hdf5", "netCDF4, xarray", "netCDF4", "xarray")
def netcdf_files(folder: Path) -> Iterator[Written]:
    import netCDF4
    import xarray

    values = np.arange(ROWS, dtype="f4") / 2
    for kind, options in {
        "plain": {}, "zlib": {"zlib": True}, "scaled": {}, "a fill value": {"fill_value": -1.0},
        "unlimited": {}, "text": {}, "single characters": {},
    }.items():  # fmt: skip
        path = folder / f"{kind}.nc"
        with netCDF4.Dataset(path, "w") as file:
            file.createDimension("sample", None if kind == "unlimited" else ROWS)
            dtype = {"text": str, "scaled": "i2", "single characters": "S1"}.get(kind, "f4")
            variable = file.createVariable(COLUMN, dtype, ("sample",), **options)
            if kind == "scaled":
                variable.scale_factor, variable.add_offset = 0.5, 1.0
            if kind == "text":
                variable[:] = np.array([f"Grüße {row}" for row in range(ROWS)], object)
            elif kind == "single characters":
                variable[:] = np.array([b"a"] * ROWS)
            else:
                variable[:] = values
        yield Written(kind, path, read(path), names=("sample",))
    path = folder / "dimensions.nc"
    data = xarray.Dataset({COLUMN: ("sample", values), "matrix": (("sample", "x"), np.ones((ROWS, 2)))})
    data.to_netcdf(path)
    yield Written("dimensions without a variable", path, list(values), names=("sample", "x"))
    path = folder / "coordinates.nc"
    data.assign_coords(x=[0.5, 1.5], sample=np.arange(ROWS)).to_netcdf(path)
    yield Written("coordinates of another length", path, list(values), names=("'x'", "x'"))
    path = folder / "moments.nc"
    xarray.Dataset({COLUMN: ("sample", np.arange(3).astype("M8[ns]"))}).to_netcdf(path)
    yield Written("moments", path, read(path))
    path = folder / "classic.nc"
    with netCDF4.Dataset(path, "w", format="NETCDF3_CLASSIC") as file:
        file.createDimension("sample", ROWS)
        file.createVariable(COLUMN, "f4", ("sample",))[:] = values
    yield Written("classic netCDF of version 3", path, list(values), names=("netCDF", "NetCDF", "CDF"))
