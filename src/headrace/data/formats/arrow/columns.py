"""Our columns as Arrow's, and back; back without a copy wherever Arrow keeps a column as plain memory.

Truth values are packed in bits, and unpacked on reading.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from headrace.core.errors import FormatError
from headrace.core.process.shortage import check_shortage
from headrace.data.formats.arrow.exact_numbers import decimals, is_time, times
from headrace.data.formats.arrow.field_types import BYTES, TEXTS, arrow_type, axes, is_image, is_one_of
from headrace.data.formats.columns import Array, Block, Column, Ragged, exactly, joined
from headrace.data.formats.columns.schema import Field
from headrace.data.formats.guards.limits import check_unfolding


def to_batch(block: Block, schema: pa.Schema) -> pa.RecordBatch:
    """Returns a block as a record batch of the schema that `arrow_schema` made."""
    arrays = [to_arrow(field, block.columns[field.name]) for field in block.schema]
    return pa.RecordBatch.from_arrays(arrays, schema=schema)


def to_arrow(field: Field, column: Column) -> pa.Array:
    """Returns a column as an Arrow array of type `arrow_type(field)`."""
    if not isinstance(column, Ragged):
        return _flat(field, column, arrow_type(field))

    # Arrow's columnar format, "Variable-size Binary Layout" and "Variable-size List Layout": a bitmap of empty places,
    # which is left out, n + 1 offsets of 64 bits, and the bytes or the child array.
    packed, edges = column.packed()
    offsets = pa.py_buffer(edges)
    if field.kind != "ragged":
        buffers = [None, offsets, pa.py_buffer(np.ascontiguousarray(packed))]
        return pa.Array.from_buffers(arrow_type(field), len(column), buffers)

    values = _flat(field, packed, arrow_type(field).value_type)
    return pa.Array.from_buffers(arrow_type(field), len(column), [None, offsets], children=[values])


def _flat(field: Field, values: Array, kind: pa.DataType) -> pa.Array:
    """Returns an array [n, *shape] as n elements of an Arrow type: a primitive, a list of fixed size, or a tensor."""
    numbers = pa.array(np.ascontiguousarray(values).reshape(-1), pa.from_numpy_dtype(field.dtype))
    if not field.shape:
        return numbers

    if isinstance(kind, pa.BaseExtensionType):
        storage = kind.storage_type
    else:
        storage = kind

    lists = pa.Array.from_buffers(storage, len(values), [None], children=[numbers])
    if isinstance(kind, pa.BaseExtensionType):
        return pa.ExtensionArray.from_storage(kind, lists)
    return lists


def from_arrow(field: Field, array: pa.ChunkedArray | pa.Array, place: object) -> Column:
    """Returns an Arrow column as ours: without a copy if it is one chunk of plain memory. Raises `FormatError`."""
    if isinstance(array, pa.ChunkedArray):
        chunks = array.chunks
    else:
        chunks = [array]

    columns = [_chunk(field, chunk, place) for chunk in chunks]
    if len(columns) == 1:
        return columns[0]
    return joined(field, columns)


def check_decoded(chunks: Sequence[pa.Array], place: object, trust: bool = False) -> None:
    """Raises `FormatError` for chunks of a column that name long words so often that they would take far more memory.

    Those are dictionaries and views; Arrow takes the places that they name on trust, which are looked at here as well.
    """
    if not chunks or not (_is_view(chunks[0].type) or pa.types.is_dictionary(chunks[0].type)):
        return

    # The attack: a dictionary with one word of a megabyte, and a million indices of a byte that all name it.
    stored = pa.chunked_array(chunks).get_total_buffer_size()
    try:
        check_unfolding(place, "a column", sum(map(_decoded_size, chunks)), stored, trust)
        for chunk in chunks:
            if _is_view(chunk.type):
                chunk.validate(full=True)
    except (pa.ArrowException, ValueError, TypeError, IndexError) as error:
        if isinstance(error, FormatError):
            raise
        check_shortage(error, place, "reading a column")
        found = f"{type(error).__name__}: {error}"
        expected = str(chunks[0].type)
        raise FormatError.about(
            "a column is damaged", place=place, found=found, expected=expected, fix="restore the file"
        ) from error


def _is_view(kind: pa.DataType) -> bool:
    return bool(pa.types.is_string_view(kind) or pa.types.is_binary_view(kind))


def _decoded_size(chunk: pa.Array) -> int:
    """Returns the bytes that a dictionary or views stand for. Raises what Arrow raises if they are damaged."""
    if _is_view(chunk.type):
        # A view is 16 bytes ("Variable-size Binary View Layout"): its length, then the string itself or where it lies.
        lengths = np.frombuffer(chunk.buffers()[1] or b"", np.int32)[::4][chunk.offset : chunk.offset + len(chunk)]
        return int(np.maximum(lengths, 0).sum(dtype=np.int64))

    values = _words(chunk.dictionary)
    types = pa.types
    if is_one_of(values.type, (*TEXTS[:2], *BYTES[:2])):
        sizes = pc.binary_length(values)
    elif types.is_list(values.type) or types.is_large_list(values.type):
        inner = values.flatten()
        sizes = pc.multiply(pc.list_value_length(values).cast(pa.int64()), -(-inner.nbytes // max(len(inner), 1)))
    else:
        return int(len(chunk) * -(-values.nbytes // max(len(values), 1)))

    return int(pc.sum(sizes.take(chunk.indices)).as_py() or 0)


def _chunk(field: Field, chunk: pa.Array, place: object) -> Column:
    where = f"{place}, column {field.name!r}"
    try:
        if pa.types.is_dictionary(chunk.type):
            chunk = pa.DictionaryArray.from_arrays(chunk.indices, _words(chunk.dictionary)).dictionary_decode()
        if is_image(chunk.type):
            chunk = _file_bytes(chunk)
        if pa.types.is_null(chunk.type):
            # Of a file without a value in this column, beside others that have some.
            chunk = chunk.cast(arrow_type(field))
        if chunk.null_count and not (field.dtype.kind == "f" and field.kind == "fixed" and not field.shape):
            fix = "fill the empty places (pyarrow.compute.fill_null), or leave the column out with columns="
            found = f"{chunk.null_count} empty places (null) in {len(chunk)} samples"
            raise FormatError.about("a column has holes", place=where, found=found, expected=str(field), fix=fix)

        if isinstance(chunk.type, pa.FixedShapeTensorType) and chunk.type.permutation:
            stored = _numbers(chunk, field).reshape(len(chunk), *chunk.type.shape)
            return np.ascontiguousarray(stored.transpose(0, *(axis + 1 for axis in axes(chunk.type))))
        if field.kind == "fixed":
            return _numbers(chunk, field).reshape(len(chunk), *field.shape)
        column = _ragged(field, chunk)
        column.place = where
        return column
    except (pa.ArrowException, ValueError, TypeError, NotImplementedError, OverflowError, AttributeError) as error:
        if isinstance(error, FormatError):
            raise
        check_shortage(error, where, "reading a column")
        found = f"{type(error).__name__}: {error}"
        fix = "restore the file, or leave the column out with columns="
        raise FormatError.about(
            "a column cannot be read", place=where, found=found, expected=str(field), fix=fix
        ) from error


def _words(values: pa.Array) -> pa.Array:
    """Returns the words of a dictionary; Arrow looks none up that are views."""
    if pa.types.is_string_view(values.type):
        return values.cast(pa.large_string())
    if pa.types.is_binary_view(values.type):
        return values.cast(pa.large_binary())
    return values


def _file_bytes(chunk: pa.StructArray) -> pa.Array:
    """Returns the bytes of images. Raises `ValueError` for one that lies in a file of its own."""
    data = chunk.field("bytes")
    elsewhere = data.is_null()
    if data.null_count:
        row = int(np.flatnonzero(elsewhere.to_numpy(zero_copy_only=False))[0])
        raise ValueError(f"no bytes in row {row:,}, whose file lies elsewhere: {chunk.field('path')[row]}")
    if chunk.null_count:
        raise ValueError("empty places (null)")
    return data


def _numbers(chunk: pa.Array, field: Field) -> Array:
    kind = chunk.type
    if isinstance(chunk, pa.ExtensionArray):
        return _numbers(chunk.storage, field)
    if pa.types.is_list(kind) or pa.types.is_large_list(kind):
        return _numbers(_flattened(chunk, field.shape), Field(field.name, "fixed", field.dtype))
    if pa.types.is_fixed_size_list(kind):
        return _numbers(chunk.values.slice(chunk.offset * kind.list_size, len(chunk) * kind.list_size), field)

    if pa.types.is_fixed_size_binary(kind):
        width = kind.byte_width
        data = np.frombuffer(chunk.buffers()[1] or b"", np.uint8)
        return data[chunk.offset * width : (chunk.offset + len(chunk)) * width]

    if pa.types.is_decimal(kind):
        return exactly(decimals(chunk), field.dtype)
    if is_time(kind):
        chunk = times(chunk)

    array: Array = chunk.to_numpy(zero_copy_only=False)
    if chunk.null_count and array.dtype.kind not in "f":
        raise ValueError("empty places (null)")
    # JSON and CSV have no halves: Arrow reads the numbers that were written from such a column as floats.
    if array.dtype == np.float32 and field.dtype == np.float16:
        return array.astype(field.dtype)
    return exactly(array, field.dtype)


def _flattened(chunk: pa.Array, shape: tuple[int, ...]) -> pa.Array:
    """Returns the numbers in lists of lists, which must all be of this shape."""
    for length in shape:
        lengths = np.asarray(chunk.value_lengths())
        if (lengths != length).any():
            raise ValueError(f"a list of {int(lengths[lengths != length][0])} entries instead of {length}")
        chunk = chunk.flatten()

    return chunk


def _ragged(field: Field, chunk: pa.Array) -> Ragged:
    if field.kind != "ragged":
        if field.kind == "text":
            wide = pa.large_string()
        else:
            wide = pa.large_binary()

        if pa.types.is_string_view(chunk.type) or pa.types.is_binary_view(chunk.type):
            chunk = chunk.cast(wide)
        # string and binary have offsets of 32 bits, large_string and large_binary of 64.
        narrow = pa.types.is_string(chunk.type) or pa.types.is_binary(chunk.type)
        _, offset_buffer, data = chunk.buffers()
        if data is not None and data.size:
            values = np.frombuffer(data, np.uint8)
        else:
            values = np.empty(0, np.uint8)
    else:
        if isinstance(chunk, pa.ExtensionArray):
            chunk = chunk.storage
        narrow = pa.types.is_list(chunk.type)
        offset_buffer = chunk.buffers()[1]
        inner = chunk.values
        values = _numbers(inner, field).reshape(len(inner), *field.shape)

    if offset_buffer is None or offset_buffer.size == 0:
        return Ragged(values, np.zeros(len(chunk) + 1, np.int64))

    width: type
    if narrow:
        width = np.int32
    else:
        width = np.int64

    # Only the ends are compared here, which costs the same for any length: `Ragged.pieces` checks the samples it
    # copies.
    dtype = np.dtype(width)
    offsets = np.frombuffer(offset_buffer, dtype, len(chunk) + 1, chunk.offset * dtype.itemsize)
    if int(offsets[0]) < 0 or int(offsets[-1]) > len(values) or int(offsets[0]) > int(offsets[-1]):
        raise ValueError(f"offsets from {offsets[0]} to {offsets[-1]} into {len(values)} values")
    return Ragged(values, offsets)
