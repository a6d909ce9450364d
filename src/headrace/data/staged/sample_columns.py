"""Samples to columns and back, as a layout says."""

from __future__ import annotations

import functools
import operator
from collections.abc import Callable, Iterator, Sequence
from typing import Any

import numpy as np
import torch

from headrace.core.errors import SampleError
from headrace.core.ragged import texts_in
from headrace.data.formats.columns import Array, Block, Column, Loose, Ragged, offsets_of
from headrace.data.formats.columns.arrays import array_names
from headrace.data.formats.columns.schema import NUMBERS, Field, Kind
from headrace.data.staged.layout import FIXED, RAGGED, SHAPE, SHAPED, Branch, Leaf, Node, leaves, schema_of

DTYPE, SHAPE_OF = operator.attrgetter("dtype"), operator.attrgetter("shape")

Place = Callable[[int], str]
"""What to call sample i of those that are made together, in messages."""


class Names:
    """Names for columns, each once, also as names of arrays in files."""

    def __init__(self) -> None:
        self._used: set[str] = set()

    def take(self, path: tuple[Any, ...]) -> str:
        """Returns the name of the column of what lies at a path in a sample."""
        name = ".".join(map(str, path)) or "value"
        while not self._taken(name):
            name += "_"
        return name

    def _taken(self, name: str) -> bool:
        parts = _parts_of(name)
        if not parts.isdisjoint(self._used):
            return False
        self._used |= parts
        return True


@functools.lru_cache(1024)
def _parts_of(name: str) -> frozenset[str]:
    """Returns all names that the arrays of a column may have."""
    kinds: tuple[Kind, ...] = ("ragged", "bytes", "text")
    names = []
    for kind in kinds:
        for part in array_names(Field(name, kind)):
            names.append(part)

    return frozenset((name, name + SHAPE, *names))


def columns_of_samples(samples: Sequence[Any], place: Place) -> tuple[Node, Block]:
    """Returns the layout of samples (one or more), and their columns. `place`: what to call sample i in messages.

    Raises `SampleError` if they differ in more than lengths, or hold what no column can.
    """
    columns: dict[str, Column] = {}
    node = _built(list(samples), (), Names(), columns, place)
    return node, Block(schema_of(node), columns)


def _built(values: list[Any], path: tuple[Any, ...], names: Names, columns: dict[str, Column], place: Place) -> Node:
    first = values[0]
    kind = type(first)
    if kind is np.memmap:
        plain = []
        for value in values:
            if type(value) is np.memmap:
                value = np.asarray(value)
            plain.append(value)

        values = plain
        kind = np.ndarray
        first = values[0]

    if kind is np.ndarray:
        return _arrays(values, "array", path, names, columns, place)

    if kind is dict or kind is tuple or kind is list:
        keys = _keys(values, path, place)
        parts = []
        for key in keys:
            parts_of_key = list(map(operator.itemgetter(key), values))
            parts.append(_built(parts_of_key, (*path, key), names, columns, place))

        return Branch(kind.__name__, keys, tuple(parts))

    others = []
    for index, value in enumerate(values):
        if type(value) is not kind:
            others.append(index)

    if others:
        found = f"{_kind_of(values[others[0]])} in {place(others[0])}, {_kind_of(first)} in {place(0)}"
        raise _differ(path, found, "the same type in each sample")

    if kind is torch.Tensor:
        arrays = []
        for index, value in enumerate(values):
            arrays.append(_array_of(value, path, place(index)))
        return _arrays(arrays, "tensor", path, names, columns, place)

    return _plain(values, kind, path, names, columns, place)


def _keys(values: list[Any], path: tuple[Any, ...], place: Place) -> tuple[Any, ...]:
    """Returns the keys of dicts, or the places in tuples or lists, which must be those of the first one."""
    first = values[0]
    kind = type(first)
    for index, value in enumerate(values):
        alike = type(value) is kind
        if alike and kind is dict:
            alike = value.keys() == first.keys()
        elif alike:
            alike = len(value) == len(first)

        if not alike:
            found = f"{_kind_of(value)} in {place(index)}, {_kind_of(first)} in {place(0)}"
            raise _differ(path, found, "the same parts in each sample")

    if kind is dict:
        keys = tuple(first)
    else:
        keys = tuple(range(len(first)))

    if not all(map(_is_key, keys)):
        raise _unfit(path, place(0), f"keys {list(keys)!r}", "keys that are whole numbers, or strings of valid text")
    return keys


def _is_key(key: object) -> bool:
    return type(key) is int or (type(key) is str and is_name(key))


@functools.lru_cache(1024)
def is_name(key: str) -> bool:
    """Tells whether a key can be part of a column's name, in any format."""
    try:
        key.encode()
    except UnicodeEncodeError:
        return False
    return "\0" not in key


