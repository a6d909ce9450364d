"""Data for the tests of formats: what a format can hold, blocks of it, and whether two blocks are the same."""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
from hypothesis import strategies as st

from headrace.data.formats import registry
from headrace.data.formats.columns import Block, Column, Ragged, concatenated, ragged_from
from headrace.data.formats.columns.schema import NUMBERS, Field, Schema
from headrace.data.formats.protocol import Reader
from headrace.data.formats.registry import format_named, open_reader, open_writer

FORMATS = tuple(registry.FORMATS)
PATHS = {
    name: (f"data{form.ending}", *(["data"] if form.in_folders else []))
    for name, form in registry.FORMATS.items()
    if form.ending
}
"""Where data of a format are written; `data` for the others. More than one: a file, or a folder of shards."""

SHAPES = ((), (1,), (3,), (2, 3), (2, 1, 3))
EMPTY_SHAPES = ((0,), (2, 0))
LABELS = ("cat", "dog", "Größe, 2")
NAMES = (
    "a", "x1", "value", "B", "label", "meta", "data", "images", "a b", "é", "a-b", "x.y", "%41", "a/b", ".x", "file",
)  # fmt: skip
TEXTS = (
    "", "a", " ", "plain words", "é", "日本語", "🙂", "a,b", "a\tb", 'say "so"', '"', "'", "\n", "a\nb", "a\r\nb", "\r",
    "null", "NaN", "nan", "NA", "true", "1", "-0.5", "{}", "[1]", "\\", "\\n", "\u2028", "\ufeff", "x" * 300,
    "\x00", "#",
)  # fmt: skip
BYTES = (b"", b"\x00", b"\xff\xfe", b"a", b"\n", bytes(range(256)), b"\x89PNG", b"\xff\xd8\xff", b"RIFF", b"\0" * 600)
IN_TEXT = ("csv", "tsv", "jsonl")


def _all_fields() -> tuple[Field, ...]:
    fixed = [Field("x", "fixed", dtype, shape) for dtype in NUMBERS for shape in (*SHAPES, *EMPTY_SHAPES)]
    ragged = [Field("x", "ragged", dtype, shape) for dtype in NUMBERS for shape in ((), (2,), (2, 2))]
    classes = [Field("x", "fixed", np.dtype(name), (), LABELS) for name in ("u1", "i4", "i8")]
    strings = [Field("x", "bytes"), Field("x", "text")] * 3
    return (*fixed, *ragged, *classes * 2, *strings)


ALL_FIELDS = _all_fields()
CONTENTS = (Field("image", "bytes"), Field("audio", "bytes"), Field("data", "bytes"), Field("text", "text"))
CLASS = Field("label", "fixed", np.dtype(np.int64), (), LABELS[:2])


def held(field: Field, formats: Iterable[str]) -> bool:
    """Tells whether all of these formats can hold a field."""
    return all(format_named(name).refusal(field) is None for name in formats)


def fields_held(formats: Sequence[str]) -> tuple[Field, ...]:
    """Returns the fields that all of these formats can hold, with names that may have to be changed."""
    if "folder" in formats:
        return tuple(field for field in CONTENTS if held(field, formats))
    return tuple(field for field in ALL_FIELDS if held(field, formats))


@st.composite
def schemas(draw: st.DrawFn, formats: Sequence[str], names: Sequence[str] = NAMES) -> Schema:
    """Schemas that all of these formats can hold."""
    candidates = fields_held(formats)
    if "folder" in formats:
        content = draw(st.sampled_from(candidates))
        return Schema((content, CLASS) if held(CLASS, formats) and draw(st.booleans()) else (content,))
    chosen = draw(st.lists(st.sampled_from(candidates), min_size=1, max_size=4))
    free = list(draw(st.permutations(names)))
    fields = []
    for number, field in enumerate(chosen):
        named = [name for name in free if held(replace(field, name=name), formats)]
        name = named[0] if named else f"column{number}"
        fields.append(replace(field, name=name))
        free = [other for other in free if other != name]
    return Schema(tuple(fields))


@st.composite
def blocks(draw: st.DrawFn, formats: Sequence[str], names: Sequence[str] = NAMES) -> Block:
    """Data that all of these formats can hold."""
    schema = draw(schemas(formats, names))
    count, seed = draw(st.sampled_from((1, 2, 3, 7, 20))), draw(st.integers(0, 1 << 32))
    return block_of(schema, count, seed, finite=not set(IN_TEXT).isdisjoint(formats))


def block_of(schema: Schema, count: int, seed: int, finite: bool = False) -> Block:
    """Returns random data. finite: without numbers that JSON has no word for."""
    rng = np.random.default_rng(seed)
    return Block(schema, {field.name: _column(field, count, rng, finite) for field in schema})


def _column(field: Field, count: int, rng: np.random.Generator, finite: bool) -> Column:
    if field.kind == "text":
        return ragged_from(field, [str(rng.choice(TEXTS)) if rng.random() < 0.8 else _word(rng) for _ in range(count)])
    if field.kind == "bytes":
        picks = [BYTES[int(rng.integers(len(BYTES)))] for _ in range(count)]
        return ragged_from(field, [one if rng.random() < 0.7 else rng.bytes(int(rng.integers(40))) for one in picks])
    if field.kind == "ragged":
        lengths = rng.integers(0, 5, count)
        parts = [_numbers(field, (int(length), *field.shape), rng, finite) for length in lengths]
        return ragged_from(field, parts)
    return _numbers(field, (count, *field.shape), rng, finite)


