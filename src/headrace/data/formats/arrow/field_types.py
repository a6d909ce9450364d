"""Arrow's types as the fields of a dataset, and back.

fixed scalar      the primitive type
fixed array       arrow.fixed_shape_tensor, the canonical extension type
ragged            large_list of the element (elements with a shape: of fixed_size_list)
bytes, text       large_binary, large_string

Read as well: times and decimals (`exact_numbers.py`), dictionaries, views, other lists, images of Hugging Face.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Callable, Collection, Iterable, Sequence
from typing import Any

import numpy as np
import pyarrow as pa

from headrace.core.errors import FormatError, warn
from headrace.data.formats.arrow.exact_numbers import is_time
from headrace.data.formats.columns.schema import NUMBERS, Field, Kind, Schema, schema_of_text, to_json_text

KEY = b"headrace"
"""Where our schema lies in the metadata of Arrow's."""

TEXTS = (pa.types.is_string, pa.types.is_large_string, pa.types.is_string_view)
BYTES = (pa.types.is_binary, pa.types.is_large_binary, pa.types.is_binary_view)

IMAGE = ("bytes", "path")
"""The parts of an image, or of a sound, as `datasets` stores it: what the file holds, and where it lay."""

DIGITS = 15
"""Digits that a float64 keeps of each decimal."""


def arrow_schema(schema: Schema) -> pa.Schema:
    """Returns Arrow's schema, with ours in its metadata."""
    fields = []
    for field in schema:
        fields.append(pa.field(field.name, arrow_type(field), nullable=False))

    return pa.schema(fields, metadata={KEY: to_json_text(schema)})


def arrow_type(field: Field) -> pa.DataType:
    """Returns Arrow's type of a field."""
    if field.kind == "bytes":
        return pa.large_binary()
    if field.kind == "text":
        return pa.large_string()

    element = pa.from_numpy_dtype(field.dtype)
    if field.kind == "fixed":
        if field.shape:
            return pa.fixed_shape_tensor(element, list(field.shape))
        return element

    if field.shape:
        item = pa.list_(element, math.prod(field.shape))
    else:
        item = element

    return pa.large_list(item)


def schema_from(arrow: pa.Schema, place: object, columns: Collection[str] | None = None) -> Schema:
    """Returns our schema of an Arrow schema; columns of types that are not held are left out, with a warning.

    columns: the names of those that are wanted, if not all. Raises `FormatError` for a name that comes twice.
    """
    ours = schema_of_text((arrow.metadata or {}).get(KEY), place)
    if ours is not None and list(ours.names) == arrow.names:
        return ours

    twice = [name for name, count in Counter(arrow.names).items() if count > 1]
    if twice:
        fix = "write the data again with a name of its own for each column"
        found = f"{twice[0]!r} {arrow.names.count(twice[0])} times"
        what = "a column name comes twice"
        raise FormatError.about(what, place=place, found=found, expected="each name once", fix=fix)

    fields = []
    others = []
    rounded = []
    for column in arrow:
        if columns is not None and column.name not in columns:
            continue

        field = field_from(column.name, column.type)
        if field is None:
            others.append(f"{column.name} ({column.type})")
        else:
            fields.append(field)
        if pa.types.is_decimal(column.type) and column.type.scale > 0 and column.type.precision > DIGITS:
            rounded.append(f"{column.name} ({column.type})")

    if others and not fields:
        expected = "numbers, text, bytes, or lists and tensors of numbers"
        fix = "write what is needed in columns of such types, as by pyarrow.compute.struct_field or cast"
        raise FormatError.about(
            "no column can be read", place=place, found=", ".join(others), expected=expected, fix=fix
        )

    if others:
        warn(f"{place}: columns of these types are left out: {', '.join(others)}")
    if rounded:
        told = f"these columns are read as float64, which keeps {DIGITS} digits: {', '.join(rounded)}"
        warn(f"{place}: {told}; cast them to text where all digits count")
    return Schema(tuple(fields))


