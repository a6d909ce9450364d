"""`headrace bench`: the user's own data in every form that can hold them, and how quickly each is read."""

from __future__ import annotations

import itertools
import json
import os
from dataclasses import asdict, replace
from pathlib import Path
from typing import Any

from rich.box import SIMPLE_HEAD
from rich.console import Console
from rich.filesize import decimal
from rich.table import Table

from headrace.core.errors import UsageError
from headrace.core.process.machine import cores
from headrace.core.text.printable import printable
from headrace.data.formats.registry import format_named
from headrace.measure.bench.comparison import ROUNDS, BenchOptions, Comparison, FormFigures, compare
from headrace.measure.bench.forms import GOOD_FOR
from headrace.measure.bench.loader_passes import ORDERS, LoaderChoice
from headrace.observe.diagnosis.diagnose import diagnose
from headrace.observe.diagnosis.finding import Finding
from headrace.telemetry.formatting import some
from headrace.telemetry.progress import stages_bar
from headrace.telemetry.terminal import Terminal

ALIKE = 1.05
"""Speeds that differ by less than this are not told apart."""


def run_bench(options: BenchOptions, *, json_output: bool) -> int:
    """Measures, prints to standard output, and returns the exit status: 1 if a form delivered wrong data, or failed.

    Progress goes to standard error. Raises `HeadraceError`; nothing is left behind then.
    """
    with stages_bar("reading the data") as report:
        comparison = compare(options, report)

    console = Terminal()
    if json_output:
        console.out(json.dumps(as_dict(comparison), indent=2), highlight=False)
    else:
        _print(console, comparison)

    if comparison.is_right:
        return 0
    return 1


def as_dict(comparison: Comparison) -> dict[str, Any]:
    """Returns all figures as plain values."""
    options = comparison.options
    source = comparison.source
    fastest = comparison.figures[0]
    left_out = []
    for name, reason in comparison.left_out.items():
        left_out.append({"format": name, "reason": reason})

    # Keys of JSON are text.
    slower = {}
    for count, names in slower_with_workers(comparison).items():
        slower[str(count)] = names

    return {
        "source": {"place": options.place, "format": source.format, "samples": len(source)},
        "columns": source.schema.to_json(),
        "samples": comparison.samples,
        "batch_size": options.batch_size,
        "seconds": options.seconds,
        "rounds": ROUNDS,
        "cpus": os.cpu_count(),
        "checksum": f"{comparison.checksum:08x}",
        "correct": comparison.is_right,
        "forms": [_form_as_dict(comparison, figures) for figures in comparison.figures],
        "left_out": left_out,
        "machine": {"cores": cores(), "other_cores": comparison.other_cores, "busy": comparison.machine_is_busy},
        "fastest": {"format": fastest.form.format, "is_source": fastest.form.is_source, "ratio": _ratio(comparison)},
        "slower_with_workers": slower,
        "network": _network_as_dicts(comparison),
    }


def _network_as_dicts(comparison: Comparison) -> list[dict[str, Any]]:
    """Returns the findings about the network over which the data are read."""
    return list(map(asdict, network_findings(comparison)))


def network_findings(comparison: Comparison) -> list[Finding]:
    """Returns what bounds the reading of the data as they are now, where that is a network."""
    recording = comparison.now.best_recording()
    if recording is None:
        return []

    # How many workers are best, the table tells.
    setting = replace(recording.setting, tuned=True)
    found = diagnose(replace(recording, setting=setting)).findings
    return [finding for finding in found if finding.stage in ("read", "machine")]


