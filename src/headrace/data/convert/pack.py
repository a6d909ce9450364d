"""Packs stored data into another form: piece by piece, in parallel, and so that a kill costs one piece at most.

On this machine, pieces gather beside the target (see `data/building/staging_area.py`). Where they are the files of the
result, their folder becomes the target in one step; otherwise the target's own writer puts them together. Nothing is
seen at the target before all of it is there. `bucket/packing.py` packs into a store.
"""

from __future__ import annotations

import errno
import os
import shutil
import time
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path, PurePosixPath
from typing import Any

from headrace.cluster.connection import connect
from headrace.core.errors import DatasetError, HeadraceError, UsageError, wrong_argument
from headrace.core.process.machine import cores
from headrace.core.protocols import is_live
from headrace.core.text.urls import shown_url
from headrace.data.building.pool import On, Report, check_on
from headrace.data.convert.bucket.packing import MakePlan, PackedPieces, PieceMaking, pack_to_bucket, spool_of
from headrace.data.convert.bucket.target import BucketTarget
from headrace.data.convert.job import PackJob, PackSource
from headrace.data.convert.packed import NAMED, Packed
from headrace.data.convert.plan import PackOptions, PackPlan, is_in_folder, is_whole, make_plan
from headrace.data.formats.atomic_target import AtomicTarget
from headrace.data.formats.guards.limits import stored_size
from headrace.data.formats.registry import check_name, format_named, open_reader
from headrace.data.formats.shards import stored_files, stored_objects
from headrace.data.given_data import GivenDatabase, given_data
from headrace.sources.sql.recognition import is_sql
from headrace.storage.listing import lookup
from headrace.storage.locations import bound_path, is_url, local_path, parse
from headrace.storage.stores.store_options import options_for

WANT_SPACE = (errno.ENOSPC, errno.EDQUOT, errno.EFBIG)


USUAL = PackOptions()


def pack(  # noqa: PLR0913 - two places, each with its options
    source: Any,
    target: str | os.PathLike[str],
    options: PackOptions = USUAL,
    *,
    workers: int = 0,
    trust: bool = False,
    report: Report | None = None,
    source_options: Mapping[str, object] | None = None,
    target_options: Mapping[str, object] | None = None,
    query: str | None = None,
    table: str | None = None,
    key: str | None = None,
    on: On = "local",
) -> Packed:
    """Converts stored data. Source and target are paths of this machine, or URLs.

    If an earlier run with the same source and options was interrupted, goes on where it was. Images that cannot be
    decoded are packed as they are, and counted.

    Args:
        source: as `headrace.open` takes it, a database too, or what `headrace.follow` made of a source that never ends,
            with an end (`until="now"`): its records up to there, in their order.
        target: a path of this machine, or a URL.
        options: the format and what else is wanted.
        workers: processes beside this one; 0: as many as are of use.
        trust: also read what could run code when it is opened.
        report: called with (samples done, samples in all).
        source_options: of the store that the source's URL names, such as credentials, where they are not in the
            environment; see docs/howto/credentials.md.
        target_options: likewise, of the target's.
        query: of a database, as in `headrace.open`. A row that is deleted meanwhile is an error.
        table: of a database, likewise.
        key: of a database, likewise.
        on: `"local"`, or `"ray"`: tasks of a Ray cluster make the pieces, `workers` at a time (0: one for each CPU).
            All machines see source and target at the same paths; see docs/howto/pack.md. A log is packed on this
            machine.

    Returns:
        Counts of what was made, such as samples, files, bytes and bad images.

    Raises:
        FormatError: the source is damaged, or the format cannot hold its columns.
        SampleError: an image cannot be resized.
        UsageError: wrong arguments.
        DatasetNotFoundError: there is no such source.
        StorageError: a store does not give or take what is asked.
        DatasetError: the disk is full or cannot be written.

    Examples:
        >>> np.save("x.npy", np.arange(6))
        >>> headrace.pack("x.npy", "x.arrow", headrace.PackOptions(shuffle=0)).samples
        6
    """
    began = time.perf_counter()
    _check_call(source, target, options, workers, trust, on)
    if options.format == "auto":
        options = replace(options, format=format_for(target))

    if is_live(source):
        return _captured(source, target, options, report or _silent)

    if on == "ray":
        # Before the source is looked through, which may take long.
        connect()

    place = local_path(target)
    reading: Mapping[str, object] = {}
    data = given_data(source, query, table, key)
    rows = data.rows(options.columns) if isinstance(data, GivenDatabase) else None
    given = local_path(source) if rows is None else ""
    if is_url(given):
        reading = options_for(given, source_options, "headrace.pack", "source_options")

    way = PieceMaking(PackSource(trust, reading, rows), workers, cores(), report or _silent, on)
    if is_url(place):
        format_named(options.format)
        folder = is_in_folder(options.format, parse(place).key.strip("/"))
        bucket = BucketTarget(place, target_options, options.format, folder=folder)
        place = bucket.url
        made = _pack_there(bucket, lambda: _plan(given, bucket.url, options, way.source), way)
    else:
        place = bound_path(place)
        check_name(place)
        made = _pack_here(_plan(given, place, options, way.source), way)

    seconds = time.perf_counter() - began
    pieces = made.plan.pieces
    return Packed(
        place,
        options.format,
        made.plan.length,
        made.bytes,
        made.files,
        made.kept,
        pieces,
        seconds,
        len(made.bad),
        tuple(made.bad[:NAMED]),
    )


