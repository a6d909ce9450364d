"""One object version in the cache: which of its blocks are there, reading them, claiming and inserting them."""

from __future__ import annotations

import os
import threading
import zlib
from collections.abc import Sequence
from itertools import groupby
from typing import TYPE_CHECKING

from headrace.core.files.file_lock import FIRST_BLOCK, NoLocks, lock_range, unlock_range
from headrace.storage.cache import layout
from headrace.storage.cache.claim import Claim
from headrace.storage.cache.eviction import NEVER
from headrace.storage.cache.evictor import Evictor
from headrace.storage.cache.insertion import Inserting
from headrace.storage.cache.node import Node
from headrace.storage.cache.object_file import make_object_file, open_object_file, replace_entry
from headrace.storage.cache.open_files import OpenFile
from headrace.storage.cache.removal import take_file

if TYPE_CHECKING:
    from typing_extensions import Buffer

ATTEMPTS = 3
"""How often a file is opened again if it was removed meanwhile."""


class CachedObject:
    """The blocks of one object version. Several threads may use it, and forked children.

    No method raises for what becomes of the disk: then blocks are absent, or cannot be inserted. Positions are bytes of
    the object; `stop` is exclusive.
    """

    __slots__ = (
        "__weakref__",
        "_claimed",
        "_evictor",
        "_identity",
        "_inserting",
        "_lock",
        "_may_be_empty",
        "_node",
        "_used",
        "etag",
        "name",
        "shape",
        "url",
    )

    def __init__(self, node: Node, evictor: Evictor, url: str, etag: str, shape: layout.Shape) -> None:
        self.url = url
        self.etag = etag
        self.shape = shape
        self._identity = layout.identity_of(url, etag, shape)
        self.name = layout.name_of(self._identity)
        """Of the file, below the folder of the objects."""
        self._node = node
        self._evictor = evictor
        self._claimed: dict[int, tuple[OpenFile, bool]] = {}
        """The blocks that this process claims: the file that holds the lock, and whether the caller asked for it."""
        self._inserting: set[int] = set()
        # For these two. Nobody calls the system while holding it: threads would queue for it behind a slow disk.
        self._lock = threading.Lock()
        self._used = False
        self._may_be_empty = False
        """Whether this process made the file, and has not seen a block in it since."""

    def __repr__(self) -> str:
        return f"CachedObject({layout.public_url(self.url)!r}, {self.size} bytes in {self.shape.blocks} blocks)"

    @property
    def size(self) -> int:
        """The bytes of the object."""
        return self.shape.size

    @property
    def block_size(self) -> int:
        """The bytes of a block; the last may be shorter."""
        return self.shape.block or max(self.size, 1)

    def after_fork(self) -> None:
        """Is called in a forked child: claims are the parent's."""
        self._lock = threading.Lock()
        self._claimed.clear()
        self._inserting.clear()

    # -- reading -----------------------------------------------------------------------------------------------------

    def read_into(self, start: int, stop: int, out: Buffer) -> bool:
        """Reads bytes into `out`, which has `stop - start` of them.

        Returns False, with anything in `out`, if not all of them are in the cache. Bytes that were stored wrongly, or
        left while they were read, count as absent.
        """
        if start >= stop:
            return True

        try:
            if self.shape.block == 0:
                return self._read_small(start, stop, out)
            return self._read(start, stop, out)
        except FileNotFoundError:
            return False
        except OSError as error:
            self._node.trouble(error, "reading")
            return False

    def read_several(self, spans: Sequence[tuple[int, int, Buffer]]) -> bool:
        """Reads spans, each (start, stop, buffer of its length). Returns False if not all of them are in the cache."""
        if self.shape.block and len(spans) > 1 and self._read_known(spans):
            return True
        return all(self.read_into(start, stop, out) for start, stop, out in spans)

    def _read_known(self, spans: Sequence[tuple[int, int, Buffer]]) -> bool:
        """Reads spans whose blocks were all seen before, from one open file."""
        shape = self.shape
        try:
            file = self._open_to_read()
            for start, stop, out in spans:
                if not self._are_known(file, shape.blocks_of(start, stop)):
                    return False
                if not file.read_fully(out, stop - start, shape.data_start + start):
                    return False
            return True
        except OSError:
            # Whoever reads them one by one meets it again, and tells.
            return False

    def _read_small(self, start: int, stop: int, out: Buffer) -> bool:
        """Reads from an object of one block.

        Its only entry lies right in front of the data, and its file is only ever removed as a whole. So if the mark is
        there, the data were complete before, and they stay, whoever removes the file now.
        """
        node = self._node
        descriptor = node.open_object(self.name)
        try:
            entry = bytearray(8)
            data_start = self.shape.data_start
            if start == 0:
                found = os.preadv(descriptor, (entry, out), data_start - 8) - 8
            else:
                os.preadv(descriptor, (entry,), data_start - 8)
                found = os.preadv(descriptor, (out,), data_start + start)
            if found == stop - start and entry[4:] == node.mark_bytes:
                return True
        finally:
            os.close(descriptor)

        return self._read(start, stop, out)

    def _read(self, start: int, stop: int, out: Buffer) -> bool:
        blocks = self.shape.blocks_of(start, stop)
        for _ in range(ATTEMPTS):
            file = self._open_to_read()
            if self._are_there(file, blocks) and file.read_fully(out, stop - start, self.shape.data_start + start):
                return True
            if file.is_linked():
                return False
            # It was removed: there may be another one of its name by now.
            self._node.files.drop(self.name, file)
        return False

    def _are_there(self, file: OpenFile, blocks: range) -> bool:
        """Tells whether blocks are there, and right: those of another use are verified."""
        if self._are_known(file, blocks):
            return True

        node = self._node
        entries = file.entries(self.shape, blocks)
        if any(mark == layout.ABSENT for _, mark in entries):
            return False
        for number, entry in zip(blocks, entries, strict=True):
            is_known = file.sound[number] or (entry[1] == node.mark and node.mark != layout.UNKNOWN_USE)
            if not is_known and not self._verify(file, number, entry):
                return False
            file.sound[number] = 1
        return True

    def _are_known(self, file: OpenFile, blocks: range) -> bool:
        """Tells whether this process has seen that blocks are there, and right. Then they are for good."""
        # Without a known use, other processes verify each block, too, and may find one wrong that was right before.
        return self._node.mark != layout.UNKNOWN_USE and file.sound.find(0, blocks.start, blocks.stop) < 0

    def _verify(self, file: OpenFile, number: int, entry: tuple[int, int]) -> bool:
        """Compares a block with its CRC. A right one gets the mark of this use, a wrong one counts as absent."""
        node = self._node
        start = self.shape.start_of(number)
        data = bytearray(self.shape.stop_of(number) - start)
        whole = file.read_fully(data, len(data), self.shape.data_start + start)
        if whole and zlib.crc32(data) == entry[0]:
            # So that no other process verifies it.
            if node.writable and node.locks_ranges and node.mark != layout.UNKNOWN_USE:
                replace_entry(node, self.name, self.shape, number, entry, (entry[0], node.mark))
            return True

        # A file that was removed meanwhile has no bytes any more.
        if node.writable and file.is_linked():
            replace_entry(node, self.name, self.shape, number, entry, (0, layout.ABSENT))
        return False

    # -- what is there -----------------------------------------------------------------------------------------------

    def has(self, start: int, stop: int) -> bool:
        """Tells whether the bytes are in the cache now."""
        return not self.missing(start, stop)

    def missing(self, start: int, stop: int) -> list[tuple[int, int]]:
        """Returns the ranges, made of whole blocks, that must be fetched for these bytes: (start, stop), ascending.

        Blocks that are there may turn out wrong when they are read.
        """
        blocks = self.shape.blocks_of(start, stop)
        try:
            absent = self._absent(blocks)
        except FileNotFoundError:
            absent = list(blocks)
        except OSError as error:
            self._node.trouble(error, "reading")
            absent = list(blocks)

        ranges: list[tuple[int, int]] = []
        for number in absent:
            begin, end = self.shape.start_of(number), self.shape.stop_of(number)
            if ranges and ranges[-1][1] == begin:
                begin = ranges.pop()[0]
            ranges.append((begin, end))
        return ranges

    def _absent(self, blocks: range) -> list[int]:
        file = self._open_to_read()
        entries = file.entries(self.shape, blocks)
        absent = [number for number, (_, mark) in zip(blocks, entries, strict=True) if mark == layout.ABSENT]
        if absent and not file.is_linked():
            self._node.files.drop(self.name, file)
            entries = self._open_to_read().entries(self.shape, blocks)
            absent = [number for number, (_, mark) in zip(blocks, entries, strict=True) if mark == layout.ABSENT]

        if not self._used:
            self._used = True
            self._tell_use()
        return absent

    def _tell_use(self) -> None:
        """Has the file say that this job used it last."""
        node = self._node
        if node.writable:
            file = self._open(os.O_RDWR)
            os.pwrite(file.fd, layout.NUMBER.pack(node.job), layout.JOB)
            file.close()

    def set_next_use(self, start: int, stop: int, next_use: int) -> None:
        """Says at which position of this job's order the blocks of these bytes are read next; `NEVER`: not known.

        Only objects of which this process has said so are chosen by their next use when room is needed.
        """
        for number in self.shape.blocks_of(start, stop):
            self._evictor.set_next_use(self.name, number, self.shape.freed_by(number), next_use)

    def has_room(self, start: int, stop: int) -> bool:
        """Tells whether the blocks of these bytes can be kept without objects leaving that this job has used."""
        return self._evictor.has_room(sum(map(self.shape.room_of, self.shape.blocks_of(start, stop))))

    # -- fetching ----------------------------------------------------------------------------------------------------

    def claim(self, start: int, stop: int) -> Claim | None:
        """Claims the blocks of these bytes: this process will fetch what is missing of them, and insert it.

        Returns None if some are claimed already, here or in another process. After a claim, `missing` says what is to
        be fetched: others may have been quicker. A claim ends by `release`, at the end of a `with` block, or with the
        process.
        """
        return self._claim(self.shape.blocks_of(start, stop), by_caller=True)

    def _claim(self, blocks: range, *, by_caller: bool) -> Claim | None:
        node = self._node
        file = None
        try:
            for _ in range(ATTEMPTS):
                file = self._open_or_make()
                if file is None or not blocks or not node.locks_ranges:
                    break
                if not lock_range(file.fd, FIRST_BLOCK + blocks.start, len(blocks)):
                    return None
                if file.is_linked():
                    break
                file = None  # it was removed before the lock
        except NoLocks:
            node.locks_ranges = False
        except OSError as error:
            node.trouble(error, "writing")
            file = None

        # Each claim has a file description of its own, so its lock keeps threads apart as well. Where the file system
        # has no locks, only this does.
        with self._lock:
            if any(number in self._claimed for number in blocks):
                return None
            if file is not None:
                self._claimed.update(dict.fromkeys(blocks, (file, by_caller)))
        return Claim(self._end_claim, blocks, file)

    def _end_claim(self, blocks: range, file: OpenFile) -> None:
        with self._lock:
            for number in blocks:
                known = self._claimed.get(number)
                if known is not None and known[0] is file:
                    del self._claimed[number]

        # In a forked child the descriptor is closed: the lock is the parent's.
        if file.fd < 0:
            return
        try:
            unlock_range(file.fd, FIRST_BLOCK + blocks.start, len(blocks))
            if self._may_be_empty:
                self._may_be_empty = file.is_linked() and file.is_empty(self.shape)
            file.close()
            # If it stays because another claim is held, the end of that one removes it.
            if self._may_be_empty and take_file(self._node, self.name) is not None:
                self._may_be_empty = False
        except OSError as error:
            self._node.trouble(error, "writing")

    def wait(self, start: int, stop: int) -> bool:
        """Waits until nobody claims these bytes any more; returns whether they are in the cache then.

        Do not wait while you hold a claim that the other process may wait for.
        """
        blocks = self.shape.blocks_of(start, stop)
        try:
            file = self._open(os.O_RDONLY)
            if blocks and self._node.locks_ranges:
                lock_range(file.fd, FIRST_BLOCK + blocks.start, len(blocks), exclusive=False, wait=True)
            file.close()
        except (NoLocks, FileNotFoundError):
            return self.has(start, stop)
        except OSError as error:
            self._node.trouble(error, "waiting for another process")
        return self.has(start, stop)

    def insert(self, start: int, data: Buffer, next_use: int = NEVER) -> bool:
        """Stores whole blocks that were fetched; the last block of the object may be short. Copies the data.

        Returns True if all of them are in the cache now; False if there is no room, if they are not worth it (all
        objects are used sooner), if another process claims some, or if the file was removed meanwhile. Raises
        `ValueError` if `data` are not whole blocks.
        """
        view = memoryview(data).cast("B")
        stop = start + len(view)
        blocks = self.shape.blocks_of(start, stop)
        if not blocks:
            return True
        if start != self.shape.start_of(blocks[0]) or stop != self.shape.stop_of(blocks[-1]):
            raise ValueError(f"bytes {start} to {stop} of {self!r} are not whole blocks")

        # Another thread that inserts without a claim of the caller has a short one of its own, which is not for others.
        with self._lock:
            claims = [self._claimed.get(number) for number in blocks]
        if all(claim is not None and claim[1] for claim in claims):
            return self._insert_blocks(blocks, view, next_use)

        short_claim = self._claim(blocks, by_caller=False)
        if short_claim is None:
            return False
        with short_claim:
            return self._insert_blocks(blocks, view, next_use)

    def _insert_blocks(self, blocks: range, data: memoryview, next_use: int) -> bool:
        with self._lock:
            if not self._claimed.keys() >= set(blocks) or not self._inserting.isdisjoint(blocks):
                return False
            self._inserting.update(blocks)
            files = {number: self._claimed[number][0] for number in blocks}

        inserted = True
        inserting = Inserting(self._node, self._evictor, self.name, self.shape)
        begin = self.shape.start_of(blocks[0])
        try:
            # Nearly always all are of one claim. Files of two may differ: that of the first may have been removed.
            for file, run in groupby(blocks, key=lambda number: files[number]):
                numbers = list(run)
                part = data[self.shape.start_of(numbers[0]) - begin : self.shape.stop_of(numbers[-1]) - begin]
                inserted &= inserting.insert(file, range(numbers[0], numbers[-1] + 1), part, next_use)
        except OSError as error:
            self._node.trouble(error, "writing")
            return False
        finally:
            self._inserting.difference_update(blocks)
        return inserted

    # -- files -------------------------------------------------------------------------------------------------------

    def _open(self, flags: int) -> OpenFile:
        return open_object_file(self._node, self.name, self._identity, self.shape, flags)

    def _open_to_read(self) -> OpenFile:
        # Files of one block are removed whole, and an open one would keep its space on the disk.
        if self.shape.block == 0:
            return self._open(os.O_RDONLY)
        return self._node.files.get(self.name, lambda: self._open(os.O_RDONLY))

    def _open_or_make(self) -> OpenFile | None:
        """Returns the file, which is made if there is none; None where there can be none."""
        if not self._node.writable:
            return None
        for _ in range(ATTEMPTS):
            try:
                return self._open(os.O_RDWR)
            except FileNotFoundError:
                head = layout.packed(self.shape, self.url, self.etag, self._node.job)
                file = make_object_file(self._node, self.name, head, self.shape)
                if file is not None:
                    self._may_be_empty = True
                    return file
        return None
