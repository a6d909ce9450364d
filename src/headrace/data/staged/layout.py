"""How samples are built: nested dicts, tuples and lists of arrays, tensors, numbers and strings, held column by column.

A layout remembers of each part which type it had, so that samples come back as they were: what goes into a cache and
what comes out of it are the same. The parts of all samples of a dataset must be alike; only lengths may differ.
"""

from __future__ import annotations

import functools
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from headrace.core.errors import FormatError, SampleError
from headrace.data.formats.columns.schema import NUMBERS, Field, Kind, Schema

SHAPE = ".shape"
FIXED, RAGGED, SHAPED = "fixed", "ragged", "shaped"
TYPES = ("array", "tensor", "scalar", "int", "float", "bool", "str", "bytes", "none")


@dataclass(frozen=True)
class Leaf:
    """One array, tensor, number or string in a sample, and the column that holds it.

    type: "array", "tensor", "scalar" (of NumPy), "int", "float", "bool", "str", "bytes" or "none".
    form: "fixed" (all of one `shape`), "ragged" (the first dimension differs; `shape` is that of the others), or
    "shaped" (every dimension may differ; `shape` has their number in it, as that many zeros).
    """

    name: str
    type: str
    dtype: str = "uint8"
    form: str = FIXED
    shape: tuple[int, ...] = ()

    def fields(self) -> tuple[Field, ...]:
        """Returns the columns: one, two if shapes are held beside values, none for None."""
        return _fields_of(self)

    def __str__(self) -> str:
        if self.form == SHAPED:
            return f"{self.dtype} of {len(self.shape)} dimensions"
        if self.type not in ("none",):
            return str(self.fields()[0])
        return "None"


@functools.lru_cache(1024)
def _fields_of(leaf: Leaf) -> tuple[Field, ...]:
    # Kept: each batched step asks for them, of each batch.
    if leaf.type == "none":
        return ()
    if leaf.type in ("str", "bytes"):
        kind: Kind
        if leaf.type == "str":
            kind = "text"
        else:
            kind = "bytes"

        return (Field(leaf.name, kind),)

    dtype = np.dtype(leaf.dtype)
    if leaf.form == FIXED:
        return (Field(leaf.name, "fixed", dtype, leaf.shape),)
    if leaf.form == RAGGED:
        return (Field(leaf.name, "ragged", dtype, leaf.shape),)

    shapes = Field(leaf.name + SHAPE, "fixed", np.dtype(np.int64), (len(leaf.shape),))
    return Field(leaf.name, "ragged", dtype), shapes


@dataclass(frozen=True)
class Branch:
    """A dict (with these keys, in order), tuple or list in a sample."""

    type: str
    keys: tuple[Any, ...]
    parts: tuple[Node, ...]


Node = Leaf | Branch


def leaves(node: Node) -> Iterator[Leaf]:
    """Yields the leaves, in order."""
    if isinstance(node, Leaf):
        yield node
    else:
        for part in node.parts:
            yield from leaves(part)


@functools.lru_cache(256)
def schema_of(node: Node) -> Schema:
    """Returns the columns of a layout."""
    # Kept, as in `_fields_of`.
    fields = []
    for leaf in leaves(node):
        for field in leaf.fields():
            fields.append(field)

    return Schema(tuple(fields))


def joined(nodes: Sequence[Node]) -> Node:
    """Returns the narrowest layout that holds all of these. Raises `SampleError` if more than lengths differs."""
    return functools.reduce(_joined, nodes)


def _joined(first: Node, second: Node) -> Node:
    if first == second:
        return first

    if isinstance(first, Branch) and isinstance(second, Branch):
        if first.type == second.type and set(first.keys) == set(second.keys):
            theirs = dict(zip(second.keys, second.parts, strict=True))
            parts = []
            for key, part in zip(first.keys, first.parts, strict=True):
                parts.append(_joined(part, theirs[key]))

            return Branch(first.type, first.keys, tuple(parts))
    elif isinstance(first, Leaf) and isinstance(second, Leaf):
        alike = (first.type, first.dtype) == (second.type, second.dtype) and _ndim(first) == _ndim(second)
        if alike and _ndim(first) > 0:
            if SHAPED not in (first.form, second.form) and _rest(first) == _rest(second):
                return replace(first, form=RAGGED, shape=_rest(first))
            return replace(first, form=SHAPED, shape=(0,) * _ndim(first))

    name = next(leaves(first), Leaf("value", "none")).name
    raise SampleError.about(
        "samples differ too much to be held in columns",
        place=f"column {name!r}",
        found=f"{_said(first)}, and {_said(second)}",
        expected="the same parts and types in each sample",
        fix="have the step return the same parts for each sample, or move it after the cache point",
    )


def _said(node: Node) -> str:
    if isinstance(node, Leaf):
        return f"{node.type} of {node}"
    return f"a {node.type} of {list(node.keys)}"


def _ndim(leaf: Leaf) -> int:
    return len(leaf.shape) + (leaf.form == RAGGED)


def _rest(leaf: Leaf) -> tuple[int, ...]:
    if leaf.form == RAGGED:
        return leaf.shape
    return leaf.shape[1:]


def layout_of_schema(schema: Schema) -> Branch:
    """Returns the layout of samples as a stored dataset gives them: dicts of arrays, NumPy's numbers, strings."""
    parts = []
    for field in schema:
        if field.kind in ("bytes", "text"):
            if field.kind == "text":
                kind = "str"
            else:
                kind = "bytes"

            parts.append(Leaf(field.name, kind))
            continue

        if field.kind == "ragged" or field.shape:
            kind = "array"
        else:
            kind = "scalar"

        if field.kind == "ragged":
            form = RAGGED
        else:
            form = FIXED
        parts.append(Leaf(field.name, kind, field.dtype.name, form, field.shape))

    return Branch("dict", schema.names, tuple(parts))


def to_json(node: Node) -> Any:
    """Returns a layout as plain values."""
    if isinstance(node, Leaf):
        return [node.name, node.type, node.dtype, node.form, list(node.shape)]
    return {"type": node.type, "keys": list(node.keys), "parts": list(map(to_json, node.parts))}


def from_json(plain: Any, place: object) -> Node:
    """Returns what `to_json` returned. Raises `FormatError` for anything else."""
    try:
        if isinstance(plain, list):
            name, kind, dtype, form, shape = plain
            sizes = tuple(map(int, shape))
            if kind not in TYPES or form not in (FIXED, RAGGED, SHAPED) or min(sizes, default=0) < 0:
                raise ValueError(f"a column {plain!r}")
            if np.dtype(dtype) not in NUMBERS:
                raise ValueError(f"a column of {dtype!r}")
            return Leaf(str(name), kind, np.dtype(dtype).name, form, sizes)

        parts = []
        for part in plain["parts"]:
            parts.append(from_json(part, place))

        keys = tuple(plain["keys"])
        if plain["type"] not in ("dict", "tuple", "list") or len(set(keys)) != len(parts) or len(keys) != len(parts):
            raise ValueError(f"a {plain['type']!r} of {keys!r}")
        node = Branch(plain["type"], keys, tuple(parts))
        names = [leaf.name for leaf in leaves(node)]
        if len(set(names)) != len(names):
            raise ValueError(f"columns {names!r}, one of them twice")
        return node
    except (TypeError, KeyError, ValueError, RecursionError) as error:
        found = f"{type(error).__name__}: {error}"
        raise FormatError.about("a description of samples is damaged", place=place, found=found) from error
