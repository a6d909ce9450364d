"""Where the cut should be: what each step costs, measured on a few batches, and what follows for every possible cut.

With n samples, and per sample the seconds r to get it from the dataset, s[i] for step i, c to put it into a batch,
g[k] to get it from a cache behind step k, w[k] to write it there:

    build of cut k       n * (r + s[1] + ... + s[k] + w[k]) / processes
    epoch with cut k     n * (g[k] + s[k+1] + ... + c)      without workers; cut 0 has r for g and no build

The recommended cut costs least over the epochs that are asked for, its build among them; of those that cost nearly the
same the earliest, which takes less room and leaves more to be changed.
"""

from __future__ import annotations

import contextlib
import functools
import shutil
import tempfile
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from headrace.core.batch_memory import OwnMemory
from headrace.core.errors import SampleError, UsageError
from headrace.core.process.machine import cores
from headrace.core.process.memory import machine_memory
from headrace.core.randomness.rng import begin_stream, global_states_kept
from headrace.data.formats.columns import Keys
from headrace.data.staged.batches import collate
from headrace.data.staged.build import one_layout, plan_work
from headrace.data.staged.cache import cached_block
from headrace.data.staged.samples import Columns, Data, as_columns, named
from headrace.data.staged.sources import StepSource, copied, source_of
from headrace.data.staged.step_runner import Pipeline
from headrace.data.stored import StoredDataset
from headrace.telemetry.formatting import seconds as in_words
from headrace.telemetry.terminal import plain_text

if TYPE_CHECKING:
    from rich.console import Console
    from rich.table import Table

    from headrace.data.staged.staged import Staged

BATCHES = 6
"""Batches on which steps are measured; the median counts."""

ALIKE = 1.05
"""Costs that differ by less are the same."""


@dataclass(frozen=True)
class StepCost:
    """What one step takes: seconds a sample, and bytes of a sample behind it (None: it cannot be held in columns)."""

    name: str
    seconds: float
    bytes: float | None


@dataclass(frozen=True)
class CacheCut:
    """What a cut behind so many steps costs. Seconds; bytes on the disk, or in memory with `cache="memory"`."""

    cut: int
    refused: str | None
    build: float = 0.0
    bytes: float = 0.0
    epoch: float = 0.0

    def total(self, epochs: int) -> float:
        """Returns the seconds that a run of so many epochs spends on data."""
        return self.build + epochs * self.epoch


