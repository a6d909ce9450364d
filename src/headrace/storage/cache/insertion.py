"""Writes blocks into the file of an object. Whoever calls this holds the claim on them."""

from __future__ import annotations

import zlib
from itertools import pairwise

from headrace.storage.cache import layout
from headrace.storage.cache.evictor import Evictor
from headrace.storage.cache.node import Node
from headrace.storage.cache.open_files import OpenFile
from headrace.storage.cache.removal import begin_writing, end_writing


class Inserting:
    """Writes blocks of one object."""

    def __init__(self, node: Node, evictor: Evictor, name: str, shape: layout.Shape) -> None:
        self._node = node
        self._evictor = evictor
        self._name = name
        self._shape = shape

    def insert(self, file: OpenFile, blocks: range, data: memoryview, next_use: int) -> bool:
        """Stores neighbouring blocks, those that are not there yet. Returns whether all of them are there now.

        Blocks for which there is no room, and no object that is needed later, are left out; all of them if the file is
        removed meanwhile. Raises `OSError`.
        """
        entries = file.entries(self._shape, blocks)
        absent = [number for number, (_, mark) in zip(blocks, entries, strict=True) if mark == layout.ABSENT]
        stored = self._with_room(absent, next_use)
        # The room may come from this very object.
        if not self._write_runs(file, blocks, stored, data):
            return False

        left_out = set(absent).difference(stored)
        for number in blocks:
            if number in left_out:
                self._evictor.forget_block(self._name, number)
            else:
                self._evictor.set_next_use(self._name, number, self._shape.freed_by(number), next_use)
        return not left_out

    def _with_room(self, blocks: list[int], next_use: int) -> list[int]:
        """Has room for all blocks, or else for some of them. Returns these."""
        if self._evictor.make_room(self._room(blocks), next_use):
            return blocks
        if len(blocks) == 1:
            return []
        return [number for number in blocks if self._evictor.make_room(self._shape.room_of(number), next_use)]

    def _write_runs(self, file: OpenFile, blocks: range, numbers: list[int], data: memoryview) -> bool:
        """Writes those of neighbouring blocks for which there is room. Returns False if the file is removed.

        numbers: ascending. data: of all blocks.
        """
        count = self._node.count
        room = self._room(numbers)
        written = 0
        try:
            if not begin_writing(self._node, file, blocks):
                return False
            try:
                begin = self._shape.start_of(blocks[0])
                for run in runs_of(numbers):
                    part = data[self._shape.start_of(run[0]) - begin : self._shape.stop_of(run[-1]) - begin]
                    self._write(file, run, part)
                    written += self._room(run)
            finally:
                end_writing(file, blocks)
        finally:
            count.stored(written)
            count.release(room - written)
        return True

    def _write(self, file: OpenFile, run: range, data: memoryview) -> None:
        """Writes neighbouring blocks, and behind that what the table says of them.

        If it fails, they stay absent. What was written of them keeps its space, which is counted again later.
        """
        shape = self._shape
        begin = shape.start_of(run[0])
        file.write_fully(data, shape.data_start + begin)
        entries = []
        for number in run:
            crc = zlib.crc32(data[shape.start_of(number) - begin : shape.stop_of(number) - begin])
            entries.append((crc, self._node.mark))
        file.write_entries(shape, run[0], entries)

    def _room(self, blocks: list[int] | range) -> int:
        return sum(map(self._shape.room_of, blocks))


def runs_of(numbers: list[int]) -> list[range]:
    """Returns ascending numbers as runs of neighbours."""
    if not numbers:
        return []

    runs = []
    first = numbers[0]
    for before, after in pairwise(numbers):
        if after != before + 1:
            runs.append(range(first, before + 1))
            first = after

    runs.append(range(first, numbers[-1] + 1))
    return runs
