"""Data for the tests with other libraries, and how to look at what was read."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np

from headrace.data.formats.columns import Block, column_from
from headrace.data.formats.columns.schema import Field, Schema
from headrace.data.formats.manifest import manifest_path
from tests.data.formats.samples import read

RNG = np.random.default_rng(5)
IMAGES = RNG.integers(0, 256, (30, 5, 4, 3)).astype(np.uint8)
VALUES = RNG.standard_normal(30).astype(np.float32)
CLASSES = RNG.integers(0, 3, 30)
WORDS = [f'wörd {number}, "quoted"\n' if number % 3 else "" for number in range(30)]
TOKENS = [np.arange(number % 5, dtype=np.int32) for number in range(30)]
RAW = [bytes(range(number)) for number in range(30)]


def block(**columns: Any) -> Block:
    """Returns columns given as arrays or lists of strings, bytes or arrays of different lengths."""
    fields, held = [], {}
    for name, values in columns.items():
        if isinstance(values, np.ndarray):
            field = Field(name, "fixed", values.dtype, values.shape[1:])
        elif isinstance(values[0], np.ndarray):
            field = Field(name, "ragged", values[0].dtype, values[0].shape[1:])
        else:
            field = Field(name, "text" if isinstance(values[0], str) else "bytes")
        fields.append(field)
        held[name] = values if isinstance(values, np.ndarray) else column_from(field, values)
    return Block(Schema(tuple(fields)), held)


def rows(data: Block, name: str) -> list[Any]:
    """Returns a column as a list of samples."""
    return [row[name] for row in data]


def reopened(path: Path) -> Block:
    """Reads with the library's own manifest removed, so that types come from the data alone."""
    manifest_path(path).unlink()
    return read(path)
