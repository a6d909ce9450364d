"""Damage to stored data, how they are then read, and what an error about them must say."""

from __future__ import annotations

import os
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np

import headrace
from headrace.core.batch_memory import OwnMemory
from headrace.core.errors import DatasetError, FormatError, HeadraceError, SampleError, UsageError
from headrace.data.formats.columns import Ragged
from headrace.data.formats.registry import open_reader

ALLOWED = (FormatError, SampleError, DatasetError, UsageError, OSError)
Mutation = Callable[[bytearray, np.random.Generator], bytes]
HUGE = (b"\xff" * 8, b"\xff\xff\xff\x7f", b"\xff" * 7 + b"\x7f", b"\0\0\0\0\0\0\0\x40", b"\x7f\xff\xff\xff", b"\0" * 8)


def _flip(data: bytearray, rng: np.random.Generator) -> bytes:
    for _ in range(int(rng.choice([1, 1, 1, 2, 8, 64]))):
        data[int(rng.integers(len(data)))] ^= 1 << int(rng.integers(8))
    return bytes(data)


def _flip_in_head(data: bytearray, rng: np.random.Generator) -> bytes:
    data[int(rng.integers(min(len(data), 256)))] ^= 1 << int(rng.integers(8))
    return bytes(data)


def _flip_in_tail(data: bytearray, rng: np.random.Generator) -> bytes:
    data[len(data) - 1 - int(rng.integers(min(len(data), 512)))] ^= 1 << int(rng.integers(8))
    return bytes(data)


def _byte(data: bytearray, rng: np.random.Generator) -> bytes:
    data[int(rng.integers(len(data)))] = int(rng.integers(256))
    return bytes(data)


def _huge(data: bytearray, rng: np.random.Generator) -> bytes:
    value, at = HUGE[int(rng.integers(len(HUGE)))], int(rng.integers(len(data)))
    data[at : at + len(value)] = value[: len(data) - at]
    return bytes(data)


def _digits(data: bytearray, rng: np.random.Generator) -> bytes:
    """Makes a number that is written as text a huge one, or a negative."""
    places = [at for at, byte in enumerate(data) if 48 <= byte <= 57]
    if not places:
        return _byte(data, rng)
    at = places[int(rng.integers(len(places)))]
    data[at : at + 1] = (b"9", b"99999999999", b"-1", b"99999999999999999999999", b"1e400", b"")[int(rng.integers(6))]
    return bytes(data)


def _cut(data: bytearray, rng: np.random.Generator) -> bytes:
    return bytes(data[: int(rng.integers(len(data)))])


def _cut_a_little(data: bytearray, rng: np.random.Generator) -> bytes:
    return bytes(data[: max(len(data) - int(rng.integers(1, 64)), 0)])