def _form_as_dict(comparison: Comparison, figures: FormFigures) -> dict[str, Any]:
    failures = []
    for choice, why in figures.failures.items():
        failures.append({"loader": choice.loader, "workers": choice.workers, "reason": why})

    speeds = []
    for (choice, order), rounds in figures.speeds.items():
        speeds.append(
            {
                "loader": choice.loader,
                "workers": choice.workers,
                "order": order,
                "samples_per_second": figures.speed(choice, order),
                "rounds": rounds,
            }
        )

    # Forms that were written to be measured are gone again, unless they are kept: their place would lead nowhere.
    location = None
    if figures.form.is_source or comparison.options.keep is not None:
        location = figures.form.place

    return {
        "format": figures.form.format,
        "title": format_named(figures.form.format).TITLE,
        "is_source": figures.form.is_source,
        "place": location,
        "good_for": GOOD_FOR.get(figures.form.format),
        "bytes": figures.bytes,
        "files": figures.files,
        "samples": figures.length,
        "write_seconds": figures.form.write_seconds,
        "open_seconds": figures.opening,
        "first_sample_seconds": figures.first_sample,
        "correct": figures.is_right,
        "safe_with_workers": figures.is_safe_with_workers,
        "failures": failures,
        "speeds": speeds,
    }


def _ratio(comparison: Comparison) -> float | None:
    """Returns how much faster the fastest form is than the data as they are now."""
    now = comparison.now.best_random()
    if now:
        return comparison.figures[0].best_random() / now
    return None


def slower_with_workers(comparison: Comparison) -> dict[int, list[str]]:
    """Returns, for each number of workers, the forms that headrace reads more slowly with them than without."""
    found: dict[int, list[str]] = {}
    for choice in comparison.choices:
        if choice.workers and choice.loader == "headrace":
            for figures in comparison.figures:
                alone = figures.speed(LoaderChoice("headrace", 0), "random")
                together = figures.speed(choice, "random")
                if alone and together and alone > together * ALIKE:
                    found.setdefault(choice.workers, []).append(_name(figures))

    return found


def _name(figures: FormFigures) -> str:
    if figures.form.is_source:
        return f"{figures.form.format} (now)"
    return figures.form.format


def _print(console: Console, comparison: Comparison) -> None:
    options = comparison.options
    samples = comparison.samples
    if samples == len(comparison.source):
        part = "all"
    else:
        part = "the first"

    _say(console, f"{options.place}: {part} {samples:,} samples, batches of {options.batch_size}")
    for field in comparison.source.schema:
        _say(console, f"  {field.name}: {field}")

    console.print(_speeds(comparison))
    console.print(_properties(comparison))
    if comparison.left_out:
        _say(console, "Not measured:")
        for name, reason in comparison.left_out.items():
            _say(console, f"  {name}: {reason}")

    for line in sentences(comparison):
        _say(console, line)


def _say(console: Console, line: str) -> None:
    console.out(printable(line, kept=""), highlight=False)


def _speeds(comparison: Comparison) -> Table:
    table = Table("", box=SIMPLE_HEAD, padding=(0, 1), pad_edge=False, title="Samples a second", title_justify="left")
    for order in ORDERS:
        for choice in comparison.choices:
            if choice.loader == "torch":
                detail = "torch"
            else:
                detail = f"{choice.workers} workers"
            table.add_column(f"{order}\n{detail}", justify="right")

    for figures in comparison.figures:
        cells = []
        for order, choice in itertools.product(ORDERS, comparison.choices):
            speed = figures.speed(choice, order)
            if speed:
                cells.append(short(speed))
            else:
                cells.append("-")

        table.add_row(_name(figures), *cells)

    return table


def _properties(comparison: Comparison) -> Table:
    table = Table("", "first sample", "size", "files", "workers", "good for", box=SIMPLE_HEAD, padding=(0, 1))
    table.pad_edge = False
    for column in table.columns[1:4]:
        column.justify = "right"

    safe = {True: "safe", False: "NOT SAFE", None: "-"}
    for figures in comparison.figures:
        # The source may have more samples than were measured: its size is shown for as many as the other forms hold.
        share = comparison.samples / figures.length
        milliseconds = f"{1e3 * sorted(figures.first_sample)[len(figures.first_sample) // 2]:,.1f} ms"
        if figures.bytes:
            size = decimal(int(figures.bytes * share))
        else:
            size = "-"

        workers = safe[figures.is_safe_with_workers]
        table.add_row(
            _name(figures), milliseconds, size, f"{figures.files:,}", workers, GOOD_FOR.get(figures.form.format, "")
        )

    return table