def _check_call(source: object, target: object, options: object, workers: int, trust: object, on: object) -> None:
    """Raises `UsageError` for arguments of other types."""
    for name, path in (("source", source), ("target", target)):
        if not isinstance(path, (str, os.PathLike)) and not (name == "source" and (is_sql(path) or is_live(path))):
            raise wrong_argument(name, path, "a path, or a URL", place="headrace.pack")
    if not isinstance(options, PackOptions):
        expected = 'headrace.PackOptions(...), such as PackOptions("parquet")'
        raise wrong_argument("options", options, expected, place="headrace.pack")
    if not is_whole(workers) or workers < 0:
        raise wrong_argument("workers", workers, "0 or more", place="headrace.pack")
    if not isinstance(trust, bool):
        raise wrong_argument("trust", trust, "True or False", place="headrace.pack")
    check_on(on, "headrace.pack")


def _plan(given: str, target: str, options: PackOptions, source: PackSource) -> PackPlan:
    """Opens the source, and plans. Raises what either does, and `UsageError` if source and target overlap."""
    if source.reader is not None:
        return make_plan(source.reader, target, options)

    if not is_url(given):
        reader = open_reader(given, trust=source.trust, columns=options.columns)
        _check_apart(reader.place, target)
        return make_plan(reader, target, options)

    with lookup(source.options):
        reader = open_reader(given, trust=source.trust, columns=options.columns, options=source.options)
        _check_apart(reader.place, target)
        return make_plan(reader, target, options)


def _pack_there(bucket: BucketTarget, make_plan: MakePlan, way: PieceMaking) -> PackedPieces:
    """Packs to a store."""
    try:
        return pack_to_bucket(bucket, make_plan, way)
    except OSError as error:
        if isinstance(error, HeadraceError):
            raise
        raise _disk_error(error, spool_of(bucket.url)) from error


def _pack_here(plan: PackPlan, way: PieceMaking) -> PackedPieces:
    """Packs to a path of this machine."""
    job = PackJob(plan, way.source)
    try:
        # Says now what would be in the way after hours of work.
        AtomicTarget(plan.target, folder=plan.in_folder).abort()
        kept, bad = job.run(way.workers_for, way.report, way.on)
    except OSError as error:
        if isinstance(error, HeadraceError):
            raise
        raise _disk_error(error, job.staging.path) from error

    path = Path(plan.target)
    if path.is_dir():
        files = []
        for file in path.rglob("*"):
            if file.is_file():
                files.append(file)

    else:
        files = [path]

    return PackedPieces(plan, kept, bad, stored_size(files), len(files))


