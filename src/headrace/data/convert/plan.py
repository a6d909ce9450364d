"""What a conversion will do, as plain values, made before anything is written; the same plan gives the same bytes."""

from __future__ import annotations

import hashlib
import importlib.metadata
import json
import math
import platform
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from headrace.core.errors import UsageError, wrong_argument
from headrace.core.randomness.counter_based import spread
from headrace.data.formats.columns import Block, Keys
from headrace.data.formats.columns.arrays import array_names
from headrace.data.formats.columns.schema import Schema
from headrace.data.formats.protocol import Reader, stamped
from headrace.data.formats.registry import FORMATS, check_holds, endings_of
from headrace.data.formats.shards import stamp_of
from headrace.data.images import holds_images
from headrace.samplers.permutation import Permutation
from headrace.storage.locations import is_url
from headrace.version import __version__

IN_SHARDS = {
    "arrow": ".arrow",
    "parquet": ".parquet",
    "webdataset": ".tar",
    "csv": ".csv",
    "tsv": ".tsv",
    "jsonl": ".jsonl",
}
"""Formats whose data may lie in several files, each whole in itself."""

IN_FOLDERS = ("memmap", "tensordict", "idx", "lmdb", "huggingface", "pt", "folder")
"""Formats whose data are always a folder."""

PIECE = 128 << 20
"""Bytes of a piece, about: what a worker does at a time, and what a kill costs at most."""

SHARD = 512 << 20
"""Bytes of a shard, about, if nobody says how many there shall be."""

LOOKED_AT = 256

RESIZED_BY = ("pillow", "simplejpeg", "opencv-python-headless", "opencv-python")
"""The libraries that decode and encode images."""


@dataclass(frozen=True)
class PackOptions:
    """What to make of stored data: for `headrace.pack`.

    Attributes:
        format: its name. `"auto"`: by the ending of the target, or Arrow where it has none.
        columns: their names, in the order wanted; None: all.
        resize: the shorter side of images, in pixels; None: they stay as they are.
        quality: of JPEG, 1 to 95, where images are resized.
        shards: how many files; None: as many as make about 512 MiB each.
        shuffle: the seed of a random order; None: the order of the source.

    Raises:
        UsageError: values of other types.

    Examples:
        >>> headrace.PackOptions(format="webdataset", resize=256).quality
        90
    """

    format: str = "auto"

    columns: tuple[str, ...] | None = None
    resize: int | None = None
    quality: int = 90
    shards: int | None = None
    shuffle: int | None = None

    def __post_init__(self) -> None:
        """Raises `UsageError` for values of other types. What fits the data is known with the plan."""
        if not isinstance(self.format, str):
            raise _wrong_option("format", self.format, "the name of a format")
        columns = self.columns
        if columns is not None and not (isinstance(columns, (tuple, list)) and all(map(_is_text, columns))):
            raise _wrong_option("columns", columns, "a tuple of names, or None")
        for name in ("resize", "shards", "shuffle"):
            value = getattr(self, name)
            if value is not None and not is_whole(value):
                raise _wrong_option(name, value, "a whole number, or None")
        if not is_whole(self.quality):
            raise _wrong_option("quality", self.quality, "a whole number from 1 to 95")


def _wrong_option(name: str, value: object, expected: str) -> UsageError:
    return wrong_argument(name, value, expected, place="headrace.PackOptions")


def _is_text(value: object) -> bool:
    return isinstance(value, str)


def is_whole(value: object) -> bool:
    """Tells whether a value is a whole number that JSON keeps: a plain `int`, and no truth value."""
    return isinstance(value, int) and not isinstance(value, bool)


