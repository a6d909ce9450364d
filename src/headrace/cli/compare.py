"""`headrace compare`: a script with torch's loader and with headrace's, in turn, and one table."""

from __future__ import annotations

import json
import shlex
import statistics
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from rich.box import SIMPLE_HEAD
from rich.console import Console
from rich.table import Table
from rich.text import Text

from headrace.cli.script_file import script_file
from headrace.core.process.machine import cores
from headrace.measure.script_runs import ScriptRun, run_measured
from headrace.observe.report import NOTABLE
from headrace.telemetry.formatting import digits, gain_in_words, some
from headrace.telemetry.neighbours import OTHERS, Neighbours
from headrace.telemetry.terminal import Terminal

LOADERS = {"torch": ["--plain"], "headrace": []}
"""The options of `headrace run` for each loader."""

SEED = ["--seed", "0"]
"""Without a seed no two runs of a script get the same batches."""

DIFFERENCES = "https://github.com/headrace/headrace/blob/main/docs/reference/differences.md"

NOT_RUN = 1
"""The status where a run did not end well, beside that of the script."""


@dataclass(frozen=True)
class Quantity:
    """One row of the table. more_is_better: of a rate; otherwise less is."""

    name: str
    of: Callable[[ScriptRun], float]
    more_is_better: bool = False


TIME = Quantity("time (s)", lambda run: float(run.measurement["seconds"]))
QUANTITIES = (
    TIME,
    Quantity("waiting (s)", lambda run: sum(loader["waited"] for loader in run.loaders)),
    Quantity("first batch (ms)", lambda run: statistics.median(run.busiest["first_batches"]) * 1e3),
    Quantity("samples/s", lambda run: float(run.busiest["samples_per_second"]), more_is_better=True),
    Quantity("CPU time (s)", lambda run: run.cpu_seconds),
    Quantity("memory (MB)", lambda run: run.peak_bytes / 1e6),
)


