"""A memory-mapped TensorDict, as `TensorDict.memmap` writes it and `TensorDict.load_memmap` reads it.

Needs the package tensordict (`pip install 'headrace[tensordict]'`). Nested dictionaries are columns `outer.inner`.
"""

from __future__ import annotations

import functools
import json
import math
import re
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path, PurePath
from typing import Any, NamedTuple

import numpy as np
import torch

from headrace.core.errors import FormatError
from headrace.core.extras import extra
from headrace.data.formats.columns import Array, Column, array_of
from headrace.data.formats.columns.arrays import ColumnsReader, columns_from, length_of, wanted_arrays
from headrace.data.formats.columns.arrays_writer import ArraysWriter
from headrace.data.formats.columns.byte_spans import Addresses
from headrace.data.formats.columns.remote_arrays import Pieces, StoredArray
from headrace.data.formats.columns.schema import Field, Schema
from headrace.data.formats.fetched_whole import NotByRanges
from headrace.data.formats.manifest import known_schema, manifest_of, only_known
from headrace.data.formats.protocol import Names, Reader, Writer
from headrace.data.formats.stored_arrays import NamedArray, check_size, dtype_of, open_arrays
from headrace.data.formats.unreadable import unreadable
from headrace.storage.files import join, objects_below, plain_files, read_small
from headrace.storage.locations import is_url
from headrace.storage.remote_files import RemoteFiles

NAME = "tensordict"
TITLE = "memory-mapped TensorDict"
PLAIN = re.compile(r"<class 'tensordict\.(?:\w+\.)*TensorDict'>")
"""What a TensorDict calls itself; other classes bring code and pickles of their own."""

FAILURES = (ValueError, KeyError, TypeError, RuntimeError, EOFError, AttributeError, OverflowError, IndexError)


def claims(path: str) -> bool:
    try:
        meta = json.loads(read_small(join(path, "meta.json")))
    except OSError:
        return False
    except ValueError:
        # Damaged, beside what it describes: opening says so.
        return any(name.endswith(".memmap") for name in plain_files(path))
    return isinstance(meta, dict) and ("_type" in meta or "device" in meta)


def refusal(field: Field) -> str | None:
    if field.kind != "fixed":
        return "a TensorDict holds samples of one size"

    plain = re.fullmatch(r"[A-Za-z0-9_\-]+", field.name) and field.name not in ("meta", "data")
    if plain:
        return None
    return "its name holds what TensorDict or file names have another meaning for"


def open_reader(path: str, trust: bool, columns: Names | None = None) -> Reader:
    known = only_known(known_schema(manifest_of(path, NAME)), columns)
    if is_url(path):
        return _open_stored(path, known, trust)

    arrays = _arrays(path, trust)
    wanted = {name: arrays[name] for name in wanted_arrays(arrays, columns)}
    schema, found = columns_from(wanted, path, known)
    return ColumnsReader(NAME, path, schema, length_of(found), functools.partial(_load, path, schema, trust))


def _open_stored(url: str, known: Schema | None, trust: bool) -> Reader:
    """Opens a folder in a store. The package is not needed for that.

    Raises `NotByRanges` for what is more than plain tensors: the package itself must then read it.
    """
    sizes = {name: info.size for name, info in objects_below(url)}
    found = _StoredTensors(url, sizes, trust)
    found.walk("", "")
    urls = [join(url, tensor.file) for tensor in found.tensors if tensor.size]
    if not urls:
        raise NotByRanges

    files = RemoteFiles.at(urls)
    addresses = Addresses(files)
    arrays = {}
    number = 0
    for tensor in found.tensors:
        # An empty tensor has no file.
        pieces = Pieces.one(number, 0, tensor.shape[0])
        number += tensor.size > 0
        arrays[tensor.name] = NamedArray(StoredArray(addresses, pieces, tensor.dtype, tensor.shape[1:]))

    return open_arrays(NAME, url, addresses, arrays, known)


class _Tensor(NamedTuple):
    """A tensor in a store."""

    name: str
    """Of its column."""

    file: str
    """Relative to the folder."""

    dtype: np.dtype[Any]
    shape: tuple[int, ...]

    @property
    def size(self) -> int:
        """Its bytes."""
        return math.prod(self.shape) * self.dtype.itemsize


class _StoredTensors:
    """Finds the tensors of a TensorDict in a store, in the order in which the package has them."""

    def __init__(self, url: str, sizes: Mapping[str, int], trust: bool) -> None:
        """sizes: of the objects, by their names relative to the folder."""
        self._url = url
        self._sizes = sizes
        self._trust = trust
        self.tensors: list[_Tensor] = []

    def walk(self, folder: str, prefix: str) -> None:
        """Adds the tensors of a folder and those below it. folder: relative, with a slash at its end, or empty."""
        place = self._url.rstrip("/") + "/" + folder.rstrip("/")
        entries = _entries(place.rstrip("/"))
        if not self._trust:
            names = []
            for name in self._sizes:
                if name.startswith(folder) and "/" not in name[len(folder) :]:
                    names.append(name[len(folder) :])
            _refuse_code_in(place, names, entries)

        nested = []
        for name, entry in entries.items():
            if not isinstance(entry, dict):
                continue
            if entry.get("type") == "TensorDict":
                nested.append(name)
            elif entry.get("is_nested") or "shape" not in entry or "dtype" not in entry:
                raise NotByRanges
            else:
                self._add(folder, prefix, name, entry)

        for name in nested:
            below = f"{folder}{name}/"
            if f"{below}meta.json" not in self._sizes:
                raise NotByRanges
            self.walk(below, f"{prefix}{name}.")

    def _add(self, folder: str, prefix: str, name: str, entry: dict[str, Any]) -> None:
        meta = join(self._url, f"{folder}meta.json")
        try:
            tensor = _Tensor(
                prefix + name, f"{folder}{name}.memmap", dtype_of(str(entry["dtype"])), tuple(entry["shape"])
            )
            whole = all(isinstance(length, int) for length in tensor.shape)
            if not whole or not tensor.shape or min(tensor.shape) < 0:
                raise ValueError(f"entry {name!r} of shape {list(tensor.shape)}")
            size = tensor.size
        except (ValueError, TypeError, OverflowError) as error:
            raise unreadable(meta, "TensorDict", error) from error

        if size and tensor.file not in self._sizes:
            # Names with special letters are written in a way of its own.
            raise NotByRanges
        if size:
            check_size(join(self._url, tensor.file), self._sizes[tensor.file], size)
        self.tensors.append(tensor)


