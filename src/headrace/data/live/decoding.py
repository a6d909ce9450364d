"""From the bytes of records to samples: one function for each `decode=`."""

from __future__ import annotations

import io
import json
import math
from collections.abc import Callable, Mapping, Sequence
from typing import Any, Literal, get_args

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from headrace.core.batch_memory import BatchMemory
from headrace.core.errors import FormatError, MissingExtraError, SampleError, wrong_argument
from headrace.core.extras import extra
from headrace.data import gather
from headrace.data.formats.columns import Block, Column
from headrace.data.formats.columns.block import column_from, field_of
from headrace.data.formats.columns.schema import Field, Schema
from headrace.data.gather import RaggedAs
from headrace.data.live.avro import AvroDecoder
from headrace.sources.feed.span_rule import ENOUGH

Decoding = Literal["bytes", "text", "json", "msgpack", "npy", "arrow", "avro"]

Decode = Callable[[bytes], Any]

LOOKED_AT = ENOUGH
"""Records of the first span by which it is decided what samples look like."""


def checked_decoding(decode: object) -> Decoding | Decode:
    """Returns what `decode=` says. Raises `UsageError`."""
    for word in get_args(Decoding):
        if decode == word:
            return word  # type: ignore[no-any-return]
    if callable(decode):
        return decode

    expected = f"one of {', '.join(map(repr, get_args(Decoding)))}, or a function of bytes"
    raise wrong_argument("decode", decode, expected, place="headrace.follow")


def decoder_of(decoding: Decoding | Decode, options: Mapping[str, object]) -> Decode:
    """Returns what makes a sample of the bytes of a record. Raises `MissingExtraError`.

    options: of the source; Avro finds its registry there.
    """
    if callable(decoding):
        return decoding
    if decoding == "json":
        return _json()
    if decoding == "msgpack":
        return _msgpack
    if decoding == "npy":
        return _npy
    if decoding == "arrow":
        return _arrow
    if decoding == "avro":
        return AvroDecoder(options)
    if decoding == "text":
        return _text
    return bytes


def _text(value: bytes) -> str:
    return bytes(value).decode()


def _json() -> Decode:
    try:
        loads: Decode = extra("orjson", "messages").loads
        return loads
    except MissingExtraError:
        # Python's own is several times slower.
        return lambda value: json.loads(bytes(value))


def _msgpack(value: bytes) -> Any:
    return extra("msgpack", "messages").unpackb(value)


def _npy(value: bytes) -> Any:
    return np.load(io.BytesIO(value), allow_pickle=False)


def _arrow(value: bytes) -> dict[str, Any]:
    """Returns a record that is an Arrow IPC stream: of one row its values, of several their columns."""
    table = pa.ipc.open_stream(value).read_all()
    sample = {}
    for name in table.column_names:
        column = table.column(name)
        if len(column) == 1:
            sample[name] = column[0].as_py()
        else:
            sample[name] = column.to_numpy()

    return sample


# -- what samples look like --------------------------------------------------------------------------------------------


KINDS = {dict: "mappings", list: "lists", str: "text", bytes: "bytes", bool: "truth values", int: "whole numbers",
         float: "numbers", type(None): "null"}  # fmt: skip
"""How values are called that a field has."""


def schema_of(samples: Sequence[Any], place: str) -> tuple[Schema | None, list[str]]:
    """Returns what samples have in common, and the names of other fields, with reasons; None if they are no mappings.

    Raises `FormatError` if they have nothing in common.
    """
    if not all(isinstance(sample, Mapping) for sample in samples):
        return None, []

    fields = []
    left_out = []
    names = dict.fromkeys(name for sample in samples for name in sample)
    for name in names:
        values = [sample[name] for sample in samples if name in sample]
        field = _field_of(str(name), values, place)
        if isinstance(field, str):
            left_out.append(f"{name} ({field})")
        elif len(values) < len(samples):
            left_out.append(f"{name} (in {len(values):,} of {len(samples):,} records)")
        else:
            fields.append(field)

    if not fields:
        found = ", ".join(left_out) or "no fields"
        fix = "give decode= a function that makes a sample of the bytes of a record"
        what = "no field can be used for training"
        raise FormatError.about(what, place=place, found=found, expected="numbers, lists of numbers, text", fix=fix)
    return Schema(tuple(fields)), left_out


def _field_of(name: str, values: Sequence[Any], place: str) -> Field | str:
    """Returns the field of values, or why a batch cannot hold them."""
    too_large = "whole numbers of more than 63 bits"
    # torch has no batches of such numbers; and of larger ones NumPy makes floats, which are others.
    if any(isinstance(value, int) and abs(value) >= 1 << 63 for value in values):
        return too_large
    try:
        widened = _widened(values)
        field = field_of(name, widened, place)
    except (FormatError, ValueError, IndexError, OverflowError):
        return _kinds_of(values)

    if field.dtype == np.uint64:
        return too_large
    if not name:
        return "it has no name"
    return field


