"""Whether the pages of an LMDB file hang together. LMDB trusts them: a damaged one makes it read behind the file.

Looks at the pages of the tree (some 1 % of a database with values of a page or more), not at the values. Layout of
pages and nodes as in LMDB's `mdb.c`, data version 1, on machines with 64 bits and little-endian order.
"""

from __future__ import annotations

import mmap
import struct
from pathlib import Path
from typing import NamedTuple

import numpy as np

from headrace.core.errors import FormatError
from headrace.core.regular import open_regular
from headrace.data.formats.columns import Array

MAGIC = 0xBEEFC0DE
PAGE_HEADER, NODE_HEADER = 16, 8
BRANCH, LEAF, OVERFLOW = 1, 2, 4
"""Kinds of pages, in their flags."""

BIG, OTHERS = 1, 6
"""Flags of nodes: a value on pages of its own; a database within this one, or several values to a key."""

NONE = (1 << 64) - 1
"""The root of a tree without pages."""


class Meta(NamedTuple):
    """What the newer of the two meta pages says: sizes in bytes, numbers of pages."""

    page_size: int
    root: int
    last: int


def check_pages(file: Path) -> None:
    """Raises `FormatError` unless LMDB can read every key of a database without leaving the file; `OSError`."""
    with open_regular(file) as stream:
        if stream.seek(0, 2) < 2 * 512:
            raise _damaged(file, f"{stream.tell():,} bytes")
        with mmap.mmap(stream.fileno(), 0, access=mmap.ACCESS_READ) as data:
            meta = _meta(file, data)
            if (meta.last + 1) * meta.page_size > len(data):
                raise _damaged(file, f"{len(data):,} bytes, where its own description says {meta.last + 1:,} pages")
            _walk(file, data, meta)


def _meta(file: Path, data: mmap.mmap) -> Meta:
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
            found.append((transaction, Meta(size, root, last)))

    if not found:
        raise _damaged(file, f"pages that begin with {data[:20]!r}")
    return max(found)[1]


def _walk(file: Path, data: mmap.mmap, meta: Meta) -> None:
    size = meta.page_size
    if meta.root == NONE:
        waiting = []
    else:
        waiting = [meta.root]

    # Each page once: pages that lead to each other would keep LMDB, and this walk, going for ever.
    seen = set[int]()
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
        problem, children = _nodes(np.frombuffer(content, np.uint8), offsets, kind, meta)
        if problem:
            raise _damaged(file, f"page {page}: {problem}")
        waiting += children


def _nodes(page: Array, offsets: Array, kind: int, meta: Meta) -> tuple[str, list[int]]:
    """Returns what is wrong with the nodes of a page, and the pages below it."""
    if len(offsets) == 0:
        if kind == LEAF:
            return "", []
        return "a branch without children", []

    if int(offsets.min()) < PAGE_HEADER or int(offsets.max()) + NODE_HEADER > meta.page_size:
        return "a node outside of the page", []

    # `MDB_node`: the size of the value, or in a branch the number of the page below, in two words of 16 bits; flags, in
    # a branch the highest 16 bits of that number; and the size of the key. The key and the value follow.
    words = [page[offsets + byte].astype(np.int64) for byte in range(NODE_HEADER)]
    low = words[0] | words[1] << 8 | words[2] << 16 | words[3] << 24
    flags = words[4] | words[5] << 8
    key = words[6] | words[7] << 8
    ends = offsets + NODE_HEADER + key
    if kind == BRANCH:
        if (ends > meta.page_size).any():
            return "a key longer than its page", []
        return "", (low | flags << 32).tolist()

    if (flags & OTHERS).any():
        return "values of several kinds to a key, which are not read", []

    big = (flags & BIG) > 0
    if (np.where(big, ends + 8, ends + low) > meta.page_size).any():
        return "a value longer than its page", []

    # Large values lie on pages of their own, whose first number stands in place of the value.
    if big.any():
        first = np.zeros(int(big.sum()), np.int64)
        for byte in range(8):
            first |= page[ends[big] + byte].astype(np.int64) << (8 * byte)
        pages = (low[big] + PAGE_HEADER + meta.page_size - 1) // meta.page_size
        if (first < 0).any() or (first + pages > meta.last + 1).any():
            return "a value that ends behind the file", []

    return "", []


def _damaged(file: Path, found: str) -> FormatError:
    expected = "an LMDB database whose pages hang together"
    cure = "restore the file, or pack the data again"
    return FormatError.about("an LMDB database is damaged", place=file, found=found, expected=expected, cure=cure)
