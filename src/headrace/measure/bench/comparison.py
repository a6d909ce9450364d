"""The whole measurement: a part of the user's data in every form, each form checked, then measured in rounds."""

from __future__ import annotations

import contextlib
import gc
import shutil
import statistics
import tempfile
import time
import warnings
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np

from headrace.core.errors import DatasetError, HeadraceError, UsageError
from headrace.core.files.temporary_folder import temporary_folder
from headrace.core.process.machine import cores
from headrace.core.text.urls import is_url, shown_url
from headrace.data import opening
from headrace.data.formats.registry import FORMATS, format_named
from headrace.data.stored import StoredDataset
from headrace.loader.dataloader import DataLoader
from headrace.measure.bench.disk import footprint_of
from headrace.measure.bench.forms import Form, Report, in_one_line, place_of, write_forms
from headrace.measure.bench.loader_passes import (
    ORDERS,
    LoaderChoice,
    Order,
    epoch_checksum,
    loader_choices,
    make_loader,
    samples_per_second,
)
from headrace.storage.locations import local_path
from headrace.telemetry.neighbours import OTHERS, Neighbours
from headrace.telemetry.recording import Recording

ROUNDS = 3
"""How often each form has its turn; the figures are medians of so many."""

ENOUGH = 200_000_000
"""Bytes of samples that are taken if the user names no number."""

MOST = 100_000
"""Samples that are taken at most if the user names no number."""

FILES = 5_000
"""Samples beyond which forms that make a file of each are left out, unless the user names them."""

LOOKED_AT = 64


@dataclass(frozen=True)
class BenchOptions:
    """What to measure. `samples`: how many of the first ones; None: about `ENOUGH` bytes, `MOST` at most."""

    uri: str
    columns: Sequence[str] | None = None
    batch_size: int = 64
    workers: Sequence[int] = (0, 2)
    samples: int | None = None
    seconds: float = 2.0
    """For each speed, all rounds together."""
    formats: Sequence[str] | None = None
    keep: Path | None = None
    """Where the forms stay; None: in a temporary folder that is removed."""
    format: str | None = None
    trust: bool = False
    store: Mapping[str, object] | None = None
    """Options of the store that a URL names."""

    @property
    def place(self) -> str:
        """What `uri` names, without what may be secret in it."""
        return shown_url(local_path(self.uri))

    @property
    def is_elsewhere(self) -> bool:
        """Whether the data lie in a store, and not on this machine."""
        return is_url(self.place)


@dataclass
class FormFigures:
    """What was measured of one form. Speeds are in samples per second, one a round."""

    form: Form
    bytes: int
    files: int
    length: int
    """How many samples those bytes hold."""
    speeds: dict[tuple[LoaderChoice, Order], list[float]] = field(default_factory=dict)
    checks: dict[LoaderChoice, bool] = field(default_factory=dict)
    """Whether an epoch delivered what the source holds."""
    failures: dict[LoaderChoice, str] = field(default_factory=dict)
    """Why there was no such epoch."""
    opening: list[float] = field(default_factory=list)
    first_sample: list[float] = field(default_factory=list)
    """Seconds, the opening included."""
    recordings: dict[LoaderChoice, Recording] = field(default_factory=dict)
    """Of the latest round in random order, for headrace's loader, where the data are read over a network."""

    @property
    def is_right(self) -> bool:
        """Whether all that was checked was right."""
        return all(self.checks.values()) and not self.failures

    @property
    def is_safe_with_workers(self) -> bool | None:
        """Whether epochs with workers were right; None if none was measured."""
        found = []
        for choice in (*self.checks, *self.failures):
            if choice.workers:
                found.append(self.checks.get(choice, False))

        if found:
            return all(found)
        return None

    def speed(self, choice: LoaderChoice, order: Order) -> float | None:
        """Returns the median speed; None if it could not be measured."""
        speeds = self.speeds.get((choice, order))
        if speeds:
            return statistics.median(speeds)
        return None

    def best_random(self) -> float:
        """Returns the speed of headrace's loader in random order, with its best number of workers; 0 if none."""
        choices = set()
        for choice, _ in self.speeds:
            if choice.loader == "headrace":
                choices.add(choice)

        return max((self.speed(choice, "random") or 0.0 for choice in choices), default=0.0)

    def best_rounds(self) -> list[float]:
        """Returns the speeds of all rounds of that loader; none if it could not be measured."""
        rounds = []
        for (choice, order), speeds in self.speeds.items():
            if choice.loader == "headrace" and order == "random":
                rounds.append(speeds)

        return max(rounds, key=statistics.median, default=[])

    def best_recording(self) -> Recording | None:
        """Returns that of the fastest loader in random order; None where nothing was read over a network."""
        best = max(self.recordings, key=lambda choice: self.speed(choice, "random") or 0.0, default=None)
        if best is None:
            return None
        return self.recordings[best]


