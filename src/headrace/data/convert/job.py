"""The pieces of a pack to this machine, which gather beside the target, and the step that makes them the target."""

from __future__ import annotations

import json
import os
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from headrace.core.files.atomic_file import sync_tree, write_atomically
from headrace.data.building.pool import Job, On, Report, make_pieces
from headrace.data.building.staging_area import StagingArea
from headrace.data.convert.pieces import begin_file, suffix_of, write_piece
from headrace.data.convert.plan import PackPlan
from headrace.data.formats.atomic_target import AtomicTarget
from headrace.data.formats.growing_file import GrowingFile
from headrace.data.formats.manifest import write_manifest
from headrace.data.formats.protocol import Reader
from headrace.data.formats.registry import open_reader, open_writer

Made = Callable[[int, Any], None]
"""Called with each piece, and what `Job.make` returned for it."""


def nothing_more(piece: int, result: object) -> None:
    """Does nothing with a piece that was made."""


def run_job(  # noqa: PLR0913 - what is made, where, and who is told
    job: Job,
    plan: PackPlan,
    missing: Sequence[int],
    workers: int,
    report: Report,
    *,
    place: object,
    made: Made = nothing_more,
    on: On = "local",
) -> None:
    """Makes the missing pieces in `workers` processes, and reports how many samples are done; see `make_pieces`.

    on: where; see `make_pieces_on_ray`.
    """
    total = plan.length
    done = total
    for piece in missing:
        done -= plan.edges[piece + 1] - plan.edges[piece]

    report(done, total)

    def count(piece: int, result: Any) -> None:
        nonlocal done
        made(piece, result)
        done += plan.edges[piece + 1] - plan.edges[piece]
        report(done, total)

    if on == "ray":
        from headrace.data.building.ray_pool import make_pieces_on_ray  # without Ray it is of no use

        make_pieces_on_ray(job, missing, workers, place=place, made=count)
        return

    if os.name == "posix":
        method = "forkserver"
    else:
        method = "spawn"

    make_pieces(job, missing, workers, method=method, place=place, made=count)


@dataclass(frozen=True)
class PackSource:
    """How the source is opened, in each process."""

    trust: bool
    options: Mapping[str, object]
    """Of the store that it lies in."""
    reader: Reader | None = None
    """Of a source that cannot be opened by its place alone; sent to each process."""

    def open(self, plan: PackPlan) -> Reader:
        """Opens it for a plan."""
        return self.reader or open_reader(
            plan.source, trust=self.trust, columns=plan.options.columns, options=self.options
        )


class PackJob:
    """The pieces of a plan, as a job for several processes."""

    def __init__(self, plan: PackPlan, source: PackSource) -> None:
        self.plan = plan
        self._source = source
        self.staging = StagingArea(Path(plan.target), plan.digest(), plan.pieces, suffix_of(plan))
        self._reader: Reader | None = None

    @property
    def shared_folder(self) -> Path:
        return self.staging.path

    def begin(self) -> None:
        self._reader = self._source.open(self.plan)

    def make(self, piece: int) -> None:
        self.staging.keep(piece, lambda path: self._write(path, piece))

    def run(self, workers_for: Callable[[int], int], report: Report, on: On) -> tuple[int, list[str]]:
        """Makes what is missing, and puts the target in place; holds the lock of the staging area meanwhile.

        workers_for: returns how many processes make so many pieces. Returns how many pieces an earlier run had left,
        and the number and fault of each image that cannot be decoded.
        """
        with self.staging.locked():
            missing = self.staging.prepare()
            run_job(self, self.plan, missing, workers_for(len(missing)), report, place=self.staging.path, on=on)
            bad = self.bad_samples()
            self.assemble()

        return self.plan.pieces - len(missing), bad

    def _write(self, path: Path, piece: int) -> None:
        if self._reader is None:
            raise RuntimeError("`begin` comes before `make`")

        bad = write_piece(self.plan, self._reader, self.begin_file(path), piece)
        note = self._bad_file(piece)
        note.parent.mkdir(exist_ok=True)
        # Durable before the piece is noted as done: a later run relies on both.
        write_atomically(note, json.dumps(bad).encode(), durable=True)

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
        return begin_file(self.plan, path)

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
        from headrace.data.formats.arrow import ipc

        plan = self.plan
        writer = open_writer(plan.target, plan.schema, plan.options.format)
        try:
            for piece in range(plan.pieces):
                reader = ipc.open_reader(str(self.staging.file(piece)), False)
                for run in reader.blocks():
                    writer.append(reader.fetch(np.arange(run.start, run.stop), plan.schema.names))
            writer.seal()
        except BaseException:
            writer.abort()
            raise
