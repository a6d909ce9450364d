"""LMDB: the key `000000012.image` holds column `image` of sample 12, as bytes; `__headrace__` describes the columns.

An array's bytes are its elements in little-endian order: `np.frombuffer(transaction.get(b"000000012.image"), dtype)`.
A database that somebody else made has two columns, `key` and `value`, both bytes: nothing is unpickled. Reading takes
the file as it lies (`lmdb_tree.py`). To write needs `pip install 'headrace[lmdb]'`; the map grows by itself.
"""

from __future__ import annotations

import bisect
import functools
import json
import math
import mmap
import os
from collections.abc import Sequence
from pathlib import Path

import numpy as np

from headrace.core.errors import FormatError
from headrace.core.extras import extra
from headrace.core.process.descriptors import ReadOnlyFile
from headrace.core.process.per_process import Handle
from headrace.data.formats.atomic_target import AtomicTarget
from headrace.data.formats.columns import Array, Block, Column, Keys, Ragged
from headrace.data.formats.columns.schema import Field, Schema, schema_of_text, to_json_text
from headrace.data.formats.lmdb_tree import (
    HEAD,
    TRIES,
    Entries,
    Meta,
    read_entries,
    read_metas,
    state_of,
    written_meanwhile,
)
from headrace.data.formats.manifest import commit_with_manifest, manifest_of
from headrace.data.formats.protocol import Names, Reader, Writer, even_blocks
from headrace.data.formats.unreadable import unreadable
from headrace.storage.files import first_bytes, is_file, is_folder, join

NAME = "lmdb"
TITLE = "LMDB database"
ABOUT = b"__headrace__"
DIGITS = 9
"""Of the number of a sample, at the beginning of a key."""

CHECKED = 1 << 16
"""Keys that are compared at a time."""

FIRST_MAP = 64 << 20
"""Bytes of address space that a database gets at first; a write that needs more doubles them."""
FOREIGN = Schema((Field("key", "bytes"), Field("value", "bytes")))


def claims(path: str) -> bool:
    if is_folder(path):
        file = join(path, "data.mdb")
    else:
        file = path

    # The magic number; behind it in data of LMDB 1.0, which `read_entries` refuses by its name.
    head = first_bytes(file, 28)
    return b"\xde\xc0\xef\xbe" in (head[16:20], head[24:28]) or (is_file(file) and file.endswith((".mdb", ".lmdb")))


def refusal(field: Field) -> str | None:
    if len(field.name.encode()) > 400:
        return "the key of LMDB holds 511 bytes"
    return None


def open_reader(path: str, trust: bool, columns: Names | None = None) -> Reader:
    manifest_of(path, NAME)
    return LmdbReader(path, *_looked_at(path))


def _looked_at(path: str) -> tuple[Schema, int, Entries]:
    """Returns the columns of a database, its number of samples, and where its values lie."""
    for _ in range(TRIES):
        entries = read_entries(data_file(path))
        mapped = _Mapped(path)
        if not mapped.is_file_of(entries):
            continue
        try:
            schema, length = _described(path, mapped, entries)
        except (ValueError, KeyError, TypeError) as error:
            if entries.meta not in mapped.metas:
                continue
            if isinstance(error, FormatError):
                raise
            raise unreadable(path, "LMDB database", error) from error
        if entries.meta in mapped.metas:
            return schema, length, entries

    raise written_meanwhile(path)


def _described(path: str, mapped: _Mapped, entries: Entries) -> tuple[Schema, int]:
    """Returns the columns of a database and its number of samples: as its description says, if it has one."""
    number = _find(entries.keys, ABOUT)
    if number is None:
        return FOREIGN, len(entries.starts)

    start = int(entries.starts[number])
    plain = json.loads(mapped.bytes[start : start + int(entries.sizes[number])].tobytes())
    schema = schema_of_text(json.dumps(plain["schema"]), path)
    if schema is None:
        raise ValueError("no description of columns")
    length = int(plain["length"])
    # The description itself is one entry, therefore `<`. A made-up length would ask for keys without end.
    if not 0 <= length * len(schema) < len(entries.starts):
        raise ValueError(f"{len(entries.starts):,} values, too few for {length:,} samples of {len(schema)} columns")
    return schema, length