@dataclass
class Comparison:
    """The outcome. `figures`: the quickest in random order first; the source is among them."""

    options: BenchOptions
    source: StoredDataset
    samples: int
    checksum: int
    choices: list[LoaderChoice]
    figures: list[FormFigures]
    left_out: dict[str, str]
    neighbours: Neighbours = field(default_factory=Neighbours)
    """What other processes took of the cores while speeds were measured."""

    @property
    def other_cores(self) -> float:
        """How many cores other processes took, on average; 0 where the machine does not tell."""
        return self.neighbours.other_cores

    @property
    def machine_is_busy(self) -> bool:
        """Whether other processes took cores that the loaders could have had: no core was left idle."""
        if self.other_cores < OTHERS:
            return False
        own_cores = self.neighbours.own / self.neighbours.seconds
        return cores() - own_cores - self.other_cores < 1.0

    @property
    def now(self) -> FormFigures:
        """The figures of the data as they are now."""
        return next(figures for figures in self.figures if figures.form.is_source)

    @property
    def is_right(self) -> bool:
        """Whether every form delivered what the source holds."""
        return all(figures.is_right for figures in self.figures)


def compare(options: BenchOptions, report: Report | None = None) -> Comparison:
    """Writes the forms, checks and measures them.

    Raises `HeadraceError`; that, and an interruption, leaves nothing behind.
    """
    _check(options)
    tell = report or (lambda what, done: None)
    try:
        source = opening.open(
            options.uri,
            options.columns,
            format=options.format,
            trust=options.trust,
            decode=False,
            options=options.store,
        )
        count = samples_of(options, source)
        with _room(options) as room:
            left_out = _too_many_files(options, count)
            if options.formats is None and count == len(source):
                left_out[source.format] = "the data are in it now: that is measured"

            formats = []
            for name in _formats(options):
                if name not in left_out:
                    formats.append(name)

            written = write_forms(source, count, formats, room, tell)
            now = Form(source.format, options.place)
            comparison = Comparison(
                options, source, count, 0, loader_choices(options.workers), [], {**written.left_out, **left_out}
            )
            _measure(comparison, [now, *written.forms], tell)
    except OSError as error:
        if isinstance(error, HeadraceError):
            raise
        place = error.filename or options.keep or tempfile.gettempdir()
        found = error.strerror or error
        fix = "make room, or choose another folder with --keep or the variable TMPDIR"
        raise DatasetError.about("cannot write or read a format", place=place, found=found, fix=fix) from error

    return comparison


def _too_many_files(options: BenchOptions, count: int) -> dict[str, str]:
    """Returns the forms that would take minutes to write, each file flushed to the disk, with the reason."""
    if options.formats is not None or count <= FILES:
        return {}
    reason = f"{count:,} samples would make as many files; to have it measured, name it with --formats"
    return dict.fromkeys(("pt", "folder"), reason)


def _formats(options: BenchOptions) -> list[str]:
    if options.formats is None:
        return list(FORMATS)
    return list(dict.fromkeys(options.formats))  # each once


def _check(options: BenchOptions) -> None:
    for name in _formats(options):
        format_named(name)

    rules = {
        "batch size": (options.batch_size, options.batch_size >= 1, "1 or more"),
        "workers": (
            list(options.workers),
            bool(options.workers) and min(options.workers) >= 0,
            "0 or more, such as 0,2",
        ),
        "samples": (options.samples, options.samples is None or options.samples >= 1, "1 or more"),
        "seconds": (options.seconds, 0 < options.seconds < float("inf"), "more than 0"),
    }
    for name, (found, holds, expected) in rules.items():
        if not holds:
            raise UsageError.about("cannot measure", place=name, found=found, expected=expected)

    if options.keep is not None:
        for name in _formats(options):
            if (taken := place_of(name, options.keep).parent).exists():
                fix = "choose another folder"
                raise UsageError.about("there is something already", place=taken, expected="nothing", fix=fix)


@contextlib.contextmanager
def _room(options: BenchOptions) -> Iterator[Path]:
    """Gives a folder for the forms; what was made in the user's own goes again if the measurement fails."""
    if options.keep is None:
        with temporary_folder("headrace-bench-") as room:
            yield room
        return

    new = []
    for path in (options.keep, *options.keep.parents):
        if not path.exists():
            new.append(path)

    options.keep.mkdir(parents=True, exist_ok=True)
    with contextlib.ExitStack() as undo:
        for folder in reversed(new):
            undo.callback(_remove_empty, folder)
        for name in _formats(options):
            undo.callback(_remove_form, options.keep / name)
        yield options.keep
        undo.pop_all()


