"""The index of a tar shard that is kept beside it, so that nobody need walk its headers again.

After `MAGIC` come little-endian 64-bit numbers: the CRC-32 of what follows it; the length of the shard, samples,
columns, bytes of names, bytes of endings; then `name_ends`, `starts` and `sizes` of `TarIndex`, the names, and the
endings, each followed by a zero byte.
"""

from __future__ import annotations

import zlib
from pathlib import Path

import numpy as np

from headrace.core.files.regular_files import SIDE_FILE, read_side_file
from headrace.data.formats.columns import Array
from headrace.data.formats.tar.shard_index import LocalBytes, TarIndex, as_text, walk_headers
from headrace.data.formats.unreadable import unreadable

MAGIC = b"HRTARIX1"


def index_of(file: str) -> TarIndex:
    """Returns where the samples of a shard lie: from the index beside it if that is there, otherwise from its headers.

    Raises `FormatError` if the shard is damaged; one that was cut off is.
    """
    stored = _kept(file)
    if stored is not None:
        return stored
    with Path(file).open("rb", buffering=0) as stream:
        return walk_headers(LocalBytes(stream.fileno()), file)


def index_path(file: str | Path) -> str:
    """Returns where the index of a shard is kept."""
    return f"{file}.index"


def keep_index(file: Path) -> None:
    """Writes the index of a shard beside it."""
    index = index_of(str(file))
    endings = b""
    for ending in index.endings:
        endings += ending.encode("utf-8", "surrogateescape") + b"\0"

    head = [file.stat().st_size, *index.starts.shape, len(index.names), len(endings)]
    numbers = [np.array(head), index.name_ends, index.starts.reshape(-1), index.sizes.reshape(-1)]
    body = np.concatenate(numbers).astype("<i8").tobytes() + index.names.tobytes() + endings
    Path(index_path(file)).write_bytes(MAGIC + zlib.crc32(body).to_bytes(8, "little") + body)


def _kept(file: str) -> TarIndex | None:
    """Returns the index beside a shard; None if there is none, or the shard has another length by now."""
    path = index_path(file)
    try:
        size = Path(file).stat().st_size
        data = read_side_file(path, max(SIDE_FILE, size))
    except FileNotFoundError:
        return None

    return index_from(data, path, size)


def index_from(data: bytes, path: str, size: int) -> TarIndex | None:
    """Returns the index that was kept as `data` at a path; None if it belongs to a shard of another length than `size`.

    Raises `FormatError` if it is damaged.
    """
    # A checksum tells damage, not intent: what the numbers say is checked again below, for an index of a stranger.
    start = len(MAGIC) + 8
    if data[:8] != MAGIC or int.from_bytes(data[8:start], "little") != zlib.crc32(memoryview(data)[start:]):
        error = ValueError(f"{len(data):,} bytes whose checksum is wrong")
        raise unreadable(path, "index of a shard", error, "delete it: it is only there to save time")

    head = np.frombuffer(data, "<i8", 5, start).tolist()
    # A shard that was written anew has an old index beside it: its headers are walked instead.
    length, samples, columns, names, endings = head
    if length != size:
        return None

    table = np.frombuffer(data, "<i8", samples + 1 + 2 * samples * columns, start + 40).astype(np.int64, copy=False)
    text = start + 40 + table.nbytes
    if not _hang_together(table, length, samples, names):
        error = ValueError("files or names that overlap, or lie outside of the shard")
        raise unreadable(path, "index of a shard", error, "delete it: it is only there to save time")

    starts, sizes = table[samples + 1 :].reshape(2, samples, columns)
    parts = data[text + names : text + names + endings].split(b"\0")[:columns]
    found = tuple(as_text(part.lower()) for part in parts)
    return TarIndex(np.frombuffer(data, np.uint8, names, text), table[: samples + 1], found, starts, sizes)


def _hang_together(table: Array, length: int, samples: int, names: int) -> bool:
    """Tells whether names follow each other, and files lie in a shard of this length and fill no more than it."""
    ends = table[: samples + 1]
    (starts, sizes) = table[samples + 1 :].reshape(2, -1)
    there = sizes >= 0
    ordered = int(ends[0]) == 0 and int(ends[-1]) == names and bool((np.diff(ends) >= 0).all())
    inside = bool(((starts >= 0) & (sizes <= length) & (starts <= length - sizes))[there].all())
    return ordered and inside and int(sizes[there].astype(np.float64).sum()) <= length
