"""Packs into a store. Shards are made one at a time in each process, uploaded, and removed from this machine.

Forms that are no shards are made whole in a folder of this machine, and then uploaded file by file.
"""

from __future__ import annotations

import hashlib
import json
import os
import secrets
import shutil
import stat
import tempfile
import threading
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, replace
from pathlib import Path

from headrace.core.errors import DatasetError
from headrace.core.files.atomic_file import write_atomically
from headrace.core.files.disk_names import as_text
from headrace.core.files.file_lock import locked
from headrace.data.building.pool import On, Report
from headrace.data.building.staging_area import raise_busy
from headrace.data.convert.bucket.target import AT_ONCE, BucketTarget, Files, Note, files_of_note
from headrace.data.convert.bucket.uploads import Uploaded, upload_file
from headrace.data.convert.job import PackJob, PackSource, run_job
from headrace.data.convert.pieces import begin_file, suffix_of, write_piece
from headrace.data.convert.plan import PackPlan
from headrace.data.formats.manifest import files_of, manifest_path, manifest_text
from headrace.data.formats.protocol import Reader
from headrace.data.formats.shards import shard_name
from headrace.telemetry.progress import bytes_bar

BAR_AFTER = 1.0
"""Seconds behind which a bar of uploads is shown."""

CONFIRM = 1.0
"""Seconds behind which an upload asks again whether the target is still this run's."""

MakePlan = Callable[[], PackPlan]


@dataclass(frozen=True)
class PackedPieces:
    """What a pack has made. `kept`: pieces that an earlier run had left."""

    plan: PackPlan
    kept: int
    bad: list[str]
    """Number and fault of each image that cannot be decoded."""
    bytes: int
    files: int


@dataclass(frozen=True)
class PieceMaking:
    """How pieces are made."""

    source: PackSource
    workers: int
    """0: as many as are of use."""
    cores: int
    report: Report
    on: On = "local"

    def workers_for(self, pieces: int) -> int:
        """Returns how many processes make so many pieces; 0: as many as a cluster has CPUs."""
        if self.on == "ray":
            return self.workers
        return self.workers or min(self.cores, pieces)


def pack_to_bucket(target: BucketTarget, make_plan: MakePlan, way: PieceMaking) -> PackedPieces:
    """Packs. make_plan: opens the source; it is called once it is known that the target can be written.

    Raises as `headrace.pack`.
    """
    target.refuse_other_content()
    spool = spool_of(target.url)
    with locked(spool / "lock", lambda: raise_busy(target.url)):
        try:
            target.check_writable()
            plan = make_plan()
            if plan.in_shards:
                packed = _pack_shards(target, plan, way, spool)
            else:
                packed = _pack_whole(target, plan, way, spool)
            shutil.rmtree(spool)
        except BaseException:
            _remove_if_unused(spool)
            raise

    return packed


def spool_of(url: str) -> Path:
    """Returns the folder on this machine in which the files for a target are made; it is made if it is not there.

    It is the same for each run of this user, so that a run finds what an earlier one has left. Raises `DatasetError` if
    somebody else has made it.
    """
    user = 0
    if hasattr(os, "geteuid"):
        user = os.geteuid()

    name = hashlib.sha256(f"{user} {url}".encode()).hexdigest()[:16]
    spool = Path(tempfile.gettempdir(), f"headrace-pack-{name}")
    spool.mkdir(mode=0o700, exist_ok=True)
    status = spool.lstat()
    if not stat.S_ISDIR(status.st_mode) or (hasattr(os, "geteuid") and status.st_uid != user):
        fix = "remove it, or name another folder for temporary files: TMPDIR"
        raise DatasetError.about("this is not a folder of this user", place=spool, fix=fix)

    return spool


def _machine(spool: Path) -> str:
    """Returns a text that is in this spool's lock file only: a plan in the store with it is of this machine."""
    lock = spool / "lock"
    if not lock.stat().st_size:
        lock.write_text(secrets.token_hex(16))

    return lock.read_text()


def _remove_if_unused(spool: Path) -> None:
    """Removes a spool in which there is nothing to go on with."""
    if [path.name for path in spool.iterdir()] == ["lock"] and not (spool / "lock").stat().st_size:
        shutil.rmtree(spool)


# -- shards ------------------------------------------------------------------------------------------------------------


class ShardJob:
    """Makes a shard in the spool, uploads and removes it."""

    shared_folder = None
    """See `Job.shared_folder`: a machine needs nothing but the store."""

    def __init__(self, target: BucketTarget, plan: PackPlan, source: PackSource) -> None:
        self._target = target.for_workers()
        self._plan = plan
        self._source = source
        self._spool = Path()
        self._reader: Reader | None = None

    def begin(self) -> None:
        self._reader = self._source.open(self._plan)
        self._target.open()
        # Another machine has a spool of its own.
        self._spool = spool_of(self._target.url)

    def make(self, piece: int) -> Note:
        """See `Job.make`. Returns the note of the piece."""
        if self._reader is None:
            raise RuntimeError("`begin` comes before `make`")

        # Two processes of a cluster may make the same piece at a time, where one is taken for dead that is not.
        folder = Path(tempfile.mkdtemp(prefix=f"piece-{piece}-", dir=self._spool))
        try:
            path = folder / shard_name(piece, suffix_of(self._plan))
            bad = write_piece(self._plan, self._reader, begin_file(self._plan, path), piece)
            files = {}
            # The shard, and what its form puts beside it.
            for file in sorted(folder.iterdir()):
                key = self._target.key_of(file.name)
                found = upload_file(self._target.store, key, file, self._target.confirm)
                files[file.name] = [found.size, found.crc, found.etag]
        finally:
            shutil.rmtree(folder, ignore_errors=True)

        note: Note = {"files": files, "bad": bad}
        # The shard first, then the note that says it is complete: after a kill in between, it is made again.
        self._target.note(piece, note)
        return note


