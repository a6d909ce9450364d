"""WebDataset: tar shards in which the files of a sample are neighbours and share the name up to its first dot.

`000012.jpg` and `000012.cls` are columns `jpg` and `cls` of one sample; `__key__` is the common name. Columns named by
these endings come decoded: `cls` (a whole number), `txt` and `json` (text), `npy` (an array); all others are bytes. Our
writer names the files of other columns `KEY.NAME.npy`, `.txt` or `.bin`, so that the package webdataset reads them too.
Pickles are refused unless `trust=True`; even then they come as bytes, and unpickling them is the user's own doing.

Shards are read without an index: the headers of a shard are walked when it is reached, which reads 512 bytes a file.
Random access needs the headers of all of them. Our writer keeps them in `SHARD.index`, which saves that walk.
Format: POSIX.1-1988 ustar, with GNU and pax extensions for long names.
"""

from __future__ import annotations

import functools
import io
import logging
import re
import tarfile
from collections.abc import Sequence
from pathlib import Path
from typing import IO, Any

import numpy as np

from headrace.core.errors import FormatError
from headrace.core.randomness.counter_based import spread
from headrace.data.formats.columns import Block, field_of
from headrace.data.formats.columns.schema import Field, Schema
from headrace.data.formats.growing_file import GrowingFileWriter
from headrace.data.formats.manifest import Manifest, files_ending_in, manifest_of
from headrace.data.formats.protocol import Names, Reader, Writer
from headrace.data.formats.shards import is_pattern, shards_of
from headrace.data.formats.tar.kept_index import keep_index
from headrace.data.formats.tar.sample_reader import KEY, TarReader, decoded, new_bytes, place_of_file
from headrace.data.formats.tar.shard_files import LocalTarFiles, RemoteTarFiles, TarFiles
from headrace.data.formats.tar.shard_index import TarIndex
from headrace.data.formats.unreadable import unreadable
from headrace.storage.files import first_bytes, is_file, is_folder
from headrace.storage.locations import is_url

LOGGER = logging.getLogger("headrace")

NAME = "webdataset"
TITLE = "WebDataset tar shards"
SUFFIXES = (".tar",)
PICKLES = re.compile(r"(?:^|\.)(?:pyd|pkl|pickle|pth|pt)$")
LOOKED_AT = 16
PLAIN = re.compile(r"[A-Za-z0-9_\-+]+$")
MEDIA = re.compile(r"(?:jpe?g|png|webp|ppm|pgm|bmp|gif|tiff?|wav|flac|mp3|ogg|mp4|bin)$")


def claims(path: str) -> bool:
    if is_folder(path):
        return bool(files_ending_in(path, SUFFIXES))
    return first_bytes(path, 262)[257:] == b"ustar" or (path.endswith(SUFFIXES) and (is_pattern(path) or is_file(path)))


def refusal(field: Field) -> str | None:
    if not PLAIN.match(field.name) and field.name != KEY:
        return "names of columns become endings of file names: letters, digits, _, - and + only"
    if field.name == KEY and field.kind != "text":
        return f"{KEY} is the name of the sample, and is text"
    if field.kind == "ragged" and field.name == "cls":
        return "an .npy file of 0 dimensions is a number of its own"
    return None


def open_reader(path: str, trust: bool, columns: Names | None = None) -> Reader:
    """See `Format.open_reader`. Reads the headers of the first shard; those of the others are read when needed."""
    return _open(shards_of(path, SUFFIXES), path, manifest_of(path, NAME), trust, columns)


def open_files(files: Sequence[str], place: str, trust: bool, columns: Names | None = None) -> Reader:
    return _open(files, place, None, trust, columns)


def _open(files: Sequence[str], path: str, manifest: Manifest | None, trust: bool, columns: Names | None) -> Reader:
    shards: TarFiles
    if is_url(files[0]):
        shards = RemoteTarFiles(files)
    else:
        shards = LocalTarFiles(files)

    index = shards.index(0)
    if index.without_ending:
        _tell_of_endings(files[0], index)
    if not trust:
        _refuse_pickles(files[0], _wanted(index, columns))

    if manifest is not None:
        endings = {}
        for field in manifest.schema:
            if field.name != KEY:
                endings[field.name] = ending_of(field)

        if len(files) == 1 and index.count != manifest.length:
            error = ValueError(f"{index.count:,} samples where the manifest says {manifest.length:,}")
            raise unreadable(files[0], "tar shard", error)
        return TarReader(path, shards, manifest.schema, endings)

    if index.count == 0:
        if len(files) > 1:
            raise unreadable(files[0], "tar shard", ValueError("a shard without samples"))
        return TarReader(path, shards, Schema((Field(KEY, "text"),)), {})

    schema, endings = _guessed(shards, index, _wanted(index, columns))
    return TarReader(path, shards, schema, endings)


def _tell_of_endings(file: str, index: TarIndex) -> None:
    """Warns of files that are no part of a sample; raises `FormatError` if a shard holds only such."""
    count = index.without_ending
    first = index.first_without_ending
    if index.count == 0:
        found = f"{count:,} without an ending in their names, such as {first}"
        expected = "names such as 0001.jpg and 0001.cls: of a sample, a dot, and of a column"
        fix = "rename the files; or unpack the archive, and open the folder"
        what = "no file of this shard is part of a sample"
        raise FormatError.about(what, place=file, found=found, expected=expected, fix=fix)

    told = "%s: files whose names have no ending are passed over, here and in other shards: %d, such as %s"
    LOGGER.warning(told, file, count, first)