def _plain(
    values: list[Any], kind: type, path: tuple[Any, ...], names: Names, columns: dict[str, Column], place: Place
) -> Leaf:
    """Builds the column of numbers, strings, or nothing."""
    first = values[0]
    name = names.take(path)
    if first is None:
        return Leaf(name, "none")
    if kind in (str, bytes):
        columns[name] = _texts(values, path, place)
        return Leaf(name, kind.__name__)

    dtype = PLAIN.get(kind)
    if isinstance(first, np.generic) and first.dtype in NUMBERS:
        dtype = first.dtype.name

    if dtype is None:
        raise _unfit(path, place(0), _kind_of(first), "dicts, tuples and lists of arrays, tensors, numbers and strings")

    try:
        columns[name] = np.array(values, dtype)
    except OverflowError as error:
        too_large = place(_first_too_large(values))
        raise _unfit(path, too_large, str(error), "whole numbers that fit into 64 bits") from error

    if kind in PLAIN:
        type_name = kind.__name__
    else:
        type_name = "scalar"

    return Leaf(name, type_name, dtype)


def _first_too_large(numbers: Sequence[int]) -> int:
    for index, number in enumerate(numbers):
        if not -(1 << 63) <= number < 1 << 63:
            return index

    return 0


def _texts(values: list[Any], path: tuple[Any, ...], place: Place) -> Ragged:
    texts = []
    for index, value in enumerate(values):
        try:
            if type(value) is str:
                encoded = value.encode("utf-8", "surrogateescape")
            else:
                encoded = value

            texts.append(encoded)
        except UnicodeEncodeError as error:
            raise _unfit(path, place(index), str(error), "text that can be written as UTF-8") from error

    lengths = np.fromiter(map(len, texts), np.int64, len(texts))
    return Ragged(np.frombuffer(b"".join(texts), np.uint8), offsets_of(lengths))


PLAIN: dict[type, str] = {int: "int64", float: "float64", bool: "bool"}


def _arrays(
    arrays: list[Any], kind: str, path: tuple[Any, ...], names: Names, columns: dict[str, Column], place: Place
) -> Leaf:
    # Each of these loops runs in C: a batch of small arrays is built for every step of a training run.
    first = arrays[0]
    dtype = first.dtype
    ndim = first.ndim
    shape = first.shape
    count = len(arrays)
    if list(map(type, arrays)).count(np.ndarray) == count:
        shapes = list(map(SHAPE_OF, arrays))
    else:
        shapes = []

    distinct = set(shapes)
    if not shapes or list(map(DTYPE, arrays)).count(dtype) < count or set(map(len, distinct)) != {ndim}:
        odd = _first_odd(arrays)
        found = f"{_kind_of(arrays[odd])} in {place(odd)}, {_kind_of(first)} in {place(0)}"
        raise _differ(path, found, "arrays of one type, with the same number of dimensions")

    if dtype not in NUMBERS:
        expected = "an array of " + ", ".join(map(str, NUMBERS))
        raise _unfit(path, place(0), f"an array of {dtype}", expected)

    name = names.take(path)
    if len(distinct) == 1:
        if ndim == 0:
            columns[name] = np.array(arrays)
        else:
            columns[name] = np.stack(arrays)
        return Leaf(name, kind, dtype.name, FIXED, shape)

    if len({shape[1:] for shape in distinct}) == 1:
        columns[name] = Loose(arrays, np.fromiter(map(len, arrays), np.int64, count))
        return Leaf(name, kind, dtype.name, RAGGED, first.shape[1:])

    sizes = np.fromiter(map(np.size, arrays), np.int64, count)
    columns[name] = Ragged(np.concatenate(list(map(np.ravel, arrays))), offsets_of(sizes))
    columns[name + SHAPE] = np.array(shapes, np.int64)
    return Leaf(name, kind, dtype.name, SHAPED, (0,) * ndim)


def _first_odd(arrays: Sequence[Any]) -> int:
    """Returns which one is no array, or unlike the first in its type or number of dimensions."""
    first = arrays[0]
    for index, array in enumerate(arrays):
        if type(array) is not np.ndarray or array.dtype != first.dtype or array.ndim != first.ndim:
            return index

    return 0


def _array_of(tensor: torch.Tensor, path: tuple[Any, ...], place: str) -> Array:
    try:
        array: Array = tensor.numpy()
    except (TypeError, RuntimeError) as error:
        cause = str(error).splitlines()[0]
        expected = "a dense tensor on the CPU, of a type that NumPy knows, without a gradient"
        raise _unfit(path, place, f"{tensor.dtype} on {tensor.device}: {cause}", expected) from error

    return array


def _kind_of(value: object) -> str:
    if isinstance(value, (np.ndarray, torch.Tensor)):
        return f"{type(value).__name__} of {value.dtype}, shape {tuple(value.shape)}"
    if isinstance(value, dict):
        return f"a dict of {', '.join(map(repr, value)) or 'nothing'}"
    if isinstance(value, (tuple, list)) and type(value) in (tuple, list):
        return f"a {type(value).__name__} of {len(value)}"
    return type(value).__name__


