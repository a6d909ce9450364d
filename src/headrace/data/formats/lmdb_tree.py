"""Where the keys and values of an LMDB file lie, from the pages of its tree.

The library opens no database that its own process has open already, follows numbers of pages wherever a damaged file
has them lead, and the process dies of SIGBUS where a file is cut off while it is read. So what is read here is read as
bytes of a file. Looked at are the pages of the tree (some 1 % of a database with values of a page or more), not the
values. Layout of pages and nodes as in LMDB's `mdb.c`, data version 1, of 64 bits and little-endian order.

Another process may write meanwhile. Transaction n takes only pages that transactions before n - 1 have set free, so
nothing is written over the tree of transaction s before s + 2 is committed. That writes its description over the one
of s. So what was read of a tree is sound if afterwards its description still stands in one of the two meta pages. It is
compared whole: a number alone may be new where the root of the tree is still the old one.
"""

from __future__ import annotations

import mmap
import os
import struct
from pathlib import Path
from typing import NamedTuple

import numpy as np

from headrace.core.errors import FormatError
from headrace.core.files.regular_files import open_regular
from headrace.data.formats.columns import Array, Keys, Ragged, offsets_of

MAGIC = 0xBEEFC0DE
VERSION = 1
"""Of the data that LMDB 0.9 writes."""

PAGE_HEADER, NODE_HEADER = 16, 8
LATER_PAGE_HEADER = 24
"""Bytes of the header of a page in data of LMDB 1.0, which has the magic number behind it as well."""

TRIES = 10
"""How often a database is looked at while a program commits, until it does so no more than once meanwhile."""

BRANCH, LEAF, OVERFLOW = 1, 2, 4
"""Kinds of pages, in their flags."""

BIG, OTHERS = 1, 6
"""Flags of nodes: a value on pages of its own; a database within this one, or several values to a key."""

HEAD = 1 << 17
"""Bytes in which both meta pages lie."""

AT_ONCE = 1 << 16
"""Nodes that are looked at at a time."""

NONE = (1 << 64) - 1
"""The root of a tree without pages."""


class Meta(NamedTuple):
    """What a meta page says of a transaction that was committed: sizes in bytes, numbers of pages."""

    transaction: int

    page_size: int
    root: int
    last: int
    entries: int
    """How many keys there are."""


class FileState(NamedTuple):
    """Which file it is, and when something was last written to it."""

    device: int
    inode: int
    size: int
    modified: int
    """Nanoseconds."""


class Entries(NamedTuple):
    """What a database holds, in the order of its keys."""

    keys: Ragged
    """uint8."""

    starts: Keys
    """Of the values in the file, bytes [n]."""

    sizes: Keys
    """Of the values, bytes [n]."""

    meta: Meta

    state: FileState
    """As it was before the entries were read."""


def state_of(descriptor: int) -> FileState:
    """Returns the state of an open file."""
    status = os.fstat(descriptor)
    return FileState(status.st_dev, status.st_ino, status.st_size, status.st_mtime_ns)


def read_entries(file: Path) -> Entries:
    """Returns where the values of a database lie, as one transaction has left them.

    Raises `FormatError` if its pages do not hang together, or if a program commits too often; `OSError`.
    """
    with open_regular(file) as stream:
        for _ in range(TRIES):
            entries = _entries_unless_written(file, stream.fileno())
            if entries is not None:
                return entries

    raise written_meanwhile(file)


def _entries_unless_written(file: Path, descriptor: int) -> Entries | None:
    """Returns what a database holds; None if a transaction was committed meanwhile."""
    size = os.fstat(descriptor).st_size
    if size < 2 * 512:
        raise _damaged(file, f"{size:,} bytes")

    data = mmap.mmap(descriptor, 0, access=mmap.ACCESS_READ)
    state = state_of(descriptor)._replace(size=len(data))
    meta = max(read_metas(file, data))
    try:
        entries = _walk(file, data, meta, state)
    except FormatError:
        # A transaction may need more of the file than there was when it was mapped.
        if meta in read_metas(file, data) and state_of(descriptor).size == len(data):
            raise
        return None

    if meta in read_metas(file, data):
        return entries
    return None