def _wanted(index: TarIndex, columns: Names | None) -> list[str]:
    """Returns the endings of wanted columns; all, if none are named or one of them is not there."""
    wanted = [ending for ending in index.endings if columns is not None and _column_name(ending) in columns]
    if columns is None or {KEY, *map(_column_name, wanted)} < {KEY, *columns}:
        return list(index.endings)
    return wanted


def _refuse_pickles(file: str, endings: Sequence[str]) -> None:
    found = []
    for ending in endings:
        if PICKLES.search(ending):
            found.append(ending)

    if found:
        raise FormatError.about(
            "a shard holds pickles, which could execute anything when they are opened",
            place=file,
            found="files ending in ." + ", .".join(found),
            expected="files of data",
            fix="pack the data in another format; or, if you trust the author, open with trust=True",
        )


def _guessed(shards: TarFiles, index: TarIndex, wanted: Sequence[str]) -> tuple[Schema, dict[str, str]]:
    """Returns the columns of the first shard, of which some samples are looked at, and the endings of their files."""
    fields = [Field(KEY, "text")]
    endings = {}
    file = shards.names[0]
    looked_at = spread(index.count, LOOKED_AT)
    for column, ending in enumerate(index.endings):
        if ending not in wanted:
            continue

        there = looked_at[index.sizes[looked_at, column] >= 0]
        starts = index.starts[there, column]
        sizes = index.sizes[there, column]
        buffer = new_bytes(int(sizes.sum()))
        shards.read(
            [(0, start, start + size) for start, size in zip(starts.tolist(), sizes.tolist(), strict=True)], buffer
        )

        values = []
        at = 0
        for sample, size in zip(there.tolist(), sizes.tolist(), strict=True):
            place = functools.partial(place_of_file, file, index, sample, ending)
            data = buffer[at : at + size]
            if (sample, column) in index.holes:
                data = index.holes[sample, column].filled(data)
            values.append(decoded(ending, data.data, place))
            at += size

        if values:
            name = _column_name(ending)
            fields.append(field_of(name, values, file))
            endings[name] = ending

    return Schema(tuple(fields)), endings


def _column_name(ending: str) -> str:
    """Returns the column of a file: our own double endings lose the second one."""
    stem, _, last = ending.rpartition(".")
    if stem and last in ("npy", "txt", "bin"):
        return stem
    return ending


def ending_of(field: Field) -> str:
    """Returns the ending of the files that hold a field."""
    name = field.name
    if field.kind == "bytes":
        if MEDIA.match(name):
            return name
        return f"{name}.bin"

    if field.kind == "text":
        if name in ("txt", "json"):
            return name
        return f"{name}.txt"

    whole = field.kind == "fixed" and not field.shape and field.dtype == np.int64
    if (name == "cls" and whole) or name == "npy":
        return name
    return f"{name}.npy"


class _TarFile:
    """A growing shard. Its bytes depend on the samples alone."""

    def __init__(self, path: Path, schema: Schema) -> None:
        self._schema = schema
        self.length = 0
        self._path = path
        self._raw: IO[bytes] = path.open("wb")
        self._tar = tarfile.open(  # noqa: SIM115
            fileobj=self._raw, mode="w", format=tarfile.USTAR_FORMAT, encoding="utf-8", errors="surrogateescape"
        )

    def append(self, block: Block) -> None:
        """Adds samples at the end. Raises `FormatError` for names of samples that a tar file cannot hold."""
        for row in block:
            key = row.get(KEY, f"{self.length:09d}")
            # A dot would move the border between the sample's name and the column. `..` and a path from the root would
            # let whoever unpacks the shard write elsewhere.
            stem = key.rpartition("/")[2]
            if not stem or "." in stem or "\0" in key or key.startswith("/") or ".." in key.split("/"):
                expected = "a relative path without dots"
                raise FormatError.about("a sample's name cannot be used", place=KEY, found=repr(key), expected=expected)

            for field in self._schema:
                if field.name != KEY:
                    self._add(f"{key}.{ending_of(field)}", _encoded(field, row[field.name]))
            self.length += 1

    def _add(self, name: str, data: bytes) -> None:
        # No time, no owner: the bytes of a shard depend on the samples alone.
        info = tarfile.TarInfo(name)
        info.size = len(data)
        info.mode = 0o644
        try:
            self._tar.addfile(info, io.BytesIO(data))
        except ValueError as error:
            found = f"{name!r}: {error}"
            raise FormatError.about("a sample's name cannot be used", place=KEY, found=found) from error

    def close(self) -> None:
        """Completes the shard."""
        try:
            self._tar.close()
        finally:
            self._raw.close()
        keep_index(self._path)


def _encoded(field: Field, value: Any) -> bytes:
    if field.kind == "bytes":
        return bytes(value)

    if field.kind == "text":
        if isinstance(value, bytes):
            return value
        encoded: bytes = value.encode("utf-8", "surrogateescape")
        return encoded

    if ending_of(field) == "cls":
        return str(int(value)).encode()

    stream = io.BytesIO()
    np.lib.format.write_array(stream, np.asarray(value), allow_pickle=False)
    return stream.getvalue()


def write_file(path: Path, schema: Schema) -> _TarFile:
    """Begins one shard."""
    return _TarFile(path, schema)


def open_writer(path: str, schema: Schema) -> Writer:
    return GrowingFileWriter(NAME, path, schema, SUFFIXES, write_file)
