"""Packs stored data into another form: piece by piece, in parallel, and so that a kill costs one piece at most.

    .TARGET.packing/plan        digest of the plan that the pieces belong to
    .TARGET.packing/data/       pieces that are complete: each was written aside, flushed and renamed
    .TARGET.packing/done/       for each of them its length and checksum

Where pieces are the files of the result, `data/` becomes the target in one step; otherwise the target's own writer puts
them together. Nothing is seen at the target before all of it is there.
"""

from __future__ import annotations

import contextlib
import json
import multiprocessing
import os
import shutil
import signal
import threading
import time
from collections.abc import Callable, Iterator
from concurrent.futures import Future, ProcessPoolExecutor, as_completed
from concurrent.futures.process import BrokenProcessPool
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from headrace.convert.plan import IN_SHARDS, Options, Plan, bytes_of_block, make_plan
from headrace.convert.resize import resized
from headrace.core.errors import DatasetError, HeadraceError, UsageError, explain
from headrace.formats import arrow
from headrace.formats.aside import Aside, sync_file, sync_folder, sync_tree
from headrace.formats.columns import Keys
from headrace.formats.file_writer import Growing
from headrace.formats.manifest import checksum, write_manifest
from headrace.formats.protocol import Reader
from headrace.formats.registry import format_named, open_reader, open_writer
from headrace.formats.shards import shard_name, stored_files

RUN = 16 << 20
"""Bytes that are read at a time."""

Report = Callable[[int, int], None]
"""Called with (samples done, samples in all)."""


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


def pack(
    source: str, target: str, options: Options, *, workers: int = 0, trust: bool = False, report: Report | None = None
) -> Packed:
    """Converts stored data; see `Options`. `workers`: processes beside this one; 0: as many as are of use.

    If an earlier run with the same source and options was interrupted, goes on where it was. Raises `FormatError`,
    `SampleError`, `UsageError`, `DatasetNotFoundError`; `DatasetError` if the disk is full or cannot be written.
    """
    began = time.perf_counter()
    reader = open_reader(source, trust=trust)
    target = str(Path(target).expanduser())
    if workers < 0:
        raise UsageError(explain("wrong argument", place="workers", found=workers, expected="0 or more"))
    _check_apart(reader.place, target)
    plan = make_plan(reader, target, options)
    room = Room(plan)
    try:
        with room.locked():
            missing, kept = room.prepare()
            _do(room, missing, workers or min(os.cpu_count() or 1, len(missing)), trust, report or _silent)
            room.assemble()
    except OSError as error:
        if isinstance(error, HeadraceError):
            raise
        raise _disk_error(error, room.path) from error
    path = Path(target)
    files = [one for one in path.rglob("*") if one.is_file()] if path.is_dir() else [path]
    total = sum(one.stat().st_size for one in files)
    seconds = time.perf_counter() - began
    return Packed(target, options.format, plan.length, total, len(files), kept, plan.pieces, seconds)


def _silent(done: int, total: int) -> None:
    pass


def _check_apart(source: str, target: str) -> None:
    other = Path(os.path.realpath(target))
    places = [Path(os.path.realpath(one)) for one in (source, *stored_files(source))]
    if not Path(target).name or any(one == other or other in one.parents or one in other.parents for one in places):
        cure = "choose another target"
        message = explain("source and target overlap", place=target, found=source, expected="two places", cure=cure)
        raise UsageError(message)


def _disk_error(error: OSError, room: Path) -> DatasetError:
    cure = "make room (or choose another target) and run the same command again: what is packed so far is kept"
    found = f"{error.strerror or error}" + (f": {error.filename}" if error.filename else "")
    return DatasetError(explain("packing was interrupted", place=room, found=found, cure=cure))


class Room:
    """The folder beside the target in which pieces gather."""

    def __init__(self, plan: Plan) -> None:
        self.plan = plan
        target = Path(plan.target)
        self.path = target.with_name(f".{target.name}.packing")
        self.data, self.done = self.path / "data", self.path / "done"

    @contextlib.contextmanager
    def locked(self) -> Iterator[None]:
        """Keeps every other pack away from the target. Raises `DatasetError` if one is at it."""
        Aside(self.plan.target, folder=self.plan.in_folder).abort()  # says now what would be in the way later
        if os.name != "posix":  # two packs to one target are not told apart there
            yield
            return
        import fcntl

        lock = self.path / "lock"
        while True:
            self.path.mkdir(parents=True, exist_ok=True)
            with lock.open("a") as file:
                try:
                    fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
                except BlockingIOError as error:
                    cure = "wait until it has ended, or choose another target"
                    what = "another pack is writing this target"
                    raise DatasetError(explain(what, place=self.plan.target, found="its lock", cure=cure)) from error
                if lock.exists() and lock.stat().st_ino == os.fstat(file.fileno()).st_ino:
                    yield
                    return

    def prepare(self) -> tuple[list[int], int]:
        """Returns the pieces that are missing, and how many are there from an earlier run of the same plan."""
        note = self.path / "plan"
        if not self.data.is_dir() or not note.is_file() or note.read_text() != self.plan.digest():
            for folder in (self.data, self.done):
                shutil.rmtree(folder, ignore_errors=True)
                folder.mkdir(parents=True)
            note.write_text(self.plan.digest())
        missing = [piece for piece in range(self.plan.pieces) if not self._is_sound(piece)]
        return missing, self.plan.pieces - len(missing)

    def _is_sound(self, piece: int) -> bool:
        try:
            expected = json.loads((self.done / str(piece)).read_text())
            return bool([*checksum(self.file(piece))] == expected)
        except (OSError, ValueError):
            return False

    def file(self, piece: int) -> Path:
        """Returns where a piece lies."""
        suffix = IN_SHARDS[self.plan.options.format] if self.plan.in_shards else ".arrow"
        return self.data / shard_name(piece, suffix)

    def begin(self, path: Path) -> Growing:
        """Begins a piece, in the form of the target or as Arrow."""
        if self.plan.in_shards:
            writer: Growing = format_named(self.plan.options.format).write_file(path, self.plan.schema)  # type: ignore[attr-defined]
            return writer
        return arrow.write_file(path, self.plan.schema)

    def assemble(self) -> None:
        """Puts the target in place."""
        plan = self.plan
        if plan.in_shards:
            write_manifest(self.data, plan.options.format, plan.length, plan.schema)
            sync_tree(self.data)
            aside = Aside(plan.target, folder=True)
            aside.path.rmdir()
            try:
                self.data.rename(aside.path)
                aside.commit(synced=True)
            except BaseException:
                if aside.path.exists():
                    aside.path.rename(self.data)
                aside.abort()
                raise
        else:
            writer = open_writer(plan.target, plan.schema, plan.options.format)
            try:
                for piece in range(plan.pieces):
                    part = arrow.open_reader(str(self.file(piece)), False)
                    for run in part.blocks():
                        writer.append(part.fetch(np.arange(run.start, run.stop), plan.schema.names))
                writer.seal()
            except BaseException:
                writer.abort()
                raise
        shutil.rmtree(self.path)


