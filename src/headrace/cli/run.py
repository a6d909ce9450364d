"""`headrace run`: runs the script and prints how long it waited for data."""

from __future__ import annotations

import contextlib
import functools
import json
import platform
import statistics
import sys
import tempfile
import time
import traceback
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from rich.box import SIMPLE_HEAD
from rich.console import Console
from rich.filesize import decimal
from rich.table import Table

from headrace.cli.next_command import OPTION_NAMES, next_command
from headrace.cli.script_file import script_file
from headrace.core.errors import MachineError, UsageError
from headrace.core.process.machine import cores
from headrace.core.process.memory import machine_memory
from headrace.core.text.printable import printable
from headrace.loader.reporting import Report
from headrace.measure.children import ChildPlan, children_of, measured_too, seed_globals
from headrace.measure.loader_replacement import NEED_WORKERS, NOT_PLAIN, Replacement, replace_loader
from headrace.measure.measurement import Measurement
from headrace.measure.run_script import run_script
from headrace.measure.wait_shares import LoaderRecord, TimeIsUp
from headrace.observe.chrome_trace import write_trace
from headrace.observe.diagnosis.certainty import BUSY
from headrace.observe.diagnosis.diagnose import diagnose
from headrace.observe.diagnosis.finding import Diagnosis, Finding
from headrace.observe.diagnosis.traps import WRONG_DATA
from headrace.observe.live import LiveView
from headrace.observe.page.page import page
from headrace.observe.report import NOTABLE
from headrace.observe.stats import wait_share
from headrace.telemetry.formatting import gain_in_words, some
from headrace.telemetry.terminal import Terminal
from headrace.version import __version__

WORTH_SAYING = 0.005
"""Share of its loops' time from which on it is said what measuring cost a script."""


@dataclass(frozen=True)
class Outputs:
    """Where the figures of a run go, besides the terminal."""

    json: Path | None = None
    report: Path | None = None
    trace: Path | None = None
    live: bool = False
    seconds: float | None = None
    """After which the script is ended."""
    full: bool = False
    """Whether the whole diagnosis is printed."""

    def of_real_loading(self, *, digest: bool) -> list[str]:
        """Returns the options that say something of how batches were loaded."""
        given = {"--report": self.report, "--trace": self.trace, "--live": self.live, "--digest": digest}
        options = []
        for option, value in given.items():
            if value:
                options.append(option)

        return options

    def check(self) -> None:
        """Raises `UsageError` if a file could not be written after the run."""
        for file in filter(None, (self.json, self.report, self.trace)):
            # Opened to append, which asks for all rights and leaves what is there as it is.
            is_new = not file.exists()
            try:
                file.open("ab").close()
            except OSError as error:
                fix = "choose another file"
                if not file.absolute().parent.is_dir():
                    fix = "make the folder first, or choose another file"

                raise UsageError.about(
                    "the figures could not be written after the run",
                    place=file,
                    found=_trouble(error),
                    fix=fix,
                ) from error

            if is_new:
                file.unlink()

    def write(self, measurement: Measurement, console: Console, command: str) -> None:
        """Writes the files, and says where they are. Raises `MachineError` if that fails, for a full disk for example.

        command: what to run next.
        """
        recordings = measurement.recordings()
        if self.json is not None:
            _written(self.json, lambda file: file.write_text(json.dumps(measurement.as_dict(), indent=2) + "\n"))
        left_out = list(map(str, filter(None, (self.report, self.trace))))
        if left_out and not recordings:
            console.print(f"Without a batch there is nothing to show: {' and '.join(left_out)} not written.")
            return

        if self.report is not None:
            diagnoses = list(map(diagnose, recordings))
            whole = page(Path(measurement.script).name, measurement.seconds, recordings, diagnoses, machine(), command)
            _written(self.report, lambda file: file.write_text(whole, "utf-8"))
            console.print(f"The whole picture: {self.report}", soft_wrap=True, highlight=False)

        if self.trace is not None:
            _written(self.trace, lambda file: write_trace(file, recordings))
            console.print(f"The trace, for Perfetto or TensorBoard: {self.trace}", soft_wrap=True, highlight=False)


