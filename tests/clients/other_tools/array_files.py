"""Arrays of NumPy, torch and tensordict: every type, order and layout. NumPy and torch read them back."""

from __future__ import annotations

import gzip
import io
import struct
import zipfile
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any

import numpy as np
import torch

from tests.clients.other_tools.comparison import COLUMN, Written
from tests.clients.other_tools.tools import tool

NUMBERS = ("?", "i1", "u1", "i2", "u2", "i4", "u4", "i8", "u8", "f2", "f4", "f8")
OTHERS: Mapping[str, Any] = {
    "complex64": np.array([1 + 2j, 0], "c8"),
    "complex128": np.array([1 + 2j, 0]),
    "longdouble": np.array([1, 2], np.longdouble),
    "datetime64[D]": np.array(["2024-02-29", "1969-12-31"], "M8[D]"),
    "datetime64[ns]": np.array(["2024-02-29T10:00", "NaT"], "M8[ns]"),
    "timedelta64[s]": np.array([5, -5], "m8[s]"),
    "str": np.array(["a", "Grüße", ""]),
    "bytes": np.array([b"a", b"b\0c"]),
    "void": np.array([b"abc", b"def"], "V3"),
    "object of str": np.array(["a", None], object),
    "object of arrays": np.array([np.arange(2), np.arange(3)], object),
}
"""Types that are no numbers, or that not every machine has."""


def arrays() -> Iterator[tuple[str, Any]]:
    """Arrays of every type, byte order, memory order and shape."""
    for code in NUMBERS:
        limits = [0, 1, 1] if code == "?" else [0, 1, _largest(code)]
        for order in "<>":
            yield f"{order}{code}", np.array(limits, code).astype(f"{order}{code}")
        yield f"{code}, Fortran order", np.asfortranarray(np.arange(6).reshape(3, 2).astype(code))
    for order in "CF":
        yield f"{order} order, three dimensions", np.array(np.arange(24, dtype="f4").reshape(4, 3, 2), order=order)
        yield f"{order} order, big endian", np.array(np.arange(6, dtype=">i4").reshape(2, 3), order=order)
    yield "not a number", np.array([np.nan, -0.0, np.inf])
    yield "every second row", np.arange(20).reshape(10, 2)[::2]
    yield "backwards", np.arange(5)[::-1]
    yield "no rows", np.empty((0, 3), "f4")
    yield "rows of no values", np.empty((3, 0), "f4")
    yield "no dimension", np.array(7)
    yield from OTHERS.items()


def _largest(code: str) -> Any:
    if code[0] == "f":
        return np.finfo(code).max
    return np.iinfo(code).max


def _names(array: Any) -> tuple[str, ...]:
    words = [str(array.dtype), array.dtype.name]
    if array.ndim == 0:
        words += ["dimension"]
    return tuple(words)


def _read(path: Path) -> Any:
    array = np.load(path, allow_pickle=True)
    return array if array.ndim else [array]


@tool("npy", "numpy.save")
def npy_files(folder: Path) -> Iterator[Written]:
    for number, (kind, array) in enumerate(arrays()):
        path = folder / f"{number}.npy"
        np.save(path, array)
        yield Written(kind, path, list(_read(path)), "data", _names(array))
    for version in ((1, 0), (2, 0), (3, 0)):
        path = folder / f"version-{version[0]}.npy"
        with path.open("wb") as file:
            np.lib.format.write_array(file, np.arange(4), version=version)
        yield Written(f"header of version {version[0]}", path, list(np.load(path)), "data")
    table = np.array([(1, 0.5, b"ab", [1, 2])], [(COLUMN, ">i2"), ("x", "f4"), ("tag", "S2"), ("pair", "i4", 2)])
    for name, fields in {"a record": [COLUMN, "x", "pair"], "a record with bytes": [COLUMN, "tag"]}.items():
        path = folder / f"{name}.npy"
        np.save(path, table[fields].copy())
        yield Written(name, path, list(np.load(path)[COLUMN]), names=("tag", "S2"))
    path = folder / "nested.npy"
    np.save(path, np.zeros(2, [(COLUMN, [("x", "i4"), ("y", "f4")])]))
    yield Written("a record in a record", path, list(np.load(path)[COLUMN]))
    path = folder / "aligned.npy"
    np.save(path, np.zeros(3, np.dtype([("flag", "?"), (COLUMN, "f8")], align=True)))
    yield Written("a record with gaps", path, list(np.load(path)[COLUMN]))


@tool("npz", "numpy.savez")
def npz_files(folder: Path) -> Iterator[Written]:
    for number, (kind, array) in enumerate(arrays()):
        for save in (np.savez, np.savez_compressed):
            path = folder / f"{number}-{save.__name__}.npz"
            save(path, **{COLUMN: array})
            values = np.load(path, allow_pickle=True)[COLUMN]
            found = list(values) if values.ndim else [values]
            yield Written(f"{kind}, {save.__name__}", path, found, names=_names(array))


