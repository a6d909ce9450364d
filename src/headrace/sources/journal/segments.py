"""The journal's files, byte by byte: how records are packed, found and checked. Nothing here opens a file.

A segment is a file that begins with `HEAD`: eight bytes that name the format and its version, and the number of the
segment's first record. Records follow, without gaps in their numbers. In front of each stands `RECORD`:

    4 bytes  MAGIC
    4 bytes  CRC-32 (zlib) of all that follows: the rest of this header, the message id, the payload
    4 bytes  bytes of the payload
    2 bytes  bytes of the message id; 0: the message has none
    2 bytes  flags; FIRST_OF_GROUP: all records in front of this one were on the disk when this one was written
    8 bytes  number of the record

All numbers are little-endian.
"""

from __future__ import annotations

import struct
from collections.abc import Sequence
from dataclasses import dataclass
from zlib import crc32

FORMAT = b"HRJRNL\x00"
VERSION = 1
HEAD = struct.Struct("<7sBQ")
RECORD = struct.Struct("<4sIIHHQ")
REST = struct.Struct("<IHHQ")
MAGIC = b"\xf7HRJ"
CHECKED_FROM = 8
"""Bytes of a record's header that the CRC does not cover: the magic, and the CRC itself."""

FIRST_OF_GROUP = 1
LONGEST_ID = 0xFFFF
LARGEST_PAYLOAD = 0xFFFFFFFF
SUFFIX = ".journal"


class Damaged(Exception):
    """Bytes that should be a record are none."""

    def __init__(self, offset: int, what: str) -> None:
        super().__init__(what)
        self.offset = offset
        """Where the record begins, in bytes from the start of what was read."""

        self.what = what


class OtherVersion(Exception):
    """A segment's head names another version of the format."""


@dataclass(frozen=True)
class RecordHeader:
    """What stands in front of a record."""

    crc: int
    payload: int
    """Bytes of it."""

    message_id: int
    """Bytes of it."""

    flags: int
    number: int

    @property
    def length(self) -> int:
        """The bytes of the whole record."""
        return RECORD.size + self.message_id + self.payload


def segment_name(first: int) -> str:
    """Returns the name of the segment whose first record has this number. Names sort as numbers do."""
    return f"{first:020d}{SUFFIX}"


def first_number(name: str) -> int | None:
    """Returns the number in the name of a segment; None for other files."""
    stem = name.removesuffix(SUFFIX)
    if stem == name or len(stem) != 20 or not stem.isdigit():
        return None
    return int(stem)


def head_of(first: int) -> bytes:
    """Returns the first bytes of a segment."""
    return HEAD.pack(FORMAT, VERSION, first)


def check_head(data: bytes, first: int) -> None:
    """Raises `Damaged` unless these are the first bytes of the segment that begins with record `first`.

    Raises `OtherVersion` for a version that is not known.
    """
    if len(data) < HEAD.size:
        raise Damaged(0, f"a head of {len(data)} bytes")

    name, version, number = HEAD.unpack_from(data)
    if name != FORMAT:
        raise Damaged(0, "no head of a journal's segment")
    if version != VERSION:
        raise OtherVersion(f"version {version} of the format")
    if number != first:
        raise Damaged(0, f"the head of the segment that begins with record {number}")


def packed(number: int, payload: bytes, message_id: bytes = b"", flags: int = 0) -> list[bytes]:
    """Returns the parts of a record, in order."""
    rest = REST.pack(len(payload), len(message_id), flags, number)
    crc = crc32(rest)
    if message_id:
        crc = crc32(message_id, crc)
    crc = crc32(payload, crc)
    return [MAGIC, crc.to_bytes(4, "little"), rest, message_id, payload]


def header_at(data: bytes | memoryview, offset: int, number: int) -> RecordHeader | None:
    """Returns the header of record `number`, which begins there; None if it is not complete. Raises `Damaged`."""
    if offset + RECORD.size > len(data):
        return None

    magic, crc, payload, message_id, flags, found = RECORD.unpack_from(data, offset)
    if magic != MAGIC:
        raise Damaged(offset, "no record begins here")
    if found != number:
        raise Damaged(offset, f"record {found} in the place of record {number}")
    return RecordHeader(crc, payload, message_id, flags, found)


def is_whole(data: memoryview, offset: int, header: RecordHeader) -> bool:
    """Tells whether the CRC of a record is right. All of its bytes are in `data`."""
    return crc32(data[offset + CHECKED_FROM : offset + header.length]) == header.crc


def payloads_in(data: memoryview, offset: int, first: int, stop: int, limit: int) -> tuple[list[bytes], int]:
    """Returns the payloads of records from `first` on, and the offset behind the last of them.

    Ends with record `stop - 1`, with the first record that is not complete, or with `limit` bytes, headers counted; one
    record is returned even if it is larger than that. Raises `Damaged` at a record that is not as it was written.
    """
    values: list[bytes] = []
    total = 0
    size = len(data)
    number = first
    # This loop takes most of the time of reading, so it calls nothing that it can do itself.
    while number < stop:
        payload_from = offset + RECORD.size
        if payload_from > size:
            break

        magic, crc, payload, message_id, _, found = RECORD.unpack_from(data, offset)
        if magic != MAGIC or found != number:
            raise Damaged(offset, f"record {number} does not begin here")

        payload_from += message_id
        end = payload_from + payload
        if end > size or (values and total + end - offset > limit):
            break
        if crc32(data[offset + CHECKED_FROM : end]) != crc:
            raise Damaged(offset, f"the CRC of record {number} is wrong")

        values.append(bytes(data[payload_from:end]))
        total += end - offset
        offset = end
        number += 1

    return values, offset


def group_begins_behind(data: bytes, offset: int, number: int) -> bool:
    """Tells whether a whole record behind record `number` says that it was on the disk already.

    offset: where record `number`, which is damaged, begins.
    """
    view = memoryview(data)
    while True:
        offset = data.find(MAGIC, offset + 1)
        if offset < 0 or offset + RECORD.size > len(data):
            return False

        header = RecordHeader(*RECORD.unpack_from(data, offset)[1:])
        if header.number <= number or not header.flags & FIRST_OF_GROUP:
            continue
        if offset + header.length <= len(data) and is_whole(view, offset, header):
            return True


def packed_ids(ids: Sequence[bytes]) -> bytes:
    """Returns a file of message ids, oldest first."""
    body = b"".join(len(one).to_bytes(2, "little") + one for one in ids)
    return HEAD.pack(FORMAT, VERSION, len(ids)) + crc32(body).to_bytes(4, "little") + body


def ids_in(data: bytes) -> list[bytes]:
    """Returns the ids that `packed_ids` has packed. Raises `Damaged`, `OtherVersion`."""
    if len(data) < HEAD.size + 4:
        raise Damaged(0, f"a head of {len(data)} bytes")

    check_head(data, HEAD.unpack_from(data)[2])
    body = data[HEAD.size + 4 :]
    if crc32(body) != int.from_bytes(data[HEAD.size : HEAD.size + 4], "little"):
        raise Damaged(HEAD.size, "the CRC of the message ids is wrong")

    ids = []
    offset = 0
    while offset < len(body):
        length = int.from_bytes(body[offset : offset + 2], "little")
        ids.append(body[offset + 2 : offset + 2 + length])
        offset += 2 + length
    return ids
