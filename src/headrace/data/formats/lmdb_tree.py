"""Where the keys and values of an LMDB file lie, from the pages of its tree.

The library opens no database that its own process has open already, follows numbers of pages wherever a damaged file
has them lead, and the process dies of SIGBUS where a file is cut off while it is read. So what is read here is read as
bytes of a file. Looked at are the pages of the tree (some 1 % of a database with values of a page or more), not the
values. Layout of pages and nodes as in LMDB's `mdb.c`, data version 1, of 64 bits and little-endian order.
"""

from __future__ import annotations

import mmap
import struct
from pathlib import Path
from typing import NamedTuple

import numpy as np

from headrace.core.errors import FormatError
from headrace.core.regular import open_regular
from headrace.data.formats.columns import Array, Keys, Ragged, offsets_of

MAGIC = 0xBEEFC0DE
PAGE_HEADER, NODE_HEADER = 16, 8
BRANCH, LEAF, OVERFLOW = 1, 2, 4
"""Kinds of pages, in their flags."""

BIG, OTHERS = 1, 6
"""Flags of nodes: a value on pages of its own; a database within this one, or several values to a key."""

HEAD = 1 << 17
"""Bytes in which both meta pages lie."""

NONE = (1 << 64) - 1
"""The root of a tree without pages."""


class Meta(NamedTuple):
    """What the newer of the two meta pages says: sizes in bytes, numbers of pages."""

    page_size: int
    root: int
    last: int
    transaction: int
    """Of the last one that was committed."""


class Entries(NamedTuple):
    """What a database holds, in the order of its keys."""

    keys: Ragged
    """uint8."""

    starts: Keys
    """Of the values in the file, bytes [n]."""

    sizes: Keys
    """Of the values, bytes [n]."""

    transaction: int


def read_entries(file: Path) -> Entries:
    """Returns where the values of a database lie. Raises `FormatError` if its pages do not hang together; `OSError`."""
    with open_regular(file) as stream:
        if stream.seek(0, 2) < 2 * 512:
            raise _damaged(file, f"{stream.tell():,} bytes")
        with mmap.mmap(stream.fileno(), 0, access=mmap.ACCESS_READ) as data:
            meta = _meta(file, data)
            if (meta.last + 1) * meta.page_size > len(data):
                raise _damaged(file, f"{len(data):,} bytes, where its own description says {meta.last + 1:,} pages")
            return _walk(file, data, meta)


def transaction_of(file: Path, head: memoryview) -> int:
    """Returns the number of the last transaction. head: `HEAD` bytes from the beginning of the file, or all."""
    return _meta(file, head).transaction


def _meta(file: Path, data: mmap.mmap | memoryview) -> Meta:
    found = []
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
        if magic == MAGIC and version == 1:
            root, last, transaction = struct.unpack_from("<QQQ", data, at + 112)
            found.append((transaction, Meta(size, root, last, transaction)))

    if not found:
        raise _damaged(file, f"pages that begin with {data[:20]!r}")
    return max(found)[1]


