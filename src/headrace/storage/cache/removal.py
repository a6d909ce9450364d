"""Takes blocks and whole objects out of the cache, in an order in which readers never see a wrong byte.

1. The evictor locks the blocks, without waiting: what another process fetches or writes now stays.
2. It clears their marks in the table.
3. It writes a new random generation.
4. It punches holes, or removes the file.

A reader reads generation, marks, data and generation, in this order. If it saw a mark, step 2 came after that; if
step 4 touched what it read, step 3 came before its second look at the generation. Generations are random, so that two
evictors need not agree on the next one. A killed evictor leaves blocks that are absent, and space that is counted again
later.
"""

from __future__ import annotations

import os
from itertools import pairwise

from headrace.core.files.file_lock import FIRST_BLOCK, NoLocks, lock_file, lock_range
from headrace.storage.cache import layout, whole_records
from headrace.storage.cache.holes import punch_hole
from headrace.storage.cache.node import Node
from headrace.storage.cache.open_files import OpenFile


def take_blocks(node: Node, name: str, blocks: list[int]) -> int:
    """Takes blocks of one object out, and returns the bytes that became free.

    Blocks that a process has claimed or writes now stay. The whole object goes where the file system cannot punch holes
    or has no locks, and if it has one block only. Raises `OSError`.
    """
    if not node.locks_ranges or not node.punches:
        return take_file(node, name)
    opened = _open(node, name)
    if opened is None:
        return 0
    file, header = opened
    if header is None or header.shape.blocks == 1:
        return take_file(node, name)

    shape = header.shape
    try:
        taken = _clear_marks(file, shape, blocks)
    except NoLocks:
        node.locks_ranges = False
        return take_file(node, name)
    if not taken or not file.is_linked():
        return 0

    os.pwrite(file.fd, os.urandom(8), layout.GENERATION)
    for first, last in runs_of(taken):
        start = shape.data_start + shape.start_of(first)
        length = sum(shape.room_of(number) for number in range(first, last + 1))
        node.punches &= punch_hole(file.fd, start, length)

    nbytes = sum(shape.room_of(number) for number in taken)
    if node.punches:
        _released(node, nbytes)
        if file.is_empty(shape):
            file.close()  # and its locks, which would be in the way
            nbytes += take_file(node, name)
        return nbytes

    # The blocks take their space until the file goes.
    file.close()
    removed = take_file(node, name)
    if not removed:
        return 0
    return removed + _released(node, nbytes)


def _clear_marks(file: OpenFile, shape: layout.Shape, blocks: list[int]) -> list[int]:
    """Locks blocks that nobody has claimed, and clears their marks. Returns those that were there, ascending."""
    taken = []
    for number in sorted(blocks):
        if not lock_range(file.fd, FIRST_BLOCK + number, 1):
            continue
        # Looked at behind the lock: another evictor may have been here.
        if file.entry(shape, number)[1] != layout.ABSENT:
            file.write_entry(shape, number, 0, layout.ABSENT)
            taken.append(number)

    return taken


def take_file(node: Node, name: str) -> int:
    """Removes the file of an object, and returns the bytes that became free; 0 if a process fetches a part of it now.

    A file that is none of ours stays. Raises `OSError`.
    """
    opened = _open(node, name)
    if opened is None:
        return 0
    file, header = opened

    locked = False
    if node.locks_ranges:
        try:
            if not lock_range(file.fd, FIRST_BLOCK, layout.MOST_BLOCKS):
                return 0
            locked = True
        except NoLocks:
            node.locks_ranges = False

    # Who removes a file holds the locks of all its blocks. So the name is still that of this file.
    if not file.is_linked():
        return 0

    if header is None:
        nbytes = os.fstat(file.fd).st_blocks * 512
        node.folders.unlink(name)
        return _released(node, nbytes)

    shape = header.shape
    nbytes = shape.header_room
    for number, (_, mark) in enumerate(file.entries(shape, range(shape.blocks))):
        if mark != layout.ABSENT:
            nbytes += shape.room_of(number)

    os.pwrite(file.fd, bytes(layout.ENTRY.size * shape.blocks), shape.table_start)
    os.pwrite(file.fd, os.urandom(8), layout.GENERATION)
    node.folders.unlink(name)
    # Readers that have the file open would keep its space. Those of an object with one block do not look at the
    # generation: their file is left whole, and closed by them at once. Without locks a writer may be at work.
    if locked and shape.blocks > 1:
        punch_hole(file.fd, shape.data_start, max(shape.size, 1))
    return _released(node, nbytes)


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

    nbytes = node.folders.status(name).st_blocks * 512
    node.folders.unlink(name)
    node.folders.unlink(record_name)
    file.close()
    return _released(node, nbytes)


def _open(node: Node, name: str) -> tuple[OpenFile, layout.ObjectHeader | None] | None:
    """Opens a file for its removal. The header is None if it is damaged. None if there is no file, or none of ours."""
    try:
        fd = node.folders.open(name, os.O_RDWR)
    except FileNotFoundError:
        return None

    file = node.files.adopt(OpenFile(fd))
    head = os.pread(fd, layout.HEADER, 0)
    if not layout.is_ours(head):
        return None
    return file, layout.parsed(head)


def _released(node: Node, nbytes: int) -> int:
    node.release(nbytes)
    return nbytes


def runs_of(numbers: list[int]) -> list[tuple[int, int]]:
    """Returns ascending numbers as runs of neighbours, each with its first and last."""
    if not numbers:
        return []

    firsts = [numbers[0]]
    lasts = []
    for before, after in pairwise(numbers):
        if after != before + 1:
            lasts.append(before)
            firsts.append(after)

    lasts.append(numbers[-1])
    return list(zip(firsts, lasts, strict=True))
