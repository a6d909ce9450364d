"""What the pages of a Parquet column chunk unfold to, from their headers, before Arrow reads them.

Source: `parquet.thrift` of the Parquet format, in Thrift's compact protocol.
"""

from __future__ import annotations

import struct
from collections.abc import Callable, Iterator, Sequence
from typing import Any, NamedTuple

import pyarrow as pa

from headrace.data.formats.guards.limits import FREE

DATA, DICTIONARY, DATA_2 = 0, 2, 3
"""Kinds of pages."""

BY_DICTIONARY = (2, 8)
BY_PREFIX = 7
"""Encodings in which few bytes stand for many long strings."""

CODECS = ("SNAPPY", "GZIP", "BROTLI", "ZSTD")
WORD = struct.Struct("<I")
HEAD, LARGEST_HEAD = 1 << 9, 1 << 24
FALSE, TRUE, BYTE, DOUBLE, BINARY, LIST, SET, MAP, STRUCT = 2, 1, 3, 7, 8, 9, 10, 11, 12
DEEPEST = 16


Pread = Callable[[int, int], bytes | memoryview]
"""Reads up to so many bytes from a byte on."""


class Pages(NamedTuple):
    """What the headers of a column of a row group say, in bytes.

    stored: of all pages; unpacked: of all pages when they are no longer compressed; decoded: of the values, but for
    strings their places alone; repeated: what strings could take if few bytes name long ones again and again;
    longest: what one of these could.
    """

    stored: int = 0
    unpacked: int = 0
    decoded: int = 0
    repeated: int = 0
    longest: int = 1


def leaves_of(metadata: Any) -> dict[str, list[int]]:
    """Returns the numbers of the leaves of each column of a file, by all names that it could have."""
    found: dict[str, list[int]] = {}
    for number in range(metadata.num_columns):
        path = metadata.schema.column(number).path
        ends = []
        for at, char in enumerate(path):
            if char == ".":
                ends.append(at)

        for end in (*ends, len(path)):
            found.setdefault(path[:end], []).append(number)

    return found


def look_at(pread: Pread, metadata: Any, group: int, leaves: Sequence[int]) -> Pages:
    """Returns what the pages of some leaves say together. Raises `ValueError` if their headers make no sense."""
    total = Pages()
    about = metadata.row_group(group)
    for number in leaves:
        leaf = about.column(number)
        found = _leaf(pread, leaf)
        if "FIXED" in leaf.physical_type:
            width = max(metadata.schema.column(number).length, 1)
        else:
            width = 8

        total = Pages(
            total.stored + leaf.total_compressed_size,
            total.unpacked + found.unpacked,
            total.decoded + width * max(found.decoded, about.num_rows),
            total.repeated + found.repeated,
            max(total.longest, found.longest),
        )

    return total


def start_of(leaf: Any) -> int:
    """Returns the byte at which the pages of a leaf begin."""
    start = int(leaf.data_page_offset)
    if leaf.has_dictionary_page and leaf.dictionary_page_offset is not None:
        start = min(start, leaf.dictionary_page_offset)
    return start


def _leaf(pread: Pread, leaf: Any) -> Pages:
    """Returns what the pages of one leaf say, but in `decoded` how many values they are, empty places too."""
    start = start_of(leaf)
    unpacked = values = by_dictionary = repeated = 0
    longest = 1
    dictionary = None
    for body, header in _headers(pread, start, start + leaf.total_compressed_size):
        size = header[2]
        unpacked += size
        if header[1] == DICTIONARY:
            dictionary = body, header[3], size
            continue

        count, encoding = _values_of(header)
        if count < 0 or size < 0:
            raise ValueError(f"a page of {size:,} bytes and {count:,} values")

        values += count
        if encoding in BY_DICTIONARY:
            by_dictionary += count
        elif encoding == BY_PREFIX:
            # DELTA_BYTE_ARRAY: each value says how much of the one before it it repeats, at worst all of the page.
            repeated += size * count
            longest = max(longest, size)

        if values >= leaf.num_values:
            break

    if leaf.physical_type == "BYTE_ARRAY" and dictionary is not None:
        # At worst one word fills the dictionary, and each value names it. Only if that were too much are the words
        # themselves looked at, which costs unpacking them.
        word = dictionary[2]
        if word * by_dictionary > FREE >= word:
            word = _longest_word(pread, dictionary, leaf.compression)
        repeated += word * by_dictionary
        longest = max(longest, word)

    return Pages(0, unpacked, max(values, leaf.num_values), repeated, longest)


