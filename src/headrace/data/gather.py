"""One column of a batch: gathered from where it is stored straight into the memory of the batch."""

from __future__ import annotations

import functools
import math
import operator
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any, Literal, NamedTuple

import numpy as np
import numpy.typing as npt
import torch

from headrace.core.batch_memory import BatchMemory
from headrace.core.errors import UsageError
from headrace.core.ragged import by_element, copy_each, element_places, row_bytes, texts_in
from headrace.data.blobs import Blobs
from headrace.data.formats.columns import Array, Column, Keys, Loose, Ragged, copy_pieces, offsets_of
from headrace.data.formats.columns.schema import NUMBERS, Field

Gather = Callable[[Keys, BatchMemory], Any]
"""Makes a column of a batch from its keys: int64 [batch], which are in range unless it is `fixed` that gathers."""

RaggedAs = Literal["pad", "nested", "list"]
RAGGED = ("pad", "nested", "list")

COMPARED = 1 << 24
"""Samples up to which it is found out whether columns are alike: some 30 ms."""

SUMMARY = 256
"""Starts, about, by which columns are told apart before all of them are compared."""

REMEMBERED = 1 << 24
"""Places of a padded batch up to which it is remembered, one byte each, which of them are no padding."""

INT64 = np.dtype(np.int64)

SCRATCH = 1 << 16
"""Bytes that are gathered before they are converted: what stays in the cache of a core."""


class Padded(NamedTuple):
    """Samples of different lengths, filled up with zeros.

    Attributes:
        values: [batch, longest, *shape].
        lengths: int64 [batch].

    Examples:
        >>> padded = headrace.types.Padded(torch.tensor([[1, 2], [3, 0]]), torch.tensor([2, 1]))
        >>> padded.values[1, : padded.lengths[1]]
        tensor([3])
    """

    values: torch.Tensor
    lengths: torch.Tensor


@functools.lru_cache(64)
def torch_dtype(dtype: np.dtype[Any]) -> torch.dtype:
    """Returns torch's name of a type."""
    return torch.from_numpy(np.empty(0, dtype)).dtype


def numpy_dtype(dtype: Any) -> np.dtype[Any]:
    """Returns NumPy's name of a type given as torch's, NumPy's or a string."""
    if isinstance(dtype, torch.dtype):
        dtype = torch.empty(0, dtype=dtype).numpy().dtype

    named: np.dtype[Any] = np.dtype(dtype)
    return named


def type_of_numbers(given: Any) -> np.dtype[Any]:
    """Returns NumPy's type for one that `StoredDataset.astype` was given. Raises `UsageError`."""
    try:
        dtype = numpy_dtype(given)
    except (TypeError, RuntimeError) as error:
        expected = "a type of torch or NumPy"
        raise UsageError.about("no such type", place="astype", found=repr(given), expected=expected) from error

    if dtype not in NUMBERS:
        raise UsageError.about("no such type", place="astype", found=repr(given), expected="a type of numbers")
    return dtype


def wanted_types(schema: Iterable[Field], dtype: Any, columns: Mapping[str, Any]) -> dict[str, np.dtype[Any]]:
    """Returns the types of columns as `StoredDataset.astype` was given them. Raises `UsageError`."""
    numbers = []
    for field in schema:
        if field.kind in ("fixed", "ragged"):
            numbers.append(field.name)

    wanted: dict[str, Any] = {}
    if dtype is not None:
        wanted = dict.fromkeys(numbers, dtype)
    wanted |= columns

    types = {}
    for name, wanted_type in wanted.items():
        if name not in numbers:
            expected = "one of " + ", ".join(numbers)
            raise UsageError.about("no such column of numbers", place="astype", found=repr(name), expected=expected)
        types[name] = type_of_numbers(wanted_type)

    return types


def allocate(memory: BatchMemory, shape: tuple[int, ...], dtype: np.dtype[Any]) -> tuple[torch.Tensor, Array]:
    """Returns an uninitialised tensor of the batch, and the same memory as an array."""
    if math.prod(shape) * dtype.itemsize < memory.smallest:
        array = np.empty(shape, dtype)
        return torch.from_numpy(array), array
    tensor = memory.empty(shape, torch_dtype(dtype))
    return tensor, tensor.numpy()