def read_metas(file: Path, data: mmap.mmap | memoryview) -> list[Meta]:
    """Returns what describes the last two transactions. data: all bytes of the file, or `HEAD` from its beginning."""
    found = []
    _refuse_other_version(file, data)
    size = struct.unpack_from("<I", data, PAGE_HEADER + 24)[0]
    sound = 512 <= size <= 1 << 15 and size & (size - 1) == 0
    if sound:
        pages = 2
    else:
        pages = 0

    # The first two pages hold a description each (`MDB_meta`). They are written in turn, so that a crash leaves one of
    # them sound; the one with the higher number of a transaction holds.
    for number in range(pages):
        at = number * size + PAGE_HEADER
        if at + 136 > len(data):
            continue
        magic, version = struct.unpack_from("<II", data, at)
        if magic == MAGIC and version == VERSION:
            entries, root, last, transaction = struct.unpack_from("<QQQQ", data, at + 104)
            found.append(Meta(transaction, size, root, last, entries))

    if not found:
        raise _damaged(file, f"pages that begin with {data[:20]!r}")
    return found


def _refuse_other_version(file: Path, data: mmap.mmap | memoryview) -> None:
    for header in (PAGE_HEADER, LATER_PAGE_HEADER):
        magic, version = struct.unpack_from("<II", data, header)
        is_other = version != VERSION or header == LATER_PAGE_HEADER
        if magic == MAGIC and is_other and version < 1 << 16:
            what = "an LMDB database is of another version"
            found = f"data version {version}, which LMDB 0.9 cannot read either"
            expected = f"data version {VERSION}, as LMDB 0.9 writes it"
            fix = "copy its keys and values into one that is made with lmdb.open(..., lib_version=0)"
            raise FormatError.about(what, place=file, found=found, expected=expected, fix=fix)


def written_meanwhile(place: object) -> FormatError:
    """Returns the error for a database that could not be read between two transactions."""
    what = "an LMDB database is written to too often"
    found = f"{TRIES} times several commits while some values were read"
    fix = "read it when the other program has finished, or read a copy of it (`mdb_copy`)"
    return FormatError.about(what, place=place, found=found, expected="at most one commit meanwhile", fix=fix)


