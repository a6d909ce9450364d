"""Reads a journal by number, while another thread or process writes it."""

from __future__ import annotations

import os
from bisect import bisect_right
from pathlib import Path

from headrace.core.errors import FormatError, RecordsLostError
from headrace.sources.journal import folder as files
from headrace.sources.journal.scan import damaged_segment, headers_in, open_segment
from headrace.sources.journal.segments import HEAD, RECORD, Damaged, header_at, payloads_in, segment_name

BETWEEN = 1 << 16
"""Bytes from one place of the index to the next one: so many are gone through at most to find a record."""

CHUNK = 1 << 20
"""Bytes that are read at once, unless a record is larger."""


class JournalReader:
    """Reads records up to the last one that is on the disk. Not for several threads at once."""

    def __init__(self, folder: str | os.PathLike[str]) -> None:
        """Raises `FormatError`; `FileNotFoundError` if there is no journal."""
        self.folder = Path(folder)
        self.identity = files.id_of(self.folder)
        self._mark = files.SharedNumber(self.folder / files.DURABLE)
        self._trim = files.SharedNumber(self.folder / files.TRIM)
        self._segment: _Segment | None = None
        self._indexes: dict[int, _Index] = {}
        """Of the segments that were read, by their first number."""

    @property
    def durable(self) -> int:
        """The number behind the last record that is on the disk."""
        return self._mark.read()

    @property
    def first(self) -> int:
        """The number of the first record that is still there; where there is none, of the next one."""
        firsts = files.segments_in(self.folder)
        if not firsts:
            return self.durable
        return firsts[0]

    def ask_to_trim(self, before: int) -> None:
        """Tells the writer, of this process or another one, that nothing before this number is needed any more.

        Raises `StorageError`.
        """
        try:
            if before > self._trim.read():
                self._trim.write(before)
        except OSError as error:
            raise files.cannot_write(self.folder, error) from error

    def read(self, number: int, limit: int) -> list[bytes]:
        """Returns the payloads of records from `number` on: about `limit` bytes, one record at least, none at the end.

        Raises `RecordsLostError` if the journal does not have that record any more, or never had it; `FormatError` at
        damage.
        """
        end = self.durable
        if number > end:
            raise self._lost(number, f"record {number:,}, and the journal ends with record {end - 1:,}")
        if number == end:
            return []

        values: list[bytes] = []
        total = 0
        while number < end and total < limit:
            segment = self._segment_with(number)
            if segment.following is not None and number >= segment.following:
                raise self._gap(segment, number)
            found = segment.payloads(number, min(end, segment.following or end), limit - total)
            if not found:
                # The writer may have begun another segment since the last look.
                if not self._look_behind(segment, number):
                    raise self._gap(segment, number)
                continue
            values += found
            number += len(found)
            total += sum(map(len, found)) + len(found) * RECORD.size
        return values

    def _segment_with(self, number: int) -> _Segment:
        current = self._segment
        if (
            current is not None
            and current.first <= number
            and (current.following is None or number < current.following)
        ):
            return current

        if current is not None:
            current.close()
            self._segment = None
        while True:
            firsts = files.segments_in(self.folder)
            place = bisect_right(firsts, number) - 1
            if place < 0:
                first = firsts[0] if firsts else self.durable
                raise self._lost(number, f"record {number:,}, and the first one that is there is {first:,}", first)

            first = firsts[place]
            following = None
            if place + 1 < len(firsts):
                following = firsts[place + 1]
            try:
                self._segment = _Segment(self.folder, first, following, self._indexes.get(first, _Index(first)))
            except FileNotFoundError:
                continue  # the writer has just deleted it

            self._indexes = {first: index for first, index in self._indexes.items() if first >= firsts[0]}
            self._indexes[first] = self._segment.index
            return self._segment

    def _look_behind(self, segment: _Segment, number: int) -> bool:
        """Looks for the segment that comes next. Returns whether there is one, and it begins with this record."""
        firsts = files.segments_in(self.folder)
        if not firsts or firsts[0] > number:
            first = firsts[0] if firsts else self.durable
            raise self._lost(number, f"record {number:,}, and the first one that is there is {first:,}", first)

        behind = [first for first in firsts if first > segment.first]
        if not behind or segment.following is not None:
            return False
        segment.following = behind[0]
        return behind[0] <= number

    def _gap(self, segment: _Segment, number: int) -> FormatError:
        return damaged_segment(segment.path, Damaged(segment.end, f"the file ends before record {number}"))

    def _lost(self, number: int, found: str, first: int | None = None) -> RecordsLostError:
        if first is None:
            first = self.first
        fix = f"begin at {first:,} or later, or commit no further than what is still to be read"
        what = "the journal does not have the records from which to continue"
        error = RecordsLostError.about(what, place=self.folder, found=found, fix=fix)
        error.partition = 0
        error.earliest = first
        return error

    def close(self) -> None:
        """Closes its files."""
        if self._segment is not None:
            self._segment.close()
            self._segment = None
        self._mark.close()
        self._trim.close()


