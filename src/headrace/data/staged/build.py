"""Computes the steps before the cache point for all samples: piece by piece, in parallel, into files or into memory."""

from __future__ import annotations

import contextlib
import dataclasses
import json
import logging
import multiprocessing
import pickle
import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch

from headrace.core.errors import SampleError, UsageError
from headrace.core.process.machine import cores
from headrace.core.randomness.rng import SampleStreams, begin_stream, comparable_states, drawing, global_states_kept
from headrace.data.building.pool import On, Report, make_pieces
from headrace.data.building.staging_area import StagingArea
from headrace.data.formats.columns import Block, Column, Keys, Ragged, concatenated
from headrace.data.formats.columns import joined as end_to_end
from headrace.data.formats.registry import open_writer
from headrace.data.staged.layout import Node, from_json, joined, schema_of, to_json
from headrace.data.staged.sample_columns import fitted
from headrace.data.staged.samples import Columns, Data, as_columns, as_rows, named
from headrace.data.staged.sources import StepSource, copied
from headrace.data.staged.step_runner import Pipeline
from headrace.data.staged.steps import Step

LOGGER = logging.getLogger("headrace")

PIECE = 32 << 20
"""Bytes of a piece, about: what a kill costs at most, in each process."""

LONGEST_PIECE, LONGEST_BLOCK = 16384, 4096
"""Samples of a piece, and of the blocks on which batched steps run, at most."""

LOOKED_AT, TRIED = 16, 4
"""Samples that are computed beforehand, to learn how they are built and whether they are the same each time; and how
many of them batched steps get alone."""

ALONE = 1.0
"""Seconds of work for which other processes are not worth their start."""

FROZEN = 0x57A6ED
"""Names the random streams of steps that are computed once although they draw."""