def fixed(column: Array, dtype: np.dtype[Any]) -> Gather:
    """Gathers samples of one size, converted to `dtype`. Checks the keys."""
    # `take` would copy all of it.
    if not column.flags.c_contiguous:
        return lambda keys, memory: _converted(column[keys], dtype, memory)

    shape = column.shape[1:]
    target = torch_dtype(dtype)
    take = column.take
    row = max(dtype.itemsize * math.prod(shape), 1)
    converts = dtype != column.dtype
    step = max(SCRATCH * dtype.itemsize // (row * column.itemsize), 1)

    def gather(keys: Keys, memory: BatchMemory) -> torch.Tensor:
        count = len(keys)
        if count * row >= memory.smallest:
            tensor = memory.empty((count, *shape), target)
            out = tensor.numpy()
        elif converts:
            out = np.empty((count, *shape), dtype)
            tensor = torch.from_numpy(out)
        else:
            return torch.from_numpy(take(keys, 0))

        if not converts:
            # With any mode but "clip", NumPy would gather into a buffer first, to leave `out` alone if a key is wrong.
            take(in_range(keys, len(column)), 0, out, "clip")
        elif count <= step:
            out[...] = take(keys, 0)
        else:
            for start in range(0, count, step):
                out[start : start + step] = take(keys[start : start + step], 0)

        return tensor

    return gather


def whole_numbers(keys: Any) -> Keys:
    """Returns keys as int64 [n]. Raises `TypeError` for others than whole numbers, `IndexError` for huge ones."""
    if type(keys) is np.ndarray and keys.dtype == INT64 and keys.ndim == 1:
        return keys

    array = np.asarray(keys)
    if array.dtype.kind == "i" and array.ndim == 1:
        return array.astype(np.int64, copy=False)

    try:
        return np.array(list(map(operator.index, keys)), np.int64)
    except OverflowError:
        raise IndexError(f"there is no sample {max(keys, key=abs)}") from None


def in_range(keys: Keys, count: int) -> Keys:
    """Returns keys with negative ones counted from the end. Raises `IndexError` if one is out of range."""
    # One pass for both ends: as unsigned numbers, negative ones are huge.
    if len(keys) and int(keys.view(np.uint64).max()) >= count:
        if int(keys.min()) < -count or int(keys.max()) >= count:
            wrong = int(keys[(keys < -count) | (keys >= count)][0])
            raise IndexError(f"there is no sample {wrong} among {count}")
        return np.where(keys < 0, keys + count, keys)

    return keys


def typed(column: Column, dtype: np.dtype[Any]) -> Column:
    """Returns a column with its numbers as `dtype`, in memory that may be written to."""
    if isinstance(column, Ragged):
        if dtype == column.values.dtype and column.values.flags.writeable:
            return column
        return column.with_values(column.values.astype(dtype))

    if dtype == column.dtype and column.flags.writeable:
        return column
    return column.astype(dtype)


def _converted(values: Array, dtype: np.dtype[Any], memory: BatchMemory) -> torch.Tensor:
    if values.dtype == dtype and values.nbytes < memory.smallest:
        return torch.from_numpy(values)
    return copied(values, dtype, memory)


def copied(values: Array, dtype: np.dtype[Any], memory: BatchMemory) -> torch.Tensor:
    """Returns a tensor of the batch with these values, converted to `dtype`."""
    tensor, out = allocate(memory, values.shape, dtype)
    out[...] = values
    return tensor


def windows(column: Array, length: int, stride: int, dtype: np.dtype[Any]) -> Gather:
    """Gathers windows: sample k is `column[k * stride : k * stride + length]`, converted to `dtype`."""
    # Windows end to end are the rows of an array, which NumPy gathers without a Python loop, in half the time.
    if stride == length and column.flags.c_contiguous:
        whole = len(column) // length
        return fixed(column[: whole * length].reshape(whole, length, *column.shape[1:]), dtype)

    def gather(keys: Keys, memory: BatchMemory) -> torch.Tensor:
        tensor, out = allocate(memory, (len(keys), length, *column.shape[1:]), dtype)
        for row, start in enumerate((keys * stride).tolist()):
            out[row] = column[start : start + length]
        return tensor

    return gather


def ragged(column: Ragged, field: Field, dtype: np.dtype[Any], form: RaggedAs, padder: Padder | None = None) -> Gather:
    """Gathers samples of different lengths, as `Padded`, as a jagged nested tensor, or as a list of tensors.

    padder: shared by the columns of a dataset.
    """
    if padder is None:
        padder = Padder()

    def gather(keys: Keys, memory: BatchMemory) -> Any:
        starts, lengths = padder.pieces(column, keys)
        return _ragged_batch(_Pieces(column.values, starts, lengths), field, dtype, form, memory, padder)

    return gather


class _Pieces(NamedTuple):
    """Samples of different lengths: number i is `values[starts[i] : starts[i] + lengths[i]]`."""

    values: Array
    starts: Keys
    lengths: Keys


def _ragged_batch(
    pieces: _Pieces, field: Field, dtype: np.dtype[Any], form: RaggedAs, memory: BatchMemory, padder: Padder
) -> Any:
    """Returns samples as a batch holds them; see `ragged`."""
    values, starts, lengths = pieces
    if form == "pad":
        padded, out = _to_pad(lengths, field, dtype, memory)
        padder.pad(values, starts, lengths, out)
        return padded

    offsets = offsets_of(lengths)
    tensor, out = allocate(memory, (int(offsets[-1]), *field.shape), dtype)
    if dtype == values.dtype:
        copy_pieces(values, starts, lengths, out, offsets)
    else:
        plain = np.empty(out.shape, values.dtype)
        copy_pieces(values, starts, lengths, plain, offsets)
        out[...] = plain

    if form == "list":
        return list(tensor.split(lengths.tolist()))
    return torch.nested.nested_tensor_from_jagged(tensor, torch.from_numpy(offsets))


def _to_pad(lengths: Keys, field: Field, dtype: np.dtype[Any], memory: BatchMemory) -> tuple[Padded, Array]:
    """Returns a padded column whose values are not written yet, and these as an array."""
    tensor, out = allocate(memory, (len(lengths), int(lengths.max(initial=0)), *field.shape), dtype)
    return Padded(tensor, torch.from_numpy(lengths.copy())), out


class _Layout(NamedTuple):
    """Where the elements of some samples lie, and where they belong in a padded batch."""

    starts: Keys
    lengths: Keys
    source: slice | Keys
    """Of all elements, among the values: a slice if they lie end to end."""
    inside: npt.NDArray[np.bool_]
    """[n, longest]: what is no padding."""


class Padder:
    """Pads samples of several columns of a batch; of columns whose samples lie at the same places it thinks once.

    Short pieces go all at once, by an index for each element; long ones by a copy each. Elements are moved as they are,
    whatever they consist of, where their type does not change.
    """

    def __init__(self) -> None:
        self._last: _Layout | None = None
        self._found: tuple[Array, int, bytes, tuple[Keys, Keys]] | None = None

    def pieces(self, column: Ragged, keys: Keys) -> tuple[Keys, Keys]:
        """Returns where samples begin, and their lengths; see `Ragged.pieces`. Columns may share their starts."""
        # Read once: another thread may set it between the comparison and the return.
        found = self._found
        total = len(column.values)
        asked = keys.tobytes()
        if found is not None and found[0] is column.starts and found[1] == total and found[2] == asked:
            return found[3]

        pieces = column.pieces(keys)
        self._found = column.starts, total, asked, pieces
        return pieces

    def pad(self, values: Array, starts: Keys, lengths: Keys, out: Array) -> None:
        """Copies `values[starts[i] : starts[i] + lengths[i]]` to the beginning of `out[i]`, and fills up with zeros.

        out: [n, longest, *shape], contiguous.
        """
        out[...] = 0
        if out.size == 0:
            return

        count, longest = out.shape[:2]
        total = int(lengths.sum())
        if not by_element(total, count, row_bytes(values)) or not values.flags.c_contiguous:
            flat = out.reshape(count * longest, *out.shape[2:])
            copy_each(values, starts, lengths, flat, np.arange(0, count * longest, longest))
            return

        layout = self._layout(starts, lengths, total, longest)
        if isinstance(layout.source, slice):
            packed = values[layout.source]
        else:
            packed = values.take(layout.source, 0, mode="clip")

        # Elements of any shape as opaque pieces of so many bytes: one place in the batch stands for a whole one.
        packed = packed.astype(out.dtype, copy=False)
        element = _opaque(row_bytes(packed))
        batch = out.reshape(-1).view(element).reshape(count, longest)
        batch[layout.inside] = packed.reshape(-1).view(element)

    def _layout(self, starts: Keys, lengths: Keys, total: int, longest: int) -> _Layout:
        # Read once, as in `pieces`.
        last = self._last
        if last is not None and _same(last.starts, starts) and _same(last.lengths, lengths):
            return last

        source: slice | Keys
        first = int(starts[0])
        stops = starts + lengths
        if int(stops[-1]) == first + total and _same(starts[1:], stops[:-1]):
            source = slice(first, first + total)
        else:
            source = element_places(starts, lengths, total, np.cumsum(lengths) - lengths)

        # Half the bytes of int64: comparing takes half the time.
        inside = np.arange(longest, dtype=np.int32) < lengths.astype(np.int32)[:, None]
        layout = _Layout(starts, lengths, source, inside)
        if inside.nbytes <= REMEMBERED:
            self._last = layout
        return layout


@functools.lru_cache(64)
def _opaque(size: int) -> np.dtype[Any]:
    return np.dtype((np.void, size))


def _same(first: Keys, second: Keys) -> bool:
    """Tells whether two arrays of int64 are equal, in a fifth of the time of `np.array_equal`."""
    return first is second or first.tobytes() == second.tobytes()


def _equal(first: Array, second: Array) -> bool:
    return first is second or np.array_equal(first, second)


def with_shared_starts(columns: Sequence[Column]) -> list[Column]:
    """Returns columns, those whose samples lie at the same places with one array of starts and stops for all."""
    shared: list[Column] = []
    first: dict[tuple[int, int, bytes], Ragged] = {}
    for column in columns:
        if not isinstance(column, Ragged) or len(column) > COMPARED:
            shared.append(column)
            continue

        earlier = first.setdefault(_summary(column), column)
        if earlier is not column and _equal(earlier.starts, column.starts) and _equal(earlier.stops, column.stops):
            shared.append(Ragged(column.values, None, earlier.starts, earlier.stops, column.place))
        else:
            shared.append(column)

    return shared


def _summary(column: Ragged) -> tuple[int, int, bytes]:
    """Returns what is the same for columns whose samples lie at the same places, and hardly ever for others."""
    step = len(column) // SUMMARY + 1
    return len(column), len(column.values), column.starts[::step].astype(np.int64).tobytes()


def blobs(column: Ragged) -> Gather:
    """Gathers byte strings."""

    def gather(keys: Keys, memory: BatchMemory) -> Blobs:
        starts, lengths = column.pieces(keys)
        offsets = offsets_of(lengths)
        tensor, out = allocate(memory, (int(offsets[-1]),), np.dtype(np.uint8))
        copy_pieces(column.values, starts, lengths, out, offsets)
        return Blobs(tensor, offsets[:-1], offsets[1:])

    return gather


def texts(column: Ragged) -> Gather:
    """Gathers strings, as a list."""

    def gather(keys: Keys, memory: BatchMemory) -> list[str]:
        return texts_in(column.values, *column.pieces(keys), column.place)

    return gather


def of(field: Field, column: Column, dtype: np.dtype[Any], form: RaggedAs, padder: Padder | None = None) -> Gather:
    """Returns what gathers a column that lies in memory, or is mapped into it. `padder`: see `ragged`."""
    if not isinstance(column, Ragged):
        return fixed(column, dtype)
    if field.kind == "bytes":
        return blobs(column)
    if field.kind == "text":
        return texts(column)
    return ragged(column, field, dtype, form, padder)


def whole(
    field: Field,
    column: Column,
    dtype: np.dtype[Any],
    form: RaggedAs,
    memory: BatchMemory,
    padder: Padder | None = None,
) -> Any:
    """Returns all of a column that was read for this batch alone; what can be used as it is, is not copied."""
    if not isinstance(column, Ragged):
        # torch has no read-only tensors: a batch over a mapped file would crash the process that writes to it.
        values = column
        if not column.flags.writeable and column.nbytes < memory.smallest:
            values = column.copy()

        return _converted(values, dtype, memory)

    if padder is None:
        padder = Padder()

    if field.kind == "ragged":
        if form == "pad" and isinstance(column, Loose) and column.arrays is not None:
            padded, out = _to_pad(column.lengths, field, dtype, memory)
            out[...] = 0
            for row, array in zip(out, column.arrays, strict=True):
                row[: len(array)] = array
            return padded

        starts, lengths = column.pieces()
        return _ragged_batch(_Pieces(column.values, starts, lengths), field, dtype, form, memory, padder)

    if field.kind == "bytes" and column.values.flags.writeable:
        starts, lengths = column.pieces()
        if column.values.nbytes <= 2 * int(lengths.sum()):
            return Blobs(torch.from_numpy(column.values), starts, starts + lengths)

    return of(field, column, dtype, form, padder)(np.arange(len(column)), memory)
