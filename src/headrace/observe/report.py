"""A diagnosis and the figures behind it, for the eye: 80 columns, plain text where it goes into a file."""

from __future__ import annotations

import math
from collections.abc import Iterator

from rich.box import SIMPLE_HEAD
from rich.console import Group, RenderableType
from rich.padding import Padding
from rich.table import Table
from rich.text import Text

from headrace.observe.diagnosis.device import copies_line
from headrace.observe.diagnosis.finding import Diagnosis, Finding
from headrace.observe.remote_words import remote_line, source_line
from headrace.observe.stats import LoaderStats, WorkerStats, stats_of
from headrace.telemetry.formatting import gain_in_words, seconds, size, some
from headrace.telemetry.recording import MAIN, Recording, worker_name

NOTABLE = 1.01
"""A predicted gain below this is not worth a word."""


def report(recording: Recording, diagnosis: Diagnosis) -> RenderableType:
    """Returns what a `rich` console prints: the summary, the findings, the stages and the workers."""
    stats = stats_of(recording)
    parts: list[RenderableType] = [_heading(diagnosis)]
    for number, finding in enumerate(diagnosis.findings, 1):
        parts += ["", *_finding(number, finding)]

    stages = _stages(stats, on_device=bool(recording.setting.device))
    if stages.row_count:
        parts += ["", stages]

    # As `Text`, and not as strings: rich would take [brackets] in a worker's name or a label for its markup.
    parts += map(Text, _lines(stats))
    device = copies_line(recording)
    if device:
        parts.append(Text(device))
    return Group(*parts)


def _heading(diagnosis: Diagnosis) -> Text:
    return Text.assemble((diagnosis.label, "bold"), ": ", diagnosis.summary)


def _finding(number: int, finding: Finding) -> Iterator[RenderableType]:
    name = f"{number}. "
    yield Text.assemble((f"{name}{finding.name} ({finding.stage}): ", "bold"), finding.sentence)
    advice = " ".join(filter(None, (finding.advice, _gain(finding))))
    if advice:
        yield Padding(Text(advice, style="green"), (0, 0, 0, len(name)), expand=False)


def _gain(finding: Finding) -> str:
    gain = finding.gain
    if gain is None or gain < NOTABLE:
        return ""
    if finding.interval is not None:
        return f"(about {gain_in_words(gain, finding.interval)} as fast)"
    if gain >= 1.1:
        return f"(about {gain:.1f} times as fast)"
    return f"(about {gain - 1:.0%} faster)"


def _stages(stats: LoaderStats, *, on_device: bool) -> Table:
    table = Table("a batch", box=SIMPLE_HEAD, padding=(0, 1), pad_edge=False)
    for name in ("mean", "p50", "p95", "longest", "all batches"):
        table.add_column(name, justify="right")

    for name, stage in stats.stages.items():
        if stage.seconds:
            shown = "device" if name == "pin" and on_device else name
            table.add_row(shown, *map(seconds, (stage.mean, stage.p50, stage.p95, stage.max, stage.seconds)))

    return table


def _lines(stats: LoaderStats) -> Iterator[str]:
    yield from map(_worker, stats.workers)
    if stats.memory_main:
        if stats.memory_workers:
            workers = f", workers {size(stats.memory_workers)}"
        else:
            workers = ""
        yield f"memory: main {size(stats.memory_main)}{workers}"

    if stats.remote is not None:
        yield remote_line(stats.remote)
    if stats.live is not None:
        yield source_line(stats.live)

    if stats.bad_samples or stats.restarts:
        yield f"{some(stats.bad_samples, 'bad sample')}, {some(stats.restarts, 'worker')} replaced"


def _worker(one: WorkerStats) -> str:
    if one.worker == MAIN:
        name = "main process"
    else:
        name = worker_name(one.worker, one.host)

    if math.isnan(one.busy):
        busy = ""
    else:
        busy = f"busy {one.busy:.0%}, "

    return f"{name}: {busy}{some(one.batches, 'batch', 'batches')}, {seconds(one.seconds)} each"