def _kinds_of(values: Sequence[Any]) -> str:
    """Returns what values are that no column can hold."""
    kinds = sorted({KINDS.get(type(value), type(value).__name__) for value in values})
    if kinds == ["lists"]:
        return "lists that are not all of numbers of one shape after the first dimension"
    return " and ".join(kinds)


def _widened(values: Sequence[Any]) -> Sequence[Any]:
    """Returns values with all numbers as floats if some are: 1 and 1.5 are of one field, and null is NaN there."""
    kinds = set(map(type, values))
    if float in kinds and kinds <= {int, float, type(None)}:
        return _without_nulls(values)
    if kinds != {list}:
        return values

    arrays = [np.asarray(value) for value in values]
    if {array.dtype.kind for array in arrays if array.size} <= {"i", "f"}:
        if any(array.dtype.kind == "f" for array in arrays):
            return [array.astype(np.float64) for array in arrays]
        return [array.astype(np.int64) for array in arrays]
    return values


def _without_nulls(values: Sequence[Any]) -> list[Any]:
    return [math.nan if value is None else float(value) for value in values]


def block_of(schema: Schema, samples: Sequence[Any]) -> Block:
    """Returns samples, column by column. Raises `SampleError` where one lacks a field or has it of another type.

    Fields that the schema does not have are passed over.
    """
    columns: dict[str, Column] = {}
    for field in schema:
        columns[field.name] = _column(field, _values(field, samples))

    return Block(schema, columns)


def collated(schema: Schema, samples: Sequence[Any], ragged: RaggedAs, out: BatchMemory) -> dict[str, Any]:
    """Returns samples as a batch, field by field. Raises `SampleError` as `block_of` does."""
    batch: dict[str, Any] = {}
    padder = gather.Padder()
    for field in schema:
        values = _values(field, samples)
        if field.kind == "text":
            batch[field.name] = _texts(field, values)
        else:
            column = _column(field, values)
            batch[field.name] = gather.whole(field, column, field.dtype, ragged, out, padder)

    return batch


def _values(field: Field, samples: Sequence[Any]) -> list[Any]:
    try:
        return [sample[field.name] for sample in samples]
    except (KeyError, TypeError) as error:
        found = _lacking(field.name, samples)
        expected = f"{field.name}: {field}, as in the first records of the source"
        raise SampleError.about("a record lacks a field", found=found, expected=expected) from error


def _texts(field: Field, values: list[Any]) -> list[str]:
    """Returns texts as they are."""
    if set(map(type, values)) <= {str}:
        return values

    raise _unlike(field, next(value for value in values if not isinstance(value, str)))


def _lacking(name: str, samples: Sequence[Any]) -> str:
    for sample in samples:
        if not isinstance(sample, Mapping):
            return f"{sample!r:.80}"
        if name not in sample:
            return f"the fields {', '.join(map(str, list(sample)[:8]))}"
    return name


def _column(field: Field, values: Sequence[Any]) -> Column:
    if field.kind == "fixed":
        numbers = _numbers(field, values)
        if numbers is None:
            raise _unlike(field, next((value for value in values if _numbers(field, [value]) is None), values))
        return numbers
    try:
        if field.kind == "ragged":
            values = [_row(field, value) for value in values]
        return column_from(field, values)
    except (FormatError, TypeError, ValueError) as error:
        raise _unlike(field, str(error).splitlines()[0]) from error


def _unlike(field: Field, found: object) -> SampleError:
    """Returns the error for a value that is not as in the first records."""
    expected = f"{field.name}: {field}, as in the first records of the source"
    return SampleError.about(
        f"the field {field.name!r} of a record has another type", found=f"{found!r:.80}", expected=expected
    )


def _numbers(field: Field, values: Sequence[Any]) -> npt.NDArray[Any] | None:
    """Returns numbers of one shape, all at once; None if they are not that."""
    try:
        if field.dtype.kind == "f" and not field.shape and None in values:
            values = _without_nulls(values)
        array = np.asarray(values)
    except (ValueError, TypeError):
        return None
    if array.shape != (len(values), *field.shape):
        return None
    if array.dtype == field.dtype or (array.dtype.kind in "if" and field.dtype.kind == "f"):
        return array.astype(field.dtype, copy=False)
    return None


def _row(field: Field, value: Any) -> npt.NDArray[Any]:
    array = np.asarray(value)
    if array.size and not np.can_cast(array.dtype, field.dtype):
        raise ValueError(f"{array.dtype} instead of {field.dtype}")
    return array.astype(field.dtype)