@dataclass(frozen=True)
class CutPlan:
    """What `Staged.plan` has measured, and what follows. Prints itself as a table.

    Attributes:
        samples: of the dataset.
        looked_at: samples that were measured.
        epochs: over how many a build shall pay for itself.
        steps: what each step takes; the first one is the dataset itself.
        batch: seconds a sample to be put into a batch.
        cuts: what a cut behind so many steps costs, from 0 on.
        free: bytes free on the disk.
        memory: bytes of memory of this machine.

    Examples:
        >>> plan = headrace.Staged([1, 2, 3], None, [str, len]).plan(batch_size=2)
        >>> plan.recommended.cut in (0, 1, 2)
        True
    """

    samples: int
    looked_at: int
    epochs: int
    steps: tuple[StepCost, ...]
    batch: float
    cuts: tuple[CacheCut, ...]
    free: int
    memory: int

    @property
    def recommended(self) -> CacheCut:
        """The cut to take."""
        # Cut 0 is always possible: nothing is kept.
        possible = []
        costs = []
        for cut in self.cuts:
            if cut.refused is None and cut.bytes <= 0.9 * self.free:
                possible.append(cut)
                costs.append(cut.total(self.epochs))

        alike = [cut for cut, cost in zip(possible, costs, strict=True) if cost <= min(costs) * ALIKE]
        return alike[0]

    @property
    def advice(self) -> str:
        """What to do, in a sentence."""
        best = self.recommended
        none = self.cuts[0]
        if best.cut == 0:
            return f"Keep nothing: no cache pays for itself within {self.epochs} epochs."

        gain = none.total(self.epochs) / max(best.total(self.epochs), 1e-12)
        if best.bytes < 0.5 * self.memory:
            where = 'cache="memory" or a folder'
        else:
            where = "a folder"

        return (
            f"Cache after step {best.cut} ({self.steps[best.cut].name}), in {where}: {self.epochs} epochs and the "
            f"build take {in_words(best.total(self.epochs))} instead of {in_words(none.total(self.epochs))} "
            f"({gain:.1f}x)."
        )

    def to_json(self) -> dict[str, Any]:
        """Gives all figures as plain values.

        Returns:
            Values by their names.

        Examples:
            >>> plan = headrace.Staged([1, 2, 3], None, str).plan(batch_size=2)
            >>> plan.to_json()["samples"]
            3
        """
        return {
            "samples": self.samples, "looked_at": self.looked_at, "epochs": self.epochs, "batch": self.batch,
            "steps": list(map(vars, self.steps)), "cuts": list(map(vars, self.cuts)),
            "recommended": self.recommended.cut, "advice": self.advice,
        }  # fmt: skip

    def tables(self) -> list[Table]:
        """Returns the tables that it prints."""
        return [self._table_of_steps(), self._table_of_cuts()]

    def _table_of_steps(self) -> Table:
        title = f"Measured on {self.looked_at:,} of {self.samples:,} samples"
        table = _table(title, "step", "us a sample", "bytes a sample")
        for number, step in enumerate(self.steps):
            if number:
                name = f"{number} {step.name}"
            else:
                name = step.name

            if step.bytes is None:
                size = "-"
            else:
                size = f"{step.bytes:,.0f}"

            table.add_row(name, f"{step.seconds * 1e6:,.1f}", size)

        table.add_row("into a batch", f"{self.batch * 1e6:,.1f}", "")
        return table

    def _table_of_cuts(self) -> Table:
        from rich.filesize import decimal

        title = "Predicted for each cache point, without workers"
        table = _table(title, "cache after", "build", "disk or RAM", "epoch", f"{self.epochs} epochs and build")
        for cut in self.cuts:
            if cut.cut:
                name = f"{cut.cut} {self.steps[cut.cut].name}"
            else:
                name = "nothing kept"

            if cut.refused is not None:
                table.add_row(name, "-", "-", "-", "not possible")
                continue

            if cut == self.recommended:
                mark = " <"
            else:
                mark = ""

            build = "-"
            size = "-"
            if cut.cut:
                build = in_words(cut.build)
                size = decimal(int(cut.bytes))

            table.add_row(name, build, size, in_words(cut.epoch), in_words(cut.total(self.epochs)) + mark)

        return table

    def show(self, console: Console) -> None:
        """Prints the tables, why some cache points are not possible, and the advice."""
        for table in self.tables():
            console.print(table)

        for cut in self.cuts:
            if cut.refused is not None:
                text = f"A cache after step {cut.cut} is not possible: {cut.refused}."
                console.print(text, highlight=False, markup=False, soft_wrap=True)

        console.print(self.advice, highlight=False, markup=False, soft_wrap=True)

    def __str__(self) -> str:
        return plain_text(self.show, 110)


def _table(title: str, first: str, *others: str) -> Table:
    """Returns an empty table with a column of names, and columns of numbers."""
    from rich.box import SIMPLE_HEAD
    from rich.table import Table

    table = Table(box=SIMPLE_HEAD, title=title, title_justify="left")
    table.add_column(first, justify="left")
    for name in others:
        table.add_column(name, justify="right")

    return table