def _find(keys: Ragged, key: bytes) -> int | None:
    """Returns the number of a key among those that are in order; None if it is not there."""
    number = bisect.bisect_left(range(len(keys)), key, key=lambda at: keys[at].tobytes())
    if number < len(keys) and keys[number].tobytes() == key:
        return number
    return None


def data_file(path: str) -> Path:
    """Returns the file that holds the data."""
    if is_folder(path):
        return Path(path) / "data.mdb"
    return Path(path)


class _Mapped:
    """A database as one process has it mapped into memory."""

    def __init__(self, path: str) -> None:
        self._file = ReadOnlyFile(data_file(path))
        self._place = path
        mapping = mmap.mmap(self._file.descriptor, 0, access=mmap.ACCESS_READ)
        # Samples are read in random order.
        if hasattr(mmap, "MADV_RANDOM"):
            mapping.madvise(mmap.MADV_RANDOM)
        self.size = len(mapping)
        self.bytes: Array = np.frombuffer(mapping, np.uint8)

    def check(self) -> None:
        """Raises `FormatError` if the file was cut off: what is mapped of it can be touched no more."""
        size = os.fstat(self._file.descriptor).st_size
        if size < self.size:
            found = f"{size:,} bytes"
            expected = f"{self.size:,} bytes, as when it was opened"
            what = "a file was cut off"
            fix = "restore the file"
            raise FormatError.about(what, place=self._place, found=found, expected=expected, fix=fix)

    def is_file_of(self, entries: Entries) -> bool:
        """Tells whether entries are of this file: another database may lie at the path by now."""
        return self.size >= entries.state.size and state_of(self._file.descriptor)[:2] == entries.state[:2]

    def is_untouched_since(self, entries: Entries) -> bool:
        """Tells whether nothing was written to the file since its entries were read.

        Another database may have been copied over this one, with the same number of a transaction.
        """
        return self.size >= entries.state.size and state_of(self._file.descriptor) == entries.state

    @property
    def metas(self) -> list[Meta]:
        """What describes the last two transactions."""
        return read_metas(Path(self._place), self.bytes[:HEAD].data)


