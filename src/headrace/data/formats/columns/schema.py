"""What a stored dataset looks like: named fields, each of one kind, as plain values that every format can keep.

kind      a sample holds                            a column of n samples is
fixed     an array of always the same shape         an array [n, *shape]
ragged    an array of any length along its first    values [total, *shape] and offsets [n + 1]
          dimension, then of `shape`
bytes     a byte string                             the same, of uint8
text      a string                                  the same, of UTF-8
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from functools import cached_property
from typing import Any, Literal, get_args

import numpy as np

from headrace.core.errors import FormatError, UsageError, wrong_argument
from headrace.data.formats.unreadable import unreadable

Kind = Literal["fixed", "ragged", "bytes", "text"]

BYTE = np.dtype(np.uint8)

NUMBERS = tuple(map(np.dtype, ("?", "u1", "i1", "u2", "i2", "u4", "i4", "u8", "i8", "f2", "f4", "f8")))
"""The types of elements, all in the machine's byte order."""


@dataclass(frozen=True)
class Field:
    """One named part of a sample.

    Attributes:
        name: of the column.
        kind: "fixed", "ragged" (the first dimension differs), "bytes" or "text".
        dtype: of the numbers.
        shape: that of a sample (fixed) or of one element (ragged).
        labels: the names of the values 0, 1, 2 ... of a whole number that stands for a class.

    Examples:
        >>> str(headrace.types.Field("image", "fixed", np.dtype("uint8"), (3, 32, 32)))
        'uint8 x 3 x 32 x 32'
    """

    name: str
    kind: Kind = "fixed"
    dtype: np.dtype[Any] = BYTE
    shape: tuple[int, ...] = ()
    labels: tuple[str, ...] = ()

    def to_json(self) -> dict[str, Any]:
        """Returns the field as plain values."""
        plain: dict[str, Any] = {"name": self.name, "kind": self.kind}
        if self.kind in ("fixed", "ragged"):
            plain |= {"dtype": self.dtype.name, "shape": list(self.shape)}
        if self.labels:
            plain["labels"] = list(self.labels)

        return plain

    def __str__(self) -> str:
        shape = "".join(f" x {length}" for length in self.shape)
        text = {"fixed": f"{self.dtype.name}{shape}", "ragged": f"{self.dtype.name} x any{shape}"}
        if self.labels:
            labels = f", {len(self.labels)} classes"
        else:
            labels = ""

        return text.get(self.kind, self.kind) + labels


@dataclass(frozen=True)
class Schema:
    """The fields of a dataset, in order, each name once.

    Attributes:
        fields: the fields.

    Examples:
        >>> schema = headrace.types.Schema((headrace.types.Field("x"), headrace.types.Field("y", "text")))
        >>> schema.names
        ('x', 'y')
    """

    fields: tuple[Field, ...]

    def __iter__(self) -> Iterator[Field]:
        return iter(self.fields)

    def __len__(self) -> int:
        return len(self.fields)

    @cached_property
    def names(self) -> tuple[str, ...]:
        """The names of the fields."""
        return tuple(field.name for field in self.fields)

    @cached_property
    def _by_name(self) -> dict[str, Field]:
        """The fields by their names; the first, where a damaged description has a name twice."""
        by_name: dict[str, Field] = {}
        for field in self.fields:
            by_name.setdefault(field.name, field)

        return by_name

    def __getitem__(self, name: str) -> Field:
        return self._by_name[name]

    def only(self, names: Iterable[str] | None, place: object = None) -> Schema:
        """Returns the fields of these names, in the order asked for.

        Args:
            names: some of the names; None: all.
            place: where the data lie, for the message.

        Returns:
            A schema.

        Raises:
            UsageError: there is no such name.

        Examples:
            >>> schema = headrace.types.Schema((headrace.types.Field("x"), headrace.types.Field("y", "text")))
            >>> schema.only(["y"]).names
            ('y',)
        """
        wanted = wanted_names(names)
        if wanted is None:
            return self

        unknown = []
        for name in wanted:
            if name not in self._by_name:
                unknown.append(name)

        if unknown:
            raise UsageError.about(
                "there are no such columns",
                place=place,
                found=", ".join(map(repr, unknown)),
                expected="some of " + ", ".join(self.names),
                fix="correct columns=",
            )

        if not wanted or len(set(wanted)) != len(wanted):
            raise wrong_argument("columns", names, "one name or more, each once")

        return Schema(tuple(map(self.__getitem__, wanted)))

    def to_json(self) -> list[dict[str, Any]]:
        """Returns the schema as plain values."""
        return list(map(Field.to_json, self.fields))

    @classmethod
    def from_json(cls, plain: Any, place: object) -> Schema:
        """Returns what `to_json` returned. Raises `FormatError` for anything else; the place is for its message."""
        try:
            fields = tuple(map(_field_from, plain))
        except (TypeError, KeyError, ValueError, AttributeError, OverflowError) as error:
            raise FormatError.about(
                "a description of columns cannot be understood",
                place=place,
                found=f"{type(error).__name__}: {error}",
                expected="a list of columns, each with name, kind, dtype and shape",
                fix="restore the file, or delete it if the data can be read without",
            ) from error

        return cls(fields)


def wanted_names(columns: Iterable[str] | None) -> tuple[str, ...] | None:
    """Returns the names of columns that a user wants; None: all. Raises `UsageError` for what is no list of names."""
    if columns is None:
        return None
    if isinstance(columns, str):
        return (columns,)
    if not isinstance(columns, Iterable):
        raise wrong_argument("columns", columns, "a list of names")
    return tuple(columns)


def _field_from(plain: Mapping[str, Any]) -> Field:
    kind = plain["kind"]
    name = plain["name"]
    if kind not in get_args(Kind) or not isinstance(name, str) or not name:
        raise ValueError(f"name {name!r} of kind {kind!r}")

    # The description may come from a stranger's file: NumPy would also make records, strings and objects of such a
    # text.
    dtype = np.dtype(plain.get("dtype", "uint8"))
    shape = tuple(map(int, plain.get("shape", ())))
    if dtype not in NUMBERS or min(shape, default=0) < 0:
        raise ValueError(f"dtype {dtype} and shape {shape}")

    labels = tuple(map(str, plain.get("labels", ())))
    return Field(name, kind, dtype, shape, labels)


def to_json_text(schema: Schema) -> str:
    """Returns a schema as text, for formats that have a place for it."""
    return json.dumps(schema.to_json())


def schema_of_text(text: str | bytes | None, place: object) -> Schema | None:
    """Returns a schema from what `to_json_text` returned; None for None."""
    if text is None:
        return None

    try:
        plain = json.loads(text)
    except (ValueError, TypeError, RecursionError) as error:
        raise unreadable(place, "description of columns", error) from error

    return Schema.from_json(plain, place)