def _written(file: Path, write: Callable[[Path], object]) -> None:
    try:
        write(file)
    except OSError as error:
        raise MachineError.about("the figures were not written", place=file, found=_trouble(error)) from error


def _trouble(error: OSError) -> str:
    known = {FileNotFoundError: "no such folder", IsADirectoryError: "a folder", NotADirectoryError: "no such folder"}
    return known.get(type(error), error.strerror or str(error))


def machine() -> dict[str, str]:
    """Returns on what a run was measured, in words."""
    return {
        "headrace": __version__,
        "torch": torch.__version__,
        "Python": platform.python_version(),
        "system": platform.platform(terse=True),
        "cores": str(cores()),
        "memory": decimal(machine_memory()),
    }


def run_and_report(
    script: str,
    arguments: Sequence[str],
    *,
    replacement: Replacement,
    defaults: dict[str, Any],
    as_module: bool,
    outputs: Outputs,
    seed: int | None = None,
) -> int:
    """Runs a script, prints the report to standard error, and returns the exit status for the process.

    The script's own outcome decides the status: 0, its `sys.exit` value, 1 after an exception (its traceback is
    printed), 130 after Ctrl-C. Raises `UsageError`, before anything runs, if there is
    no such script or no folder for a file of `outputs`.

    seed: of `random`, NumPy and torch, before the script begins, and in the processes that it starts; None: they are
    left as they are.
    """
    if not as_module:
        script = script_file(script, "headrace run")

    outputs.check()
    _check_replacement(replacement, defaults, outputs)
    measurement = Measurement(script)
    live: LiveView | None = None
    if outputs.live:
        live = LiveView(Terminal(stderr=True))
        update = functools.partial(live.update, measurement.recordings)
        measurement.listeners.append(lambda *_: update())

    began = time.perf_counter()
    if outputs.seconds is not None:
        measurement.deadline = began + outputs.seconds

    replace_loader(measurement, replacement, defaults)
    with tempfile.TemporaryDirectory(prefix="headrace-run-") as folder:
        plan = ChildPlan(tuple(replacement), defaults, folder, outputs.seconds, time.time(), seed)
        try:
            with measured_too(plan):
                if seed is not None:
                    seed_globals(seed)
                status = _outcome(script, arguments, measurement, as_module=as_module)
        finally:
            # Also after Ctrl-C: pinned rows would stay on the terminal, and whatever is printed would miss them.
            if live is not None:
                live.close()

        measurement.seconds = time.perf_counter() - began
        measurement.children = children_of(Path(folder))

    # What the script printed stands before the report, also where standard output is a file or a pipe with a buffer.
    with contextlib.suppress(BrokenPipeError):
        sys.stdout.flush()
    measurement.settle()
    console = Terminal(stderr=True)
    if outputs.full:
        for recording in measurement.recordings():
            console.print()
            console.print(Report(recording))
    else:
        report(measurement, console)

    if measurement.was_ended:
        console.print(f"{Path(script).name} was ended after {outputs.seconds:g} s, at the next batch it asked for.")

    _say_what_is_next(measurement, arguments, outputs, console, as_module=as_module)
    return status


def _diagnoses(measurement: Measurement) -> list[Diagnosis]:
    """Returns what is said of the loaders, the one that was waited for the longest first."""
    # A script may make several loaders. What helps the one that holds it up most is worth reading first.
    waited = {record.label: record.waited for record in measurement.loaders}
    diagnoses = map(diagnose, measurement.recordings())
    return sorted(diagnoses, key=lambda diagnosis: -waited.get(diagnosis.label, 0.0))


def _next_command(measurement: Measurement, arguments: Sequence[str], *, as_module: bool) -> str:
    """Returns what to run next; "" where nothing was found out."""
    diagnoses = _diagnoses(measurement)
    if not diagnoses:
        return ""
    refused = measurement.unused_defaults
    return next_command(diagnoses, measurement.script, arguments, as_module=as_module, refused=refused)