class LmdbReader:
    """Reads values from where they lie in the file, without an environment: a process can open no second one.

    Values are those of the last transaction at the time of the call, or of a later one, and all of the same: see
    `lmdb_tree.py`. Where a file was written to, its tree is read again.
    """

    format = NAME

    def __init__(self, path: str, schema: Schema, length: int, entries: Entries) -> None:
        """schema: `FOREIGN` for a database of somebody else. Raises `FormatError` if a sample is missing."""
        self.place = path
        self.schema = schema
        self._length = length
        self._is_foreign = schema == FOREIGN
        self._entries = self._ordered(entries)
        self._mapped: Handle[_Mapped] = Handle(functools.partial(_Mapped, path))

    def __len__(self) -> int:
        return self._length

    def column(self, name: str) -> Column | None:
        return None

    def _ordered(self, entries: Entries) -> Entries:
        """Returns where values lie, of ours without the keys. Raises `FormatError` if samples are missing."""
        if self._is_foreign:
            return entries

        count = len(self.schema)
        for rank, name in enumerate(self._names_in_order):
            wrong = _first_unlike(entries.keys.rows(rank, self._length * count), count, name)
            if wrong is not None and _find(entries.keys, name_of(wrong, name)) is None:
                fix = "copy the data again, or pack them again"
                found = f"no key {name_of(wrong, name)!r}"
                what = "a sample is missing"
                raise FormatError.about(what, place=self.place, found=found, expected="one a column", fix=fix)
            if wrong is not None:
                what = "an LMDB database has keys between those of its samples"
                raise FormatError.about(what, place=self.place, found=f"one before {name_of(wrong, name)!r}")

        empty = np.empty(0, np.uint8)
        return entries._replace(keys=Ragged(empty, np.zeros(1, np.int64)))

    @functools.cached_property
    def _names_in_order(self) -> list[str]:
        """The columns in the order of their keys."""
        return sorted(self.schema.names, key=lambda name: name_of(0, name))

    def fetch(self, keys: Keys, names: Sequence[str]) -> Block:
        schema = self.schema.only(names)
        entries = self._entries
        mapped = self._mapped.get()
        mapped.check()
        is_new = False
        if not mapped.is_untouched_since(entries):
            entries, mapped = self._look_again(entries)
            is_new = True

        for _ in range(TRIES):
            if mapped.is_file_of(entries):
                columns = {field.name: self._column(entries, mapped, field, keys) for field in schema}
                metas = mapped.metas
                if entries.meta == max(metas) or (is_new and entries.meta in metas):
                    return Block(schema, columns)

            entries, mapped = self._look_again(entries)
            is_new = True

        raise written_meanwhile(self.place)

    def _column(self, entries: Entries, mapped: _Mapped, field: Field, keys: Keys) -> Column:
        if not self._is_foreign:
            numbers = keys * len(self.schema) + self._names_in_order.index(field.name)
        elif field.name == "key":
            return entries.keys.take(keys)
        else:
            numbers = keys

        starts = entries.starts[numbers]
        values = Ragged(mapped.bytes, None, starts, starts + entries.sizes[numbers], self.place)
        return self._typed(field, values)

    def _look_again(self, before: Entries) -> tuple[Entries, _Mapped]:
        """Returns where values lie by now, and the file. Raises `FormatError` if the keys are others."""
        schema, length, entries = _looked_at(self.place)
        expected = "the same keys and columns"
        fix = "open the data again"
        what = "an LMDB database was changed"
        if schema != self.schema or length != self._length:
            found = f"{self._length:,} samples when it was opened, and now {length:,}, or other columns"
            raise FormatError.about(what, place=self.place, found=found, expected=expected, fix=fix)

        after = self._ordered(entries)
        same = np.array_equal(after.keys.values, before.keys.values)
        if not same or not np.array_equal(after.keys.offsets, before.keys.offsets):
            found = f"{len(before.starts):,} keys when it was opened, and now {len(after.starts):,}, or others"
            raise FormatError.about(what, place=self.place, found=found, expected=expected, fix=fix)

        self._entries = after
        # It may have grown.
        opened = Handle(functools.partial(_Mapped, self.place))
        self._mapped = opened
        return after, opened.get()

    def _typed(self, field: Field, values: Ragged) -> Column:
        """Returns values as their column. values: of bytes, as they lie in the file."""
        row = field.dtype.itemsize * math.prod(field.shape)
        sizes = values.lengths
        if field.kind == "fixed":
            wrong = sizes != row
            expected = f"{row} for {field}"
        else:
            # Elements of no bytes (a shape with a 0) leave no length but 0.
            if row:
                remainders = sizes % row
            else:
                remainders = sizes

            wrong = remainders != 0
            expected = f"a multiple of {row} for {field}"

        if wrong.any():
            size = int(sizes[wrong][0])
            raise FormatError.about(
                "a value is of the wrong size",
                place=f"{self.place}, column {field.name!r}",
                found=size,
                expected=expected,
                fix="copy the data again, or pack them again",
            )

        taken = values.take(np.arange(len(values)))
        flat = taken.values.view(field.dtype.newbyteorder("<")).astype(field.dtype, copy=False)
        if field.kind == "fixed":
            return flat.reshape(len(values), *field.shape)
        if row:
            rows = flat.reshape(-1, *field.shape)
        else:
            rows = np.empty((0, *field.shape), field.dtype)

        return Ragged(rows, taken.offsets // max(row, 1))

    def blocks(self) -> Sequence[range]:
        return even_blocks(self._length, 256)


def name_of(index: int, column: str) -> bytes:
    """Returns the key of a column of a sample."""
    return f"{index:09d}.{column}".encode("utf-8", "surrogateescape")


def _first_unlike(keys: Ragged, step: int, column: str) -> int | None:
    """Returns the first number i for which key i * step is not that of column `column` of sample i; None: all are."""
    starts = keys.starts[::step]
    wanted = np.frombuffer(name_of(0, column), np.uint8)
    wrong = keys.lengths[::step] != len(wanted)
    if wrong.any():
        return int(np.argmax(wrong))

    for first in range(0, len(starts), CHECKED):
        some = starts[first : first + CHECKED]
        found = keys.values[some[:, None] + np.arange(len(wanted))]
        numbers = np.zeros(len(some), np.int64)
        for place in range(DIGITS):
            numbers = numbers * 10 + found[:, place].astype(np.int64) - ord("0")

        unlike = (numbers != np.arange(first, first + len(some))) | (found[:, DIGITS:] != wanted[DIGITS:]).any(axis=1)
        if unlike.any():
            return first + int(np.argmax(unlike))

    return None


class _LmdbWriter:
    def __init__(self, path: str, schema: Schema) -> None:
        lmdb = extra("lmdb", "lmdb")
        self._full = lmdb.MapFullError
        self._schema = schema
        self._length = 0
        self._size = FIRST_MAP
        self._target = AtomicTarget(path, folder=True)
        # LMDB 1.0 writes data that 0.9 cannot read. Packages with 0.9 alone do not know the argument.
        version = {}
        if hasattr(lmdb.Environment, "lib_version"):
            version["lib_version"] = 0
        self._environment = lmdb.open(
            str(self._target.path), map_size=self._size, sync=False, metasync=False, lock=False, **version
        )

    def append(self, block: Block) -> None:
        if self._length + len(block) > 10**DIGITS:
            found = f"{self._length + len(block):,} samples"
            fix = "choose arrow or memmap"
            expected = f"{10**DIGITS:,} at most: keys hold {DIGITS} digits"
            what = "too many samples for an LMDB database"
            raise FormatError.about(what, place=self._target.target, found=found, expected=expected, fix=fix)

        # LMDB keeps keys in order: sorted ones fill page after page, others split pages that are then half empty.
        pairs = []
        for field in self._schema:
            column = block.columns[field.name]
            little = field.dtype.newbyteorder("<")
            for index in range(len(block)):
                value = np.asarray(column[index]).astype(little, copy=False).tobytes()
                pairs.append((name_of(self._length + index, field.name), value))

        self._put(sorted(pairs))
        self._length += len(block)

    def _put(self, pairs: list[tuple[bytes, bytes]]) -> None:
        while True:
            try:
                with self._environment.begin(write=True) as transaction, transaction.cursor() as cursor:
                    for name, value in pairs:
                        cursor.put(name, value)
                    return
            except self._full:
                # The transaction was rolled back as it left the block; all pairs are put once more into a larger map.
                self._size *= 2
                self._environment.set_mapsize(self._size)

    def seal(self) -> None:
        about = {"length": self._length, "schema": json.loads(to_json_text(self._schema))}
        self._put([(ABOUT, json.dumps(about).encode())])
        self._environment.close()
        # The manifest would list this file, which LMDB changes with every process that reads.
        (self._target.path / "lock.mdb").unlink(missing_ok=True)
        commit_with_manifest(self._target, NAME, self._length, self._schema)

    def abort(self) -> None:
        self._environment.close()
        self._target.abort()


def open_writer(path: str, schema: Schema) -> Writer:
    return _LmdbWriter(path, schema)