def _arrays(path: str, trust: bool) -> dict[str, Array]:
    tensordict = extra("tensordict", "tensordict")
    for folder in _folders(path):
        if not trust:
            _refuse_code(folder)
        _check_sizes(folder)

    try:
        stored = tensordict.TensorDict.load_memmap(path)
        leaves = stored.items(include_nested=True, leaves_only=True)
        arrays = {}
        for key, value in leaves:
            if isinstance(key, str):
                name = key
            else:
                name = ".".join(key)

            arrays[name] = array_of(value, name, path)

        return arrays
    except FAILURES as error:
        if isinstance(error, FormatError):
            raise
        raise unreadable(path, "TensorDict", error) from error


def _folders(path: str) -> Iterator[Path]:
    """Yields the folder and those below it, through links too, each once."""
    pending = [Path(path)]
    seen = set[Path]()
    while pending:
        folder = pending.pop()
        # A link may lead to a folder above it; without `seen` the walk would go round for ever.
        real = folder.resolve()
        if real not in seen:
            seen.add(real)
            yield folder
            folders = []
            for entry in folder.iterdir():
                if entry.is_dir():
                    folders.append(entry)

            pending += sorted(folders)


def _refuse_code(folder: Path) -> None:
    """Raises `FormatError` for what the library would unpickle, or hand to code that the data name."""
    names = [entry.name for entry in folder.iterdir()]
    _refuse_code_in(folder, names, _entries(str(folder)))


def _refuse_code_in(place: object, names: Sequence[str], entries: Mapping[str, Any]) -> None:
    """See `_refuse_code`. names: of the files in a folder; entries: what is written about them."""
    found = []
    for name in names:
        if PurePath(name).suffix in (".pickle", ".pkl"):
            found.append(name)

    kind = entries.get("_type")
    if kind is not None and not PLAIN.fullmatch(str(kind)):
        found.append(f"a {kind}")

    if found:
        fix = "save tensors alone; or, if you trust the author, open it with trust=True"
        what = "a TensorDict holds more than tensors, which could execute anything"
        expected = "tensors"
        raise FormatError.about(what, place=place, found=", ".join(sorted(found)), expected=expected, fix=fix)


def _entries(folder: str) -> dict[str, Any]:
    """Returns what is written about the entries of a folder; nothing if it holds none. Raises `FormatError`."""
    meta = join(folder, "meta.json")
    try:
        plain = json.loads(read_small(meta))
        # The library joins the names to the folder: `../x` would map a file that lies elsewhere.
        outside = []
        for name in plain:
            if {"/", "\\", "\0"} & set(name) or name in (".", ".."):
                outside.append(name)

        if outside:
            raise ValueError(f"entries in other folders: {', '.join(map(repr, outside))}")
    except FileNotFoundError:
        return {}
    except (ValueError, TypeError, RecursionError) as error:
        if isinstance(error, FormatError):
            raise
        raise unreadable(meta, "TensorDict", error) from error

    return dict(plain)


def _check_sizes(folder: Path) -> None:
    """Compares the length of each file with what is written about it: a mapping that ends early would be fatal."""
    try:
        for name, entry in _entries(str(folder)).items():
            if not isinstance(entry, dict) or "shape" not in entry or "dtype" not in entry:
                continue
            # Any name of torch may stand there; what is no dtype has no `itemsize`, and ends in the error below.
            dtype = getattr(torch, str(entry["dtype"]).removeprefix("torch."))
            expected = math.prod(entry["shape"]) * dtype.itemsize
            if min(entry["shape"], default=0) < 0:
                raise ValueError(f"entry {name!r} of shape {entry['shape']}")
            # An empty tensor has no file.
            if expected == 0:
                continue
            file = folder / f"{name}.memmap"
            check_size(str(file), file.stat().st_size, expected)
    except (ValueError, TypeError, AttributeError, RuntimeError, FileNotFoundError) as error:
        if isinstance(error, FormatError):
            raise
        raise unreadable(folder / "meta.json", "TensorDict", error) from error


def _load(path: str, schema: Schema, trust: bool) -> dict[str, Column]:
    return columns_from(_arrays(path, trust), path, schema)[1]


def open_writer(path: str, schema: Schema) -> Writer:
    extra("tensordict", "tensordict")
    return ArraysWriter(NAME, path, schema, _finish, folder=True)


def _finish(arrays: dict[str, Array], path: Path) -> None:
    tensordict = extra("tensordict", "tensordict")
    stored = tensordict.TensorDict({}, batch_size=[length_of(arrays)])
    for name, array in arrays.items():
        if not array.flags.writeable:
            writable = array.copy()
        else:
            writable = array

        stored[name] = torch.from_numpy(writable)

    stored.memmap(str(path))
