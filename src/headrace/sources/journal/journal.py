"""The journal of a queue or a socket: messages on the disk, numbered 0, 1, 2, ..., which makes a log of them.

One process writes, by `JournalWriter`; any process of the machine reads, by `JournalReader`. `append` and `sync` are
two steps, so that many messages share one flush of the disk. What `sync` has reported survives a killed process and a
loss of power. Design and figures: docs/design/0016-journal.md.
"""

from __future__ import annotations

import contextlib
import os
import sys
from collections.abc import Sequence
from pathlib import Path

from headrace.core.errors import StorageError
from headrace.core.files.atomic_file import sync_folder
from headrace.sources.journal import folder as files
from headrace.sources.journal.deliveries import KEPT_IDS, Deliveries, Duplicates
from headrace.sources.journal.recovery import ids_kept, recovered_end
from headrace.sources.journal.segments import (
    FIRST_OF_GROUP,
    HEAD,
    LARGEST_PAYLOAD,
    LONGEST_ID,
    RECORD,
    head_of,
    packed,
    packed_ids,
    segment_name,
)

SEGMENT = 64 << 20
"""Bytes of a segment, unless one record is larger or the limit is low."""

SEGMENTS = 8
"""A journal with a limit has so many segments at least, so that space is freed in parts of an eighth."""

flush = getattr(os, "fdatasync", os.fsync)


class DiskFull(Exception):
    """The disk had no room for what was written since the last sync: it is taken back, and must be appended again."""