def short(number: float) -> str:
    """Returns a speed in at most five characters: 1.23M, 45.6k, 789."""
    for size, unit in ((1e9, "G"), (1e6, "M"), (1e3, "k")):
        if number >= size:
            value = number / size
            if value < 10:
                return f"{value:.2f}{unit}"
            if value < 100:
                return f"{value:.1f}{unit}"
            return f"{value:.0f}{unit}"

    if number < 100:
        return f"{number:.3g}"
    return f"{number:.0f}"


def sentences(comparison: Comparison) -> list[str]:
    """Returns what the figures say, in words."""
    lines = []
    for figures in comparison.figures:
        wrong = []
        for choice, right in figures.checks.items():
            if not right:
                wrong.append(str(choice))

        if wrong:
            lines.append(f"WRONG DATA: {_name(figures)} did not deliver what the source holds ({'; '.join(wrong)}).")
        for choice, why in figures.failures.items():
            lines.append(f"{_name(figures)} failed with {choice}: {why}")

    if comparison.is_right:
        lines.append("Every format delivered the same samples (checksums over whole epochs compared).")

    if comparison.machine_is_busy:
        lines.append(
            f"This machine is busy: other processes took {comparison.other_cores:.1f} of {some(cores(), 'core')}. "
            "So no format is called the fastest here. Measure again when they have ended."
        )
        return lines + _about_places(comparison)

    lines.append(_fastest(comparison))
    for count, names in slower_with_workers(comparison).items():
        if len(names) == len(comparison.figures):
            which = "every format"
        else:
            which = ", ".join(names)

        lines.append(
            f"Slower with {count} workers than without any: {which}. "
            "A batch is made sooner there than a worker hands it over; decoding or augmenting samples changes that."
        )

    return lines + _about_places(comparison)


def _about_places(comparison: Comparison) -> list[str]:
    """Returns from where the formats were read, and where they are now."""
    lines = []
    if comparison.options.is_elsewhere:
        lines.append(
            f"{comparison.now.form.format} (now) was read over the network, and the other formats from this machine: "
            "what is measured is a copy on its disk, not these formats in the store."
        )
        for finding in network_findings(comparison):
            lines.append(f"{finding.name}: {finding.sentence} {finding.advice}")
    if comparison.options.keep is not None:
        lines.append(f"The files are in {comparison.options.keep}.")
    return lines


def _fastest(comparison: Comparison) -> str:
    fastest = comparison.figures[0]
    now = comparison.now
    ratio = _ratio(comparison)
    if ratio is None:
        return f"Fastest in random order: {_name(fastest)}; the data as they are now could not be measured."
    # Neither by the medians, nor if a round of the one was as quick as a round of the other.
    if ratio < ALIKE or min(fastest.best_rounds()) <= max(now.best_rounds()):
        return f"In random order no format is clearly faster than the one that the data are in now, {now.form.format}."

    name = now.form.format
    return f"Fastest in random order: {fastest.form.format}, {ratio:,.1f} times as fast as {name}, the format now."


def options_from(
    uri: str, workers: str, formats: str | None, columns: list[str] | None, keep: Path | None, **more: Any
) -> BenchOptions:
    """Returns the options for what stands on a command line: lists are separated by commas. Raises `UsageError`."""

    counts = numbers_in(workers, "workers")
    names = None
    if formats is not None:
        names = list(map(str.strip, formats.split(",")))

    return BenchOptions(uri, columns, workers=counts, formats=names, keep=keep, **more)


def numbers_in(text: str, place: str) -> list[int]:
    """Returns the numbers in a text such as `0,2`. Raises `UsageError`."""
    try:
        numbers = list(map(int, text.split(",")))
    except ValueError as error:
        raise UsageError.about(
            "cannot measure", place=place, found=repr(text), expected="numbers, such as 0,2"
        ) from error

    if min(numbers) < 0:
        raise UsageError.about("cannot measure", place=place, found=repr(text), expected="numbers, 0 or more")
    return numbers
