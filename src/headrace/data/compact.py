"""Lists of Python objects as a few arrays: no object for each entry, so nothing grows in forked workers.

A worker that only looks at a Python object changes its reference count, and with it the page that holds it: the memory
that a fork shares with its parent is copied page by page. Arrays have one reference count each.
"""

from __future__ import annotations

import operator
import os
import pickle
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from typing import Any

import numpy as np

from headrace.core.errors import UsageError
from headrace.core.text.packed_strings import PackedStrings
from headrace.data.formats.columns import Array, Ragged, offsets_of
from headrace.data.path_table import PathTable

LOOKED_AT = 100
"""Strings that are looked at to tell paths from other text."""


def compact(obj: Any) -> Any:
    """Freezes a list (or any iterable) into an immutable sequence of the same items that takes a few arrays.

    Strings that look like paths become a table in which each folder is held once; other strings, byte strings, arrays
    of one type, and numbers end to end; tuples and dicts with the same keys column by column, each column as above;
    anything else is pickled item by item.

    Safe in any thread, after a fork, and when pickled; with `spawn` and `forkserver` a loader's workers share a copy.
    Reading an item costs about a microsecond a column.

    Args:
        obj: a list, another iterable, or a dict of such.

    Returns:
        A sequence. Items come back equal to what they were, new at each access; tuples stay tuples and lists inside of
            items stay lists. A dict becomes a dict of the same keys with compacted values.

    Raises:
        UsageError: a string, or nothing that can be iterated.

    Examples:
        >>> paths = headrace.compact(["photos/cat/1.jpg", "photos/cat/2.jpg"])
        >>> paths[1]
        'photos/cat/2.jpg'
    """
    if isinstance(obj, Mapping):
        compacted = {}
        for key, value in obj.items():
            if _is_many(value):
                compacted[key] = compact(value)
            else:
                compacted[key] = value

        return compacted

    if isinstance(obj, (str, bytes)) or not isinstance(obj, Iterable):
        found = f"{obj!r} of type {type(obj).__name__}"
        expected = "a list, or another iterable of items"
        raise UsageError.about("this cannot be compacted", place="headrace.compact", found=found, expected=expected)

    if isinstance(obj, (Compact, PathTable, PackedStrings, np.ndarray)):
        return obj
    items: Sequence[Any]
    if isinstance(obj, Sequence):
        items = obj
    else:
        items = list(obj)

    return _column(items)


def _is_many(value: object) -> bool:
    return isinstance(value, (list, tuple)) and len(value) > 1


class Compact(Sequence[Any]):
    """Items made from arrays when they are asked for. `nbytes`: what the arrays take."""

    def __init__(self, length: int, nbytes: int, get: Callable[[int], Any], kind: str) -> None:
        self._length = length
        self.nbytes = nbytes
        self._get = get
        self._kind = kind

    def __len__(self) -> int:
        return self._length

    def __getitem__(self, index: Any) -> Any:
        if isinstance(index, slice):
            return [self._get(position) for position in range(*index.indices(self._length))]

        position = operator.index(index)
        if not -self._length <= position < self._length:
            raise IndexError(f"no item {position} among {self._length}")
        return self._get(position % self._length)

    def __iter__(self) -> Iterator[Any]:
        return map(self._get, range(self._length))

    def __eq__(self, other: object) -> bool:
        if not isinstance(other, Sequence) or isinstance(other, (str, bytes)):
            return NotImplemented
        return len(self) == len(other) and all(_same(mine, its) for mine, its in zip(self, other, strict=True))

    __hash__ = None  # type: ignore[assignment]

    def __repr__(self) -> str:
        return f"Compact({self._length:,} {self._kind}, {self.nbytes:,} bytes)"


def _same(first: Any, second: Any) -> bool:
    if isinstance(first, np.ndarray) or isinstance(second, np.ndarray):
        return np.array_equal(first, second)
    return bool(first == second)


class _Bytes:
    def __init__(self, column: Ragged) -> None:
        self.column = column

    def __call__(self, index: int) -> bytes:
        return self.column[index].tobytes()


class _Pickled(_Bytes):
    def __call__(self, index: int) -> Any:
        # No stranger's pickle: `compact` made it of objects that it was given.
        return pickle.loads(self.column[index].data)


class _Arrays(_Bytes):
    def __call__(self, index: int) -> Any:
        return self.column[index].copy()


class _Numbers:
    def __init__(self, values: Array) -> None:
        self.values = values

    def __call__(self, index: int) -> Any:
        return self.values[index].item()


