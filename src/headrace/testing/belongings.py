"""What a process holds at a moment: children, threads, descriptors, shared memory, bytes.

Where there is no /proc, only threads can be told.
"""

from __future__ import annotations

import os
import threading
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass
from itertools import filterfalse
from multiprocessing import forkserver, resource_tracker
from pathlib import Path

from headrace.core.process.memory import process_tree, tree_memory
from headrace.core.process.parent_watch import kept_descriptors

SHARED_MEMORY = Path("/dev/shm")

Process = tuple[int, str]
"""A process and when it was started, in the kernel's ticks: numbers of processes are used again."""


@dataclass(frozen=True)
class Belongings:
    """A process's possessions. Threads are the objects themselves; descriptors map a number to what it is open on."""

    processes: frozenset[Process]
    threads: frozenset[threading.Thread]
    descriptors: dict[int, str]
    shared: frozenset[Path]
    memory: int

    @classmethod
    def now(cls, *, memory: bool = False) -> Belongings:
        """Returns what this process and its descendants hold; `memory` is 0 unless asked for: it takes milliseconds."""
        held = 0
        if memory:
            held = tree_memory(os.getpid())

        return cls(
            processes=frozenset(_identified(descendants())),
            threads=frozenset(filterfalse(_is_foreign, threading.enumerate())),
            descriptors=_descriptors(),
            shared=_shared_memory(),
            memory=held,
        )

    def beyond(self, before: Belongings) -> Belongings:
        """Returns what is here and was not before. Memory: the growth in bytes, negative if it shrank."""
        opened = {}
        for fd, target in self.descriptors.items():
            if before.descriptors.get(fd) != target:
                opened[fd] = target

        closed: Counter[str] = Counter()
        for fd, target in before.descriptors.items():
            if self.descriptors.get(fd) != target:
                closed[target] += 1

        # The same file under another number is no leak: somebody closed it and opened it again.
        for fd, target in sorted(opened.items()):
            if closed[target]:
                closed[target] -= 1
                del opened[fd]

        return Belongings(
            processes=self.processes - before.processes,
            threads=self.threads - before.threads,
            descriptors=opened,
            shared=frozenset(filter(_is_left, self.shared - before.shared)),
            memory=self.memory - before.memory,
        )


def descendants() -> list[int]:
    """Lists the child processes of this process, their children, and so on; Linux only, else none.

    Leaves out the helpers that multiprocessing keeps until the interpreter exits: resource tracker and fork server.
    Children of a process that has ended belong to init, and are not found.

    Returns:
        Their process numbers.

    Examples:
        >>> from headrace.testing import descendants
        >>> numbers = descendants()
    """
    helpers = {
        getattr(resource_tracker._resource_tracker, "_pid", None),
        getattr(forkserver._forkserver, "_forkserver_pid", None),
    }
    pids = []
    for pid in process_tree(os.getpid())[1:]:
        if pid not in helpers:
            pids.append(pid)

    return pids


def command_of(pid: int) -> str:
    """Returns a process's command line, or what is left of it."""
    try:
        words = Path(f"/proc/{pid}/cmdline").read_bytes().split(b"\0")
        name = Path(f"/proc/{pid}/comm").read_text().strip()
    except OSError:
        return "gone meanwhile"

    return b" ".join(words).decode(errors="replace").strip() or f"{name}, ended, but nobody has waited for it"


def parent_of(pid: int) -> int | None:
    """Returns the number of a process's parent; None once the process is gone."""
    fields = status_of(pid)
    if fields is None:
        return None
    return int(fields[1])


def status_of(pid: int) -> list[str] | None:
    """Returns what the kernel says of a process, from its state on; None once it is gone."""
    try:
        text = Path(f"/proc/{pid}/stat").read_text()
    except OSError:
        return None
    # The name of a program may have spaces and parentheses: fields are counted from behind it.
    return text.rpartition(")")[2].split()


def _identified(pids: list[int]) -> list[Process]:
    found = []
    for pid in pids:
        fields = status_of(pid)
        if fields is not None:
            found.append((pid, fields[19]))

    return found


def _is_foreign(thread: threading.Thread) -> bool:
    """Whether Python only stands in for a thread that other code started and will end."""
    return isinstance(thread, threading._DummyThread)


def _descriptors() -> dict[int, str]:
    # Pipes to the helpers of multiprocessing and to workers, which stay open until the interpreter exits.
    kept = {
        getattr(resource_tracker._resource_tracker, "_fd", None),
        getattr(forkserver._forkserver, "_forkserver_alive_fd", None),
        *kept_descriptors(),
    }
    try:
        numbers = list(map(int, os.listdir("/proc/self/fd")))  # noqa: PTH208 - pathlib would sort paths first
    except OSError:
        return {}

    found = {}
    for fd in numbers:
        try:
            target = str(Path(f"/proc/self/fd/{fd}").readlink())
        except OSError:
            continue  # that of the listing itself

        if fd not in kept:
            found[fd] = target

    return found


def _shared_memory() -> frozenset[Path]:
    try:
        entries = list(SHARED_MEMORY.iterdir())
    except OSError:
        return frozenset()
    return frozenset(filter(_is_own, entries))


def _is_own(path: Path) -> bool:
    try:
        return path.stat().st_uid == os.geteuid()
    except OSError:
        return False  # removed meanwhile


def _is_left(path: Path) -> bool:
    """Whether a file that was seen is nobody else's, and still there afterwards, as semaphores are not."""
    try:
        is_theirs = _belongs_to_others(path.stat())
    except FileNotFoundError:
        return False
    return not is_theirs and path.exists()


def _belongs_to_others(status: os.stat_result) -> bool:
    """Whether a process that is none of ours has a file open or mapped: somebody else runs on this machine.

    A file goes by its number: what a semaphore's file was called when it was mapped is not its name any more.
    """
    ours = {os.getpid(), *descendants()}
    file = (status.st_dev, status.st_ino)
    for process in Path("/proc").glob("[0-9]*"):
        if int(process.name) in ours:
            continue
        try:
            if file in _mapped_files(process) or file in map(_file_of, (process / "fd").iterdir()):
                return True
        except OSError:
            continue  # it ended meanwhile, or is another user's

    return False


def _mapped_files(process: Path) -> Iterator[tuple[int, int]]:
    """Yields device and inode of each file that a process has mapped."""
    for line in (process / "maps").read_text().splitlines():
        device, inode = line.split(maxsplit=5)[3:5]
        major, minor = device.split(":")
        yield os.makedev(int(major, 16), int(minor, 16)), int(inode)


def _file_of(descriptor: Path) -> tuple[int, int]:
    """Returns device and inode of the file behind a descriptor; zeros if it was closed meanwhile."""
    try:
        status = descriptor.stat()
    except OSError:
        return 0, 0
    return status.st_dev, status.st_ino