@dataclass
class BuildJob:
    """The steps to be computed, and how they are cut into pieces. Goes to each process that takes part."""

    source: StepSource
    pipeline: Pipeline
    length: int
    piece: int
    """Samples of a piece."""
    block: int
    """Samples of a block."""
    freeze_random: bool
    staging: StagingArea | None = dataclasses.field(default=None)
    """Where pieces are kept; None: in memory."""
    node: Node | None = None
    """How samples are built, as far as some of them tell."""

    @property
    def pieces(self) -> int:
        """How many pieces there are."""
        return -(-self.length // self.piece)

    def keys(self, piece: int) -> range:
        """Returns which samples make a piece."""
        return range(piece * self.piece, min((piece + 1) * self.piece, self.length))

    @property
    def shared_folder(self) -> Path | None:
        if self.staging is None:
            return None
        return self.staging.path

    def begin(self) -> None:
        """See `Job.begin`."""

    def make(self, piece: int) -> Columns | None:
        """See `Job.make`. Returns the columns, unless they are kept in the staging."""
        with global_states_kept():
            begin_stream(None)
            keys = self.keys(piece)
            parts = []
            try:
                for at in range(0, len(keys), self.block):
                    parts.append(self.computed(keys[at : at + self.block]))
            except OSError as error:
                # To be told from errors of the disk that the cache is written to.
                error.of_a_step = True  # type: ignore[attr-defined]
                raise

            made = one_layout(parts)

        if self.staging is None:
            return made

        staging = self.staging
        block = made.block

        def write(path: Path) -> None:
            from headrace.data.formats.arrow import ipc  # with pyarrow, which takes long to load

            with contextlib.closing(ipc.write_file(path, block.schema)) as file:
                file.append(block)
            path.with_name(path.name + LAYOUT).write_text(json.dumps(to_json(made.node)))

        staging.keep(piece, write)
        return None

    def computed(self, keys: Sequence[int] | Keys) -> Columns:
        """Returns some samples with all steps done. Raises `UsageError` if a step draws random numbers."""

        place = named(keys, self.source)
        if self.freeze_random:
            SampleStreams(FROZEN, seed_globals=True).enter_batch(keys)
            data = self.pipeline.run(copied(self.source.load(keys)), place)
            begin_stream(None)
            return as_columns(data, place)

        with refused_draws("the dataset itself"):
            data = copied(self.source.load(keys))

        for number, step in enumerate(self.pipeline.steps, self.pipeline.first):
            with refused_draws(f"the step {step.name!r}", declared=step.random):
                data = self.pipeline.part((step,), number, data, place)

        return as_columns(data, place)


LAYOUT = ".layout"
"""What the name of the file beside a piece ends in, which says how its samples are built."""


@contextlib.contextmanager
def refused_draws(who: str, *, declared: bool | None = None) -> Iterator[None]:
    """Raises `UsageError` if anybody draws random numbers in the block, unless they say that it does not matter."""
    if declared is False:
        before = None
    else:
        before = (comparable_states(), drawing())

    yield
    if before is not None and before != (comparable_states(), drawing()):
        raise draws_error(who)


def draws_error(who: str) -> UsageError:
    """Returns the error for something random before the cache point."""
    return UsageError.about(
        "something random would be computed once, and then be the same in every epoch",
        place=who,
        found="random numbers drawn before the cache point",
        expected="steps that give the same result each time",
        fix="move it after the cache point (get_item_transform, or .map after .cache), declare it with random=False if "
        "its result does not depend on them, or ask for it with freeze_random=True",
    )


def one_layout(parts: Sequence[Columns]) -> Columns:
    """Returns samples end to end, in the narrowest layout that holds all of them."""
    if len(parts) == 1:
        return parts[0]
    node = joined([part.node for part in parts])
    blocks = []
    for part in parts:
        blocks.append(fitted(part.block, part.node, node))

    return Columns(node, concatenated(schema_of(node), blocks), sum(map(len, parts)))


# -- before the work ---------------------------------------------------------------------------------------------------


def plan_work(
    source: StepSource, steps: tuple[Step, ...], length: int, *, freeze_random: bool
) -> tuple[BuildJob, float]:
    """Returns the work, and the seconds that it takes one process, about. Computes a few samples twice.

    Raises `UsageError` for steps that draw random numbers, or give something else each time.
    """
    work = BuildJob(source, Pipeline(steps, source.streams), length, LONGEST_PIECE, LONGEST_BLOCK, freeze_random)
    for step in steps:
        if step.random and not freeze_random:
            raise draws_error(f"the step {step.name!r}")

    if not length:
        return work, 0.0

    keys = looked_at(length)
    with global_states_kept():
        begin_stream(None)
        work.pipeline.learn(copied(source.load(keys)), named(keys))
        began = time.perf_counter()
        data = work.computed(keys)
        work.node = data.node
        if not data.block.schema.fields:
            found = "no arrays, numbers or strings"
            fix = "have the steps return some, or leave cache= out"
            raise SampleError.about("samples hold nothing that could be kept", found=found, fix=fix)

        seconds = time.perf_counter() - began
        if not freeze_random:
            _check_steady(work, keys)
        elif not _same(data, work.computed(keys)):
            found = "another result for the same random streams: a step has a generator of its own"
            fix = "have it draw from headrace.rng(), or from the global generators"
            raise UsageError.about("random steps cannot be computed once", found=found, fix=fix)

    size = max(data.block.nbytes / len(keys), _bytes_loaded(source, keys), 1.0)
    work.piece = int(min(max(PIECE / size, 1), LONGEST_PIECE))
    work.block = max(min(work.piece, LONGEST_BLOCK), 1)
    return work, seconds * length / len(keys)


def looked_at(length: int) -> Keys:
    """Returns which samples are looked at beforehand, to learn how they are built: some, evenly spread."""
    return np.unique(np.linspace(0, length - 1, min(length, LOOKED_AT)).astype(np.int64))


def _bytes_loaded(source: StepSource, keys: Keys) -> float:
    """Returns the bytes of a sample as it comes from the source; a guess if it is no columns."""
    try:
        return as_columns(source.load(keys), str).block.nbytes / len(keys)
    except SampleError:
        return PIECE / 256


def _check_steady(work: BuildJob, keys: Keys) -> None:
    """Raises `UsageError` if a step gives something else each time, or to a sample that is alone."""
    once = _trail(work, keys)
    again = _trail(work, keys)
    for place, step in enumerate(work.pipeline.steps):
        if step.random is None and not _same(once[place + 1], again[place + 1]):
            raise draws_error(f"the step {step.name!r}")
        if step.batched and not step.random:
            _check_apart(work.pipeline, place, again[place], once[place + 1])


def _trail(work: BuildJob, keys: Keys) -> list[Data]:
    """Returns samples as they come from the source, and after each step."""
    trail = [copied(work.source.load(keys))]
    for number, step in enumerate(work.pipeline.steps, work.pipeline.first):
        trail.append(work.pipeline.part((step,), number, copied(trail[-1], columns=True), named(keys)))
    return trail


def _check_apart(pipeline: Pipeline, at: int, before: Data, together: Data) -> None:
    """Raises `UsageError` if a batched step gives a sample another result when it is alone."""
    step = pipeline.steps[at]
    number = pipeline.first + at
    many = pipeline.columns(before, number, str)
    for index in range(min(len(before), TRIED)):
        alone_columns = Columns(many.node, many.block.take(np.array([index])), 1)
        alone = as_rows(pipeline.part((step,), number, alone_columns, str))[0]
        if not _near(alone, as_rows(together)[index]):
            raise UsageError.about(
                "a batched step gives a sample another result when other samples are with it",
                place=f"the step {step.name!r}",
                found=f"a sample alone is not what it is among {len(before)}",
                expected="the same result, whatever the block",
                fix="compute from each sample alone: what depends on all of them is no step",
            )


def _near(first: Any, other: Any) -> bool:
    """Compares two samples; floating point nearly, since libraries may sum up blocks in another order."""
    if isinstance(first, dict):
        return first.keys() == other.keys() and all(_near(first[key], other[key]) for key in first)
    if isinstance(first, (tuple, list)):
        return len(first) == len(other) and all(map(_near, first, other))
    if not isinstance(first, (np.ndarray, float, np.floating, torch.Tensor)):
        return bool(first == other)

    numbers = np.asarray(first)
    others = np.asarray(other)
    if numbers.shape != others.shape:
        return False
    return bool(np.allclose(numbers, others, rtol=1e-3, atol=1e-5, equal_nan=True))


def _same(first: Data, other: Data) -> bool:
    """Compares samples bit by bit; what cannot be held in columns is taken for the same."""
    try:
        columns = as_columns(first, str)
        others = as_columns(other, str)
    except SampleError:
        return True

    if columns.node != others.node:
        return False

    for name, column in columns.block.columns.items():
        if pickle.dumps(_packed(column)) != pickle.dumps(_packed(others.block.columns[name])):
            return False

    return True


def _packed(column: Column) -> object:
    if isinstance(column, Ragged):
        return column.packed()
    return np.ascontiguousarray(column)


# -- the work ----------------------------------------------------------------------------------------------------------


def workers_for(work: BuildJob, missing: int, seconds: float) -> tuple[int, str]:
    """Returns how many processes are worth it, and how they are started."""
    method = multiprocessing.get_start_method(allow_none=True) or multiprocessing.get_all_start_methods()[0]
    count = min(cores(), missing)
    if seconds < ALONE or multiprocessing.current_process().daemon:
        return 1, method

    # A forked process inherits the steps. Others get them pickled, which a lambda, say, cannot be.
    if method != "fork":
        try:
            pickle.dumps(work)
        except (pickle.PicklingError, AttributeError, TypeError) as error:
            LOGGER.info("headrace: one process builds this cache, since the steps cannot be pickled: %s", error)
            return 1, method

    return count, method


def compute(
    work: BuildJob, missing: Sequence[int], seconds: float, place: object, report: Report, on: On = "local"
) -> list[Columns]:
    """Makes the missing pieces. Returns them, in order, unless they are kept in a staging."""
    made: dict[int, Columns] = {}
    done = work.length
    for piece in missing:
        done -= len(work.keys(piece))

    report(done, work.length)

    def count(piece: int, columns: Columns | None) -> None:
        nonlocal done
        if columns is not None:
            made[piece] = columns
        done += len(work.keys(piece))
        report(done, work.length)

    if on == "ray":
        from headrace.data.building.ray_pool import make_pieces_on_ray  # without Ray it is of no use

        make_pieces_on_ray(work, missing, 0, place=place, made=count)
    else:
        workers, method = workers_for(work, len(missing), seconds)
        make_pieces(work, missing, workers, method=method, place=place, made=count)

    # Pieces come in the order in which processes end with them.
    return [made[piece] for piece in sorted(made)]


def into_memory(parts: list[Columns]) -> Columns:
    """Returns samples end to end, allocated once for each column; empties the list as it goes."""
    node = joined([part.node for part in parts])
    blocks = []
    for part in parts:
        blocks.append(dict(fitted(part.block, part.node, node).columns))

    # Column by column the pieces are let go: at any time one column is there twice, not all of them.
    count = sum(map(len, parts))
    parts.clear()
    schema = schema_of(node)
    columns = {}
    for field in schema:
        pieces = [block.pop(field.name) for block in blocks]
        columns[field.name] = end_to_end(field, pieces)

    return Columns(node, Block(schema, columns), count)


def assemble(work: BuildJob, staging: StagingArea, target: Path, format: str) -> Node:
    """Writes the pieces of a staging area as stored data. Returns the layout of the samples."""
    from headrace.data.formats.arrow import ipc

    nodes = []
    for piece in range(work.pieces):
        path = staging.file(piece)
        nodes.append(from_json(json.loads(path.with_name(path.name + LAYOUT).read_text()), path))

    node = joined(nodes)
    writer = open_writer(target, schema_of(node), format)
    try:
        for piece, layout in enumerate(nodes):
            part = ipc.open_reader(str(staging.file(piece)), False)
            for run_of in part.blocks():
                block = part.fetch(np.arange(run_of.start, run_of.stop), part.schema.names)
                writer.append(fitted(block, layout, node))

        writer.seal()
    except BaseException:
        writer.abort()
        raise

    return node