def compare(
    script: str,
    arguments: Sequence[str],
    *,
    rounds: int,
    as_module: bool,
    seconds: float | None,
    json_file: Path | None,
) -> int:
    """Runs a script with each loader in turn, prints a table, and what to change; returns the exit status.

    rounds: how often each of the two runs. seconds: after which each run is ended; None: it ends by itself. Raises
    `UsageError` if there is no such script.
    """
    if not as_module:
        script = script_file(script, "headrace compare")

    console = Terminal()
    target = [*(["-m"] if as_module else []), script, *arguments]
    options = list(SEED)
    if seconds is not None:
        options += ["--seconds", str(seconds)]

    runs: dict[str, list[ScriptRun]] = {name: [] for name in LOADERS}
    neighbours = Neighbours()
    neighbours.begin()
    for number in range(rounds):
        # The one that runs second finds files in memory: each is first in turn.
        for name in sorted(LOADERS, reverse=number % 2 == 0):
            what = f"{shlex.join(target)}: {name}'s loader, {number + 1} of {rounds}"
            run = _run(console, what, [*LOADERS[name], *options, *target])
            if run.status or not run.measurement or not run.loaders:
                return _say_why_not(console, name, run, script)
            runs[name].append(run)
            neighbours.look()
            if not console.is_terminal:
                console.print(f"{what}: {digits(TIME.of(run))} s", soft_wrap=True, highlight=False)

    console.print(_table(runs, Path(script).name))
    if rounds > 1:
        console.print("In brackets: least to most. Unclear: the runs of the two loaders overlap.", soft_wrap=True)
    if neighbours.other_cores >= OTHERS:
        words = f"This machine is busy: other processes took {neighbours.other_cores:.1f} of {some(cores(), 'core')}."
        console.print(f"{words} Compare again when they have ended.", soft_wrap=True, highlight=False)
    _say_whether_batches_agree(console, runs, ended=seconds is not None)
    _say_what_to_change(console, sorted(runs["headrace"], key=TIME.of)[rounds // 2])
    if json_file is not None:
        json_file.write_text(json.dumps(_as_json(runs), indent=2) + "\n")
    return 0


def _run(console: Console, what: str, arguments: Sequence[str]) -> ScriptRun:
    """Runs the script; on a terminal, its latest line stands behind what runs."""
    with console.status(Text(what), spinner="line") as status:
        return run_measured(arguments, lambda line: status.update(Text(f"{what}: {line}"[: console.width - 4])))


def _say_why_not(console: Console, name: str, run: ScriptRun, script: str) -> int:
    if run.status or not run.measurement:
        console.print(run.errors.rstrip(), style="red", markup=False, highlight=False, soft_wrap=True)
        words = f"With {name}'s loader, {script} ended with status {run.status}."
        console.print(words, style="red", highlight=False, soft_wrap=True)
        return run.status or NOT_RUN

    words = f"{script} did not get a batch from any DataLoader: there is nothing to compare."
    console.print(words, highlight=False, soft_wrap=True)
    return NOT_RUN


def _table(runs: dict[str, list[ScriptRun]], script: str) -> Table:
    rounds = len(runs["torch"])
    title = f"{script}: median of {some(rounds, 'run')} with each loader, in turn"
    table = Table("", *LOADERS, "headrace is", title=title, box=SIMPLE_HEAD, pad_edge=False, title_justify="left")
    for column in table.columns:
        column.no_wrap = True
    for column in table.columns[1:]:
        column.justify = "right"

    for quantity in QUANTITIES:
        values = {name: list(map(quantity.of, runs[name])) for name in LOADERS}
        cells = [_with_spread(values[name]) for name in LOADERS]
        table.add_row(quantity.name, *cells, _judged(quantity, values["torch"], values["headrace"]))
    return table


def _with_spread(values: Sequence[float]) -> str:
    middle = digits(statistics.median(values))
    if len(values) == 1:
        return middle
    return f"{middle} ({digits(min(values))}-{digits(max(values))})"


def _judged(quantity: Quantity, before: Sequence[float], after: Sequence[float]) -> str:
    """Returns how many times better the second is, and whether that is more than the runs differ."""
    ratio = ratio_of(quantity, before, after)
    if ratio is None:
        return "-"
    overlap = len(before) > 1 and min(before) <= max(after) and min(after) <= max(before)
    if overlap:
        return f"{ratio:.2f}x, unclear"
    if ratio >= 1:
        return f"{ratio:.2f}x, better"
    return f"{ratio:.2f}x, worse"


def ratio_of(quantity: Quantity, before: Sequence[float], after: Sequence[float]) -> float | None:
    """Returns the ratio of the medians; above 1, `after` is better. None where one of them is 0."""
    old, new = statistics.median(before), statistics.median(after)
    if not old or not new:
        return None
    if quantity.more_is_better:
        return new / old
    return old / new


def _say_whether_batches_agree(console: Console, runs: dict[str, list[ScriptRun]], *, ended: bool) -> None:
    digests = {name: {tuple(run.digests) for run in runs[name]} for name in LOADERS}
    if len(digests["torch"] | digests["headrace"]) == 1:
        words = "All runs got the same batches in the same order (checksums compared)."
    elif ended:
        words = "Runs that are ended after some time get other numbers of batches: checksums say nothing here."
    elif len(digests["torch"]) > 1:
        words = "The script's runs get other batches each time, also with torch's loader: checksums say nothing here."
    else:
        words = f"The two loaders gave different batches, from {_different(runs)}: see {DIFFERENCES}."
    console.print(words, soft_wrap=True)


def _different(runs: dict[str, list[ScriptRun]]) -> str:
    """Returns the lines of the script whose loaders gave other batches."""
    theirs, ours = runs["torch"][0], runs["headrace"][0]
    labels = [loader["label"] for loader in ours.loaders]
    if len(theirs.digests) != len(ours.digests):
        return f"{some(len(theirs.digests), 'loader')} and {len(ours.digests)}"
    pairs = zip(labels, theirs.digests, ours.digests, strict=True)
    return ", ".join(dict.fromkeys(label for label, one, other in pairs if one != other))


def _say_what_to_change(console: Console, run: ScriptRun) -> None:
    """Prints the finding that saves most time of the script, or else what the busiest loader is like."""
    looped = {loader["label"]: loader["looped"] for loader in run.loaders}
    found = []
    for diagnosis in run.measurement["diagnoses"]:
        for finding in diagnosis["findings"]:
            if finding["advice"] and (finding["gain"] or 0) >= NOTABLE:
                saved = looped.get(diagnosis["label"], 0.0) * (1 - 1 / finding["gain"])
                found.append((saved, diagnosis["label"], finding))
                break

    if found:
        _, label, finding = max(found, key=lambda entry: entry[0])
        gain = finding["gain"]
        interval = finding["interval"] and tuple(finding["interval"])
        predicted = f"predicted: {gain_in_words(gain, interval)} as fast"
        words = f"{label}: {finding['sentence']} {finding['advice']} ({predicted})"
    else:
        summaries = {diagnosis["label"]: diagnosis["summary"] for diagnosis in run.measurement["diagnoses"]}
        label = run.busiest["label"]
        words = f"{label}: {summaries.get(label, 'nothing to change was found.')}"
    console.print(words, soft_wrap=True, highlight=False, markup=False)


def _as_json(runs: dict[str, list[ScriptRun]]) -> dict[str, Any]:
    figures: dict[str, Any] = {}
    for quantity in QUANTITIES:
        values = {name: list(map(quantity.of, runs[name])) for name in LOADERS}
        figures[quantity.name] = {**values, "ratio": ratio_of(quantity, values["torch"], values["headrace"])}
    return {"figures": figures, "digests": {name: [run.digests for run in runs[name]] for name in LOADERS}}
