"""Takes objects out of the cache, each as a whole: its file is unlinked. A block that is there stays with its file.

Whoever has the file open may read on: bytes of blocks that are there never change. So that the space becomes free at
once, a file of several blocks is also cut to nothing. Its readers get fewer bytes than they ask for, never others, and
look for a new file of the name.

Each block has two bytes whose locks say what is done with it: the first that a process fetches it (its claim), the
second that a process writes it. Nobody writes into a file that is being removed: it would grow again, with zeros where
readers have seen blocks. Whoever writes looks behind the lock whether the file still has its name, and counts nothing
as cached if it has not. A remover that is killed leaves a file without a name, whose space is free when nobody has it
open any more, and bytes that are counted again later.
"""

from __future__ import annotations

import os

from headrace.core.files.file_lock import FIRST_BLOCK, NoLocks, lock_file, lock_range, unlock_range
from headrace.storage.cache import layout, whole_records
from headrace.storage.cache.node import Node
from headrace.storage.cache.open_files import OpenFile

FIRST_WRITTEN = FIRST_BLOCK + layout.MOST_BLOCKS
"""The byte whose lock says that block 0 is written."""


def take_file(node: Node, name: str, *, claimed: bool = False) -> int | None:
    """Removes the file of an object, and returns the bytes that became free: 0 if there is none, or none of ours.

    claimed: also if a process fetches a part of it now, which is then not kept. Returns None if the file stays because
    a process writes into it or, without `claimed`, fetches a part of it. Raises `OSError`.
    """
    try:
        file = node.files.adopt(OpenFile(node.folders.open(name, os.O_RDWR)))
    except FileNotFoundError:
        return 0
    head = os.pread(file.fd, layout.HEADER, 0)
    if not layout.is_ours(head):
        return 0

    if node.locks_ranges:
        start = FIRST_BLOCK
        if claimed:
            start = FIRST_WRITTEN
        try:
            if not lock_range(file.fd, start, FIRST_WRITTEN + layout.MOST_BLOCKS - start):
                return None
        except NoLocks:
            node.locks_ranges = False

    # Who removes a file holds these locks. So the name is still that of this file.
    if not file.is_linked():
        return 0

    header = layout.parsed(head)
    if header is None:
        nbytes = os.fstat(file.fd).st_blocks * 512
        with node.count.removing(nbytes):
            node.folders.unlink(name)
        return nbytes

    shape = header.shape
    nbytes = shape.header_room
    for number, (_, mark) in enumerate(file.entries(shape, range(shape.blocks))):
        if mark != layout.ABSENT:
            nbytes += shape.room_of(number)
    # A damaged file may take less than its table says, and was counted by what it takes.
    nbytes = min(nbytes, os.fstat(file.fd).st_blocks * 512)

    with node.count.removing(nbytes):
        node.folders.unlink(name)
        give_up_space(file, shape)
    return nbytes


def give_up_space(file: OpenFile, shape: layout.Shape) -> None:
    """Has readers that have a file without a name open see that its blocks are gone. Waits for who writes into it."""
    # Readers of an object with one block close its file at once.
    if shape.blocks == 1:
        return
    try:
        lock_range(file.fd, FIRST_WRITTEN, layout.MOST_BLOCKS, wait=True)
    except NoLocks:
        # A writer may be at work: a file that was cut would grow again, with zeros where readers have seen blocks.
        os.pwrite(file.fd, bytes(layout.ENTRY.size * shape.blocks), shape.table_start)
        return
    os.truncate(file.fd, 0)


def begin_writing(node: Node, file: OpenFile, blocks: range) -> bool:
    """Keeps a file from being removed until `end_writing`. Returns False if it is removed. Raises `OSError`.

    blocks: those that are written; others may be written meanwhile, also through the same file.
    """
    if node.locks_ranges:
        try:
            if not lock_range(file.fd, FIRST_WRITTEN + blocks.start, len(blocks)):
                return False
        except NoLocks:
            node.locks_ranges = False
    if file.is_linked():
        return True
    end_writing(file, blocks)
    return False


def end_writing(file: OpenFile, blocks: range) -> None:
    """Ends what `begin_writing` began."""
    unlock_range(file.fd, FIRST_WRITTEN + blocks.start, len(blocks))


def take_whole(node: Node, name: str) -> int:
    """Removes a whole file that nobody leases, and returns the bytes that became free. Raises `OSError`."""
    record_name = whole_records.record_name_of(name)
    try:
        file = node.files.adopt(OpenFile(node.folders.open(record_name, os.O_RDWR)))
    except FileNotFoundError:
        return 0

    try:
        if not lock_file(file.fd, exclusive=True) or not file.is_linked():
            return 0
    except NoLocks:
        return 0
    if whole_records.read_record(file.fd) is None:
        return 0

    nbytes = (node.folders.status(name).st_blocks + os.fstat(file.fd).st_blocks) * 512
    with node.count.removing(nbytes):
        node.folders.unlink(name)
        node.folders.unlink(record_name)
    file.close()
    return nbytes
