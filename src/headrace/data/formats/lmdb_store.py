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
import os
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np

from headrace.core.descriptors import OpenFile
from headrace.core.errors import FormatError
from headrace.core.extras import extra
from headrace.data.formats.atomic_target import AtomicTarget
from headrace.data.formats.columns import Block, Column, Keys, Ragged
from headrace.data.formats.columns.arrays import schema_of_text, to_json_text, unreadable
from headrace.data.formats.columns.schema import Field, Schema
from headrace.data.formats.lmdb_tree import HEAD, Entries, read_entries, transaction_of
from headrace.data.formats.manifest import commit_with_manifest, manifest_of
from headrace.data.formats.protocol import Handle, Names, Reader, Writer, even_blocks
from headrace.storage.files import first_bytes, is_file, is_folder, join

NAME = "lmdb"
TITLE = "LMDB database"
ABOUT = b"__headrace__"
TRIES = 10
"""How often values are read while a program writes, until the file was left alone for so long."""

FIRST_MAP = 64 << 20
"""Bytes of address space that a database gets at first; a write that needs more doubles them."""
FOREIGN = Schema((Field("key", "bytes"), Field("value", "bytes")))


def claims(path: str) -> bool:
    """See `Format.claims`."""
    if is_folder(path):
        file = join(path, "data.mdb")
    else:
        file = path

    head = first_bytes(file, 20)
    return head[16:] == b"\xde\xc0\xef\xbe" or (is_file(file) and file.endswith((".mdb", ".lmdb")))


def refusal(field: Field) -> str | None:
    """See `Format.refusal`."""
    if len(field.name.encode()) > 400:
        return "the key of LMDB holds 511 bytes"
    return None


def open_reader(path: str, trust: bool, columns: Names | None = None) -> Reader:
    """See `Format.open_reader`."""
    manifest_of(path, NAME)
    with data_file(path).open("rb"):
        pass

    entries = _Values(path)
    about = entries.find(ABOUT)
    if about is None:
        return LmdbReader(path, FOREIGN, len(entries), entries, foreign=True)

    try:
        plain = json.loads(entries.read([about])[0])
        schema = schema_of_text(json.dumps(plain["schema"]), path)
        if schema is None:
            raise ValueError("no description of columns")
        length = int(plain["length"])
        # The description itself is one entry, therefore `<`. A made-up length would ask for keys without end.
        if not 0 <= length * len(schema) < len(entries):
            raise ValueError(f"{len(entries):,} values, too few for {length:,} samples of {len(schema)} columns")
    except (ValueError, KeyError, TypeError) as error:
        if isinstance(error, FormatError):
            raise
        raise unreadable(path, "LMDB database", error) from error

    return LmdbReader(path, schema, length, entries, foreign=False)


class _Values:
    """The values of a database by the order of their keys. It may be forked and pickled, and used by several threads.

    Holds no environment of LMDB, which the process could open no second time. A writer leaves what the last transaction
    has written as it is until the next one is committed, so that values are sound if the number of the transaction is
    the same before and after they were read.
    """

    def __init__(self, path: str) -> None:
        self._path = path
        self._entries = read_entries(data_file(path))
        self._file: Handle[OpenFile] = Handle(functools.partial(OpenFile, data_file(path)))

    def __len__(self) -> int:
        return len(self._entries.starts)

    def key(self, number: int) -> bytes:
        """Returns a key."""
        return self._entries.keys[number].tobytes()

    def find(self, key: bytes) -> int | None:
        """Returns the number of a key; None if it is not there."""
        number = bisect.bisect_left(range(len(self)), key, key=self.key)
        if number < len(self) and self.key(number) == key:
            return number
        return None

    def read(self, numbers: Sequence[int]) -> list[bytes]:
        """Returns values. Raises `FormatError` if the database was cut off, or its keys were changed meanwhile."""
        for _ in range(TRIES):
            entries = self._entries
            found = self._read(entries, numbers)
            if self._transaction() == entries.transaction:
                return found
            self._look_again(entries)

        what = "an LMDB database is written to all the time"
        raise FormatError.about(what, place=self._path, found=f"{TRIES} changes while some values were read")

    def _read(self, entries: Entries, numbers: Sequence[int]) -> list[bytes]:
        descriptor = self._file.get().descriptor
        found = []
        for number in numbers:
            size = int(entries.sizes[number])
            data = os.pread(descriptor, size, int(entries.starts[number]))
            if len(data) < size:
                what = "a file was cut off"
                here = f"{os.fstat(descriptor).st_size:,} bytes"
                raise FormatError.about(what, place=data_file(self._path), found=here, cure="restore the file")
            found.append(data)

        return found

    def _transaction(self) -> int:
        return transaction_of(data_file(self._path), os.pread(self._file.get().descriptor, HEAD, 0))

    def _look_again(self, before: Entries) -> None:
        entries = read_entries(data_file(self._path))
        same = np.array_equal(entries.keys.values, before.keys.values)
        if not same or not np.array_equal(entries.keys.offsets, before.keys.offsets):
            what = "an LMDB database was changed"
            found = f"{len(before.starts):,} keys when it was opened, and now {len(entries.starts):,}, or others"
            cure = "open the data again"
            raise FormatError.about(what, place=self._path, found=found, expected="the same keys", cure=cure)
        self._entries = entries


