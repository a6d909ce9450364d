"""Packs stored data into another form: piece by piece, in parallel, and so that a kill costs one piece at most.

PackJob gather beside the target (see `data/building/staging_area.py`). Where they are the files of the result, their
folder becomes the target in one step; otherwise the target's own writer puts them together. Nothing is seen at the
target before all of it is there.
"""

from __future__ import annotations

import errno
import json
import os
import time
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from headrace.core.errors import DatasetError, HeadraceError, UsageError, wrong_argument
from headrace.core.machine import cores
from headrace.core.urls import refuse_url
from headrace.data.building.pool import Report, make_pieces
from headrace.data.building.staging_area import StagingArea
from headrace.data.convert.bad_images import bad_images
from headrace.data.convert.plan import IN_SHARDS, PackOptions, PackPlan, bytes_of_block, is_whole, make_plan
from headrace.data.convert.resize import resized
from headrace.data.formats.atomic_target import AtomicTarget, sync_file, sync_tree
from headrace.data.formats.columns import Keys
from headrace.data.formats.growing_file import GrowingFile
from headrace.data.formats.guards.limits import stored_size
from headrace.data.formats.manifest import write_manifest
from headrace.data.formats.protocol import Reader
from headrace.data.formats.registry import check_name, format_named, open_reader, open_writer
from headrace.data.formats.shards import stored_files

NAMED = 20
"""Bad images that are named; all are counted."""

WANT_SPACE = (errno.ENOSPC, errno.EDQUOT, errno.EFBIG)

RUN = 16 << 20
"""Bytes that are read at a time."""


@dataclass(frozen=True)
class Packed:
    """What was made. `kept`: pieces that an earlier run had left."""

    target: str
    format: str
    samples: int
    bytes: int
    files: int
    kept: int
    pieces: int
    seconds: float
    bad: int = 0
    """Images that cannot be decoded. They were packed as they are."""
    bad_samples: tuple[str, ...] = ()
    """The first of them: number and fault, at most `NAMED`."""


USUAL = PackOptions()


def pack(
    source: str | os.PathLike[str],
    target: str | os.PathLike[str],
    options: PackOptions = USUAL,
    *,
    workers: int = 0,
    trust: bool = False,
    report: Report | None = None,
) -> Packed:
    """Converts stored data; see `PackOptions`. `workers`: processes beside this one; 0: as many as are of use.

    If an earlier run with the same source and options was interrupted, goes on where it was. Raises `FormatError`,
    `SampleError` (an image that cannot be resized), `UsageError`, `DatasetNotFoundError`; `DatasetError` if the disk is
    full or cannot be written. Images that cannot be decoded are packed as they are, and counted.
    """
    began = time.perf_counter()
    for name, path in (("source", source), ("target", target)):
        if not isinstance(path, (str, os.PathLike)):
            raise wrong_argument(name, path, "a path", place="headrace.pack")

    source = os.fspath(source)
    target = os.fspath(target)
    refuse_url(source, "SOURCE")
    refuse_url(target, "TARGET")
    target = str(Path(target).expanduser())
    check_name(target)
    reader = open_reader(source, trust=trust)
    if not is_whole(workers) or workers < 0:
        raise wrong_argument("workers", workers, "0 or more", place="headrace.pack")

    _check_apart(reader.place, target)
    plan = make_plan(reader, target, options)
    pieces = PackJob(plan, trust=trust)
    try:
        # Says now what would be in the way after hours of work.
        AtomicTarget(plan.target, folder=plan.in_folder).abort()
        with pieces.staging.locked():
            missing = pieces.staging.prepare()
            _make(pieces, missing, workers or min(cores(), len(missing)), report or _silent)
            bad = pieces.bad_samples()
            pieces.assemble()
    except OSError as error:
        if isinstance(error, HeadraceError):
            raise
        raise _disk_error(error, pieces.staging.path) from error

    path = Path(target)
    if path.is_dir():
        files = []
        for file in path.rglob("*"):
            if file.is_file():
                files.append(file)

    else:
        files = [path]

    total = stored_size(files)
    seconds = time.perf_counter() - began
    return Packed(
        target,
        options.format,
        plan.length,
        total,
        len(files),
        plan.pieces - len(missing),
        plan.pieces,
        seconds,
        len(bad),
        tuple(bad[:NAMED]),
    )


def _silent(done: int, total: int) -> None:
    pass


def _check_apart(source: str, target: str) -> None:
    other = Path(os.path.realpath(target))
    # The target is exchanged as a whole: a source in it would be gone, and a source around it would change as it is
    # read.
    overlap = not Path(target).name
    for file in (source, *stored_files(source)):
        path = Path(os.path.realpath(file))
        if path == other or other in path.parents or path in other.parents:
            overlap = True

    if overlap:
        cure = "choose another target"
        raise UsageError.about(
            "source and target overlap", place=target, found=source, expected="two places", cure=cure
        )


def _disk_error(error: OSError, staging: Path) -> DatasetError:
    found = f"{error.strerror or error}"
    if error.filename:
        found += f": {error.filename}"

    if error.errno in WANT_SPACE:
        what = "packing was interrupted"
        cure = "make staging (or choose another target) and run the same command again: what is packed so far is kept"
    else:
        what = "the data cannot be read, or the target cannot be written"
        cure = "correct the path, let this user read and write there, or choose another target"

    return DatasetError.about(what, place=staging, found=found, cure=cure)


