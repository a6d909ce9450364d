"""LMDB: the key `000000012.image` holds column `image` of sample 12, as bytes; `__headrace__` describes the columns.

An array's bytes are its elements in little-endian order: `np.frombuffer(transaction.get(b"000000012.image"), dtype)`.
A database that somebody else made has two columns, `key` and `value`, both bytes: nothing is unpickled. The map grows
by itself when writing. Each process opens the database itself, read-only and without locks. Needs
`pip install 'headrace[lmdb]'`.
"""

from __future__ import annotations

import functools
import json
import math
import os
import threading
import weakref
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np

from headrace.core.errors import FormatError
from headrace.core.extras import extra
from headrace.data.formats.atomic_target import AtomicTarget
from headrace.data.formats.columns import Block, Column, Keys, Ragged
from headrace.data.formats.columns.arrays import schema_of_text, to_json_text, unreadable
from headrace.data.formats.columns.schema import Field, Schema
from headrace.data.formats.guards.lmdb_pages import check_pages
from headrace.data.formats.manifest import commit_with_manifest, manifest_of
from headrace.data.formats.protocol import Handle, Names, Reader, Writer, even_blocks
from headrace.storage.files import first_bytes, is_file, is_folder, join

NAME = "lmdb"
TITLE = "LMDB database"
ABOUT = b"__headrace__"
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
    lmdb = extra("lmdb", "lmdb")
    manifest_of(path, NAME)
    # Before LMDB opens it: the library follows numbers of pages wherever they lead, and the process dies of SIGBUS.
    check_pages(data_file(path))
    try:
        environment = _open(path)
        with environment.inner.begin() as transaction:
            about = transaction.get(ABOUT)
            if about is not None:
                plain = json.loads(about)
                schema = schema_of_text(json.dumps(plain["schema"]), path)
                if schema is None:
                    raise ValueError("no description of columns")
                length = int(plain["length"])
                # The description itself is one entry, therefore `<`. A made-up length would ask for keys without end.
                entries = transaction.stat()["entries"]
                if not 0 <= length * len(schema) < entries:
                    raise ValueError(f"{entries:,} values, too few for {length:,} samples of {len(schema)} columns")
                return LmdbReader(path, schema, length, None)

            with transaction.cursor() as cursor:
                keys = list(map(bytes, cursor.iternext(values=False)))
    except (lmdb.Error, ValueError, KeyError, TypeError) as error:
        if isinstance(error, FormatError):
            raise
        raise unreadable(path, "LMDB database", error) from error

    return LmdbReader(path, FOREIGN, len(keys), _packed(keys))


def _packed(keys: list[bytes]) -> Ragged:
    offsets = np.cumsum([0, *map(len, keys)])
    return Ragged(np.frombuffer(b"".join(keys), np.uint8), offsets)


class Environment:
    """An open database; one of a path in each process, since LMDB allows no second one."""

    def __init__(self, path: str) -> None:
        lmdb = extra("lmdb", "lmdb")
        file = data_file(path)
        size = max(file.stat().st_size, FIRST_MAP)
        self.inner = lmdb.open(
            path,
            map_size=size,
            subdir=is_folder(path),
            readonly=True,
            lock=False,
            readahead=False,
            max_spare_txns=8,
        )

    def __del__(self) -> None:
        if hasattr(self, "inner"):
            self.inner.close()


_environments: weakref.WeakValueDictionary[str, Environment] = weakref.WeakValueDictionary()
_opening = threading.Lock()


def _forget_all() -> None:
    """Closes, in a forked child, what it has inherited: only then can it open the same databases itself."""
    # A thread of the parent may have held the lock at the fork. It does not exist here and would never release it.
    global _opening
    _opening = threading.Lock()
    for environment in list(_environments.values()):
        environment.inner.close()
    _environments.clear()


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_forget_all)


def _open(path: str) -> Environment:
    where = os.path.realpath(path)
    with _opening:
        found = _environments.get(where)
        if found is None:
            found = _environments[where] = Environment(path)
        return found


def data_file(path: str) -> Path:
    """Returns the file that holds the data."""
    if is_folder(path):
        return Path(path) / "data.mdb"
    return Path(path)


class LmdbReader:
    """Reads value by value."""

    format = NAME

    def __init__(self, path: str, schema: Schema, length: int, keys: Ragged | None) -> None:
        """keys: of a foreign database."""
        self.place = path
        self.schema = schema
        self._length = length
        self._keys = keys
        self._environment: Handle[Environment] = Handle(functools.partial(_open, path))

    def __len__(self) -> int:
        return self._length

    def column(self, name: str) -> Column | None:
        """See `Reader.column`."""
        return None

    def fetch(self, keys: Keys, names: Sequence[str]) -> Block:
        """See `Reader.fetch`."""
        schema = self.schema.only(names)
        columns: dict[str, Column] = {}
        lmdb = extra("lmdb", "lmdb")
        try:
            with self._environment.get().inner.begin(buffers=True) as transaction:
                for field in schema:
                    columns[field.name] = self._column(transaction, field, keys)
        except lmdb.Error as error:
            raise unreadable(self.place, "LMDB database", error) from error

        return Block(schema, columns)

    def _column(self, transaction: Any, field: Field, keys: Keys) -> Column:
        values = []
        for key in keys.tolist():
            name = self._name(field, key)
            if self._keys is not None and field.name == "key":
                value: Any = name
            else:
                value = transaction.get(name)

            if value is None:
                found = f"no key {name!r}"
                raise FormatError.about(
                    "a sample is missing",
                    place=self.place,
                    found=found,
                    expected="one a column",
                    cure="copy the data again, or pack them again",
                )

            values.append(value)

        return self._joined(field, values)

    def _name(self, field: Field, key: int) -> bytes:
        if self._keys is not None:
            return self._keys[key].tobytes()
        return name_of(key, field.name)

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
