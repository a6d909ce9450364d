"""The same data on this machine, in a bucket and on a web server."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import headrace
from headrace.data.formats.columns import block_from
from headrace.data.formats.columns.schema import Field, Schema
from headrace.data.formats.registry import FORMATS, endings_of, open_writer
from headrace.data.stored import StoredDataset
from tests.servers.faulty import FaultyServer
from tests.storage.conftest import no_credentials_of_the_user  # noqa: F401 - a fixture, for these tests, too

NUMBERS = Schema((Field("x", "fixed", np.dtype(np.float32), (6,)), Field("y", "fixed", np.dtype(np.int64))))
FILES = Schema((Field("text", "text"), Field("label", "fixed", np.dtype(np.int64), (), ("a", "b"))))
ROWS = 90

NAMES = {
    **{name: f"rows{(endings_of(name) or ('',))[0]}" for name in FORMATS},
    "memmap": "arrays",
    "pt": "samples",
    "webdataset": "shards.tar",
    "idx": "train",
    "folder": "classes",
}
"""Each format, with the name under which its data lie."""

PLACES = ("s3", "http")


@dataclass
class Twice:
    """Data on this machine, and elsewhere."""

    local: StoredDataset
    remote: StoredDataset
    url: str


def schema_of(name: str) -> Schema:
    """Returns columns that a format can hold."""
    if name == "folder":
        return FILES
    if name in ("csv", "tsv"):
        return NUMBERS.only(["y"], "here")
    if name == "idx":
        return NUMBERS.only(["x"], "here")
    return NUMBERS


def write(path: Path, name: str) -> None:
    """Writes data in a format."""
    rng = np.random.default_rng(7)
    schema = schema_of(name)
    rows: list[dict[str, Any]] = []
    for number in range(ROWS):
        row = {
            "x": rng.normal(size=6).astype(np.float32),
            "y": np.int64(number * number % 250),
            "text": f"sample {number} " * (1 + number % 7),
            "label": np.int64(number % 2),
        }
        rows.append({column: row[column] for column in schema.names})

    writer = open_writer(path, schema, name)
    for start in range(0, ROWS, 40):
        writer.append(block_from(schema, rows[start : start + 40]))
    writer.seal()


@pytest.fixture
def twice(faulty_server: FaultyServer) -> Callable[..., Twice]:
    """Returns data of a format, from a place: "s3" or "http"."""

    def make(name: str, place: str, **words: Any) -> Twice:
        path = faulty_server.folder / "b" / NAMES[name]
        if not path.parent.exists():
            path.parent.mkdir()
            write(path, name)

        local = headrace.open(path, format=name)
        if place == "http":
            url = f"{faulty_server.url}/b/{NAMES[name]}"
            return Twice(local, headrace.open(url, format=name, **words), url)

        url = f"s3://b/{NAMES[name]}"
        return Twice(local, headrace.open(url, format=name, options=faulty_server.s3_options, **words), url)

    return make
