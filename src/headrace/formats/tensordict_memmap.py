"""A memory-mapped TensorDict, as `TensorDict.memmap` writes it and `TensorDict.load_memmap` reads it.

Needs the package tensordict (`pip install 'headrace[tensordict]'`). Nested dictionaries are columns `outer.inner`.
"""

from __future__ import annotations

import functools
import json
import re
from pathlib import Path

import torch

from headrace.core.errors import FormatError, explain
from headrace.formats.arrays import ArraysWriter, ColumnsReader, columns_from, unreadable
from headrace.formats.columns import Array, Column
from headrace.formats.extras import extra
from headrace.formats.manifest import manifest_of
from headrace.formats.protocol import Reader, Writer
from headrace.formats.schema import Field, Schema

NAME = "tensordict"
TITLE = "memory-mapped TensorDict"
FAILURES = (ValueError, KeyError, TypeError, RuntimeError, EOFError, AttributeError, OverflowError, IndexError)


def claims(path: str) -> bool:
    """See `Format.claims`."""
    try:
        meta = json.loads((Path(path) / "meta.json").read_text("utf-8"))
    except (OSError, ValueError):
        return False
    return isinstance(meta, dict) and ("_type" in meta or "device" in meta)


def refusal(field: Field) -> str | None:
    """See `Format.refusal`."""
    if field.kind != "fixed":
        return "a TensorDict holds samples of one size"
    plain = re.fullmatch(r"[A-Za-z0-9_\-]+", field.name) and field.name not in ("meta", "data")
    return None if plain else "its name holds what TensorDict or file names have another meaning for"


def open_reader(path: str, trust: bool) -> Reader:
    """See `Format.open_reader`."""
    manifest = manifest_of(path, NAME)
    schema = None if manifest is None else manifest.schema
    schema, columns = columns_from(_arrays(path), path, schema)
    length = len(next(iter(columns.values()))) if columns else 0
    return ColumnsReader(NAME, path, schema, length, functools.partial(_load, path, schema))


def _arrays(path: str) -> dict[str, Array]:
    tensordict = extra("tensordict", "tensordict")
    _check_sizes(path)
    try:
        stored = tensordict.TensorDict.load_memmap(path)
        leaves = stored.items(include_nested=True, leaves_only=True)
        return {key if isinstance(key, str) else ".".join(key): value.numpy() for key, value in leaves}
    except FAILURES as error:
        raise unreadable(path, "TensorDict", error) from error


def _check_sizes(path: str) -> None:
    """Compares the length of each file with what is written about it: a mapping that ends early would be fatal."""
    for meta in sorted(Path(path).rglob("meta.json")):
        try:
            entries = json.loads(meta.read_text("utf-8"))
            for name, entry in entries.items():
                if not isinstance(entry, dict) or "shape" not in entry or "dtype" not in entry:
                    continue
                dtype = getattr(torch, str(entry["dtype"]).removeprefix("torch."))
                expected = int(torch.Size(entry["shape"]).numel()) * dtype.itemsize
                if expected == 0:
                    continue  # no file is written
                file = meta.parent / f"{name}.memmap"
                if file.stat().st_size < expected:
                    found = f"{file.stat().st_size:,} bytes"
                    message = explain("a file was cut off", place=file, found=found, expected=f"{expected:,} bytes")
                    raise FormatError(message)
        except (ValueError, TypeError, AttributeError, RuntimeError, FileNotFoundError) as error:
            if isinstance(error, FormatError):
                raise
            raise unreadable(meta, "TensorDict", error) from error


def _load(path: str, schema: Schema) -> dict[str, Column]:
    return columns_from(_arrays(path), path, schema)[1]


def open_writer(path: str, schema: Schema) -> Writer:
    """See `Format.open_writer`."""
    extra("tensordict", "tensordict")
    return ArraysWriter(NAME, path, schema, _finish, folder=True)


def _finish(arrays: dict[str, Array], path: Path) -> None:
    tensordict = extra("tensordict", "tensordict")
    length = len(next(iter(arrays.values()))) if arrays else 0
    stored = tensordict.TensorDict({}, batch_size=[length])
    for name, array in arrays.items():
        stored[name] = torch.from_numpy(array.copy() if not array.flags.writeable else array)
    stored.memmap(str(path))