def _captured(log: Any, target: str | os.PathLike[str], options: PackOptions, report: Report) -> Packed:
    """Packs a log. Raises what `capture` raises, and `UsageError` for options that a log cannot be packed with."""
    from headrace.data.live.capture import capture

    for name in ("columns", "resize", "shards", "shuffle"):
        value = getattr(options, name)
        if value is not None:
            fix = "pack the log first, and what was made of it with these options then"
            raise wrong_argument(name, value, "nothing: a log is written as it is", place="headrace.pack", fix=fix)

    return capture(log, target, options.format, report)


def _silent(done: int, total: int) -> None:
    pass


def _check_apart(source: str, target: str) -> None:
    if is_url(source) != is_url(target):
        return
    if is_url(source):
        overlap = _overlap_in_store(source, target)
    else:
        overlap = _overlap_here(source, target)

    if overlap:
        fix = "choose another target"
        raise UsageError.about("source and target overlap", place=target, found=source, expected="two places", fix=fix)


def _overlap_in_store(source: str, target: str) -> bool:
    """Tells whether an object of the source lies in the target, or the target in the source."""
    one = parse(source)
    other = parse(target)
    if (one.scheme, one.container) != (other.scheme, other.container):
        return False

    new = PurePosixPath(other.key)
    keys = [one.key.rstrip("/")]
    keys += [info.key for info in stored_objects(source)]
    for key in keys:
        path = PurePosixPath(key)
        if path == new or new in path.parents or path in new.parents:
            return True
    return False


def _overlap_here(source: str, target: str) -> bool:
    """Tells whether a file of the source lies in the target, or the target in the source."""
    other = Path(os.path.realpath(target))
    # The target is exchanged as a whole: a source in it would be gone, and a source around it would change as it is
    # read.
    overlap = not Path(target).name
    files = stored_files(source)
    for file in (source, *files):
        path = Path(os.path.realpath(file))
        if path == other or other in path.parents or path in other.parents:
            overlap = True

    if Path(source).is_dir():
        # A folder of the source may be a link to one that lies elsewhere.
        folders = {Path(source, above) for file in files for above in Path(file).relative_to(source).parents}
        overlap = overlap or any(Path(os.path.realpath(folder)) in other.parents for folder in folders)
    return overlap


def _free_bytes(staging: Path) -> str:
    """Returns for an error how much room there is on the disk of a folder; "" where nobody knows."""
    try:
        return f"; {shutil.disk_usage(staging.parent).free:,} bytes are free there"
    except OSError:
        return ""


def _disk_error(error: OSError, staging: Path) -> DatasetError:
    found = f"{error.strerror or error}"
    if error.filename:
        found += f": {error.filename}"

    if error.errno in WANT_SPACE:
        what = "packing was interrupted"
        found += _free_bytes(staging)
        fix = "make room there (or choose another target) and run the same command again: what is packed so far is kept"
    else:
        what = "the data cannot be read, or the target cannot be written"
        fix = "correct the path, let this user read and write there, or choose another target"

    return DatasetError.about(what, place=staging, found=found, fix=fix)


def format_for(target: str | os.PathLike[str]) -> str:
    """Returns the format that a target's name asks for; Arrow if it does not say. Raises `UsageError`."""
    endings = {".npz": "npz", ".npy": "npy", ".h5": "hdf5", ".hdf5": "hdf5", ".parquet": "parquet", ".pq": "parquet",
               ".tar": "webdataset", ".csv": "csv", ".tsv": "tsv", ".jsonl": "jsonl", ".ndjson": "jsonl",
               ".lmdb": "lmdb", ".arrow": "arrow", ".feather": "arrow", ".ipc": "arrow"}  # fmt: skip
    name = local_path(target)
    if is_url(name):
        name = parse(name).key.rstrip("/")

    ending = Path(name).suffix.lower()
    # A folder's name may end in a number: photos-1.5.
    if ending in ("", ".") or ending[1:].isdigit():
        return "arrow"

    if ending not in endings:
        expected = "a folder's name without an ending, or one of " + " ".join(endings)
        fix = "choose one of these endings, a name without a dot, or name the format: --format, or PackOptions(format=)"
        what = "no format has this ending"
        raise UsageError.about(what, place=shown_url(local_path(target)), found=ending, expected=expected, fix=fix)

    return endings[ending]