def path_text(path: tuple[Any, ...]) -> str:
    """Returns a path in a sample as one writes it: `['a'][0]`."""
    return "".join(f"[{key!r}]" for key in path)


def _differ(path: tuple[Any, ...], found: str, expected: str) -> SampleError:
    what = "samples differ too much to be held in columns"
    fix = "have the step return the same parts for each sample, or move it after the cache point"
    return SampleError.about(what, place="sample" + path_text(path), found=found, expected=expected, fix=fix)


def _unfit(path: tuple[Any, ...], place: str, found: str, expected: str) -> SampleError:
    what = "a sample cannot be held in columns"
    fix = "have the step return one of these (np.asarray of an image), or move it after the cache point"
    return SampleError.about(what, place=f"sample{path_text(path)}, {place}", found=found, expected=expected, fix=fix)


def samples_of(node: Node, block: Block, count: int) -> list[Any]:
    """Returns the samples that columns hold. Arrays and tensors are views of the columns."""
    if isinstance(node, Leaf):
        return _values(node, block, count)

    parts = [samples_of(part, block, count) for part in node.parts]
    if node.type == "dict":
        keys = node.keys
        if parts:
            return [dict(zip(keys, values, strict=True)) for values in zip(*parts, strict=True)]
        return _empty(dict, count)

    if node.type == "tuple":
        kind: type[Any] = tuple
    else:
        kind = list

    if parts:
        return list(map(kind, zip(*parts, strict=True)))
    return _empty(kind, count)


def _empty(kind: type, count: int) -> list[Any]:
    return [kind() for _ in range(count)]


def _values(leaf: Leaf, block: Block, count: int) -> list[Any]:
    if leaf.type == "none":
        return [None] * count

    column = block.columns[leaf.name]
    if leaf.type in ("int", "float", "bool"):
        return list(column.tolist())  # type: ignore[union-attr]

    if not isinstance(column, Ragged):
        if leaf.type == "scalar":
            return list(column)
        # An array of no dimensions would come as a number, if it were asked for by its place alone.
        if column.ndim == 1:
            values = [column[place, ...] for place in range(count)]
        else:
            values = list(column)
    else:
        starts, lengths = column.pieces()
        if leaf.type == "str":
            return texts_in(column.values, starts, lengths)

        ends = (starts + lengths).tolist()
        values = [column.values[start:end] for start, end in zip(starts.tolist(), ends, strict=True)]
        if leaf.type == "bytes":
            return [value.tobytes() for value in values]

        if leaf.form == SHAPED:
            shapes: Any = block.columns[leaf.name + SHAPE]
            values = [value.reshape(shape) for value, shape in zip(values, shapes.tolist(), strict=True)]

    if leaf.type == "tensor":
        return list(map(torch.from_numpy, values))
    return values


# -- into a wider layout -----------------------------------------------------------------------------------------------


def fitted(block: Block, node: Node, wanted: Node) -> Block:
    """Returns columns in the wider form of another layout, which `joined` made of theirs and others."""
    if node == wanted:
        return block

    columns: dict[str, Column] = {}
    for have, want in zip(_leaves_in(node, wanted), leaves(wanted), strict=True):
        if want.type == "none":
            continue
        column = block.columns[have.name]
        if have.form == want.form:
            columns[want.name] = column
            if want.form == SHAPED:
                columns[want.name + SHAPE] = block.columns[have.name + SHAPE]
            continue

        shapes = _shapes(have, column, len(block))
        if want.form == RAGGED:
            if isinstance(column, Ragged):
                values = column.values
            else:
                values = column.reshape(len(column) * column.shape[1], *column.shape[2:])

            columns[want.name] = Ragged(values, offsets_of(shapes[:, 0]))
            continue

        if isinstance(column, Ragged):
            values = column.packed()[0].reshape(-1)
        else:
            values = column.reshape(-1)

        columns[want.name] = Ragged(values, offsets_of(shapes.prod(axis=1)))
        columns[want.name + SHAPE] = shapes

    return Block(schema_of(wanted), columns)


def _leaves_in(node: Node, wanted: Node) -> Iterator[Leaf]:
    """Yields the leaves of a layout in the order of another one: the keys of dicts may come in another order."""
    if isinstance(node, Branch) and isinstance(wanted, Branch):
        parts = dict(zip(node.keys, node.parts, strict=True))
        for key, part in zip(wanted.keys, wanted.parts, strict=True):
            yield from _leaves_in(parts[key], part)
    elif isinstance(node, Leaf):
        yield node


def _shapes(leaf: Leaf, column: Column, count: int) -> Array:
    """Returns the shape of each sample, int64 [count, dimensions]."""
    if not isinstance(column, Ragged):
        return np.tile(np.array(leaf.shape, np.int64), (count, 1))
    rest = np.tile(np.array(leaf.shape, np.int64), (count, 1))
    return np.column_stack([column.lengths.astype(np.int64), rest])
