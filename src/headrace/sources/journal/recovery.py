"""Opening a journal whose writer may have been killed, or has lost power: what is whole stays, a torn tail goes.

Only the last segment can have a torn tail, since a segment is flushed before the next one begins. In it, records are
whole up to the end, or up to the first one that is not. That one is a torn tail, unless it was reported as durable: by
the file `durable`, or by a later record that says so. Then it is damage.
"""

from __future__ import annotations

import os
from itertools import pairwise
from pathlib import Path

from headrace.core.errors import FormatError
from headrace.sources.journal import folder as files
from headrace.sources.journal.scan import damaged_segment, headers_in, open_segment
from headrace.sources.journal.segments import (
    HEAD,
    Damaged,
    OtherVersion,
    check_head,
    group_begins_behind,
    header_at,
    ids_in,
    is_whole,
    segment_name,
)


def recovered_end(path: Path, first: int, durable: int) -> tuple[int, int]:
    """Cuts off the torn tail of the last segment, if there is one. Returns its end, and the number of the next record.

    first: the number of its first record. durable: the number that was reported. An end of 0: the segment was about to
    be made, and has no head. Raises `FormatError`, which names file and offset.
    """
    data = path.read_bytes()
    try:
        check_head(data, first)
    except Damaged as error:
        # A segment gets records only after its head was flushed.
        if len(data) <= HEAD.size and durable <= first:
            return 0, first
        raise damaged_segment(path, error) from error
    except OtherVersion as error:
        raise damaged_segment(path, error) from error

    offset, number, what = whole_until(data, first)
    if number < durable or group_begins_behind(data, offset, number):
        raise damaged_segment(path, Damaged(offset, what))
    if offset < len(data):
        os.truncate(path, offset)
    return offset, number


def whole_until(data: bytes, first: int) -> tuple[int, int, str]:
    """Returns where the first record lies that is not whole, its number, and what is wrong with it."""
    view = memoryview(data)
    offset = HEAD.size
    number = first
    while True:
        try:
            header = header_at(view, offset, number)
        except Damaged as damaged:
            return offset, number, damaged.what

        if header is None or offset + header.length > len(data):
            return offset, number, f"the file ends within record {number}"
        if not is_whole(view, offset, header):
            return offset, number, f"the CRC of record {number} is wrong"
        offset += header.length
        number += 1


def ids_kept(folder: Path, firsts: list[int], end: int, count: int) -> list[bytes]:
    """Returns the last `count` message ids, oldest first. Raises `FormatError`."""
    ids: dict[bytes, None] = {}
    path = folder / files.IDS
    if path.exists():
        try:
            ids = dict.fromkeys(ids_in(path.read_bytes()))
        except (Damaged, OtherVersion) as error:
            raise damaged_segment(path, error) from error

    for first, following in pairwise([*firsts, end]):
        if following > end - count:
            for message_id in _ids_of(folder / segment_name(first), first, following):
                # What the file has of this segment moves to its place among the others.
                ids.pop(message_id, None)
                ids[message_id] = None
    return list(ids)[-count:]


def _ids_of(path: Path, first: int, following: int) -> list[bytes]:
    ids = []
    number = first
    fd = open_segment(path, first)
    try:
        for _, header, message_id in headers_in(fd, HEAD.size, first):
            number = header.number + 1
            if message_id:
                ids.append(message_id)
    except Damaged as error:
        raise damaged_segment(path, error) from error
    finally:
        os.close(fd)

    if number != following:
        found = f"{number - first:,} records"
        expected = f"{following - first:,}, since the next segment begins with record {following}"
        raise FormatError.about("the journal is damaged", place=path, found=found, expected=expected)
    return ids
