"""Columns as named arrays, for all formats that hold arrays: one array a column, two where samples differ in length.

fixed   NAME
ragged  NAME.values  NAME.offsets
bytes   NAME.bytes   NAME.offsets
text    NAME.utf8    NAME.offsets
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any

from headrace.core.errors import FormatError
from headrace.core.process.per_process import Handle
from headrace.data.formats.columns import Array, Block, Column, Keys, Ragged, as_numbers
from headrace.data.formats.columns.schema import Field, Kind, Schema
from headrace.data.formats.guards.limits import FREE, too_large
from headrace.data.formats.protocol import Names, even_blocks

SUFFIXES: dict[Kind, str] = {"ragged": ".values", "bytes": ".bytes", "text": ".utf8"}
KINDS: dict[str, Kind] = {".values": "ragged", ".bytes": "bytes", ".utf8": "text"}
OFFSETS = ".offsets"


RUN = 1 << 24
"""Bytes that are read at a time when data are read from the first sample to the last."""


def array_names(field: Field) -> tuple[str, ...]:
    """Returns the names of the arrays that hold a field."""
    if field.kind == "fixed":
        return (field.name,)
    return field.name + SUFFIXES[field.kind], field.name + OFFSETS


def arrays_of(field: Field, column: Column) -> dict[str, Array]:
    """Returns the arrays that hold a column, by their names."""
    if isinstance(column, Ragged):
        return dict(zip(array_names(field), column.packed(), strict=True))
    return {field.name: column}


def wanted_arrays(names: Iterable[str], columns: Names | None) -> list[str]:
    """Returns which of these arrays hold the wanted columns; all, if none are named or one of them is not there."""
    if columns is None:
        return list(names)

    wanted = []
    found = set()
    for name in names:
        stem, dot, ending = name.rpartition(".")
        if name in columns:
            wanted.append(name)
            found.add(name)
        elif stem in columns and (dot + ending in KINDS or dot + ending == OFFSETS):
            wanted.append(name)
            found.add(stem)

    if len(found) < len(set(columns)):
        return list(names)
    return wanted


def columns_from(
    arrays: Mapping[str, Array], place: object, schema: Schema | None = None
) -> tuple[Schema, dict[str, Column]]:
    """Returns the columns that named arrays hold, without a copy. `schema`: what they should be, if that is known.

    Raises `FormatError` if arrays are missing, are of another type or shape, or their lengths do not go together.
    """
    fields = fields_from(arrays, place, schema)
    columns: dict[str, Column] = {}
    for field in fields:
        values = values_of(arrays, field, place)
        if field.kind == "fixed":
            columns[field.name] = values
        else:
            offsets = check_offsets(arrays[array_names(field)[1]], len(values), field, place)
            columns[field.name] = Ragged(values, offsets, place=place)

    check_lengths({name: len(column) for name, column in columns.items()}, place)
    return Schema(fields), columns


def fields_from(arrays: Mapping[str, Array], place: object, schema: Schema | None = None) -> tuple[Field, ...]:
    """Returns the fields of `schema` if that is known; those that the arrays look like otherwise."""
    if schema is not None:
        return tuple(schema)
    return _guessed(arrays, place)


def values_of(arrays: Mapping[str, Array], field: Field, place: object) -> Array:
    """Returns the values of a field. Raises `FormatError` if they or their offsets are missing, or of another type."""
    names = array_names(field)
    if not arrays.keys() >= set(names):
        raise _unfit(place, f"no array for column {field.name!r}", " and ".join(names))

    values = as_numbers(arrays[names[0]], place)
    if field.kind in ("fixed", "ragged"):
        shape = field.shape
    else:
        shape = ()

    if values.dtype != field.dtype or values.ndim < 1 or values.shape[1:] != shape:
        expected = f"{field} for each sample, in column {field.name!r}"
        raise _unfit(place, f"{values.dtype.name} {list(values.shape)}", expected)

    # A header alone can promise any number of samples without a byte, which later take memory for their keys.
    if len(values) > FREE and values.nbytes == 0:
        raise too_large(place, f"{len(values):,} samples of no bytes in column {field.name!r}", f"{FREE:,} at most")

    return values


def check_lengths(lengths: Mapping[str, int], place: object) -> None:
    """Raises `FormatError` if columns have different numbers of samples. lengths: by name."""
    if len(set(lengths.values())) > 1:
        found = f"columns of different lengths: {dict(lengths)}"
        raise _unfit(place, found, "as many samples in each column", fix_of_lengths(lengths))


def single_number(place: object) -> FormatError:
    """Returns the error for an array that has no dimension of samples."""
    fix = "save an array with one entry per sample: np.save(path, np.stack(samples)); or leave it out with columns="
    found = "a single number, without a dimension of samples"
    what = "an array holds no samples"
    return FormatError.about(what, place=place, found=found, expected="one entry per sample", fix=fix)


def fix_of_lengths(lengths: Mapping[str, int]) -> str:
    """Returns what to do with columns of different lengths: to name those that go together."""
    parts = []
    for length in dict.fromkeys(lengths.values()):
        alike = [name for name, other in lengths.items() if other == length]
        parts.append(f"columns={alike[:4]}")

    return f"open those that belong together by themselves: {', or '.join(parts[:3])}"


def length_of(columns: Mapping[str, Column]) -> int:
    """Returns how many samples columns hold, which `columns_from` has found to be as many in each; 0 without any."""
    for column in columns.values():
        return len(column)

    return 0


def _guessed(arrays: Mapping[str, Array], place: object) -> tuple[Field, ...]:
    fields = []
    for name, array in arrays.items():
        stem, dot, ending = name.rpartition(".")
        suffix = dot + ending
        if suffix == OFFSETS and any(stem + of_values in arrays for of_values in SUFFIXES.values()):
            continue

        array = as_numbers(array, f"{place}, array {name!r}")
        if array.ndim == 0:
            fix = "name the arrays that have one, with columns="
            raise _unfit(place, f"array {name!r} is a single number", "arrays with one entry per sample", fix)

        # A suffix means something only where the offsets are there too: `x.values` alone is a column of that name.
        if suffix in KINDS and stem + OFFSETS in arrays:
            fields.append(Field(stem, KINDS[suffix], array.dtype, array.shape[1:]))
        else:
            fields.append(Field(name, "fixed", array.dtype, array.shape[1:]))

    return tuple(fields)


def check_offsets(
    offsets: Array, total: int, field: Field, place: object, ends: tuple[int, int] | None = None
) -> Array:
    """Checks the ends of offsets: quick whatever their number. `Ragged.take` checks what it uses.

    ends: the first and the last one, where `offsets` stands in for those in a file. Raises `FormatError`.
    """
    whole = offsets.ndim == 1 and len(offsets) > 0 and offsets.dtype.kind in "iu"
    if whole and ends is None:
        ends = int(offsets[0]), int(offsets[-1])

    if ends != (0, total):
        found = f"{offsets.dtype.name} {list(offsets.shape)}"
        if ends is not None:
            found += f" from {ends[0]} to {ends[1]}"
        raise _unfit(place, f"offsets of column {field.name!r}: {found}", f"whole numbers from 0 to {total}")

    return as_numbers(offsets, place)


def _unfit(
    place: object, found: str, expected: str, fix: str = "restore the file, or pack the data again"
) -> FormatError:
    return FormatError.about("stored arrays do not fit together", place=place, found=found, expected=expected, fix=fix)


class ColumnsReader:
    """A reader of data that lie in memory, or are mapped into it, column by column."""

    def __init__(self, format_name: str, place: str, schema: Schema, length: int, load: Callable[[], Any]) -> None:
        """`load` opens the data and returns columns by name; it is called once per process, when first needed."""
        self.format = format_name
        self.place = place
        self.schema = schema
        self._length = length
        self._columns: Handle[Mapping[str, Column]] = Handle(load)

    def __len__(self) -> int:
        return self._length

    def column(self, name: str) -> Column | None:
        return self._columns.get()[name]

    def fetch(self, keys: Keys, names: Sequence[str]) -> Block:
        columns = self._columns.get()
        schema = self.schema.only(names)
        return Block(self.schema, columns).only(schema).take(keys)

    def blocks(self) -> Sequence[range]:
        total = Block(self.schema, self._columns.get()).nbytes
        size = int(RUN * self._length / max(total, 1))
        return even_blocks(self._length, min(max(size, 1), RUN))
