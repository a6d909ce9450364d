"""Makes room: asks which blocks are needed last, and takes them out."""

from __future__ import annotations

import os
import threading
import time
from collections import deque

from headrace.storage.cache import layout, whole_records
from headrace.storage.cache.eviction import NEVER, NextUses
from headrace.storage.cache.folders import HEX, WHOLE
from headrace.storage.cache.node import Node
from headrace.storage.cache.removal import take_blocks, take_file, take_whole

LOOK_AGAIN = 5.0
"""Seconds until a process that found nothing to remove looks into the folders again."""
ATTEMPTS = 4


class Evictor:
    """Keeps the cache within its limit. Several threads may use it.

    Blocks leave in this order: objects that this process has said nothing of and that no other living job used last,
    oldest first; then blocks of this process whose next use is farther than that of the new one, farthest first; and
    only if there are none of its own left, objects of other living jobs, oldest first.
    """

    def __init__(self, node: Node) -> None:
        self._node = node
        self._begin()

    def _begin(self) -> None:
        self._own: NextUses[tuple[str, int]] = NextUses()
        self._files: dict[str, set[int]] = {}
        """The blocks in `_own`, by file."""
        self._leftovers: deque[str] = deque()
        self._of_others: deque[str] = deque()
        self._looked_at = -LOOK_AGAIN
        self._lock = threading.RLock()

    def after_fork(self) -> None:
        """Is called in a forked child, which begins without blocks of its own."""
        # A thread of the parent may have held the lock, which is made anew with the rest.
        self._begin()

    def set_next_use(self, name: str, number: int, nbytes: int, next_use: int) -> None:
        """Says at which position a block, which takes `nbytes` on the disk, is read next."""
        with self._lock:
            self._own.set((name, number), nbytes, next_use)
            self._files.setdefault(name, set()).add(number)

    def forget(self, name: str, number: int) -> None:
        """Says that a block is gone."""
        with self._lock:
            self._own.remove((name, number))
            blocks = self._files.get(name)
            if blocks is not None:
                blocks.discard(number)
                if not blocks:
                    del self._files[name]

    def make_room(self, nbytes: int, next_use: int) -> bool:
        """Reserves bytes for a new block, for which others leave. Returns False if it shall not be stored.

        next_use: its position; below 0 for what is needed now in any case.
        """
        node = self._node
        for _ in range(ATTEMPTS):
            if node.reserve(nbytes):
                return True
            try:
                with self._lock:
                    made = self._free(node.used() + nbytes - (node.limit or 0), next_use)
            except OSError as error:
                node.trouble(error, "making room")
                return False
            if not made:
                break
        # The bytes in use may have been corrected, or others may have made room.
        return node.reserve(nbytes)

    def has_room(self, nbytes: int) -> bool:
        """Tells whether there is room for so many bytes though no block leaves that this job has used."""
        node = self._node
        needed = node.used() + nbytes - (node.limit or 0)
        if node.limit is None or needed <= 0:
            return True
        with self._lock:
            if not self._leftovers:
                self._look(at_once=False)
            return bool(self._leftovers)

    def _free(self, needed: int, next_use: int) -> bool:
        """Frees bytes, and returns whether that was possible."""
        if not self._leftovers:
            self._look(at_once=next_use < 0)

        freed = 0
        while freed < needed and self._leftovers:
            freed += self._take_file(self._leftovers.popleft())

        # What could not be taken, because another process fetches or reads it, is forgotten: this loop ends.
        while freed < needed:
            victims = self._own.victims(needed - freed, next_use)
            if victims is None:
                return False
            if not victims:
                break
            freed += self._take_blocks(victims)

        while freed < needed and self._of_others:
            freed += self._take_file(self._of_others.popleft())
        return freed >= needed

    def _take_file(self, name: str) -> int:
        if name in self._files:
            return 0  # it has become one of this process since it was found
        if name.startswith(WHOLE):
            return take_whole(self._node, name)
        return take_file(self._node, name)

    def _take_blocks(self, victims: list[tuple[str, int]]) -> int:
        by_file: dict[str, list[int]] = {}
        for name, number in victims:
            by_file.setdefault(name, []).append(number)

        freed = 0
        for name, numbers in by_file.items():
            freed += take_blocks(self._node, name, numbers)
            for number in numbers:
                self.forget(name, number)
        return freed

    # -- what lies in the folders ------------------------------------------------------------------------------------

    def _look(self, *, at_once: bool) -> None:
        """Lists the objects of which this process has said nothing, and counts the bytes in use again."""
        now = time.monotonic()
        if now - self._looked_at < LOOK_AGAIN and not at_once:
            return
        self._looked_at = now

        node = self._node
        before = node.used()
        others = OtherJobs(node)
        found: list[tuple[int, str]] = []
        used = 0
        for name, status in node.folders.names(*HEX):
            if not layout.NAME.fullmatch(name):
                continue
            used += status.st_blocks * 512
            if name in self._files:
                self._adopt_blocks(name)
            else:
                found.append((status.st_mtime_ns, name))

        for name, status in node.folders.names(WHOLE):
            used += status.st_blocks * 512
            if whole_records.DATA_NAME.fullmatch(name):
                found.append((status.st_mtime_ns, name))

        node.correct(before, used)
        self._leftovers.clear()
        self._of_others.clear()
        for _, name in sorted(found):
            if others.have(name):
                self._of_others.append(name)
            else:
                self._leftovers.append(name)

    def _adopt_blocks(self, name: str) -> None:
        """Takes the blocks of a file that are there without a next use for blocks of which none is known."""
        node = self._node
        with_uses = self._files[name]
        try:
            fd = node.open_object(name)
        except FileNotFoundError:
            return
        try:
            header = layout.parsed(os.pread(fd, layout.HEADER, 0))
            if header is None or header.shape.blocks == len(with_uses):
                return
            shape = header.shape
            table = os.pread(fd, layout.ENTRY.size * shape.blocks, shape.table_start)
        finally:
            os.close(fd)

        for number, (_, mark) in enumerate(layout.ENTRY.iter_unpack(table)):
            if mark != layout.ABSENT and number not in with_uses:
                self.set_next_use(name, number, shape.freed_by(number), NEVER)


class OtherJobs:
    """The other jobs that live, and which objects they used last."""

    def __init__(self, node: Node) -> None:
        self._node = node
        self._living: set[int] = set()
        for job in node.jobs():
            if job != node.job and node.job_lives(job):
                self._living.add(job)

    def have(self, name: str) -> bool:
        """Tells whether another living job used an object last."""
        if not self._living or name.startswith(WHOLE):
            return False  # a whole file is leased by who uses it
        try:
            fd = self._node.open_object(name)
        except OSError:
            return False
        try:
            found = os.pread(fd, 8, layout.JOB)
        finally:
            os.close(fd)
        return len(found) == 8 and layout.NUMBER.unpack(found)[0] in self._living
