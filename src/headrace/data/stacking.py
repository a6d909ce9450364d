"""Several columns of numbers as one: `headrace.open(path, stack={"x": ["a", "b", "c"]})`.

They are put side by side where a sample, a batch or the columns of a step are made. Until then they stay apart: a
window of a stream is shuffled column by column, since one column of it stays in the cache of a core.
"""

from __future__ import annotations

import difflib
from collections.abc import Iterable, Mapping, Sequence
from collections.abc import Set as AbstractSet
from dataclasses import dataclass
from typing import Any

import numpy as np

from headrace.core.batch_memory import BatchMemory
from headrace.core.errors import UsageError, wrong_argument
from headrace.data.formats.columns import Array, Block, Column, Keys
from headrace.data.formats.columns.schema import Field, Schema
from headrace.data.gather import Gather, allocate, in_range

PLACE = "headrace.open"
EXPECTED = 'names of columns under each new name, such as {"x": ["a", "b"]}'

PORTION = 1 << 19
"""Bytes of rows that are put together at a time: what stays in the cache of a core."""


@dataclass(frozen=True)
class Stacking:
    """Which columns are read, and what becomes of them."""

    stored: Schema
    """What is read."""
    schema: Schema
    """What samples have."""
    names: Mapping[str, tuple[str, ...]]
    """Of each stacked column, the stored ones in order."""

    def block(self, block: Block) -> Block:
        """Returns samples as they are read with their columns stacked; the others are not copied."""
        columns: dict[str, Column] = {}
        for field in self.schema:
            if field.name in self.names:
                out = np.empty((len(block), *field.shape), field.dtype)
                self.fill(field.name, block, out)
                columns[field.name] = out
            else:
                columns[field.name] = block.columns[field.name]

        return Block(self.schema, columns, block.origin)

    def fill(self, name: str, block: Block, out: Array) -> None:
        """Writes a stacked column of samples as they are read to `out`: [len(block), columns], of any type."""
        columns: list[Any] = [block.columns[stored] for stored in self.names[name]]
        step = max(PORTION // (out.itemsize * len(columns)), 1)
        for start in range(0, len(out), step):
            part = slice(start, start + step)
            rows = out[part]
            for place, column in enumerate(columns):
                rows[:, place] = column[part]

    def value(self, name: str, block: Block, place: int) -> Array:
        """Returns the value of one of the samples as they are read: [columns], of the stored type."""
        columns: list[Any] = [block.columns[stored] for stored in self.names[name]]
        return np.array([column[place] for column in columns])


def stacking_of(stored: Schema, stack: Any, place: str) -> Stacking | None:
    """Returns what `headrace.open(stack=)` asks for; None if that is nothing. Raises `UsageError`.

    stored: the columns that are read. place: of the data, for messages.
    """
    if stack is None:
        return None
    if not isinstance(stack, Mapping):
        raise wrong_argument("stack", stack, EXPECTED, place=PLACE)

    names: dict[str, tuple[str, ...]] = {}
    fields: dict[str, Field] = {}
    for new, given in stack.items():
        if not isinstance(new, str) or not new:
            raise wrong_argument("stack", stack, EXPECTED, place=PLACE, found=f"the new name {new!r}")
        names[new] = _names_in(new, given, stored, place)
        first = stored[names[new][0]]
        fields[new] = Field(new, "fixed", first.dtype, (len(names[new]),))

    if not names:
        return None
    return Stacking(stored, _stacked_schema(stored, names, fields, place), names)


def gather_stacked(columns: Sequence[Array], dtype: np.dtype[Any]) -> Gather:
    """Gathers rows of columns that lie in memory, or are mapped into it, [batch, columns] of `dtype`. Checks the keys.

    columns: [n] each, of one type.
    """
    length = len(columns[0])
    kind = columns[0].dtype
    takes = []
    for column in columns:
        # `take` would copy all of it.
        if column.flags.c_contiguous:
            takes.append(column.take)
        else:
            takes.append(_taking(column))

    def gather(keys: Keys, memory: BatchMemory) -> Any:
        checked = in_range(keys, length)
        # Each column goes into a row of its own, and all of them are turned at once.
        gathered = np.empty((len(takes), len(checked)), kind)
        for row, take in zip(gathered, takes, strict=True):
            take(checked, 0, row, "clip")

        tensor, out = allocate(memory, (len(checked), len(takes)), dtype)
        out[...] = gathered.T
        return tensor

    return gather


def _taking(column: Array) -> Any:
    def take(keys: Keys, axis: int, out: Array, mode: str) -> None:
        out[...] = column[keys]

    return take


def _names_in(new: str, given: Any, stored: Schema, place: str) -> tuple[str, ...]:
    """Returns the columns of one stack. Raises `UsageError`."""
    where = f"the columns of {new!r}"
    # A set has no order of its own: the matrix would be another one in each run.
    if isinstance(given, (str, bytes, Mapping, AbstractSet)) or not isinstance(given, Iterable):
        raise wrong_argument("stack", given, EXPECTED, place=PLACE, found=f"{where}: {given!r}")

    names = tuple(given)
    for name in names:
        if not isinstance(name, str):
            raise wrong_argument("stack", given, EXPECTED, place=PLACE, found=f"{where}: {name!r} among them")
    if not names or len(set(names)) != len(names):
        expected = "one name or more, each once"
        raise wrong_argument("stack", given, expected, place=PLACE, found=f"{where}: {list(names)!r}")

    _check_known(new, names, stored, place)
    _check_alike(new, names, stored, place)
    return names


def _check_known(new: str, names: Sequence[str], stored: Schema, place: str) -> None:
    known = set(stored.names)
    unknown = [name for name in names if name not in known]
    if not unknown:
        return

    near: list[str] = []
    for name in unknown:
        near += difflib.get_close_matches(name, stored.names, 1)

    fix = "correct stack=; with columns=, name them there, too"
    if near:
        fix = f"did you mean {', '.join(map(repr, near))}? With columns=, name them there, too"

    raise UsageError.about(
        "there are no such columns",
        place=f"{place}, stack={{{new!r}: ...}}",
        found=", ".join(map(repr, unknown)),
        expected="some of " + ", ".join(stored.names),
        fix=fix,
    )


def _check_alike(new: str, names: Sequence[str], stored: Schema, place: str) -> None:
    others = []
    for name in names:
        field = stored[name]
        if field.kind != "fixed" or field.shape:
            others.append(f"{name}: {field}")

    if others:
        raise UsageError.about(
            "these columns cannot be stacked",
            place=f"{place}, stack={{{new!r}: ...}}",
            found="; ".join(others),
            expected="columns that have a single number in each sample",
            fix="leave them out of stack=: they stay columns of their own",
        )

    by_type: dict[str, list[str]] = {}
    for name in names:
        by_type.setdefault(stored[name].dtype.name, []).append(name)

    if len(by_type) > 1:
        raise UsageError.about(
            "columns of different types cannot be stacked",
            place=f"{place}, stack={{{new!r}: ...}}",
            found="; ".join(f"{dtype}: {', '.join(some)}" for dtype, some in by_type.items()),
            expected="one type, since no number is converted unasked",
            fix="stack the columns of each type under a name of their own, or store them as one type",
        )


def _stacked_schema(
    stored: Schema, names: Mapping[str, tuple[str, ...]], fields: Mapping[str, Field], place: str
) -> Schema:
    """Returns the columns of samples: a stacked one is where, in the data, the first of its columns was."""
    uses: dict[str, list[str]] = {}
    for new, some in names.items():
        for name in some:
            uses.setdefault(name, []).append(new)

    clashes = [name for name in names if name in stored.names and name not in uses]
    if clashes:
        raise UsageError.about(
            "a new name is taken",
            place=f"{place}, stack=",
            found=", ".join(map(repr, clashes)),
            expected="names that no other column has",
            fix="choose another name, or leave that column out with columns=",
        )

    made: dict[str, Field] = {}
    for field in stored:
        if field.name not in uses:
            made[field.name] = field
        for new in uses.get(field.name, ()):
            made.setdefault(new, fields[new])

    return Schema(tuple(made.values()))