@tool("npz", "zipfile")
def zipped_arrays(folder: Path) -> Iterator[Written]:
    stream = io.BytesIO()
    np.save(stream, np.arange(500))
    for name in ("ZIP_STORED", "ZIP_DEFLATED", "ZIP_BZIP2", "ZIP_LZMA"):
        path = folder / f"{name}.npz"
        with zipfile.ZipFile(path, "w", getattr(zipfile, name)) as archive:
            archive.writestr(f"{COLUMN}.npy", stream.getvalue())
        yield Written(name, path, list(np.load(path)[COLUMN]))
    path = folder / "folders.npz"
    with zipfile.ZipFile(path, "w") as archive:
        archive.writestr(f"group/{COLUMN}.npy", stream.getvalue())
    yield Written("a folder", path, list(np.load(path)[f"group/{COLUMN}"]), f"group/{COLUMN}")
    path = folder / "names.npz"
    np.savez(path, np.arange(3), **{COLUMN: np.arange(3.0)})
    yield Written("an array without a name", path, list(np.load(path)[COLUMN]))
    path = folder / "lengths.npz"
    np.savez(path, **{COLUMN: np.arange(4), "mean": np.arange(3.0)})
    yield Written("arrays of two lengths", path, list(np.load(path)[COLUMN]), names=("mean",))
    path = folder / "only.npz"
    np.savez(path, **{COLUMN: np.arange(4), "mean": np.arange(3.0)})
    yield Written("arrays of two lengths, one asked for", path, list(np.arange(4)), options={"columns": [COLUMN]})


@tool("memmap", "numpy.save")
def npy_folders(folder: Path) -> Iterator[Written]:
    for number, (kind, array) in enumerate(arrays()):
        path = folder / str(number)
        path.mkdir()
        np.save(path / f"{COLUMN}.npy", array)
        yield Written(kind, path, list(_read(path / f"{COLUMN}.npy")), names=_names(array))
    for name, beside in {"another length": np.arange(3), "a single number": np.array(3.5)}.items():
        path = folder / name
        path.mkdir()
        np.save(path / f"{COLUMN}.npy", np.arange(5))
        np.save(path / "mean.npy", beside)
        yield Written(f"{name} beside", path, list(np.arange(5)), names=("mean",))
    path = folder / "samples"
    path.mkdir()
    for sample in range(12):
        np.save(path / f"{sample:03d}.npy", np.full((5, 3), sample, "f4"))
    values = [np.full((5, 3), sample, "f4") for sample in range(12)]
    yield Written("twelve files, one a sample", path, values, names=("000",))


IDX = {8: "u1", 9: "i1", 11: ">i2", 12: ">i4", 13: ">f4", 14: ">f8"}


@tool("idx", "bytes as of MNIST")
def idx_files(folder: Path) -> Iterator[Written]:
    words = {8: "ubyte", 9: "byte", 11: "short", 12: "int", 13: "float", 14: "double"}
    for code, dtype in IDX.items():
        for shape in ((5,), (4, 3, 2)):
            for ending in ("", ".gz"):
                array = (np.arange(np.prod(shape)).reshape(shape) - 3).astype(dtype)
                data = struct.pack(f">BBBB{len(shape)}I", 0, 0, code, len(shape), *shape) + array.tobytes()
                path = folder / f"{code}{ending[1:]}-{COLUMN}-idx{len(shape)}-{words[code]}{ending}"
                path.write_bytes(gzip.compress(data) if ending else data)
                yield Written(f"{dtype} {shape}{ending}", path, list(array))
    path = folder / f"members-{COLUMN}-idx1-ubyte.gz"
    path.write_bytes(gzip.compress(struct.pack(">BBBBI", 0, 0, 8, 1, 4) + b"ab") + gzip.compress(b"cd"))
    yield Written("two members of gzip", path, [np.uint8(one) for one in b"abcd"])