def _say_what_is_next(
    measurement: Measurement, arguments: Sequence[str], outputs: Outputs, console: Console, *, as_module: bool
) -> None:
    """Prints the command to run next, and writes the files, which have it too."""
    command = _next_command(measurement, arguments, as_module=as_module)
    if command:
        console.print(f"Next: {command}", soft_wrap=True, highlight=False, markup=False)
    outputs.write(measurement, console, command)


def _check_replacement(replacement: Replacement, defaults: dict[str, Any], outputs: Outputs) -> None:
    """Raises `UsageError` where options contradict each other."""
    of_loading = []
    if replacement.ideal:
        of_loading = outputs.of_real_loading(digest=replacement.digest)

    of_ours = []
    if replacement.plain:
        for name in filter(NOT_PLAIN.__contains__, defaults):
            of_ours.append(OPTION_NAMES[name])

    for option, others, what in (
        ("--ideal", of_loading, "a batch that repeats has nothing to show there"),
        ("--plain", of_ours, "torch's own loader cannot do this"),
    ):
        if others:
            fix = f"leave out {option}, or these options"
            raise UsageError.about(what, place=f"headrace run {option}", found=", ".join(others), fix=fix)


def _outcome(script: str, arguments: Sequence[str], measurement: Measurement, *, as_module: bool) -> int:
    try:
        run_script(script, arguments, as_module=as_module)
    except TimeIsUp:
        measurement.was_ended = True
        return 0
    except SystemExit as ended:
        # As Python itself: a number is the status, and anything else is printed and means 1.
        if ended.code is None or isinstance(ended.code, int):
            return ended.code or 0
        sys.stderr.write(f"{ended.code}\n")
        return 1
    except KeyboardInterrupt as interrupt:
        # 128 and the number of SIGINT: what shells take for the end by Ctrl-C.
        _print_without_our_frames(interrupt)
        return 130
    except Exception as error:  # noqa: BLE001 - whatever the script raises is reported as Python would
        _print_without_our_frames(error)
        return 1

    return 0


def _print_without_our_frames(error: BaseException) -> None:
    # The first frames are those of `headrace run` itself, and of runpy: the user's traceback begins behind them.
    trace = error.__traceback__
    while trace is not None and trace.tb_frame.f_globals.get("__name__", "").startswith(("headrace.", "runpy")):
        trace = trace.tb_next
    sys.stderr.write(printable("".join(traceback.format_exception(type(error), error, trace))))


def report(measurement: Measurement, console: Console) -> None:
    """Prints one line on the whole script, and one row for each loader that was used, in its child processes too."""
    used = []
    for record in measurement.loaders:
        if record.epochs:
            used.append(record)

    name = Path(measurement.script).name
    seconds = measurement.seconds
    if not used and not measurement.children:
        console.print(f"\nheadrace: {name} ran {seconds:.1f} s and did not iterate over any DataLoader.")
        return

    if used:
        _say_how_long(measurement, used, console)
        _say_what_measuring_cost(measurement, console)

    if measurement.children:
        _say_who_else(measurement, console, alone=not used)

    console.print(_table(measurement, used))
    for record in used:
        if record.bad_samples or record.restarts:
            lost = f"{some(record.bad_samples, 'bad sample')}, {some(record.restarts, 'worker')} replaced"
            console.print(f"{record.label}: [bold]{lost}[/bold]; the log says which.")

        if record.digest is not None:
            console.print(f"{record.label}: checksum of its batches {record.digest:08x}")

    for diagnosis in _diagnoses(measurement):
        for line in lines_on(diagnosis):
            console.print(line, soft_wrap=True, highlight=False, markup=False)

    for option, labels in measurement.unused_defaults.items():
        places = ", ".join(sorted(set(labels)))
        console.print(f"{OPTION_NAMES.get(option, option)} was not used at {places}: {_reason(option)}.")


def _say_how_long(measurement: Measurement, used: Sequence[LoaderRecord], console: Console) -> None:
    name = Path(measurement.script).name
    seconds = measurement.seconds
    looped = _looped(used)
    share = wait_share(measurement.waited, looped)
    if measurement.ideal:
        whose = "a loader that costs nothing"
    else:
        kinds = sorted({f"{record.kind}'s" for record in used})
        whose = f"{' and '.join(kinds)} loader"

    console.print(
        f"\nheadrace: with {whose}, {name} ran {seconds:.1f} s. "
        f"Its loops waited {measurement.waited:.1f} of {looped:.1f} s ([bold]{share:.0%}[/bold]) for data.",
        soft_wrap=True,
    )


