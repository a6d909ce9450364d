"""Many strings in one buffer: no Python object for each."""

from __future__ import annotations

import operator
import os
from collections.abc import Iterable, Iterator, Sequence
from typing import Any, overload

import numpy as np
import numpy.typing as npt

Array = npt.NDArray[Any]


class PackedStrings(Sequence[str]):
    """An immutable sequence of strings, also such that are not valid UTF-8 (as names of files may be).

    Takes the bytes of the strings, and for each 8 bytes at most: 4 below 4 GiB in all; none if all have one length.
    """

    def __init__(self, buffer: Array, ends: Array, count: int) -> None:
        """buffer: uint8 [total]; ends: end of each string [count], or the one length of all [1] if that is shorter."""
        self._buffer = buffer
        self._ends = ends
        self._count = count
        self._even = count > 1 and len(ends) == 1

    @classmethod
    def from_strings(cls, strings: Iterable[str]) -> PackedStrings:
        """Reads `strings` once, in order."""
        buffer = bytearray()
        lengths = []
        for string in strings:
            encoded = os.fsencode(string)
            buffer += encoded
            lengths.append(len(encoded))

        count = len(lengths)
        if count > 1 and len(set(lengths)) == 1:
            return cls(np.frombuffer(bytes(buffer), np.uint8), np.array(lengths[:1]), count)

        # The narrowest type that holds the last end, as many datasets have millions of short names.
        ends = np.cumsum(lengths, dtype=np.int64)
        return cls(np.frombuffer(bytes(buffer), np.uint8), ends.astype(np.min_scalar_type(len(buffer))), count)

    def __len__(self) -> int:
        return self._count

    @overload
    def __getitem__(self, index: int) -> str: ...

    @overload
    def __getitem__(self, index: slice) -> list[str]: ...

    def __getitem__(self, index: int | slice) -> str | list[str]:
        if isinstance(index, slice):
            return [self[position] for position in range(*index.indices(self._count))]

        index = operator.index(index)
        if not -self._count <= index < self._count:
            raise IndexError(f"no string {index} among {self._count}")

        index %= self._count
        if self._even:
            length = int(self._ends[0])
            start = index * length
            end = (index + 1) * length
        else:
            if index:
                start = int(self._ends[index - 1])
            else:
                start = 0
            end = int(self._ends[index])

        return os.fsdecode(self._buffer[start:end].tobytes())

    def __iter__(self) -> Iterator[str]:
        for index in range(self._count):
            yield self[index]

    def __reduce__(self) -> Any:
        return PackedStrings, (self._buffer, self._ends, self._count)

    @property
    def nbytes(self) -> int:
        """Bytes that the strings take."""
        return self._buffer.nbytes + self._ends.nbytes
