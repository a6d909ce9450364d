"""What lies where in the file of an object version. Bytes in, records out: nothing here opens a file.

    0      magic and format version (8 bytes), block size (u32), unused (u32), object size (u64), data_start (u64)
    32     number of the job that used the file last (u64), unused (8 bytes)
    48     CRC-32 of what does not change: bytes 0 to 32, and 64 to 2040
    64     SHA-256 of the identity
    96     lengths of URL and ETag (2 x u16), then both as UTF-8
    ...    zeros
    data_start - 8 * blocks    the table: for each block CRC-32 (u32) and mark (u32)
    data_start                 the object's bytes; blocks that never came are holes

A mark is 0 for a block that is absent, otherwise the mark of the use in which the block was written or verified last
(`node.py`). Blocks come one by one, and leave together, with the file (`removal.py`). The table ends where the data
begin, so that one read fetches the only entry of a small object with it. All numbers are little-endian. An object of
one block begins at 2048, where it shares a page with the header; others begin at a page: their blocks are whole pages.
"""

from __future__ import annotations

import hashlib
import re
import struct
import zlib
from dataclasses import dataclass

MAGIC = b"HRCACHE\x02"
"""Its last byte is the version. In files of version 1, a block could leave alone: its bytes then read as zeros."""
PAGE = 4096
HEADER = 2048
TEXTS_END = 2040
LONGEST_URL = 1500
LONGEST_ETAG = 300

JOB = 32
CHECK = 48
IDENTITY = 64
TEXTS = 96

MIN_BLOCK = 1 << 12
MAX_BLOCK = 1 << 23
MOST_BLOCKS = 1 << 40

ABSENT = 0
UNKNOWN_USE = 1
"""The mark of blocks that were written without knowing the use: every process verifies them."""

FIXED = struct.Struct("<8sIIQQ")
LENGTHS = struct.Struct("<HH")
ENTRY = struct.Struct("<II")
NUMBER = struct.Struct("<Q")
CRC = struct.Struct("<I")
NAME = re.compile(r"[0-9a-f]/[0-9a-f]{31}\.blocks")
NEW_NAME = re.compile(r"[0-9a-f]{31}\.[0-9a-f]{16}\.new")
JOB_NAME = re.compile(r"[0-9a-f]{16}")

_USER = re.compile(r"(?<=://)[^/?#]*@")


@dataclass(frozen=True)
class Shape:
    """How an object of `size` bytes is cut into blocks of `block` bytes; an object of one block has `block` = 0."""

    size: int
    block: int
    blocks: int
    data_start: int

    @property
    def table_start(self) -> int:
        """Where the table begins, in bytes."""
        return self.data_start - ENTRY.size * self.blocks

    def start_of(self, number: int) -> int:
        """Returns where a block begins, in bytes of the object."""
        return number * self.block

    def stop_of(self, number: int) -> int:
        """Returns where a block ends (exclusive), in bytes of the object."""
        if number + 1 >= self.blocks:
            return self.size
        return (number + 1) * self.block

    def blocks_of(self, start: int, stop: int) -> range:
        """Returns the blocks in which the bytes `start` to `stop` (exclusive) lie."""
        if start >= stop:
            return range(0)
        if self.block == 0:
            return range(1)
        return range(start // self.block, (stop - 1) // self.block + 1)

    @property
    def header_room(self) -> int:
        """The bytes that a file without blocks takes on the disk: whole pages."""
        return _whole_pages(self.data_start)

    def room_of(self, number: int) -> int:
        """Returns how many more bytes the file takes on the disk with a block: whole pages."""
        if self.blocks == 1:
            return _whole_pages(self.data_start + self.size) - self.header_room
        return _whole_pages(self.stop_of(number) - self.start_of(number))

    def freed_by(self, number: int) -> int:
        """Returns how many bytes become free with a block; the only one takes the header with it."""
        if self.blocks == 1:
            return self.header_room + self.room_of(0)
        return self.room_of(number)


def shape_of(size: int, block: int) -> Shape:
    """Returns the shape of an object. An object of at most `block` bytes has one block."""
    blocks = max(-(-size // block), 1)
    if blocks == 1:
        return Shape(size, 0, 1, HEADER)
    return Shape(size, block, blocks, _whole_pages(HEADER + ENTRY.size * blocks))


def _whole_pages(nbytes: int) -> int:
    return -(-nbytes // PAGE) * PAGE


@dataclass(frozen=True)
class ObjectHeader:
    """What the file of an object version says of itself."""

    shape: Shape
    identity: bytes
    url: str
    etag: str


def identity_of(url: str, etag: str, shape: Shape) -> bytes:
    """Returns the 32 bytes that name an object version, in blocks of this size."""
    parts = f"{len(url)} {len(etag)} {shape.size} {shape.block} {url}{etag}"
    return hashlib.sha256(parts.encode("utf-8", "surrogateescape")).digest()


def name_of(identity: bytes) -> str:
    """Returns the name of the file, below the folder `objects`. It tells nothing of the URL."""
    text = identity.hex()
    return f"{text[0]}/{text[1:32]}.blocks"


def public_url(url: str) -> str:
    """Returns a URL without what may be secret: user and password, query, fragment."""
    return _USER.sub("", url.partition("#")[0].partition("?")[0])


def packed(shape: Shape, url: str, etag: str, job: int) -> bytes:
    """Returns all bytes in front of the data, for a file without blocks."""
    head = bytearray(shape.data_start)
    FIXED.pack_into(head, 0, MAGIC, shape.block, 0, shape.size, shape.data_start)
    NUMBER.pack_into(head, JOB, job)
    head[IDENTITY : IDENTITY + 32] = identity_of(url, etag, shape)

    shown_url = public_url(url).encode("utf-8", "replace")[:LONGEST_URL]
    shown_etag = etag.encode("utf-8", "replace")[:LONGEST_ETAG]
    LENGTHS.pack_into(head, TEXTS, len(shown_url), len(shown_etag))
    begin = TEXTS + LENGTHS.size
    head[begin : begin + len(shown_url) + len(shown_etag)] = shown_url + shown_etag
    CRC.pack_into(head, CHECK, _check_of(head))
    return bytes(head)


def is_ours(head: bytes) -> bool:
    """Tells whether a cache of any version made a file, by its first `HEADER` bytes.

    A power cut may have left zeros there.
    """
    return head.startswith(MAGIC[:-1]) or not any(head)


def parsed(head: bytes) -> ObjectHeader | None:
    """Returns the record in the first `HEADER` bytes of a file; None if they are damaged or none of ours."""
    if len(head) < HEADER or not head.startswith(MAGIC):
        return None
    if CRC.unpack_from(head, CHECK)[0] != _check_of(head):
        return None

    _, block, _, size, data_start = FIXED.unpack_from(head, 0)
    shape = shape_of(size, block or max(size, 1))
    if shape.data_start != data_start:
        return None

    url_length, etag_length = LENGTHS.unpack_from(head, TEXTS)
    begin = TEXTS + LENGTHS.size
    url = head[begin : begin + url_length].decode("utf-8", "replace")
    etag = head[begin + url_length : begin + url_length + etag_length].decode("utf-8", "replace")
    return ObjectHeader(shape, bytes(head[IDENTITY : IDENTITY + 32]), url, etag)


def _check_of(head: bytes | bytearray) -> int:
    return zlib.crc32(head[IDENTITY:TEXTS_END], zlib.crc32(head[:JOB]))