def _say_what_measuring_cost(measurement: Measurement, console: Console) -> None:
    """Says by how much the measuring slowed down a script that runs with torch's own loader."""
    looped = _looped(measurement.loaders)
    if looped and measurement.measuring / looped >= WORTH_SAYING:
        cost = f"about {measurement.measuring:.2g} s of it, {measurement.measuring / looped:.1%} of its loops"
        console.print(f"Measuring took {cost}.", soft_wrap=True, highlight=False)


def _looped(records: Sequence[LoaderRecord]) -> float:
    """Returns the seconds of the loops of several loaders together."""
    return sum(record.looped for record in records)


def _say_who_else(measurement: Measurement, console: Console, *, alone: bool) -> None:
    """Says that processes which the script started got the same loader."""
    children = measurement.children
    kind = children[0].loaders[0].kind
    who = ", ".join(child.name for child in children)
    if alone:
        name = Path(measurement.script).name
        console.print(f"\nheadrace: {name} ran {measurement.seconds:.1f} s and loaded its data in other processes.")

    count = some(len(children), "process", "processes")
    console.print(f"{count} that the script started used {kind}'s loader too: {who}.", soft_wrap=True, highlight=False)


def _table(measurement: Measurement, used: Sequence[LoaderRecord]) -> Table:
    table = Table(
        "loader",
        "workers",
        "epochs",
        "batches",
        "samples/s",
        "waited",
        "first batch",
        box=SIMPLE_HEAD,
        padding=(0, 0),
        pad_edge=False,
    )
    for column in table.columns[1:]:
        column.justify = "right"

    for record in used:
        _add_row(table, record.label, record)

    for child in measurement.children:
        for record in child.loaders:
            _add_row(table, f"{child.name}: {record.label}", record)

    return table


def _add_row(table: Table, label: str, record: LoaderRecord) -> None:
    """Adds what a loader did."""
    share = wait_share(record.waited, record.looped)
    first = "-"
    if record.first_batches:
        first = f"{statistics.median(record.first_batches) * 1e3:.0f} ms"

    table.add_row(
        label,
        str(record.num_workers),
        str(record.epochs),
        str(record.batches),
        f"{record.samples_per_second:,.0f}",
        f"{record.waited:.2f} s ({share:.0%})",
        first,
    )


def lines_on(diagnosis: Diagnosis) -> Iterator[str]:
    """Yields a line for each finding that is about the data themselves, one for what to change first, and the rest."""
    wrong = [finding for finding in diagnosis.findings if finding.name in WRONG_DATA]
    for finding in wrong:
        yield f"{diagnosis.label}: {finding.sentence} {finding.advice}"

    advice = _advice(diagnosis)
    if advice is None:
        yield f"{diagnosis.label}: {diagnosis.summary}"
    else:
        gain = ""
        if advice.gain is not None and advice.gain >= NOTABLE:
            gain = f" (predicted: this loop {gain_in_words(advice.gain, advice.interval)} as fast)"
        yield f"{diagnosis.label}: {advice.sentence} {advice.advice}{gain}"

    # That training limits is what the summary says.
    left = [finding for finding in diagnosis.findings if finding not in wrong and finding is not advice]
    others = [finding.name for finding in left if finding.stage != "training"]
    if others:
        yield f"{diagnosis.label}: also found, and explained by headrace doctor: {', '.join(others)}."


def _advice(diagnosis: Diagnosis) -> Finding | None:
    """Returns the finding that says what to change first."""
    # Findings without a gain are no matter of speed. One that the machine is busy is: all gains are left out for it.
    for finding in diagnosis.findings:
        if finding.advice and (finding.gain is not None or finding.name == BUSY):
            return finding
    return None


def _reason(option: str) -> str:
    reason = "the script sets it there"
    if option in NEED_WORKERS:
        return f"{reason}, or has no workers"
    return reason