def plan(staged: Staged, *, batch_size: int, epochs: int) -> CutPlan:
    """Measures the steps of a dataset, whatever its cut is now; see `Staged.plan`."""
    source = source_of(staged.dataset)
    steps = staged.steps
    length = len(staged.dataset)
    if not length:
        raise UsageError("there is nothing to plan for an empty dataset")

    pipeline = Pipeline(steps, source.streams)
    batches = _batches(length, batch_size)
    with global_states_kept(), tempfile.TemporaryDirectory(prefix="headrace-plan-") as folder:
        begin_stream(None)
        some = np.concatenate(batches)[:: max(len(batches[0]) // 4, 1)]
        pipeline.learn(copied(source.load(some)), named(some, source))
        measured = _Measured(pipeline)
        for keys in batches:
            measured.batch(functools.partial(_loaded, source, keys), staged)
        refused = _refused(staged)
        caches = []
        for parts in measured.columns:
            caches.append(_through_cache(parts, batch_size, staged, Path(folder)))

    seconds = [float(np.median(times)) for times in measured.seconds]
    per_batch = float(np.median(measured.collating))
    names = [f"the dataset ({type(staged.dataset).__name__})", *map(str, steps)]
    costs = []
    for name, taken, cache in zip(names, seconds, caches, strict=True):
        if cache is None:
            costs.append(StepCost(name, taken, None))
        else:
            costs.append(StepCost(name, taken, cache[0]))

    cuts = [CacheCut(0, None, epoch=length * (sum(seconds) + per_batch))]
    for cut in range(1, len(steps) + 1):
        cache = caches[cut]
        if refused[cut] is not None or cache is None:
            cuts.append(CacheCut(cut, refused[cut] or "its samples cannot be held in columns"))
            continue

        size, read, write = cache
        build = length * (sum(seconds[: cut + 1]) / cores() + write)
        if cut < len(steps):
            collating = per_batch
        else:
            collating = 0.0

        rest = sum(seconds[cut + 1 :]) + collating
        cuts.append(CacheCut(cut, None, build, size * length, length * (read + rest)))

    free = shutil.disk_usage(tempfile.gettempdir()).free
    return CutPlan(length, sum(map(len, batches)), epochs, tuple(costs), per_batch, tuple(cuts), free, machine_memory())


def _loaded(source: StepSource, keys: Keys) -> Data:
    return copied(source.load(keys))


def _batches(length: int, size: int) -> list[Keys]:
    """Returns the keys of some batches, spread over the data."""
    count = min(BATCHES, max(length // size, 1))
    starts = np.linspace(0, max(length - size, 0), count).astype(np.int64)
    return [np.arange(start, min(start + size, length)) for start in starts]


class _Measured:
    """Seconds a sample of each step, the source being number 0, and the columns behind it."""

    def __init__(self, pipeline: Pipeline) -> None:
        self._pipeline = pipeline
        count = len(pipeline.steps) + 1
        self.seconds: list[list[float]] = []
        self.columns: list[list[Columns] | None] = []
        for _ in range(count):
            self.seconds.append([])
            self.columns.append([])
        self.collating: list[float] = []

    def batch(self, load: Callable[[], Data], staged: Staged) -> None:
        """Measures one batch."""
        data = self._timed(0, load)
        for index, step in enumerate(self._pipeline.steps):
            number = self._pipeline.first + index
            before = data
            data = self._timed(index + 1, functools.partial(self._pipeline.part, (step,), number, before, str))

        began = time.perf_counter()
        # Samples that columns cannot hold are collated by torch, which costs about as much.
        with contextlib.suppress(SampleError):
            collate(self._pipeline.columns(data, self._pipeline.last, str), staged.ragged, OwnMemory())

        self.collating.append((time.perf_counter() - began) / len(data))

    def _timed(self, index: int, work: Callable[[], Data]) -> Data:
        began = time.perf_counter()
        data = work()
        self.seconds[index].append((time.perf_counter() - began) / len(data))
        columns = self.columns[index]
        if columns is not None:
            try:
                columns.append(as_columns(copied(data), str))
            except SampleError:
                self.columns[index] = None

        return data


def _refused(staged: Staged) -> list[str | None]:
    """Returns for each cut why it may not be, as far as randomness goes."""
    source = source_of(staged.dataset)
    steps = staged.steps
    length = len(staged.dataset)
    refused: list[str | None] = [None] * (len(steps) + 1)
    declared = 0
    while declared < len(steps) and not steps[declared].random:
        declared += 1

    for cut in range(declared + 1, len(steps) + 1):
        refused[cut] = f"step {declared + 1} ({steps[declared].name}) is random"

    # From the last cut that may be possible downwards: a cut behind steps that give the same each time is possible for
    # fewer of them, too.
    for cut in range(declared, 0, -1):
        try:
            plan_work(source, steps[:cut], length, freeze_random=False)
            break
        except SampleError:
            continue
        except UsageError as error:
            # The text of an error has a line "place: ..." and one "found: ...".
            lines = {}
            for line in str(error).splitlines()[1:]:
                word, colon, text = line.strip().partition(":")
                if colon:
                    lines[word] = text

            refused[cut] = f"{lines.get('place', '').strip()}: {lines.get('found', str(error)).strip()}"

    return refused


def _through_cache(
    parts: list[Columns] | None, batch_size: int, staged: Staged, folder: Path
) -> tuple[float, float, float] | None:
    """Returns bytes a sample, and seconds a sample to read it from a cache in memory, and to write it to the disk."""
    from headrace.data.formats.arrow import ipc  # with pyarrow, which takes long to load

    if not parts:
        return None

    try:
        whole = one_layout(parts)
    except SampleError:
        return None

    if not whole.block.schema.fields:
        return None

    path = folder / "written.arrow"
    began = time.perf_counter()
    file = ipc.write_file(path, whole.block.schema)
    file.append(whole.block)
    file.close()
    # Twice: pieces are written, and then put together.
    write = 2 * (time.perf_counter() - began)
    cached = cached_block(whole.node, whole.block, len(whole))
    if cached.reader is None:
        return None

    stored = StoredDataset(cached.reader, cached.schema, decode=False, ragged=staged.ragged)
    order = np.random.default_rng(0).permutation(len(whole))
    times = []
    for start in range(0, max(len(order) - batch_size, 0) + 1, batch_size):
        keys = order[start : start + batch_size]
        began = time.perf_counter()
        stored.fetch_batch(keys, OwnMemory())
        times.append((time.perf_counter() - began) / len(keys))

    return whole.block.nbytes / len(whole), float(np.median(times)), write / len(whole)