@dataclass(frozen=True)
class PackPlan:
    """Samples `edges[i]` to `edges[i + 1] - 1`, in the new order, make piece i."""

    source: str
    target: str
    length: int
    schema: Schema
    options: PackOptions
    edges: tuple[int, ...]
    stamp: str
    """Of the source's files: their names, lengths and times of change."""

    def keys(self, piece: int) -> Keys:
        """Returns which samples of the source make a piece, in order."""
        positions = np.arange(self.edges[piece], self.edges[piece + 1], dtype=np.int64)
        if self.options.shuffle is None:
            return positions
        return Permutation(self.length, self.options.shuffle).at(positions)

    @property
    def pieces(self) -> int:
        """How many pieces there are."""
        return len(self.edges) - 1

    @property
    def in_shards(self) -> bool:
        """Whether the pieces themselves are the files of the result."""
        return is_in_shards(self.options.format, self.target)

    @property
    def in_folder(self) -> bool:
        """Whether the target is a folder."""
        return is_in_folder(self.options.format, self.target)

    def digest(self) -> str:
        """Returns a text that differs if anything does that the bytes of the pieces depend on."""
        source = self.source
        if not is_url(source):
            source = str(Path(source).absolute())

        plain: dict[str, Any] = {
            "source": source, "length": self.length, "schema": self.schema.to_json(),
            "options": vars(self.options), "edges": self.edges, "stamp": self.stamp,
            "versions": self._versions(),
        }  # fmt: skip
        return hashlib.sha256(json.dumps(plain, sort_keys=True).encode()).hexdigest()

    def _versions(self) -> dict[str, str]:
        """Returns the versions of all that makes the bytes, by name; "" for what is not installed."""
        libraries = ["numpy", *FORMATS[self.options.format].written_by]
        if self.options.resize is not None:
            libraries += RESIZED_BY

        versions = {"headrace": __version__, "python": platform.python_version()}
        for name in libraries:
            try:
                versions[name] = importlib.metadata.version(name)
            except importlib.metadata.PackageNotFoundError:
                versions[name] = ""

        return versions


def is_in_shards(format: str, target: str) -> bool:
    """Tells whether packing in a format to a target makes a folder of shards."""
    return format in IN_SHARDS and not target.endswith(endings_of(format))


def is_in_folder(format: str, target: str) -> bool:
    """Tells whether packing in a format to a target makes a folder."""
    return is_in_shards(format, target) or format in IN_FOLDERS


def make_plan(reader: Reader, target: str, options: PackOptions) -> PackPlan:
    """Returns the plan of a conversion. Raises `UsageError` for options that make no sense, `FormatError`."""
    if options.format not in FORMATS:
        check_holds(options.format, reader.schema, target)

    schema = reader.schema.only(options.columns, reader.place)
    images = []
    for field in schema:
        if holds_images(field):
            images.append(field.name)

    rules = {
        "--resize": (options.resize is None or options.resize > 0, "a number of pixels above 0"),
        "--quality": (1 <= options.quality <= 95, "1 to 95"),
        "--shuffle": (options.shuffle is None or 0 <= options.shuffle < 1 << 63, "a seed from 0 to 2**63 - 1"),
        "--shards": (
            options.shards is None or 0 < options.shards <= max(len(reader), 1),
            f"a number from 1 to {max(len(reader), 1):,}, the number of samples",
        ),
        "--resize, ": (options.resize is None or bool(images), "a source with a column of encoded images"),
    }
    for name, (holds, expected) in rules.items():
        if not holds:
            raise UsageError.about(
                "this cannot be done",
                place=name.strip(", "),
                found=vars(options)[name.strip("-, ")],
                expected=expected,
            )

    check_holds(options.format, schema, target)
    length = len(reader)
    stamp = stamp_of(stamped(reader))
    plan = PackPlan(reader.place, target, length, schema, options, (0, length), stamp)
    if options.shards is not None and not plan.in_shards:
        expected = "a format in shards (" + ", ".join(IN_SHARDS) + ") and a folder as the target"
        raise UsageError.about(
            "this cannot be cut into shards", place="--shards", found=options.format, expected=expected
        )

    size = _row_size(reader, schema) * max(length, 1)
    if plan.in_shards:
        size_of_piece = SHARD
    else:
        size_of_piece = PIECE

    count = options.shards or math.ceil(size / size_of_piece)
    count = max(min(count, max(length, 1)), 1)
    edges = tuple(length * number // count for number in range(count + 1))
    return PackPlan(reader.place, target, length, schema, options, edges, plan.stamp)


def _row_size(reader: Reader, schema: Schema) -> float:
    """Returns the bytes of a sample, on average of some that are looked at."""
    length = len(reader)
    if length == 0:
        return 1.0
    keys = spread(length, LOOKED_AT)
    return bytes_of_block(reader.fetch(keys, schema.names)) / len(keys)


def bytes_of_block(block: Block) -> int:
    """Returns the bytes of the samples of a block, without what lies between them."""
    total = 0
    for field in block.schema:
        column = block.columns[field.name]
        if len(array_names(field)) == 1:
            total += len(block) * field.dtype.itemsize * math.prod(field.shape)
        else:
            _, lengths = column.pieces(np.arange(len(block)))  # type: ignore[union-attr]
            total += int(lengths.sum()) * field.dtype.itemsize * math.prod(field.shape) + 8 * len(block)

    return total