def _walk(file: Path, data: mmap.mmap, meta: Meta, state: FileState) -> Entries:
    size = meta.page_size
    # LMDB does not write pages at the end that a transaction took and gave back: the file may be shorter than `last`.
    pages = min(meta.last + 1, len(data) // size)
    if meta.root == NONE:
        waiting = []
    else:
        waiting = [meta.root]

    # Each page once: pages that lead to each other would keep LMDB, and this walk, going for ever.
    seen = set[int]()
    raw = np.frombuffer(data, np.uint8)
    leaves = _Leaves(file, raw, meta, pages)
    while waiting:
        page = waiting.pop()
        if page >= pages or page in seen:
            raise _damaged(file, f"a page that leads to page {page}, of {pages}, twice or outside of the file")
        seen.add(page)
        start = page * size
        number, _, flags, lower, _ = struct.unpack_from("<QHHHH", data, start)
        kind = flags & 0x7F
        if number != page or kind not in (BRANCH, LEAF) or not PAGE_HEADER <= lower <= size or lower % 2:
            raise _damaged(file, f"page {page} with number {number}, flags {flags:#x}, {lower} bytes of offsets")

        offsets = raw[start + PAGE_HEADER : start + lower].view(np.uint16)
        if kind == LEAF:
            leaves.add(page, offsets)
        elif len(offsets) == 0:
            raise _damaged(file, f"page {page}: a branch without children")
        else:
            nodes = _nodes(file, raw, np.full(len(offsets), page), offsets.astype(np.int64), meta)
            # The next one is taken from the end, so that leaves come in the order of their keys.
            waiting += reversed((nodes.low | nodes.flags << 32).tolist())

    keys, lengths, starts, sizes = leaves.joined()
    if len(starts) != meta.entries:
        raise _damaged(file, f"{len(starts):,} keys, where its own description says {meta.entries:,}")
    return Entries(Ragged(keys, offsets_of(lengths)), starts, sizes, meta, state)


class _Nodes(NamedTuple):
    """The nodes of pages: `low` and `flags` are of several meanings, `ends` is where each key ends in the file."""

    low: Keys
    flags: Keys
    key: Keys
    ends: Keys


def _nodes(file: Path, raw: Array, pages: Keys, offsets: Keys, meta: Meta) -> _Nodes:
    """Returns nodes. pages, offsets: int64 [n], the number of the page of each, and where it begins in that."""
    _check(
        file, pages, (offsets < PAGE_HEADER) | (offsets + NODE_HEADER > meta.page_size), "a node outside of the page"
    )
    at = pages * meta.page_size + offsets
    # `MDB_node`: the size of the value, or in a branch the number of the page below, in two words of 16 bits; flags, in
    # a branch the highest 16 bits of that number; and the size of the key. The key and the value follow.
    words = [raw[at + byte].astype(np.int64) for byte in range(NODE_HEADER)]
    low = words[0] | words[1] << 8 | words[2] << 16 | words[3] << 24
    flags = words[4] | words[5] << 8
    key = words[6] | words[7] << 8
    _check(file, pages, offsets + NODE_HEADER + key > meta.page_size, "a key longer than its page")
    return _Nodes(low, flags, key, at + NODE_HEADER + key)


def _check(file: Path, pages: Keys, wrong: Array, what: str) -> None:
    if wrong.any():
        raise _damaged(file, f"page {pages[int(np.argmax(wrong))]}: {what}")


class _Leaves:
    """The leaves of a tree, whose nodes are looked at many pages at a time."""

    def __init__(self, file: Path, raw: Array, meta: Meta, pages: int) -> None:
        """raw: the file. pages: how many there are."""
        self._file = file
        self._raw = raw
        self._meta = meta
        self._pages = pages
        self._waiting: list[tuple[int, Array]] = []
        self._count = 0
        self._parts: list[list[Array]] = [[np.empty(0, kind)] for kind in (np.uint8, np.int64, np.int64, np.int64)]

    def add(self, page: int, offsets: Array) -> None:
        """Adds a leaf, of which this is where its nodes begin. Raises `FormatError` for damage, and other values."""
        self._waiting.append((page, offsets))
        self._count += len(offsets)
        if self._count >= AT_ONCE:
            self._look()

    def joined(self) -> list[Array]:
        """Returns keys end to end, their lengths, and where their values begin in the file, and how long they are."""
        self._look()
        return list(map(np.concatenate, self._parts))

    def _look(self) -> None:
        if not self._count:
            return

        counts = [len(offsets) for _, offsets in self._waiting]
        pages = np.repeat([page for page, _ in self._waiting], counts)
        offsets = np.concatenate([offsets for _, offsets in self._waiting]).astype(np.int64)
        self._waiting = []
        self._count = 0
        nodes = _nodes(self._file, self._raw, pages, offsets, self._meta)
        if (nodes.flags & OTHERS).any():
            raise _several(self._file)

        size = self._meta.page_size
        big = (nodes.flags & BIG) > 0
        stop = np.where(big, nodes.ends + 8, nodes.ends + nodes.low)
        _check(self._file, pages, stop > (pages + 1) * size, "a value longer than its page")
        starts = nodes.ends.copy()
        # Large values lie on pages of their own, whose first number stands in place of the value.
        if big.any():
            first = np.zeros(int(big.sum()), np.int64)
            for byte in range(8):
                first |= self._raw[nodes.ends[big] + byte].astype(np.int64) << (8 * byte)
            taken = (nodes.low[big] + PAGE_HEADER + size - 1) // size
            wrong = (first < 0) | (first > self._pages - taken)
            _check(self._file, pages[big], wrong, "a value that ends after the end of the file")
            starts[big] = first * size + PAGE_HEADER

        keys = Ragged(self._raw, None, nodes.ends - nodes.key, nodes.ends).take(np.arange(len(pages)))
        for part, found in zip(self._parts, (keys.values, nodes.key, starts, nodes.low), strict=True):
            part.append(found)


def _several(file: Path) -> FormatError:
    found = "a database within the database, or several values to a key"
    fix = "copy what is needed into a database of its own, one value to a key"
    what = "an LMDB database holds others"
    return FormatError.about(what, place=file, found=found, expected="keys with one value each", fix=fix)


def _damaged(file: Path, found: str) -> FormatError:
    expected = "an LMDB database whose pages hang together"
    fix = "restore the file, or pack the data again"
    return FormatError.about("an LMDB database is damaged", place=file, found=found, expected=expected, fix=fix)
