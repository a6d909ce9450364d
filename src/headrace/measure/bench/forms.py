"""Writes some samples in every stored form that can hold them, in one pass over the source."""

from __future__ import annotations

import dataclasses
import shutil
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from headrace.core.errors import HeadraceError
from headrace.data.formats.columns import Block
from headrace.data.formats.columns.schema import Schema
from headrace.data.formats.protocol import Writer
from headrace.data.formats.registry import FORMATS, format_named, open_writer
from headrace.data.stored import StoredDataset

GOOD_FOR = {
    "memmap": "Random reading of anything that fits on a local disk; opens at once, whatever the size.",
    "arrow": "Random reading as with memmap, and other programs that speak Arrow.",
    "parquet": "Archives and exchange: small files, single columns; random reading only of what fits into memory.",
    "webdataset": "Reading in order from network storage, in shards; encoded images and audio.",
    "lmdb": "Random reading of samples of different sizes by one key each, from one file.",
    "hdf5": "Exchange with scientific programs; arrays of one size in one file.",
    "npz": "Small datasets that are read into memory whole.",
    "npy": "A single array, or a table of numbers, for NumPy.",
    "idx": "Programs that expect the files of MNIST.",
    "tensordict": "Programs that use TensorDict; arrays of one size, memory-mapped.",
    "huggingface": "Programs that use Hugging Face datasets.",
    "pt": "Few, large samples; many small ones make as many files.",
    "csv": "Small tables that people read and edit.",
    "tsv": "Small tables that people read and edit.",
    "jsonl": "Small data of mixed kinds that people read and edit.",
    "folder": "Encoded images, audio or text that other programs open as files.",
}
"""What each form is for, one sentence."""

Report = Callable[[str, float], None]
"""Called with what is being done, and the share of it that is done."""


@dataclass(frozen=True)
class Form:
    """Data in one form. `folder`: what holds all of its files, for the forms that were written here."""

    format: str
    place: str
    folder: Path | None = None
    write_seconds: float | None = None

    @property
    def is_source(self) -> bool:
        """Whether these are the data as the user has them."""
        return self.folder is None


@dataclass
class _Writing:
    folder: Path
    writer: Writer
    seconds: float = 0.0


@dataclass
class Written:
    """The forms that could be written, and why the others could not."""

    forms: list[Form] = dataclasses.field(default_factory=list)
    left_out: dict[str, str] = dataclasses.field(default_factory=dict)


def place_of(name: str, room: Path) -> Path:
    """Returns where a form is written below a folder."""
    return room / name / f"data{FORMATS[name].ending}"


def write_forms(source: StoredDataset, count: int, formats: Sequence[str], room: Path, report: Report) -> Written:
    """Writes the first `count` samples in each of the formats, below the folder `room`.

    A format that cannot hold them is left out; an error of the source, or of the disk, leaves nothing behind.
    """
    written = Written()
    running: dict[str, _Writing] = {}
    try:
        for name in formats:
            _begin(name, source.schema, room, running, written)
        samples = 0
        for block in first_blocks(source, count):
            for name in list(running):
                _step(name, running, written, lambda writer, block=block: writer.append(block))  # type: ignore[misc]
            samples += len(block)
            report("writing the formats", samples / count)

        for number, name in enumerate(names := list(running)):
            report(f"completing {name}", number / len(names))
            _step(name, running, written, lambda writer: writer.seal())
            if name in running:
                done = running.pop(name)
                written.forms.append(Form(name, str(place_of(name, room)), done.folder, done.seconds))
    except BaseException:
        for writing in running.values():
            writing.writer.abort()
        for name in formats:
            shutil.rmtree(room / name, ignore_errors=True)
        raise

    return written


def _begin(name: str, schema: Schema, room: Path, running: dict[str, _Writing], written: Written) -> None:
    chosen = format_named(name)
    reasons = {}
    for field in reversed(schema.fields):
        if (why := chosen.refusal(field)) is not None:
            reasons[why] = field.name

    if reasons:
        written.left_out[name] = "; ".join(f"{column}: {why}" for why, column in reversed(reasons.items()))
        return

    folder = room / name
    folder.mkdir()
    try:
        running[name] = _Writing(folder, open_writer(place_of(name, room), schema, name))
    except HeadraceError as error:
        written.left_out[name] = in_one_line(error)
        shutil.rmtree(folder)


def _step(name: str, running: dict[str, _Writing], written: Written, step: Callable[[Writer], None]) -> None:
    """Goes one step further with a form; without it if it cannot hold the samples after all."""
    writing = running[name]
    began = time.perf_counter()
    try:
        step(writing.writer)
    except HeadraceError as error:
        writing.writer.abort()
        del running[name]
        shutil.rmtree(writing.folder, ignore_errors=True)
        written.left_out[name] = in_one_line(error)

    writing.seconds += time.perf_counter() - began


def first_blocks(source: StoredDataset, count: int) -> Iterator[Block]:
    """Reads the first `count` samples, one run of neighbours after the other."""
    for run in source.reader.blocks():
        if run.start >= count:
            return
        yield source.reader.fetch(np.arange(run.start, min(run.stop, count)), source.schema.names)


def in_one_line(error: Exception) -> str:
    """Returns what an error says, without places."""
    # An error without a text has no first line.
    first, *lines = str(error).splitlines() or [type(error).__name__]
    sentences = [first]
    for line in lines:
        name, _, text = line.strip().partition(":")
        if name in ("found", "fix"):
            sentences.append(text.strip())

    return "; ".join(sentences)