def make_piece(room: Room, reader: Reader, piece: int) -> int:
    """Makes one piece, and notes that it is complete. Returns how many samples it has."""
    plan, final = room.plan, room.file(piece)
    new = final.with_name(f".{final.name}")
    writer = room.begin(new)
    try:
        for keys in _runs(plan, reader, piece):
            block = reader.fetch(keys, plan.schema.names)
            if plan.options.resize is not None:
                block = resized(block, keys, plan.options.resize, plan.options.quality, plan.source)
            writer.append(block)
    finally:
        writer.close()
    for path in sorted(final.parent.glob(f".{final.name}*")):  # the piece, and what belongs to it
        sync_file(path)
        path.rename(path.with_name(path.name[1:]))
    sync_folder(final.parent)
    (room.done / str(piece)).write_text(json.dumps(checksum(final)))
    return plan.edges[piece + 1] - plan.edges[piece]


def _runs(plan: Plan, reader: Reader, piece: int) -> Iterator[Keys]:
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


def _do(room: Room, missing: list[int], workers: int, trust: bool, report: Report) -> None:
    plan = room.plan
    total = plan.length
    done = total - sum(plan.edges[piece + 1] - plan.edges[piece] for piece in missing)
    report(done, total)
    if workers <= 1 or len(missing) <= 1:
        reader = open_reader(plan.source, trust=trust)
        for piece in missing:
            done += make_piece(room, reader, piece)
            report(done, total)
        return
    with _pool(min(workers, len(missing)), room, trust) as pool:
        with _interrupts_ignored():  # which workers inherit: Ctrl-C reaches this process too, and it decides
            waiting: list[Future[int]] = [pool.submit(_piece_in_worker, piece) for piece in missing]
        try:
            for future in as_completed(waiting):
                done += future.result()
                report(done, total)
        except BrokenProcessPool as error:
            cure = "run the same command again, it goes on where it was; with --workers 1 if memory is short"
            found = "a worker process ended unexpectedly (killed, or out of memory)"
            raise DatasetError(explain("packing was interrupted", place=room.path, found=found, cure=cure)) from error
        except BaseException:
            _end(pool)
            raise


@contextlib.contextmanager
def _pool(workers: int, room: Room, trust: bool) -> Iterator[ProcessPoolExecutor]:
    context = multiprocessing.get_context("forkserver" if os.name == "posix" else "spawn")
    with ProcessPoolExecutor(workers, context, _begin_worker, (room.plan, trust)) as pool:
        yield pool


@contextlib.contextmanager
def _interrupts_ignored() -> Iterator[None]:
    """Ignores Ctrl-C for a moment, in the main thread; elsewhere Python does not allow it."""
    if threading.current_thread() is not threading.main_thread():
        yield
        return
    before = signal.signal(signal.SIGINT, signal.SIG_IGN)
    try:
        yield
    finally:
        signal.signal(signal.SIGINT, before)


def _end(pool: ProcessPoolExecutor) -> None:
    """Ends the workers at once: what they are at is not in place before it is complete."""
    processes = list((pool._processes or {}).values())
    pool.shutdown(wait=False, cancel_futures=True)
    for process in processes:
        process.terminate()
    for process in processes:
        process.join()


_worker: dict[str, Any] = {}


def _begin_worker(plan: Plan, trust: bool) -> None:
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    _worker["room"], _worker["reader"] = Room(plan), open_reader(plan.source, trust=trust)


def _piece_in_worker(piece: int) -> int:
    try:
        return make_piece(_worker["room"], _worker["reader"], piece)
    except HeadraceError as error:
        raise type(error)(str(error)) from None


def defaults_of(target: str) -> str:
    """Returns the format that a target's name asks for; Arrow if it does not say."""
    endings = {".npz": "npz", ".npy": "npy", ".h5": "hdf5", ".hdf5": "hdf5", ".parquet": "parquet", ".pq": "parquet",
               ".tar": "webdataset", ".csv": "csv", ".tsv": "tsv", ".jsonl": "jsonl", ".ndjson": "jsonl",
               ".lmdb": "lmdb"}  # fmt: skip
    return endings.get(Path(target).suffix.lower(), "arrow")
