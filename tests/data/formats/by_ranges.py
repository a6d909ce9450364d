"""Data of several forms behind a server, for the tests of what is read by ranges."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.ipc
import torch

import headrace
from headrace.data.blobs import Blobs
from headrace.data.formats.columns.schema import Field, Schema
from headrace.data.formats.registry import open_writer
from tests.data.formats.samples import block_of
from tests.servers.faulty import FaultyServer

ROWS = 300
FIELDS = (
    Field("image", "fixed", np.dtype(np.uint8), (4, 5)),
    Field("label", "fixed", np.dtype(np.int32)),
    Field("words", "text"),
    Field("points", "ragged", np.dtype(np.float32), (2,)),
    Field("blob", "bytes"),
)
FIXED = FIELDS[:2]


def store(form: str, folder: Path, rows: int = ROWS) -> str:
    """Writes data in a form. Returns the name of them."""
    fields = FIELDS
    if form in ("npy", "idx", "tensordict"):
        fields = FIXED
    if form == "huggingface":
        fields = (FIXED[1], FIELDS[2], FIELDS[4])

    block = block_of(Schema(fields), rows, seed=5, finite=True)
    name = form.replace(" ", "-")
    if form in ("npy", "arrow", "arrow compressed", "arrow stream"):
        name += "." + form.partition(" ")[0]

    folder.mkdir(exist_ok=True)
    target = folder / name
    writer = open_writer(target, block.schema, form.partition(" ")[0])
    writer.append(block)
    writer.seal()
    if form.startswith("arrow"):
        table = pa.ipc.open_file(str(target)).read_all().combine_chunks()
        Path(f"{target}.headrace.json").unlink()
        target.unlink()
        options = pa.ipc.IpcWriteOptions(compression="zstd" if form == "arrow compressed" else None)
        new = pa.ipc.new_stream if form == "arrow stream" else pa.ipc.new_file
        with new(str(target), table.schema, options=options) as file:
            file.write_table(table, max_chunksize=70)

    return name


def values(sample: dict[str, Any]) -> dict[str, Any]:
    found = {}
    for name, value in sample.items():
        # As a text, in which a NaN is like another.
        found[name] = type(value), np.asarray(value).dtype, repr(np.asarray(value).tolist())
    return found


def samples(dataset: Any, keys: Any) -> list[dict[str, Any]]:
    return [values(sample) for sample in dataset.__getitems__(keys)]


def plain(value: Any) -> Any:
    """A batch, so that it can be compared."""
    if isinstance(value, dict):
        return {name: plain(part) for name, part in value.items()}
    if isinstance(value, Blobs):
        return list(map(bytes, value))
    if isinstance(value, torch.Tensor):
        return value.dtype, value.tolist()
    if isinstance(value, tuple):
        return tuple(map(plain, value))
    return value


def both(server: FaultyServer, name: str, door: Any = headrace.open, **asked: Any) -> tuple[Any, Any]:
    """Opens data by their path, and by their URL."""
    here = door(server.folder / "bucket" / name, **asked)
    there = door(f"s3://bucket/{name}", options=server.s3_options, **asked)
    return here, there