class PackJob:
    """The pieces of a plan, as a job for several processes."""

    def __init__(self, plan: PackPlan, *, trust: bool) -> None:
        self.plan = plan
        self._trust = trust
        if plan.in_shards:
            suffix = IN_SHARDS[plan.options.format]
        else:
            suffix = ".arrow"

        self.staging = StagingArea(Path(plan.target), plan.digest(), plan.pieces, suffix)
        self._reader: Reader | None = None

    def begin(self) -> None:
        """See `Job.begin`."""
        self._reader = open_reader(self.plan.source, trust=self._trust)

    def make(self, piece: int) -> None:
        """See `Job.make`."""
        self.staging.keep(piece, lambda path: self._write(path, piece))

    def _write(self, path: Path, piece: int) -> None:
        plan = self.plan
        reader = self._reader
        if reader is None:
            raise RuntimeError("`begin` comes before `make`")

        writer = self.begin_file(path)
        bad: list[str] = []
        try:
            for keys in _runs(plan, reader, piece):
                block = reader.fetch(keys, plan.schema.names)
                if plan.options.resize is not None:
                    block = resized(block, keys, plan.options.resize, plan.options.quality, plan.source)
                else:
                    bad += bad_images(block, keys, plan.source)
                writer.append(block)
        finally:
            writer.close()

        note = self._bad_file(piece)
        note.parent.mkdir(exist_ok=True)
        note.write_text(json.dumps(bad), "utf-8")
        # Before the piece is noted as done: a later run relies on both.
        sync_file(note)

    def _bad_file(self, piece: int) -> Path:
        return self.staging.path / "bad" / str(piece)

    def bad_samples(self) -> list[str]:
        """Returns the number and the fault of each image that cannot be decoded, also those of an earlier run."""
        bad: list[str] = []
        for piece in range(self.plan.pieces):
            bad += json.loads(self._bad_file(piece).read_text("utf-8"))
        return bad

    def begin_file(self, path: Path) -> GrowingFile:
        """Begins a piece, in the form of the target or as Arrow."""
        if self.plan.in_shards:
            writer: GrowingFile = format_named(self.plan.options.format).write_file(path, self.plan.schema)  # type: ignore[attr-defined]
            return writer
        from headrace.data.formats import arrow  # with pyarrow, which takes long to load

        return arrow.write_file(path, self.plan.schema)

    def assemble(self) -> None:
        """Puts the target in place."""
        if self.plan.in_shards:
            self._move_shards()
        else:
            self._write_target()

        self.staging.remove()

    def _move_shards(self) -> None:
        """Makes the folder of pieces the target: the pieces are its shards already."""
        plan = self.plan
        pieces = self.staging.data
        write_manifest(pieces, plan.options.format, plan.length, plan.schema)
        sync_tree(pieces)

        # Renames only from here on. If one of them fails, or Ctrl-C comes between two, the pieces go back to the
        # staging area, where the next run finds them; the target is the old one or the new one at any moment.
        target = AtomicTarget(plan.target, folder=True)
        target.path.rmdir()
        try:
            pieces.rename(target.path)
            target.commit(synced=True)
        except BaseException:
            if target.path.exists():
                target.path.rename(pieces)
            target.abort()
            raise

    def _write_target(self) -> None:
        """Writes all pieces, one after the other, in the format of the target."""
        from headrace.data.formats import arrow

        plan = self.plan
        writer = open_writer(plan.target, plan.schema, plan.options.format)
        try:
            for piece in range(plan.pieces):
                reader = arrow.open_reader(str(self.staging.file(piece)), False)
                for run in reader.blocks():
                    writer.append(reader.fetch(np.arange(run.start, run.stop), plan.schema.names))
            writer.seal()
        except BaseException:
            writer.abort()
            raise


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


def _make(pieces: PackJob, missing: list[int], workers: int, report: Report) -> None:
    plan = pieces.plan
    total = plan.length
    done = total
    for piece in missing:
        done -= plan.edges[piece + 1] - plan.edges[piece]

    report(done, total)

    def made(piece: int, _: None) -> None:
        nonlocal done
        done += plan.edges[piece + 1] - plan.edges[piece]
        report(done, total)

    if os.name == "posix":
        method = "forkserver"
    else:
        method = "spawn"

    make_pieces(pieces, missing, workers, method=method, place=pieces.staging.path, made=made)


def defaults_of(target: str) -> str:
    """Returns the format that a target's name asks for; Arrow if it does not say. Raises `UsageError`."""
    endings = {".npz": "npz", ".npy": "npy", ".h5": "hdf5", ".hdf5": "hdf5", ".parquet": "parquet", ".pq": "parquet",
               ".tar": "webdataset", ".csv": "csv", ".tsv": "tsv", ".jsonl": "jsonl", ".ndjson": "jsonl",
               ".lmdb": "lmdb", ".arrow": "arrow", ".feather": "arrow", ".ipc": "arrow"}  # fmt: skip
    ending = Path(target).suffix.lower()
    # A folder's name may end in a number: photos-1.5.
    if ending in ("", ".") or ending[1:].isdigit():
        return "arrow"

    if ending not in endings:
        expected = "a folder's name without an ending, or one of " + " ".join(endings)
        cure = "choose one of these endings, or name the form: --format"
        raise UsageError.about("no form has this ending", place=target, found=ending, expected=expected, cure=cure)

    return endings[ending]
