"""File paths by the million: one buffer of names, each folder once, no Python object per path.

A list of ten million `str` takes some 2 GB, is copied page by page into forked workers as they touch its
reference counts, and is slow to pickle for spawned ones. This table takes the bytes of the names and, per
path, an offset (4 bytes while the names are below 4 GiB) and the folder's number (1 or 2 bytes as a rule).
"""

from __future__ import annotations

import operator
import os
from array import array
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any, SupportsIndex, overload

import numpy as np
from numpy.typing import NDArray


@dataclass(frozen=True, eq=False)
class PackedBytes:
    """Byte strings end to end: number `i` is `buffer[offsets[i]:offsets[i + 1]]`.

    buffer: uint8 [total bytes]; offsets: smallest unsigned dtype that fits [count + 1].
    Both become read-only.
    """

    buffer: NDArray[np.uint8]
    offsets: NDArray[Any]

    def __post_init__(self) -> None:
        self.buffer.setflags(write=False)
        self.offsets.setflags(write=False)

    def __reduce__(self) -> tuple[type[PackedBytes], tuple[NDArray[np.uint8], NDArray[Any]]]:
        return PackedBytes, (self.buffer, self.offsets)

    def __len__(self) -> int:
        return len(self.offsets) - 1

    def get(self, index: int) -> bytes:
        """A copy of string number `index`; the caller has checked that it lies in 0..len-1."""
        return self.buffer[int(self.offsets[index]) : int(self.offsets[index + 1])].tobytes()

    @property
    def nbytes(self) -> int:
        """Bytes that both arrays take."""
        return self.buffer.nbytes + self.offsets.nbytes


@dataclass(frozen=True, eq=False, repr=False)
class PathTable(Sequence[str]):
    """An immutable sequence of file paths, built by `PathTable.from_paths`.

    Paths come back exactly as they went in, also those that are not valid UTF-8: they are kept as the bytes
    of `os.fsencode` and come back through `os.fsdecode`. Safe in any thread and after a fork. Reading a
    path costs about a microsecond, where a list takes tens of nanoseconds.

    names: what follows the last slash of each path [paths]; folders: what comes before, the slash included,
    each once [folders]; folder_of: index into `folders`, smallest unsigned dtype that fits [paths].
    """

    names: PackedBytes
    folders: PackedBytes
    folder_of: NDArray[Any]

    def __post_init__(self) -> None:
        self.folder_of.setflags(write=False)

    @classmethod
    def from_paths(cls, paths: Iterable[str]) -> PathTable:
        """Reads `paths` once, in order; needs 16 bytes per path beside the finished table while it builds."""
        names = PackedBytesBuilder()
        folders = PackedBytesBuilder()
        numbers: dict[bytes, int] = {}
        folder_of = array("Q")
        for path in paths:
            encoded = os.fsencode(path)
            cut = encoded.rfind(b"/") + 1
            number = numbers.setdefault(encoded[:cut], len(numbers))
            if number == len(folders):
                folders.append(encoded[:cut])
            folder_of.append(number)
            names.append(encoded[cut:])

        return cls(names.build(), folders.build(), smallest_unsigned(folder_of, largest=len(folders)))

    def __reduce__(self) -> tuple[type[PathTable], tuple[PackedBytes, PackedBytes, NDArray[Any]]]:
        return PathTable, (self.names, self.folders, self.folder_of)

    def __len__(self) -> int:
        return len(self.folder_of)

    @overload
    def __getitem__(self, index: SupportsIndex) -> str: ...

    @overload
    def __getitem__(self, index: slice) -> list[str]: ...

    def __getitem__(self, index: SupportsIndex | slice) -> str | list[str]:
        """Path number `index`, counted from the end if negative; IndexError if there is none. A slice is a list."""
        if isinstance(index, slice):
            return [self[position] for position in range(*index.indices(len(self)))]

        count = len(self)
        position = operator.index(index)
        if not -count <= position < count:
            raise IndexError(f"no path {position} in a table of {count} paths")

        position %= count
        return os.fsdecode(self.folders.get(int(self.folder_of[position])) + self.names.get(position))

    def __iter__(self) -> Iterator[str]:
        for position in range(len(self)):
            yield self[position]

    def __repr__(self) -> str:
        return f"PathTable({len(self):,} paths in {len(self.folders):,} folders, {self.nbytes:,} bytes)"

    @property
    def nbytes(self) -> int:
        """Bytes that the table's arrays take; its pickle takes some hundred bytes more."""
        return self.names.nbytes + self.folders.nbytes + self.folder_of.nbytes


class PackedBytesBuilder:
    """Grows one buffer; `build` copies it into arrays of the exact size."""

    def __init__(self) -> None:
        self._buffer = bytearray()
        self._offsets = array("Q", [0])

    def __len__(self) -> int:
        return len(self._offsets) - 1

    def append(self, value: bytes) -> None:
        """Adds one byte string at the end."""
        self._buffer += value
        self._offsets.append(len(self._buffer))

    def build(self) -> PackedBytes:
        """Returns all byte strings so far; the builder may go on."""
        buffer = np.frombuffer(self._buffer, dtype=np.uint8).copy()
        return PackedBytes(buffer, smallest_unsigned(self._offsets, largest=len(buffer)))


def smallest_unsigned(values: array[int], *, largest: int) -> NDArray[Any]:
    """A copy of an array("Q") in the smallest unsigned dtype that holds `largest`."""
    return np.frombuffer(values, dtype=np.uint64).astype(np.min_scalar_type(largest))