def _pack_shards(target: BucketTarget, plan: PackPlan, way: PieceMaking, spool: Path) -> PackedPieces:
    # Whatever a run that was killed was at: shards are made anew.
    for folder in spool.glob("piece-*"):
        shutil.rmtree(folder)

    notes = target.begin(plan.digest(), _machine(spool))
    missing = [piece for piece in range(plan.pieces) if piece not in notes]
    job = ShardJob(target, plan, way.source)
    workers = way.workers_for(len(missing))
    run_job(job, plan, missing, workers, way.report, place=target.url, made=notes.__setitem__, on=way.on)
    files: dict[str, Uploaded] = {}
    bad: list[str] = []
    for piece in range(plan.pieces):
        files |= files_of_note(notes[piece])
        bad += notes[piece]["bad"]

    listed = {name: [found.size, found.crc] for name, found in sorted(files.items())}
    manifest = manifest_text(target.url, plan.options.format, plan.length, plan.schema, listed)
    target.commit(files, manifest)
    return PackedPieces(plan, plan.pieces - len(missing), bad, _bytes_of(files, manifest), len(files) + 1)


# -- whole forms -------------------------------------------------------------------------------------------------------


def _pack_whole(target: BucketTarget, plan: PackPlan, way: PieceMaking, spool: Path) -> PackedPieces:
    local = spool / "whole" / plan.target.rpartition("/")[2]
    local.parent.mkdir(exist_ok=True)
    digest = plan.digest()
    # Before hours of work; the data that are there stay until the new ones are uploaded.
    target.refuse_other_plan(digest, _machine(spool))
    job = PackJob(replace(plan, target=str(local)), way.source)
    made = spool / "made.json"
    kept = plan.pieces
    if not made.is_file() or json.loads(made.read_text("utf-8"))["digest"] != digest:
        made.unlink(missing_ok=True)
        (spool / "uploaded").unlink(missing_ok=True)
        kept, bad = job.run(way.workers_for, way.report, way.on)
        write_atomically(made, json.dumps({"digest": digest, "bad": bad}).encode())

    target.begin(digest, _machine(spool))
    files = _upload_all(target, local, spool / "uploaded")
    manifest = manifest_path(local).read_text("utf-8")
    target.commit(files, manifest)
    bad = json.loads(made.read_text("utf-8"))["bad"]
    return PackedPieces(plan, kept, bad, _bytes_of(files, manifest), len(files) + 1)


def _upload_all(target: BucketTarget, local: Path, journal: Path) -> Files:
    """Uploads the files of data on this machine, but for those that a journal says were uploaded, and are there."""
    files = target.still_there(_read_journal(journal))
    paths = {"": local}
    if local.is_dir():
        paths = {as_text(Path(relative).as_posix()): local / relative for relative in files_of(local)}

    missing = {name: path for name, path in paths.items() if name not in files}
    total = sum(path.stat().st_size for path in missing.values())
    confirmed = time.monotonic()
    writing = threading.Lock()
    stopped = threading.Event()
    with (
        bytes_bar(f"uploading to {target.url}", total, after=BAR_AFTER) as report,
        journal.open("a", encoding="utf-8") as log,
        ThreadPoolExecutor(AT_ONCE // 4) as threads,
    ):

        def confirm() -> None:
            nonlocal confirmed
            # Not for each of many small files, which takes as long as a request.
            if time.monotonic() > confirmed + CONFIRM:
                target.confirm()
                confirmed = time.monotonic()

        def upload(name: str) -> None:
            found = upload_file(target.store, target.key_of(name), missing[name], confirm, report, stopped)
            with writing:
                files[name] = found
                log.write(json.dumps([name, found.size, found.crc, found.etag]) + "\n")
                log.flush()

        try:
            for _ in threads.map(upload, missing):
                pass
        except BaseException:
            stopped.set()
            threads.shutdown(wait=False, cancel_futures=True)
            raise

    return files


def _read_journal(journal: Path) -> Files:
    """Returns the objects that a journal lists; its last line may have been cut off by a kill."""
    found = {}
    if journal.is_file():
        for line in journal.read_text("utf-8").splitlines():
            try:
                name, size, crc, etag = json.loads(line)
            except ValueError:
                continue
            found[name] = Uploaded(size, crc, etag)

    return found


def _bytes_of(files: Files, manifest: str) -> int:
    return sum(found.size for found in files.values()) + len(manifest)
