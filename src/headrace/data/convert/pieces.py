"""The pieces of a conversion: read from the source, and written to a file each."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

from headrace.core.ragged import text_of
from headrace.data.convert.bad_images import bad_images
from headrace.data.convert.plan import IN_SHARDS, PackPlan, bytes_of_block
from headrace.data.convert.resize import resized
from headrace.data.formats.columns import Block, Keys, Ragged
from headrace.data.formats.growing_file import GrowingFile
from headrace.data.formats.protocol import Reader
from headrace.data.formats.registry import format_named

RUN = 16 << 20
"""Bytes that are read at a time."""


def suffix_of(plan: PackPlan) -> str:
    """Returns how the names of the pieces end."""
    if plan.in_shards:
        return IN_SHARDS[plan.options.format]
    return ".arrow"


def begin_file(plan: PackPlan, path: Path) -> GrowingFile:
    """Begins the file of a piece, in the form of the target or as Arrow."""
    if plan.in_shards:
        writer: GrowingFile = format_named(plan.options.format).write_file(path, plan.schema)  # type: ignore[attr-defined]
        return writer
    from headrace.data.formats.arrow import ipc  # with pyarrow, which takes long to load

    return ipc.write_file(path, plan.schema)


def write_piece(plan: PackPlan, reader: Reader, writer: GrowingFile, piece: int) -> list[str]:
    """Writes the samples of a piece, and completes the file. Returns the number and fault of each bad image."""
    bad: list[str] = []
    try:
        for keys in _runs(plan, reader, piece):
            block = reader.fetch(keys, plan.schema.names)
            if plan.options.resize is not None:
                block, found = resized(block, keys, plan.options.resize, plan.options.quality, plan.source)
            else:
                found = bad_images(block, keys, plan.source)
            bad += found
            _tell_other_encodings(block, plan.source)
            writer.append(block)
    finally:
        writer.close()

    return bad


def _tell_other_encodings(block: Block, source: str) -> None:
    """Has the log name columns of text that is no UTF-8: other libraries may not read what is written of it."""
    for field in block.schema:
        column = block.columns[field.name]
        if field.kind != "text" or not isinstance(column, Ragged):
            continue
        try:
            column.packed()[0].tobytes().decode()
        except UnicodeDecodeError:
            for row in range(len(column)):
                text_of(column[row], f"{source} (packed), column {field.name!r}")


def _runs(plan: PackPlan, reader: Reader, piece: int) -> Iterator[Keys]:
    """Yields the samples of a piece, so many at a time as are about `RUN` bytes."""
    keys = plan.keys(piece)
    count = 1
    at = 0
    while at < len(keys):
        part = keys[at : at + count]
        yield part
        at += len(part)
        if at == len(part):
            size = bytes_of_block(reader.fetch(part, plan.schema.names)) / len(part)
            count = int(max(min(RUN / max(size, 1), 1 << 20), 1))