class _Index:
    """Where some records of a segment lie: one about every `BETWEEN` bytes, as far as it was read."""

    def __init__(self, first: int) -> None:
        self._numbers = [first]
        self._offsets = [HEAD.size]

    def before(self, number: int) -> tuple[int, int]:
        """Returns number and offset of the last record that is known, and not behind this one."""
        place = bisect_right(self._numbers, number) - 1
        return self._numbers[place], self._offsets[place]

    def add(self, number: int, offset: int) -> None:
        """Tells where a record lies. Kept if it lies far enough behind the last one."""
        if offset >= self._offsets[-1] + BETWEEN:
            self._numbers.append(number)
            self._offsets.append(offset)


class _Segment:
    """An open segment."""

    def __init__(self, folder: Path, first: int, following: int | None, index: _Index) -> None:
        """following: the number with which the next segment begins; None: there is no next one yet."""
        self.first = first
        self.following = following
        self.path = folder / segment_name(first)
        self._fd = open_segment(self.path, first)
        self.index = index
        self._number = first
        self._offset = HEAD.size

    @property
    def end(self) -> int:
        """The bytes of the file."""
        return os.fstat(self._fd).st_size

    def payloads(self, number: int, stop: int, limit: int) -> list[bytes]:
        """Returns the payloads of records from `number` on, as `payloads_in` does. Raises `FormatError`."""
        try:
            if number != self._number and not self._go_to(number):
                return []
            return self._payloads(stop, limit)
        except Damaged as error:
            raise damaged_segment(self.path, error) from error

    def _payloads(self, stop: int, limit: int) -> list[bytes]:
        size = min(CHUNK, limit + BETWEEN)
        while True:
            data = memoryview(os.pread(self._fd, size, self._offset))
            try:
                values, behind = payloads_in(data, 0, self._number, stop, limit)
            except Damaged as damaged:
                raise Damaged(self._offset + damaged.offset, damaged.what) from None

            if values or len(data) < size:
                break
            # The record is larger than what was read.
            header = header_at(data, 0, self._number)
            if header is None or header.length <= size:
                break
            size = header.length

        self._offset += behind
        self._number += len(values)
        self.index.add(self._number, self._offset)
        return values

    def _go_to(self, number: int) -> bool:
        """Finds a record by the index, and from there on header by header. Returns whether it may begin there."""
        self._number, self._offset = self.index.before(number)
        if self._number == number:
            return True

        for offset, header, _ in headers_in(self._fd, self._offset, self._number):
            self._number = header.number + 1
            self._offset = offset + header.length
            self.index.add(self._number, self._offset)
            if self._number == number:
                return True
        return False

    def close(self) -> None:
        """Closes the file."""
        os.close(self._fd)
