"""A memory-mapped TensorDict, as `TensorDict.memmap` writes it and `TensorDict.load_memmap` reads it.

Needs the package tensordict (`pip install 'headrace[tensordict]'`). Nested dictionaries are columns `outer.inner`.
"""

from __future__ import annotations

import functools
import json
import math
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import torch

from headrace.core.errors import FormatError
from headrace.core.extras import extra
from headrace.core.regular import read_side_file
from headrace.data.formats.columns import Array, Column
from headrace.data.formats.columns.arrays import ArraysWriter, ColumnsReader, columns_from, length_of, unreadable
from headrace.data.formats.columns.schema import Field, Schema
from headrace.data.formats.manifest import known_schema, manifest_of
from headrace.data.formats.protocol import Reader, Writer
from headrace.storage.files import join, read_small

NAME = "tensordict"
TITLE = "memory-mapped TensorDict"
PLAIN = re.compile(r"<class 'tensordict\.(?:\w+\.)*TensorDict'>")
"""What a TensorDict calls itself; other classes bring code and pickles of their own."""

FAILURES = (ValueError, KeyError, TypeError, RuntimeError, EOFError, AttributeError, OverflowError, IndexError)


def claims(path: str) -> bool:
    """See `Format.claims`."""
    try:
        meta = json.loads(read_small(join(path, "meta.json")))
    except (OSError, ValueError):
        return False
    return isinstance(meta, dict) and ("_type" in meta or "device" in meta)


def refusal(field: Field) -> str | None:
    """See `Format.refusal`."""
    if field.kind != "fixed":
        return "a TensorDict holds samples of one size"

    plain = re.fullmatch(r"[A-Za-z0-9_\-]+", field.name) and field.name not in ("meta", "data")
    if plain:
        return None
    return "its name holds what TensorDict or file names have another meaning for"


def open_reader(path: str, trust: bool) -> Reader:
    """See `Format.open_reader`."""
    known = known_schema(manifest_of(path, NAME))
    schema, columns = columns_from(_arrays(path, trust), path, known)
    return ColumnsReader(NAME, path, schema, length_of(columns), functools.partial(_load, path, schema, trust))


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

            arrays[name] = value.numpy()

        return arrays
    except FAILURES as error:
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
    found = []
    for entry in folder.iterdir():
        if entry.suffix in (".pickle", ".pkl"):
            found.append(entry.name)

    kind = _entries(folder).get("_type")
    if kind is not None and not PLAIN.fullmatch(str(kind)):
        found.append(f"a {kind}")

    if found:
        cure = "save tensors alone; or, if you trust whoever made it, open it with trust=True"
        what = "a TensorDict holds more than tensors, which could execute anything"
        expected = "tensors"
        raise FormatError.about(what, place=folder, found=", ".join(sorted(found)), expected=expected, cure=cure)


def _entries(folder: Path) -> dict[str, Any]:
    """Returns what is written about the entries of a folder; nothing if it holds none. Raises `FormatError`."""
    meta = folder / "meta.json"
    try:
        plain = json.loads(read_side_file(meta))
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
        for name, entry in _entries(folder).items():
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
            if file.stat().st_size < expected:
                found = f"{file.stat().st_size:,} bytes"
                expected_text = f"{expected:,} bytes"
                cure = "restore the file"
                raise FormatError.about(
                    "a file was cut off", place=file, found=found, expected=expected_text, cure=cure
                )
    except (ValueError, TypeError, AttributeError, RuntimeError, FileNotFoundError) as error:
        if isinstance(error, FormatError):
            raise
        raise unreadable(folder / "meta.json", "TensorDict", error) from error


def _load(path: str, schema: Schema, trust: bool) -> dict[str, Column]:
    return columns_from(_arrays(path, trust), path, schema)[1]


def open_writer(path: str, schema: Schema) -> Writer:
    """See `Format.open_writer`."""
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