def _values_of(header: dict[int, Any]) -> tuple[int, int]:
    """Returns how many values a data page has, and their encoding."""
    # `PageHeader`: field 1 is the kind, 2 the size when unpacked, 3 the size as stored; 5 holds a `DataPageHeader`, and
    # 8 a `DataPageHeaderV2`. In these, field 1 counts the values; the encoding is field 2 of the first, 4 of the
    # second.
    if header[1] == DATA:
        about = header.get(5, {})
        encoding = about.get(2, 0)
    else:
        about = header.get(8, {})
        encoding = about.get(4, 0)

    return about.get(1, 0), encoding


def _longest_word(pread: Pread, place: tuple[int, int, int], codec: str) -> int:
    """Returns the bytes of the longest word in a dictionary (start, stored, unpacked), or all its bytes."""
    start, stored, size = place
    data = bytes(pread(stored, start))
    if codec != "UNCOMPRESSED":
        if codec not in CODECS:
            return size
        data = pa.decompress(data, size, codec.lower(), asbytes=True)

    at = longest = 0
    while at + 4 <= len(data):
        (word,) = WORD.unpack_from(data, at)
        at = at + 4 + word
        longest = max(longest, word)

    return max(longest, 1)


def _headers(pread: Pread, at: int, end: int) -> Iterator[tuple[int, dict[int, Any]]]:
    """Yields where the content of each page begins, and its header, as fields by number."""
    while at < end:
        # Nothing says how long a header is. With statistics of long strings it may be longer than most, so that more is
        # read until it ends.
        size = HEAD
        while True:
            data = bytes(pread(min(size, end - at), at))
            try:
                header, length = _struct(data, 0, 0)
                break
            except (IndexError, struct.error) as error:
                if len(data) < size or size >= LARGEST_HEAD:
                    raise ValueError(f"a page header at byte {at:,} that does not end") from error
                size *= 32

        kind, unpacked, stored = header.get(1), header.get(2), header.get(3)
        sound = isinstance(kind, int) and isinstance(unpacked, int) and isinstance(stored, int)
        if not sound or header[3] < 0:
            raise ValueError(f"a page header at byte {at:,} that makes no sense")
        body = at + length
        at = body + header[3]
        if at > end:
            raise ValueError(f"a page of {header[3]:,} bytes that ends after the end of its column")
        yield body, header


def _struct(data: bytes, at: int, depth: int) -> tuple[dict[int, Any], int]:
    """Returns the fields of a struct by number, and where it ends. Raises `IndexError` if `data` end before it does."""
    fields: dict[int, Any] = {}
    number = 0
    while data[at]:
        # The byte of a field: how far its number is from the one before it, and its kind. A step of 0 stands for a
        # number in full.
        step = data[at] >> 4
        kind = data[at] & 15
        at += 1
        if step:
            number += step
        else:
            number, at = _signed(data, at)

        # In a field, the kind is the value of a boolean; in a list, each has a byte of its own.
        if kind in (TRUE, FALSE):
            fields[number] = kind == TRUE
        else:
            fields[number], at = _value(data, at, kind, depth + 1)

    return fields, at + 1


def _value(data: bytes, at: int, kind: int, depth: int) -> tuple[Any, int]:
    """Returns a value, and where it ends; None for what is only passed over."""
    # A few thousand bytes could nest structs so deep that Python gives up.
    if depth > DEEPEST:
        raise ValueError("a page header of structs in structs")
    if kind == STRUCT:
        return _struct(data, at, depth)
    if kind == BINARY:
        length, at = _unsigned(data, at)
        return None, _there(data, at + length)

    if kind in (TRUE, FALSE, BYTE):
        return None, _there(data, at + 1)
    if kind == DOUBLE:
        return None, _there(data, at + 8)

    if kind in (LIST, SET):
        count = data[at] >> 4
        inner = data[at] & 15
        at += 1
        if count == 15:
            count, at = _unsigned(data, at)
        for _ in range(count):
            _, at = _value(data, at, inner, depth + 1)
        return None, at

    if kind == MAP:
        raise ValueError("a page header with a map")
    return _signed(data, at)


def _there(data: bytes, at: int) -> int:
    if at > len(data):
        raise IndexError(at)
    return at


def _unsigned(data: bytes, at: int) -> tuple[int, int]:
    value = shift = 0
    while True:
        byte = data[at]
        value = value | (byte & 127) << shift
        shift = shift + 7
        at = at + 1
        if byte < 128:
            return value, at
        if shift > 63:
            raise ValueError("a number without end")


def _signed(data: bytes, at: int) -> tuple[int, int]:
    # Zigzag: 0, -1, 1, -2 ... are written as 0, 1, 2, 3 ...
    value, at = _unsigned(data, at)
    return (value >> 1) ^ -(value & 1), at