class JournalWriter:
    """Writes a journal. Not for several threads at once."""

    def __init__(
        self,
        folder: str | os.PathLike[str],
        *,
        limit: int | None = None,
        duplicates: Duplicates = "keep",
        kept_ids: int = KEPT_IDS,
    ) -> None:
        """limit: bytes of all segments; message ids take some megabytes beside them. duplicates: what becomes of
        messages without an id that are known to be delivered again. kept_ids: of so many messages the ids are known,
        to drop those that are delivered again.

        Raises `StorageError` if another process writes, or the disk cannot be written; `FormatError` if what was
        reported as durable is damaged.
        """
        self.folder = Path(folder)
        self.identity = files.make_folder(self.folder)
        self.limit = limit
        self.deliveries = Deliveries(duplicates, kept_ids)
        self.full: str | None = None
        """Why the last `append` or `sync` has not taken everything, in words."""

        self.disk_is_full = False
        """Whether that is the disk."""

        self._kept_ids = kept_ids
        self._segment = SEGMENT
        if limit is not None:
            self._segment = min(SEGMENT, max(limit // SEGMENTS, 1))

        self._fd = -1
        try:
            self._lock = files.WriterLock(self.folder)
            self._mark = files.SharedNumber(self.folder / files.DURABLE)
            self._trim = files.SharedNumber(self.folder / files.TRIM)
            self._mark.reserve()
            self._trim.reserve()
        except OSError as error:
            if isinstance(error, StorageError):
                raise
            raise files.cannot_write(self.folder, error) from error

        try:
            self._open()
        except BaseException:
            self.close()
            raise

    # -- opening -----------------------------------------------------------------------------------------------------

    def _open(self) -> None:
        firsts = files.segments_in(self.folder)
        known = self._mark.read()
        try:
            # Numbers are never given twice, also where somebody has removed the segments.
            self._offset = 0
            self._next = known
            if firsts:
                self._offset, self._next = recovered_end(self.folder / segment_name(firsts[-1]), firsts[-1], known)

            if self._offset == 0:
                # A journal without segments, or a process that died when it had just begun one.
                firsts = [first for first in firsts if first < self._next]
                self._read_ids(firsts)
                # On a full disk it begins with the first message: until then, space may be freed.
                with files.suppressed_if_full():
                    self._begin_file()
                    firsts.append(self._next)
            else:
                self._read_ids(firsts)
                path = self.folder / segment_name(firsts[-1])
                self._fd = os.open(path, os.O_WRONLY | os.O_CLOEXEC)
                os.fsync(self._fd)
        except OSError as error:
            if isinstance(error, StorageError):
                raise
            raise files.cannot_write(self.folder, error) from error

        self._firsts = firsts
        self._sizes = [(self.folder / segment_name(first)).stat().st_size for first in firsts]
        self._unsynced_ids: list[bytes] = []
        self._synced = self._next
        self._synced_offset = self._offset
        self._group_begins = True
        self._mark.write(self._next)
        self._mark.sync()
        self.trim(self._trim.read())

    def _read_ids(self, firsts: list[int]) -> None:
        self.deliveries.ids = dict.fromkeys(ids_kept(self.folder, firsts, self._next, self._kept_ids))

    def _begin_file(self) -> None:
        """Makes the segment that begins with the next record, and flushes it and its name to the disk."""
        path = self.folder / segment_name(self._next)
        fd = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_TRUNC | os.O_CLOEXEC, 0o644)
        try:
            os.write(fd, head_of(self._next))
            os.fsync(fd)
            sync_folder(self.folder)
        except BaseException:
            os.close(fd)
            with contextlib.suppress(OSError):
                path.unlink()
            raise

        if self._fd >= 0:
            os.close(self._fd)
        self._fd = fd
        self._offset = HEAD.size

    # -- writing -----------------------------------------------------------------------------------------------------

    @property
    def first(self) -> int:
        """The number of the first record that is still there; where there is none, of the next one."""
        if not self._firsts:
            return self._next
        return self._firsts[0]

    @property
    def durable(self) -> int:
        """The number behind the last record that is on the disk."""
        return self._synced

    @property
    def size(self) -> int:
        """Bytes of all segments."""
        return sum(self._sizes)

    def append(
        self,
        payloads: Sequence[bytes],
        ids: Sequence[bytes | None] | None = None,
        redelivered: Sequence[bool] | None = None,
    ) -> int:
        """Writes messages, and returns how many of them are done with: written, or dropped as delivered before.

        These are fewer than there are when the journal or the disk is full, and `full` says so, or when a segment is
        full: after a `sync`, the rest can be appended. Raises `StorageError` for other failures of the disk, and for a
        message that will never fit.
        """
        self.full = None
        self.disk_is_full = False
        if (self._fd < 0 or self._offset >= self._segment) and not self._next_segment():
            return 0

        parts: list[bytes] = []
        new_ids: list[bytes] = []
        begun = self._next
        length = 0
        room = self._room()
        taken = 0
        for taken, payload in enumerate(payloads):
            message_id = b""
            if ids is not None:
                message_id = ids[taken] or b""
            again = redelivered is not None and redelivered[taken]
            if self.deliveries.drops(message_id, again):
                continue

            if self._offset + length >= self._segment:
                break
            following = length + RECORD.size + len(message_id) + len(payload)
            if following > room:
                self._check_size(following - length)
                self.full = f"{self.size + length:,} bytes, of {self.limit:,} by journal_bytes="
                break

            if len(message_id) > LONGEST_ID or len(payload) > LARGEST_PAYLOAD:
                raise self._too_large(len(message_id) + len(payload), LARGEST_PAYLOAD)
            flags = FIRST_OF_GROUP if self._group_begins else 0
            self._group_begins = False
            parts += packed(self._next, payload, message_id, flags)
            length = following
            self._next += 1
            self.deliveries.note(message_id, again)
            if message_id:
                new_ids.append(message_id)
        else:
            taken = len(payloads)

        if not self._write(parts, length, begun):
            self.deliveries.forget(new_ids)
            return 0
        self._unsynced_ids += new_ids
        self.deliveries.forget_oldest()
        return taken

    def _room(self) -> int:
        if self.limit is None:
            return sys.maxsize
        return self.limit - self.size

    def _check_size(self, record: int) -> None:
        """Raises if a record would not fit into an empty journal either. record: its bytes."""
        if self.limit is not None and record + HEAD.size > self.limit:
            raise self._too_large(record + HEAD.size, self.limit)

    def _too_large(self, size: int, largest: int) -> StorageError:
        found = f"a message that takes {size:,} bytes"
        expected = f"{largest:,} bytes at most"
        fix = "raise journal_bytes=, or send smaller messages"
        what = "the journal cannot hold a message"
        return StorageError.about(what, place=self.folder, found=found, expected=expected, fix=fix)

    def _write(self, parts: list[bytes], length: int, begun: int) -> bool:
        """Writes records behind the last ones. Takes them back, and returns False, if the disk is full."""
        if not parts:
            return True

        data = memoryview(b"".join(parts))
        try:
            done = 0
            while done < length:
                done += os.pwrite(self._fd, data[done:], self._offset + done)
        except OSError as error:
            with contextlib.suppress(OSError):
                os.ftruncate(self._fd, self._offset)
            self._next = begun
            if error.errno not in files.NO_SPACE:
                raise files.cannot_write(self.folder, error) from error
            self._note_full_disk(error)
            return False

        self._offset += length
        self._sizes[-1] = self._offset
        return True

    def _note_full_disk(self, error: OSError) -> None:
        self.full = f"the disk is full ({error.strerror})"
        self.disk_is_full = True

    def no_room(self, payload: bytes) -> StorageError:
        """Returns the error of a disk that has no room for a message; the caller raises it."""
        needed = RECORD.size + len(payload)
        return files.no_space(self.folder, f"{needed:,} bytes at least, for a message")

    def _next_segment(self) -> bool:
        """Begins another segment. Returns False if the one before is not synced, or the disk is full."""
        if self._synced < self._next:
            return False

        try:
            self._begin_file()
        except OSError as error:
            if error.errno not in files.NO_SPACE:
                raise files.cannot_write(self.folder, error) from error
            self._note_full_disk(error)
            return False

        self._firsts.append(self._next)
        self._sizes.append(self._offset)
        self._synced_offset = self._offset
        return True

    def sync(self) -> int:
        """Flushes what was written to the disk, and returns the number behind the last record: all before are durable.

        Raises `DiskFull` if the disk had no room after all, and `StorageError` if it fails.
        """
        if self._synced == self._next:
            return self._synced

        try:
            flush(self._fd)
        except OSError as error:
            # The kernel may have dropped the pages, and a second sync would report success: written anew, or given up.
            self._take_back()
            if error.errno not in files.NO_SPACE:
                raise files.cannot_write(self.folder, error) from error
            self._note_full_disk(error)
            raise DiskFull(str(error)) from error

        self._synced = self._next
        self._synced_offset = self._offset
        self._unsynced_ids.clear()
        self._group_begins = True
        self._mark.write(self._next)
        return self._next

    def _take_back(self) -> None:
        with contextlib.suppress(OSError):
            os.ftruncate(self._fd, self._synced_offset)
        self._offset = self._synced_offset
        self._sizes[-1] = self._offset
        self._next = self._synced
        self._group_begins = True
        self.deliveries.forget(self._unsynced_ids)
        self._unsynced_ids = []

    # -- freeing space -----------------------------------------------------------------------------------------------

    def trim_as_asked(self) -> None:
        """Deletes what readers have said that they need no more."""
        asked = self._trim.read()
        if asked > self.first:
            self.trim(asked)

    def trim(self, before: int) -> None:
        """Deletes the segments whose records all come before this number. Raises `StorageError`."""
        before = min(before, self._synced)
        ends = self._firsts[1:]
        if self._fd < 0:
            ends.append(self._next)
        try:
            if before == self._next and self._offset > HEAD.size:
                # All is read. If the last segment stayed, one large record could keep the journal full for ever. The
                # next one begins first, or, if the disk is full, when there is space for it.
                self._next_segment()
                ends.append(before)

            gone = [first for first, end in zip(self._firsts, ends, strict=False) if end <= before]
            if not gone:
                return

            saved = self._save_ids()
            if len(gone) == len(self._firsts):
                self._leave_last_segment()
            for first in gone:
                files.delete(self.folder / segment_name(first))
            if not saved:
                self._save_ids()
        except OSError as error:
            if isinstance(error, StorageError):
                raise
            raise files.cannot_write(self.folder, error) from error

        del self._firsts[: len(gone)]
        del self._sizes[: len(gone)]

    def _leave_last_segment(self) -> None:
        """Writes no more to the last segment, so that it can be deleted."""
        # Nothing else will tell the next number to a process that opens the journal when this one has died.
        self._mark.sync()
        if self._fd >= 0:
            os.close(self._fd)
        self._fd = -1
        self._offset = 0

    def _save_ids(self) -> bool:
        """Keeps the message ids beside the segments. Returns False if the disk has no room for them."""
        if not self.deliveries.ids:
            return True
        try:
            files.replace_synced(self.folder / files.IDS, packed_ids(list(self.deliveries.ids)))
        except OSError as error:
            if error.errno not in files.NO_SPACE:
                raise
            return False
        return True

    def close(self) -> None:
        """Ends writing. What was not synced may be lost."""
        if self._fd >= 0:
            os.close(self._fd)
            self._fd = -1
            with contextlib.suppress(OSError):
                self._mark.sync()
        self._mark.close()
        self._trim.close()
        self._lock.release()