def tensors() -> Iterator[tuple[str, Callable[[int], Any]]]:
    """For each kind, what makes the value of a sample."""
    for name in ("bool", "uint8", "int8", "int16", "int32", "int64", "uint16", "uint32", "uint64", "float16",
                 "float32", "float64", "bfloat16", "float8_e4m3fn", "complex64"):  # fmt: skip
        dtype = getattr(torch, name)
        yield name, lambda number, dtype=dtype: torch.tensor([number, 1, 0]).to(dtype)
    yield "any length", lambda number: torch.arange(number)
    yield "one number", lambda number: torch.tensor(number)
    yield "a number of Python", lambda number: number
    yield "a fraction of Python", lambda number: number / 3
    yield "a truth value", lambda number: number > 1
    yield "a large number of Python", lambda number: 2**40 + number
    yield "a number of 70 bits", lambda number: 2**70 + number
    yield "a string", lambda number: f"Grüße {number}"
    yield "bytes", lambda number: bytes([number])
    yield "None", lambda number: None
    yield "a list of numbers", lambda number: [number, 2, 3]
    yield "a list of strings", lambda number: ["a", "b"]
    yield "a dict", lambda number: {"a": number}
    yield "not contiguous", lambda number: torch.arange(12).reshape(3, 4).t()[:, ::2] + number
    yield "a view of more", lambda number: torch.arange(100)[number : number + 3]
    yield "sparse", lambda number: torch.eye(2).to_sparse()
    yield "quantized", lambda number: torch.quantize_per_tensor(torch.ones(2), 0.5, 0, torch.qint8)
    yield "a parameter", lambda number: torch.nn.Parameter(torch.ones(2) * number)
    yield "wider in one file", lambda number: torch.tensor([300], dtype=torch.int16) if number == 2 else _small(number)
    yield (
        "wider in a late file",
        lambda number: torch.tensor([300], dtype=torch.int16) if number == 33 else _small(number),
    )
    yield "half and wider", lambda number: torch.tensor([1e6]) if number == 33 else torch.tensor([0.5]).half()
    yield "another shape", lambda number: torch.ones(2, 3) if number == 2 else torch.ones(2, 2)


def _small(number: int) -> Any:
    return torch.tensor([number], dtype=torch.uint8)


def _as_read(value: Any) -> Any:
    """Returns a tensor as NumPy's array, where NumPy has its type; else as it is."""
    if isinstance(value, torch.Tensor):
        try:
            return value.detach().numpy()
        except (TypeError, RuntimeError):
            return value
    return value


@tool("pt", "torch.save")
def pt_files(folder: Path) -> Iterator[Written]:
    for number, (kind, make) in enumerate(tensors()):
        path = folder / str(number)
        path.mkdir()
        samples = 40 if "late" in kind or "half" in kind else 4
        values = []
        for sample in range(samples):
            torch.save({COLUMN: make(sample)}, path / f"{sample:03d}.pt")
            values.append(_as_read(torch.load(path / f"{sample:03d}.pt", weights_only=False)[COLUMN]))
        if "wider" in kind:
            # The type of all is the one that holds them all: only the numbers are compared.
            values = [value.tolist() for value in values]
        dtype = str(getattr(values[0], "dtype", type(values[0]).__name__)).removeprefix("torch.")
        yield Written(kind, path, values, names=(dtype, type(values[0]).__name__))
    for kind, save in {
        "the form of before 1.6": lambda value, path: torch.save(value, path, _use_new_zipfile_serialization=False),
        "a tensor alone": torch.save,
        "a tuple": lambda value, path: torch.save((value, "a"), path),
    }.items():
        path = folder / kind
        path.mkdir()
        for sample in range(3):
            save(torch.arange(sample, sample + 2), path / f"{sample}.pt")
        column = "0" if kind == "a tuple" else "data"
        yield Written(kind, path, [np.arange(sample, sample + 2) for sample in range(3)], column)


@tool("tensordict", "TensorDict.memmap", "tensordict")
def tensordict_folders(folder: Path) -> Iterator[Written]:
    from tensordict import TensorDict

    for number, (kind, make) in enumerate(tensors()):
        path = folder / str(number)
        try:
            stacked = torch.stack([make(sample) for sample in range(3)])
            TensorDict({COLUMN: stacked}, batch_size=[3]).memmap(str(path))
            values = [_as_read(one) for one in TensorDict.load_memmap(str(path))[COLUMN]]
        except Exception:  # noqa: BLE001 - what this library cannot write is none of our business
            continue
        yield Written(kind, path, values, names=(str(stacked.dtype).removeprefix("torch."),))
    path = folder / "nested"
    TensorDict({"inner": {COLUMN: torch.arange(4)}}, batch_size=[4]).memmap(str(path))
    yield Written("nested", path, list(np.arange(4)), f"inner.{COLUMN}", names=("inner",))
    path = folder / "two dimensions"
    TensorDict({COLUMN: torch.arange(6).reshape(2, 3)}, batch_size=[2, 3]).memmap(str(path))
    yield Written("a batch of two dimensions", path, list(np.arange(6).reshape(2, 3)))
    path = folder / "text"
    TensorDict({COLUMN: torch.arange(2), "name": "a text"}, batch_size=[2]).memmap(str(path))
    yield Written("a text beside", path, list(np.arange(2)), names=("name",))
