"""Columns in memory: what formats read and write, and what batches are gathered from.

`schema` says what a dataset looks like, `Ragged` holds samples that differ in length, `block` some samples of all
columns. `arrays`, `tables` and `arrow_columns` serve the formats that keep columns as named arrays or as Arrow tables.
"""

from headrace.core.ragged import Array, Column, Keys, Loose, Ragged, copy_pieces, offsets_of
from headrace.data.formats.columns.block import (
    Block,
    SampleOrigin,
    array_of,
    as_numbers,
    block_from,
    bytes_of,
    column_from,
    concatenated,
    exactly,
    field_of,
    joined,
    ragged_from,
    value_of,
    widest,
)
from headrace.data.formats.columns.schema import Field, Schema

__all__ = [
    "Array",
    "Block",
    "Column",
    "Field",
    "Keys",
    "Loose",
    "Ragged",
    "SampleOrigin",
    "Schema",
    "array_of",
    "as_numbers",
    "block_from",
    "bytes_of",
    "column_from",
    "concatenated",
    "copy_pieces",
    "exactly",
    "field_of",
    "joined",
    "offsets_of",
    "ragged_from",
    "value_of",
    "widest",
]