def field_from(name: str, kind: pa.DataType) -> Field | None:
    """Returns our field for an Arrow type; None if there is none."""
    types = pa.types
    if types.is_dictionary(kind):
        return field_from(name, kind.value_type)
    if is_one_of(kind, TEXTS):
        return Field(name, "text")
    if is_one_of(kind, BYTES) or is_image(kind):
        return Field(name, "bytes")
    if types.is_fixed_size_binary(kind):
        return Field(name, "fixed", np.dtype(np.uint8), (kind.byte_width,))
    if is_time(kind) or (types.is_decimal(kind) and kind.scale == 0):
        return Field(name, "fixed", np.dtype(np.int64))
    if types.is_decimal(kind):
        return Field(name, "fixed", np.dtype(np.float64))
    if isinstance(kind, pa.FixedShapeTensorType):
        shape = tuple(kind.shape)
        return _array_field(name, "fixed", kind.value_type, tuple(shape[axis] for axis in axes(kind)))
    if (nested := _nested_array(kind)) is not None:
        element, shape = nested
        if shape[0] is None:
            return _array_field(name, "ragged", element, shape[1:])
        return _array_field(name, "fixed", element, shape)

    # What is none of ours falls through to here, and comes out as None, since its element is not primitive.
    element, shape = _nested(kind)
    if types.is_list(kind) or types.is_large_list(kind):
        element, shape = _nested(kind.value_type)
        return _array_field(name, "ragged", element, shape)

    return _array_field(name, "fixed", element, shape)


def _nested(kind: pa.DataType) -> tuple[pa.DataType, tuple[int, ...]]:
    shape: tuple[int, ...] = ()
    while pa.types.is_fixed_size_list(kind):
        kind, shape = kind.value_type, (*shape, kind.list_size)
    return kind, shape


def axes(kind: pa.FixedShapeTensorType) -> Sequence[int]:
    """Returns which axis of the stored tensors is the first, the second ... of those that are meant."""
    return kind.permutation or range(len(kind.shape))


def _nested_array(kind: pa.DataType) -> tuple[pa.DataType, tuple[Any, ...]] | None:
    """Returns element and shape of an array of `datasets` (`Array2D` to `Array5D`), which is stored as lists of lists.

    The first length may be None: any. None for all other types.
    """
    shape = getattr(kind, "shape", None)
    if not isinstance(kind, pa.ExtensionType) or not isinstance(shape, tuple):
        return None

    element = kind.storage_type
    while _is_list(element):
        element = element.value_type

    if not shape or None in shape[1:]:
        return None
    return element, shape


def _is_list(kind: pa.DataType) -> bool:
    types = pa.types
    return bool(types.is_list(kind) or types.is_large_list(kind) or types.is_fixed_size_list(kind))


def is_image(kind: pa.DataType) -> bool:
    """Tells whether a type is that of images and sounds of `datasets`: a file's bytes, and its path."""
    if not pa.types.is_struct(kind) or kind.num_fields != 2:
        return False
    parts = (kind.field(0), kind.field(1))
    return {part.name for part in parts} == set(IMAGE) and is_one_of(kind.field("bytes").type, BYTES)


def is_one_of(kind: pa.DataType, tests: Iterable[Callable[[pa.DataType], bool]]) -> bool:
    """Tells whether one of the tests of Arrow holds for a type."""
    return any(holds(kind) for holds in tests)


def _array_field(name: str, kind: Kind, element: pa.DataType, shape: tuple[int, ...]) -> Field | None:
    # Times are primitive types for Arrow; lists of them are left out, as NumPy's times are no numbers of ours.
    types = pa.types
    if not (types.is_integer(element) or types.is_floating(element) or types.is_boolean(element)):
        return None

    dtype = np.dtype(element.to_pandas_dtype())
    if dtype in NUMBERS:
        return Field(name, kind, dtype, shape)
    return None