def _cut_to_page(data: bytearray, rng: np.random.Generator) -> bytes:
    return bytes(data[: int(rng.integers(len(data) // 4096 + 1)) * 4096])


def _empty(data: bytearray, rng: np.random.Generator) -> bytes:
    return b""


def _remove(data: bytearray, rng: np.random.Generator) -> bytes:
    start, size = int(rng.integers(len(data))), int(rng.integers(1, 64))
    return bytes(data[:start] + data[start + size :])


def _insert(data: bytearray, rng: np.random.Generator) -> bytes:
    start = int(rng.integers(len(data)))
    return bytes(data[:start]) + rng.bytes(int(rng.integers(1, 64))) + bytes(data[start:])


def _move(data: bytearray, rng: np.random.Generator) -> bytes:
    source, target, size = (int(one) for one in rng.integers(len(data), size=3))
    size = size % 256
    data[target : target + size] = data[source : source + size]
    return bytes(data)


def _noise(data: bytearray, rng: np.random.Generator) -> bytes:
    start, size = int(rng.integers(len(data))), int(rng.integers(1, 600))
    data[start : start + size] = rng.bytes(len(data[start : start + size]))
    return bytes(data)


def _zeros(data: bytearray, rng: np.random.Generator) -> bytes:
    start, size = int(rng.integers(len(data))), int(rng.integers(1, 600))
    data[start : start + size] = bytes(len(data[start : start + size]))
    return bytes(data)


def _append(data: bytearray, rng: np.random.Generator) -> bytes:
    return bytes(data) + rng.bytes(int(rng.integers(1, 600)))


MUTATIONS: dict[str, Mutation] = {
    "flip": _flip,
    "flip in head": _flip_in_head,
    "flip in tail": _flip_in_tail,
    "byte": _byte,
    "huge number": _huge,
    "digits": _digits,
    "cut": _cut,
    "cut a little": _cut_a_little,
    "cut to a page": _cut_to_page,
    "empty": _empty,
    "remove": _remove,
    "insert": _insert,
    "move": _move,
    "noise": _noise,
    "zeros": _zeros,
    "append": _append,
}


def files_below(root: Path) -> list[Path]:
    """Returns all files below a folder, sorted."""
    return sorted(path for path in root.rglob("*") if path.is_file() and not path.is_symlink())


def forget_manifest(root: Path) -> None:
    """Removes manifests and indices below a folder, so that lengths of files are not compared."""
    for path in files_below(root):
        if path.name.endswith(("headrace.json", ".index")):
            path.unlink()


def mutate(root: Path, rng: np.random.Generator) -> str:
    """Damages one file below a folder. Returns which, and how."""
    notes = []
    if rng.random() < 0.5:
        forget_manifest(root)
        notes.append("no manifest")
    files = files_below(root)
    for _ in range(int(rng.choice([1, 1, 1, 2]))):
        path = files[int(rng.integers(len(files)))]
        if rng.random() < 0.03:
            path.unlink(missing_ok=True)
            notes.append(f"unlink {path.name}")
            continue
        if rng.random() < 0.03:
            other = files[int(rng.integers(len(files)))]
            if other.exists() and other != path:
                shutil.copyfile(other, path)
                notes.append(f"{path.name} := {other.name}")
                continue
        if not path.exists() or path.stat().st_size == 0:
            continue
        name = list(MUTATIONS)[int(rng.integers(len(MUTATIONS)))]
        path.write_bytes(MUTATIONS[name](bytearray(path.read_bytes()), rng))
        notes.append(f"{name} {path.name}")
    return ", ".join(notes)


def read_all(path: Path, format: str | None) -> list[dict[str, Any]]:
    """Reads stored data in all the ways there are. Returns its samples."""
    reader = open_reader(path, format=format)
    names = reader.schema.names
    samples: list[dict[str, Any]] = []
    for run in reader.blocks():
        block = reader.fetch(np.arange(run.start, run.stop), names)
        samples += list(block)
        for column in block.columns.values():
            touch(column)
    for name in names:
        touch(reader.column(name))
    dataset = headrace.open(path, format=format, decode=False)
    count = min(len(dataset), 10_000)
    keys = np.random.default_rng(0).permutation(count)[:50]
    dataset.__getitems__(keys.tolist())
    dataset.fetch_batch(keys, OwnMemory())
    for _ in zip(range(10_000), dataset.stream(), strict=False):
        pass
    return samples


def touch(column: Any) -> None:
    """Reads every byte of a column, so that a mapping that ends behind its file is noticed."""
    if isinstance(column, Ragged):
        touch(column.values)
        column.pieces(np.arange(len(column)))
    elif column is not None and column.size:
        np.ascontiguousarray(column).reshape(-1).view(np.uint8).max()


def fault_of(error: BaseException, root: Path) -> str | None:
    """Returns what is wrong with an error about damaged data; None if it is one that helps the user."""
    if not isinstance(error, ALLOWED):
        return "not one of the errors that are promised"
    text = str(error)
    if isinstance(error, HeadraceError):
        wanted = ["place:", "found:"] if isinstance(error, FormatError) else ["place:"]
        if lacking := [word for word in wanted if word not in text]:
            return f"says no {' '.join(lacking)}"
        return None if len(text) < 5000 else f"a text of {len(text)} characters"
    if error.filename is None and os.fspath(root) not in text:  # type: ignore[union-attr]
        return "an error of the operating system without the path"
    return None