def _remove_form(folder: Path) -> None:
    shutil.rmtree(folder, ignore_errors=True)


def _remove_empty(folder: Path) -> None:
    with contextlib.suppress(OSError):
        folder.rmdir()


def samples_of(options: BenchOptions, source: StoredDataset) -> int:
    """Returns how many samples are taken. Raises `DatasetError` if there are none."""
    if len(source) == 0:
        place = source.reader.place
        raise DatasetError.about("there is nothing to measure", place=place, found="no samples", expected="some")

    if options.samples is not None:
        return min(options.samples, len(source))
    return min(len(source), MOST, max(ENOUGH // max(bytes_of_sample(source), 1), 1))


def bytes_of_sample(source: StoredDataset) -> int:
    """Returns how many bytes a sample has in memory, about."""
    keys = np.arange(min(len(source), LOOKED_AT))
    block = source.reader.fetch(keys, source.schema.names).take(keys)
    nbytes = 0
    for name in source.schema.names:
        nbytes += block.columns[name].nbytes

    return nbytes // len(keys)


def _measure(comparison: Comparison, forms: Sequence[Form], report: Report) -> None:
    for number, form in enumerate(forms):
        report(f"checking {form.format}", number / len(forms))
        figures = _checked(comparison, form)
        if figures.checks:
            comparison.figures.append(figures)
        else:
            reasons = "; ".join(dict.fromkeys(figures.failures.values()))
            comparison.left_out[form.format] = f"it was written, but cannot be read: {reasons}"

    for number in range(ROUNDS):
        if number % 2 == 0:
            turns = comparison.figures
        else:
            turns = comparison.figures[::-1]

        for turn, figures in enumerate(turns):
            report(f"measuring {figures.form.format}", (number + turn / len(turns)) / ROUNDS)
            comparison.neighbours.begin()
            _take_turn(comparison, figures)
            comparison.neighbours.look()

    comparison.figures.sort(key=lambda one: (all(one.checks.values()), one.best_random()), reverse=True)


def _checked(comparison: Comparison, form: Form) -> FormFigures:
    """Runs one epoch with every loader; that of the source, in torch's loader, says what is right."""
    count = comparison.samples
    batch_size = comparison.options.batch_size
    if form.folder is None:
        found = footprint_of(comparison.options.uri, comparison.options.store)
    else:
        found = footprint_of(str(form.folder))

    with _opened(form, comparison) as data:
        figures = FormFigures(form, found.bytes, found.files, len(data))
        for choice in comparison.choices:
            is_rule = form.is_source and choice == comparison.choices[0]
            try:
                checksum = epoch_checksum(choice, data, count, batch_size)
            except (HeadraceError, OSError, RuntimeError) as error:  # the last: a worker that died
                if is_rule:
                    raise
                figures.failures[choice] = in_one_line(error)
                continue

            if is_rule:
                comparison.checksum = checksum
            figures.checks[choice] = checksum == comparison.checksum

    return figures


def _take_turn(comparison: Comparison, figures: FormFigures) -> None:
    """Measures everything of one form once."""
    began = time.perf_counter()
    with _opened(figures.form, comparison) as data:
        figures.opening.append(time.perf_counter() - began)
        data[0]
        figures.first_sample.append(time.perf_counter() - began)
        for choice in figures.checks:
            for order in ORDERS:
                loader = make_loader(choice, data, comparison.samples, comparison.options.batch_size, order)
                speed = samples_per_second(loader, comparison.samples, comparison.options.seconds / ROUNDS)
                figures.speeds.setdefault((choice, order), []).append(speed)
                if isinstance(loader, DataLoader) and order == "random" and loader.stats.remote is not None:
                    figures.recordings[choice] = loader.recording
                del loader  # its workers end here


@contextlib.contextmanager
def _opened(form: Form, comparison: Comparison) -> Iterator[StoredDataset]:
    """Opens a form for one turn: what a turn read into memory is gone before the next form has its own."""
    options = comparison.options
    place = form.place
    extra: dict[str, Any] = {"format": form.format}
    if form.is_source:
        place = options.uri
        extra = {"format": options.format, "trust": options.trust, "options": options.store}

    # That a form is slow to parse is what is measured here: the warning about it says nothing new.
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", UserWarning)
        data = opening.open(place, comparison.source.schema.names, decode=False, **extra)

    try:
        yield data
    finally:
        del data
        gc.collect()
