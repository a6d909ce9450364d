"""Goes through a segment from header to header, without its payloads."""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path

from headrace.core.errors import FormatError
from headrace.sources.journal.segments import HEAD, RECORD, Damaged, OtherVersion, RecordHeader, check_head, header_at

CHUNK = 1 << 16
"""Bytes that are read at once."""


def headers_in(fd: int, offset: int, number: int) -> Iterator[tuple[int, RecordHeader, bytes]]:
    """Yields offset, header and message id of each record, beginning with record `number`, which lies at `offset`.

    Ends with the last record that is complete. Raises `Damaged`, whose offset is that in the file.
    """
    size = os.fstat(fd).st_size
    while True:
        data = os.pread(fd, CHUNK, offset)
        place = 0
        while True:
            try:
                header = header_at(data, place, number)
            except Damaged as damaged:
                raise Damaged(offset + damaged.offset, damaged.what) from None

            if header is None or place + RECORD.size + header.message_id > len(data):
                break
            if offset + place + header.length > size:
                return

            begin = place + RECORD.size
            yield offset + place, header, data[begin : begin + header.message_id]
            place += header.length
            number += 1

        if place == 0:
            return
        offset += place


def open_segment(path: Path, first: int) -> int:
    """Opens a segment, and returns its descriptor. Raises `FormatError`, `FileNotFoundError`."""
    fd = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
    try:
        check_head(os.pread(fd, HEAD.size, 0), first)
    except (Damaged, OtherVersion) as error:
        os.close(fd)
        raise damaged_segment(path, error) from error
    return fd


def damaged_segment(path: Path, error: Damaged | OtherVersion) -> FormatError:
    """Returns the error of a segment that is not as it was written; the caller raises it."""
    if isinstance(error, OtherVersion):
        fix = "read this journal with the version of headrace that has written it"
        return FormatError.about("the journal has another format", place=path, found=error, fix=fix)

    found = f"{error.what}, at byte {error.offset:,}"
    fix = "restore the file; or begin after it, with another folder as journal="
    return FormatError.about("the journal is damaged", place=path, found=found, fix=fix)
