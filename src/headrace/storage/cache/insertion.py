"""Writes blocks into the file of an object. Whoever calls this holds the claim on them."""

from __future__ import annotations

import zlib

from headrace.storage.cache import layout
from headrace.storage.cache.evictor import Evictor
from headrace.storage.cache.holes import punch_hole
from headrace.storage.cache.node import Node
from headrace.storage.cache.open_files import OpenFile
from headrace.storage.cache.removal import runs_of


class Inserting:
    """Writes blocks of one object."""

    def __init__(self, node: Node, evictor: Evictor, name: str, shape: layout.Shape) -> None:
        self._node = node
        self._evictor = evictor
        self._name = name
        self._shape = shape

    def insert(self, file: OpenFile, blocks: range, data: memoryview, next_use: int) -> bool:
        """Stores neighbouring blocks, those that are not there yet. Returns whether all of them are there now.

        Blocks for which there is no room, and no other that is needed later, are left out. Raises `OSError`.
        """
        shape = self._shape
        entries = file.entries(shape, blocks)
        absent = [number for number, (_, mark) in zip(blocks, entries, strict=True) if mark == layout.ABSENT]
        stored = self._with_room(absent, next_use)

        begin = shape.start_of(blocks[0])
        runs = runs_of(stored)
        for done, (first, last) in enumerate(runs):
            try:
                self._write(file, first, last, data[shape.start_of(first) - begin : shape.stop_of(last) - begin])
            except OSError:
                for left in runs[done:]:
                    self._node.release(self._room(*left))
                raise

        left_out = set(absent).difference(stored)
        for number in blocks:
            if number not in left_out:
                self._evictor.set_next_use(self._name, number, shape.freed_by(number), next_use)
        return not left_out

    def _with_room(self, blocks: list[int], next_use: int) -> list[int]:
        """Has room for all blocks, or else for some of them. Returns these."""
        if self._evictor.make_room(sum(map(self._shape.room_of, blocks)), next_use):
            return blocks
        if len(blocks) == 1:
            return []
        return [number for number in blocks if self._evictor.make_room(self._shape.room_of(number), next_use)]

    def _write(self, file: OpenFile, first: int, last: int, data: memoryview) -> None:
        """Writes blocks, and behind that what the table says of them. Nothing is left behind if that fails."""
        shape = self._shape
        begin = shape.start_of(first)
        try:
            file.write_fully(data, shape.data_start + begin)
            entries = []
            for number in range(first, last + 1):
                crc = zlib.crc32(data[shape.start_of(number) - begin : shape.stop_of(number) - begin])
                entries.append((crc, self._node.mark))
            file.write_entries(shape, first, entries)
        except OSError:
            punch_hole(file.fd, shape.data_start + begin, max(self._room(first, last), 1))
            raise

    def _room(self, first: int, last: int) -> int:
        return sum(map(self._shape.room_of, range(first, last + 1)))