def data_file(path: str) -> Path:
    """Returns the file that holds the data."""
    if is_folder(path):
        return Path(path) / "data.mdb"
    return Path(path)


class LmdbReader:
    """Reads value by value."""

    format = NAME

    def __init__(self, path: str, schema: Schema, length: int, values: _Values, *, foreign: bool) -> None:
        """foreign: whether the columns are keys and values, as somebody else made them."""
        self.place = path
        self.schema = schema
        self._length = length
        self._values = values
        self._foreign = foreign

    def __len__(self) -> int:
        return self._length

    def column(self, name: str) -> Column | None:
        """See `Reader.column`."""
        return None

    def fetch(self, keys: Keys, names: Sequence[str]) -> Block:
        """See `Reader.fetch`."""
        schema = self.schema.only(names)
        columns: dict[str, Column] = {}
        for field in schema:
            if self._foreign and field.name == "key":
                columns[field.name] = self._joined(field, list(map(self._values.key, keys.tolist())))
            elif self._foreign:
                columns[field.name] = self._joined(field, self._values.read(keys.tolist()))
            else:
                numbers = [self._number(field, key) for key in keys.tolist()]
                columns[field.name] = self._joined(field, self._values.read(numbers))

        return Block(schema, columns)

    def _number(self, field: Field, key: int) -> int:
        """Returns the number of a value, by the order of keys: sample by sample, each with its columns by name."""
        name = name_of(key, field.name)
        guess = key * len(self.schema) + self._ranks[field.name]
        if self._values.key(guess) == name:
            return guess

        number = self._values.find(name)
        if number is None:
            raise FormatError.about(
                "a sample is missing",
                place=self.place,
                found=f"no key {name!r}",
                expected="one a column",
                cure="copy the data again, or pack them again",
            )
        return number

    @functools.cached_property
    def _ranks(self) -> dict[str, int]:
        ordered = sorted(self.schema.names, key=lambda name: name_of(0, name))
        return {name: rank for rank, name in enumerate(ordered)}

    def _joined(self, field: Field, values: list[Any]) -> Column:
        row = field.dtype.itemsize * math.prod(field.shape)
        sizes = np.fromiter(map(len, values), np.int64, len(values))
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
                cure="copy the data again, or pack them again",
            )

        flat = np.frombuffer(b"".join(values), field.dtype.newbyteorder("<")).astype(field.dtype, copy=False)
        if field.kind == "fixed":
            return flat.reshape(len(values), *field.shape)

        offsets = np.zeros(len(values) + 1, np.int64)
        np.cumsum(sizes // max(row, 1), out=offsets[1:])
        if row:
            rows = flat.reshape(-1, *field.shape)
        else:
            rows = np.empty((0, *field.shape), field.dtype)

        return Ragged(rows, offsets)

    def blocks(self) -> Sequence[range]:
        """See `Reader.blocks`."""
        return even_blocks(self._length, 256)


def name_of(index: int, column: str) -> bytes:
    """Returns the key of a column of a sample."""
    return f"{index:09d}.{column}".encode("utf-8", "surrogateescape")


class _LmdbWriter:
    def __init__(self, path: str, schema: Schema) -> None:
        lmdb = extra("lmdb", "lmdb")
        self._full = lmdb.MapFullError
        self._schema = schema
        self._length = 0
        self._size = FIRST_MAP
        self._target = AtomicTarget(path, folder=True)
        self._environment = lmdb.open(
            str(self._target.path), map_size=self._size, sync=False, metasync=False, lock=False
        )

    def append(self, block: Block) -> None:
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
    """See `Format.open_writer`."""
    return _LmdbWriter(path, schema)