def _walk(file: Path, data: mmap.mmap, meta: Meta) -> Entries:
    size = meta.page_size
    if meta.root == NONE:
        waiting = []
    else:
        waiting = [meta.root]

    # Each page once: pages that lead to each other would keep LMDB, and this walk, going for ever.
    seen = set[int]()
    leaves = []
    while waiting:
        page = waiting.pop()
        if page > meta.last or page in seen:
            raise _damaged(file, f"a page that leads to page {page}, of {meta.last + 1}, twice or outside of the file")
        seen.add(page)
        content = data[page * size : (page + 1) * size]
        number, _, flags, lower, _ = struct.unpack_from("<QHHHH", content)
        kind = flags & 0x7F
        if number != page or kind not in (BRANCH, LEAF) or not PAGE_HEADER <= lower <= size or lower % 2:
            raise _damaged(file, f"page {page} with number {number}, flags {flags:#x}, {lower} bytes of offsets")
        offsets = np.frombuffer(content, np.uint16, (lower - PAGE_HEADER) // 2, PAGE_HEADER).astype(np.int64)
        nodes = np.frombuffer(content, np.uint8)
        try:
            if kind == BRANCH:
                # The next one is taken from the end, so that leaves come in the order of their keys.
                waiting += reversed(_children(nodes, offsets, meta))
            else:
                leaves.append(_values(nodes, offsets, page, meta, file))
        except ValueError as error:
            if isinstance(error, FormatError):
                raise
            raise _damaged(file, f"page {page}: {error}") from error

    return _joined(leaves, meta)


def _joined(leaves: list[tuple[Array, Keys, Keys, Keys]], meta: Meta) -> Entries:
    parts: list[list[Array]] = [[np.empty(0, kind)] for kind in (np.uint8, np.int64, np.int64, np.int64)]
    for leaf in leaves:
        for part, found in zip(parts, leaf, strict=True):
            part.append(found)

    keys, lengths, starts, sizes = map(np.concatenate, parts)
    return Entries(Ragged(keys, offsets_of(lengths)), starts, sizes, meta.transaction)


class _Nodes(NamedTuple):
    """The nodes of a page: `low` and `flags` are of several meanings, `ends` is where each key ends."""

    low: Keys
    flags: Keys
    key: Keys
    ends: Keys


def _nodes(page: Array, offsets: Array, meta: Meta) -> _Nodes:
    if int(offsets.min()) < PAGE_HEADER or int(offsets.max()) + NODE_HEADER > meta.page_size:
        raise ValueError("a node outside of the page")

    # `MDB_node`: the size of the value, or in a branch the number of the page below, in two words of 16 bits; flags, in
    # a branch the highest 16 bits of that number; and the size of the key. The key and the value follow.
    words = [page[offsets + byte].astype(np.int64) for byte in range(NODE_HEADER)]
    low = words[0] | words[1] << 8 | words[2] << 16 | words[3] << 24
    flags = words[4] | words[5] << 8
    key = words[6] | words[7] << 8
    ends = offsets + NODE_HEADER + key
    if (ends > meta.page_size).any():
        raise ValueError("a key longer than its page")
    return _Nodes(low, flags, key, ends)


def _children(page: Array, offsets: Array, meta: Meta) -> list[int]:
    """Returns the pages below a branch. Raises `ValueError` for damage."""
    if len(offsets) == 0:
        raise ValueError("a branch without children")
    nodes = _nodes(page, offsets, meta)
    children: list[int] = (nodes.low | nodes.flags << 32).tolist()
    return children


def _values(page: Array, offsets: Array, number: int, meta: Meta, file: Path) -> tuple[Array, Keys, Keys, Keys]:
    """Returns the keys of a leaf end to end, their lengths, and where the values begin and how long they are.

    Raises `ValueError` for damage, and `FormatError` for what is no plain value.
    """
    if len(offsets) == 0:
        empty = np.empty(0, np.int64)
        return page[:0], empty, empty, empty

    nodes = _nodes(page, offsets, meta)
    if (nodes.flags & OTHERS).any():
        raise _several(file)

    big = (nodes.flags & BIG) > 0
    if (np.where(big, nodes.ends + 8, nodes.ends + nodes.low) > meta.page_size).any():
        raise ValueError("a value longer than its page")

    starts = number * meta.page_size + nodes.ends
    # Large values lie on pages of their own, whose first number stands in place of the value.
    if big.any():
        first = np.zeros(int(big.sum()), np.int64)
        for byte in range(8):
            first |= page[nodes.ends[big] + byte].astype(np.int64) << (8 * byte)
        pages = (nodes.low[big] + PAGE_HEADER + meta.page_size - 1) // meta.page_size
        if (first < 0).any() or (first + pages > meta.last + 1).any():
            raise ValueError("a value that ends behind the file")
        starts[big] = first * meta.page_size + PAGE_HEADER

    keys = Ragged(page, None, nodes.ends - nodes.key, nodes.ends).take(np.arange(len(offsets)))
    return keys.values, nodes.key, starts, nodes.low


def _several(file: Path) -> FormatError:
    found = "a database within the database, or several values to a key"
    cure = "copy what is needed into a database of its own, one value to a key"
    what = "an LMDB database holds others"
    return FormatError.about(what, place=file, found=found, expected="keys with one value each", cure=cure)


def _damaged(file: Path, found: str) -> FormatError:
    expected = "an LMDB database whose pages hang together"
    cure = "restore the file, or pack the data again"
    return FormatError.about("an LMDB database is damaged", place=file, found=found, expected=expected, cure=cure)