class _Rows:
    def __init__(self, columns: Sequence[Any], make: Callable[..., Any], keys: Sequence[Any] | None) -> None:
        self.columns = columns
        self.make = make
        self.keys = keys

    def __call__(self, index: int) -> Any:
        values = [column[index] for column in self.columns]
        if self.keys is not None:
            return dict(zip(self.keys, values, strict=True))
        return self.make(values)


def _column(items: Sequence[Any]) -> Any:
    """Returns items compacted by what all of them are."""
    kinds = set(map(type, items))
    if kinds == {str} and all(map(_survives, items)):
        if _look_like_paths(items):
            return PathTable.from_paths(items)
        return PackedStrings.from_strings(items)

    if kinds in ({int}, {float}, {bool}):
        numbers = _numbers(items)
        if numbers is not None:
            return Compact(len(items), numbers.nbytes, _Numbers(numbers), "numbers")

    if kinds == {bytes}:
        column = _end_to_end(list(map(_as_array, items)))
        return Compact(len(items), column.nbytes, _Bytes(column), "byte strings")

    if kinds == {np.ndarray} and _are_alike(items):
        column = _end_to_end(items)
        return Compact(len(items), column.nbytes, _Arrays(column), "arrays")

    rows = _rows(items, kinds)
    if rows is not None:
        return rows

    pickled = []
    for item in items:
        pickled.append(_as_array(pickle.dumps(item, 5)))

    column = _end_to_end(pickled)
    return Compact(len(items), column.nbytes, _Pickled(column), "objects, each pickled")


def _as_array(data: bytes) -> Array:
    return np.frombuffer(data, np.uint8)


def _look_like_paths(texts: Sequence[str]) -> bool:
    """Tells whether more than half of some texts have a slash."""
    looked_at = texts[:: max(len(texts) // LOOKED_AT, 1)]
    with_slash = 0
    for text in looked_at:
        with_slash += "/" in text

    return with_slash * 2 > len(looked_at)


def _survives(text: str) -> bool:
    """Tells whether a string comes back from the bytes that stand for it in a file system: all but odd surrogates."""
    if text.isascii():
        return True

    try:
        return os.fsdecode(os.fsencode(text)) == text
    except UnicodeEncodeError:
        return False


def _are_alike(arrays: Sequence[Array]) -> bool:
    """Tells whether arrays can lie end to end."""
    kinds = {(array.dtype, array.shape[1:], array.ndim > 0) for array in arrays}
    plain = arrays[0].dtype.isnative and not arrays[0].dtype.hasobject
    return len(kinds) == 1 and arrays[0].ndim > 0 and plain


def _numbers(items: Sequence[Any]) -> Array | None:
    """Returns numbers as an array; None for whole numbers that need more than 64 bits."""
    try:
        values = np.array(items)
    except OverflowError:
        return None

    if type(items[0]) is not int:
        return values
    if values.dtype.kind not in "iu":
        return None

    low = int(values.min())
    high = int(values.max())
    if low >= 0:
        names = ("u1", "u2", "u4", "u8")
    else:
        names = ("i1", "i2", "i4", "i8")

    for name in names:
        if np.iinfo(name).min <= low and high <= np.iinfo(name).max:
            return values.astype(name)

    return None


def _end_to_end(pieces: Sequence[Array]) -> Ragged:
    offsets = offsets_of(np.fromiter(map(len, pieces), np.int64, len(pieces)))
    if pieces:
        values = np.concatenate(pieces)
    else:
        values = np.empty(0, np.uint8)

    return Ragged(values, offsets.astype(np.min_scalar_type(int(offsets[-1]))))


def _rows(items: Sequence[Any], kinds: set[type]) -> Any:
    """Returns tuples or dicts column by column; None if they are not all alike."""
    if len(kinds) != 1 or not items:
        return None

    kind = next(iter(kinds))
    if kind is dict:
        keys = list(items[0])
        types = list(map(type, keys))
        if not keys:
            return None
        # 1, 1.0 and True are equal as keys: their types are compared as well.
        for item in items:
            if list(item) != keys or list(map(type, item)) != types:
                return None

        columns = []
        for key in keys:
            columns.append(_column(list(map(operator.itemgetter(key), items))))

        return Compact(len(items), _total(columns), _Rows(columns, dict, keys), "dicts")

    named = issubclass(kind, tuple) and hasattr(kind, "_make")
    if not (kind is tuple or named) or len(set(map(len, items))) != 1 or len(items[0]) == 0:
        return None

    columns = []
    for position in range(len(items[0])):
        columns.append(_column(list(map(operator.itemgetter(position), items))))

    make = getattr(kind, "_make", tuple)
    return Compact(len(items), _total(columns), _Rows(columns, make, None), "tuples")


def _total(columns: Iterable[Any]) -> int:
    return sum(column.nbytes for column in columns)