def _word(rng: np.random.Generator) -> str:
    codes = rng.integers(32, 0x2FFF, int(rng.integers(1, 12)))
    return "".join(map(chr, codes.tolist()))


def _numbers(field: Field, shape: tuple[int, ...], rng: np.random.Generator, finite: bool) -> np.ndarray[Any, Any]:
    if field.labels:
        return rng.integers(0, len(field.labels), shape).astype(field.dtype)
    if field.dtype.kind == "b":
        return rng.random(shape) < 0.5
    size = math.prod(shape)
    array = np.frombuffer(rng.bytes(size * field.dtype.itemsize), field.dtype).copy()
    if field.dtype.kind == "f":
        extremes = np.array([0.0, -0.0, 1.0, np.finfo(field.dtype).max, np.finfo(field.dtype).tiny], field.dtype)
        array = np.where(rng.random(size) < 0.3, rng.choice(extremes, size), array)
        if finite:
            array[~np.isfinite(array)] = 1.5
    elif size:
        bounds = np.array([np.iinfo(field.dtype).min, np.iinfo(field.dtype).max, 0], field.dtype)
        array = np.where(rng.random(size) < 0.3, rng.choice(bounds, size), array)
    return array.reshape(shape)


def path_of(format: str, folder: Path, sharded: bool = False) -> Path:
    """Returns where to write data of a format, below a folder."""
    return folder / PATHS.get(format, ("data",))[-1 if sharded else 0]


def write(format: str, path: Path, parts: Sequence[Block], schema: Schema | None = None) -> Path:
    """Writes blocks one after the other. Returns where they lie."""
    writer = open_writer(path, parts[0].schema if schema is None else schema, format)
    try:
        for part in parts:
            writer.append(part)
        writer.seal()
    except BaseException:
        writer.abort()
        raise
    return path


def halves(block: Block) -> list[Block]:
    """Returns a block in two parts, the second of which need not begin at 0 of its arrays."""
    middle = len(block) // 2
    return [block.rows(0, middle), block.rows(middle, len(block))]


def all_of(reader: Reader) -> Block:
    """Reads everything, run by run."""
    runs = [reader.fetch(np.arange(run.start, run.stop), reader.schema.names) for run in reader.blocks()]
    return concatenated(reader.schema, runs)


def read(path: Path, format: str | None = None) -> Block:
    """Reads everything."""
    return all_of(open_reader(path, format=format))


def plain(samples: Iterable[dict[str, Any]]) -> list[dict[str, Any]]:
    """Returns samples as plain values, which `==` compares."""
    found = []
    for sample in samples:
        found.append({name: value.tolist() if hasattr(value, "tolist") else value for name, value in sample.items()})

    return found


def assert_same(one: Block, other: Block) -> None:
    """Compares names, types, classes, shapes, order and values; NaNs are the same as any NaN."""
    assert one.schema == other.schema
    assert len(one) == len(other)
    for field in one.schema:
        ours, theirs = one.columns[field.name], other.columns[field.name]
        assert isinstance(ours, Ragged) == isinstance(theirs, Ragged), field
        if isinstance(ours, Ragged) and isinstance(theirs, Ragged):
            ours_packed, theirs_packed = ours.packed(), theirs.packed()
            assert ours_packed[1].tolist() == theirs_packed[1].tolist(), field
            ours, theirs = ours_packed[0], theirs_packed[0]
        assert_same_numbers(ours, theirs, field)


def assert_same_numbers(ours: Any, theirs: Any, what: object = None) -> None:
    """Compares arrays: types, shapes, and bits, but for those of NaNs."""
    assert ours.dtype == theirs.dtype, what
    assert ours.shape == theirs.shape, what
    if ours.dtype.kind == "f":
        assert (np.isnan(ours) == np.isnan(theirs)).all(), what
        assert (np.signbit(ours) == np.signbit(theirs))[~np.isnan(ours)].all(), what
        ours, theirs = np.nan_to_num(ours), np.nan_to_num(theirs)
    assert np.array_equal(ours, theirs), what


def usual(format: str, count: int = 20, seed: int = 7) -> Block:
    """Returns data as a user may have them, of several kinds, as far as a format can hold them."""
    if format == "folder":
        schema = Schema((Field("data", "bytes"), CLASS))
    else:
        numbers = [
            Field("image", "fixed", np.dtype(np.uint8), (4, 3)),
            Field("value", "fixed", np.dtype(np.float32)),
            Field("label", "fixed", np.dtype(np.int64 if format != "idx" else np.int32), (), LABELS),
            Field("wide", "fixed", np.dtype(np.float64), (2,)),
            Field("flag", "fixed", np.dtype(np.bool_)),
            Field("tokens", "ragged", np.dtype(np.int32)),
            Field("raw", "bytes"),
            Field("words", "text"),
        ]
        schema = Schema(tuple(field for field in numbers if held(field, [format])))
    return block_of(schema, count, seed, finite=True)
