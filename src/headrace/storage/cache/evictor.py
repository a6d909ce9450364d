"""Makes room: asks which objects are needed last, and takes them out."""

from __future__ import annotations

import os
import threading
import time
from collections import deque

from headrace.storage.cache import layout, whole_records
from headrace.storage.cache.eviction import BlockUses, NextUses
from headrace.storage.cache.folders import WHOLE
from headrace.storage.cache.node import Node
from headrace.storage.cache.removal import take_file, take_whole

LOOK_AGAIN = 5.0
"""Seconds until a process that found nothing to remove looks into the folders again."""
ATTEMPTS = 4


class Evictor:
    """Keeps the cache within its limit. Several threads may use it.

    Objects leave in this order: those that this process has said nothing of and that no other living job used last,
    oldest first; then objects of this process whose next use is farther than that of the new block, farthest first; and
    only if there are none of its own left, objects of other living jobs, oldest first.
    """

    def __init__(self, node: Node) -> None:
        self._node = node
        self._begin()

    def _begin(self) -> None:
        self._own: NextUses[str] = NextUses()
        self._uses: dict[str, BlockUses] = {}
        """Of the objects in `_own`, by name."""
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
            uses = self._uses.setdefault(name, BlockUses())
            uses.set(number, nbytes, next_use)
            self._own.set(name, uses.nbytes, uses.nearest())

    def forget_block(self, name: str, number: int) -> None:
        """Says that a block is not in the cache."""
        with self._lock:
            uses = self._uses.get(name)
            if uses is None:
                return
            uses.remove(number)
            if uses.nbytes:
                self._own.set(name, uses.nbytes, uses.nearest())
            else:
                self._forget(name)

    def _forget(self, name: str) -> None:
        self._own.remove(name)
        del self._uses[name]

    def make_room(self, nbytes: int, next_use: int) -> bool:
        """Reserves bytes for a new block, for which others leave. Returns False if it shall not be stored.

        Reserved bytes are on their way until the caller says that they are stored, or releases them.

        next_use: its position; below 0 for what is needed now in any case.
        """
        node = self._node
        for _ in range(ATTEMPTS):
            if node.count.reserve(nbytes):
                return True
            try:
                with self._lock:
                    made = self._free(node.count.used() + nbytes - (node.limit or 0), next_use)
            except OSError as error:
                node.trouble(error, "making room")
                return False
            if not made:
                break
        # The bytes in use may have been corrected, or others may have made room.
        return node.count.reserve(nbytes)

    def has_room(self, nbytes: int) -> bool:
        """Tells whether there is room for so many bytes though no object leaves that this job has used."""
        node = self._node
        needed = node.count.used() + nbytes - (node.limit or 0)
        if node.limit is None or needed <= 0:
            return True
        with self._lock:
            if not self._leftovers:
                self._look(at_once=False)
            return bool(self._leftovers)

    def _free(self, needed: int, next_use: int) -> bool:
        """Frees bytes, and returns whether that was possible."""
        is_new = not self._leftovers
        if is_new:
            self._look(at_once=next_use < 0)
        freed = self._take_leftovers(needed)
        # The list may be an old one: others have become leftovers since.
        if freed < needed and next_use < 0 and not is_new:
            self._look(at_once=True)
            freed += self._take_leftovers(needed - freed)

        while freed < needed:
            victims = self._own.victims(needed - freed, next_use)
            if victims is None:
                return False
            if not victims:
                break
            for name in victims:
                if freed >= needed:
                    break
                taken = take_file(self._node, name, claimed=True)
                if taken is None:
                    return False  # a process writes into it at this moment
                self._forget(name)
                freed += taken

        while freed < needed and self._of_others:
            freed += self._take_file(self._of_others.popleft())
        return freed >= needed

    def _take_leftovers(self, needed: int) -> int:
        freed = 0
        while freed < needed and self._leftovers:
            freed += self._take_file(self._leftovers.popleft())
        return freed

    def _take_file(self, name: str) -> int:
        if name in self._uses:
            return 0  # it has become one of this process since it was found
        if name.startswith(WHOLE):
            return take_whole(self._node, name)
        return take_file(self._node, name) or 0

    # -- what lies in the folders ------------------------------------------------------------------------------------

    def _look(self, *, at_once: bool) -> None:
        """Lists the objects of which this process has said nothing, and counts the bytes in use again."""
        now = time.monotonic()
        if now - self._looked_at < LOOK_AGAIN and not at_once:
            return
        self._looked_at = now

        node = self._node
        recount = node.count.begin_recount(patient=at_once)
        others = OtherJobs(node)
        found: list[tuple[int, str]] = []
        used = 0
        for name, status in node.counted_files():
            used += status.st_blocks * 512
            is_beside = name.startswith(WHOLE) and not whole_records.DATA_NAME.fullmatch(name)
            if not is_beside and name not in self._uses:
                found.append((status.st_mtime_ns, name))

        node.count.end_recount(recount, used)
        self._leftovers.clear()
        self._of_others.clear()
        for _, name in sorted(found):
            if others.have(name):
                self._of_others.append(name)
            else:
                self._leftovers.append(name)


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
