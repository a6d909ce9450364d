"""A journal in memory, for those who would rather lose messages than write them to a disk."""

from __future__ import annotations

import threading
import uuid
from collections.abc import Sequence

from headrace.core.errors import RecordsLostError, StorageError
from headrace.sources.journal.deliveries import KEPT_IDS, Deliveries, Duplicates

RECORD = 64
"""Bytes that a record takes beside its payload, about."""


class MemoryJournal:
    """Does what `JournalWriter` and `JournalReader` do together. Its positions mean nothing to another process.

    When it is full, the records go that all readers have read. One thread may write while others read.
    """

    disk_is_full = False
    """It has no disk."""

    def __init__(self, place: str, limit: int, duplicates: Duplicates = "keep", kept_ids: int = KEPT_IDS) -> None:
        """place: of the source, for errors. limit: bytes."""
        self.identity = uuid.uuid4().hex
        self.place = place
        self.limit = limit
        self.deliveries = Deliveries(duplicates, kept_ids)
        self.full: str | None = None
        self._lock = threading.Lock()
        self._records: list[bytes] = []
        self._gone = 0
        self._size = 0
        self._first = 0
        self._read: dict[object, int] = {}
        self._asked = 0

    @property
    def first(self) -> int:
        """The number of the first record that is still there."""
        return self._first

    @property
    def durable(self) -> int:
        """The number behind the last record."""
        return self._first + len(self._records) - self._gone

    @property
    def size(self) -> int:
        """Bytes that it takes, about."""
        return self._size

    def append(
        self,
        payloads: Sequence[bytes],
        ids: Sequence[bytes | None] | None = None,
        redelivered: Sequence[bool] | None = None,
    ) -> int:
        """As `JournalWriter.append`."""
        self.full = None
        with self._lock:
            for index, payload in enumerate(payloads):
                message_id = None if ids is None else ids[index]
                again = redelivered is not None and redelivered[index]
                if self.deliveries.drops(message_id, again):
                    continue
                if not self._has_room(len(payload) + RECORD):
                    self.full = f"{self._size:,} bytes, of {self.limit:,}"
                    return index

                self._records.append(payload)
                self._size += len(payload) + RECORD
                self.deliveries.note(message_id, again)
                self.deliveries.forget_oldest()
        return len(payloads)

    def _has_room(self, wanted: int) -> bool:
        if wanted > self.limit:
            found = f"a message that takes {wanted:,} bytes"
            expected = f"{self.limit:,} bytes at most"
            fix = "raise journal_bytes=, or send smaller messages"
            what = "the journal in memory cannot hold a message"
            raise StorageError.about(what, place=self.place, found=found, expected=expected, fix=fix)

        if self._size + wanted > self.limit and self._read:
            self._drop_until(min(self._read.values()))
        return self._size + wanted <= self.limit

    def _drop_until(self, number: int) -> None:
        while self._first < number and self._gone < len(self._records):
            self._size -= len(self._records[self._gone]) + RECORD
            self._records[self._gone] = b""
            self._gone += 1
            self._first += 1

        # Now and then, so that it costs little for each record.
        if self._gone > len(self._records) // 2:
            del self._records[: self._gone]
            self._gone = 0

    def sync(self) -> int:
        """Returns the number behind the last record."""
        return self.durable

    def ask_to_trim(self, before: int) -> None:
        """As `JournalReader.ask_to_trim`."""
        self._asked = max(self._asked, before)

    def trim_as_asked(self) -> None:
        """As `JournalWriter.trim_as_asked`."""
        with self._lock:
            self._drop_until(self._asked)

    def read(self, number: int, limit: int, reader: object = None) -> list[bytes]:
        """As `JournalReader.read`. reader: who reads; what comes before `number` is not kept for it."""
        with self._lock:
            if not self._first <= number <= self.durable:
                found = f"record {number:,}, of records {self._first:,} to {self.durable - 1:,}"
                expected = "what all readers have read is dropped when there is no room"
                fix = "give journal= a folder, which keeps records until they are committed"
                what = "the journal in memory does not have the records from which to continue"
                error = RecordsLostError.about(what, place=self.place, found=found, expected=expected, fix=fix)
                error.partition = 0
                error.earliest = self._first
                raise error

            if reader is not None:
                self._read[reader] = number
            values: list[bytes] = []
            total = 0
            for index in range(number - self._first + self._gone, len(self._records)):
                total += len(self._records[index]) + RECORD
                if values and total > limit:
                    break
                values.append(self._records[index])
            return values

    def forget(self, reader: object) -> None:
        """Keeps nothing for a reader any more."""
        with self._lock:
            self._read.pop(reader, None)

    def close(self) -> None:
        """Does nothing."""
