"""`headrace run`: runs the script and prints how long it waited for data."""

from __future__ import annotations

import json
import os
import platform
import statistics
import sys
import time
import traceback
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from rich.box import SIMPLE_HEAD
from rich.console import Console
from rich.filesize import decimal
from rich.table import Table

from headrace.core.errors import UsageError, explain
from headrace.core.machine import cores
from headrace.observe.chrome_trace import write_trace
from headrace.observe.diagnosis import Diagnosis
from headrace.observe.findings.diagnose import diagnose
from headrace.observe.live import LiveView
from headrace.observe.memory import machine_memory
from headrace.observe.page.page import page
from headrace.observed import Report
from headrace.script import NEED_WORKERS, NOT_PLAIN, Measurement, Way, replace_loader, run_script
from headrace.version import __version__

OPTION_NAMES = {
    "num_workers": "--num-workers",
    "prefetch_factor": "--prefetch-factor",
    "persistent_workers": "--persistent-workers",
    "pin_memory": "--pin-memory",
    "multiprocessing_context": "--start-method",
    "on_error": "--on-error",
    "quarantine": "--quarantine",
    "sample_timeout": "--sample-timeout",
}


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

    def check(self) -> None:
        """Raises `UsageError` if a file could not be written after the run."""
        for file in (self.json, self.report, self.trace):
            if file is None:
                continue
            folder = file.absolute().parent
            found = "no such folder" if not folder.is_dir() else "a folder" if file.is_dir() else ""
            if not found and not os.access(file if file.exists() else folder, os.W_OK):
                found = "no permission to write"
            if found:
                cure = "choose another file" if folder.is_dir() else "make the folder first, or choose another file"
                message = explain("the figures could not be written after the run", place=file, found=found, cure=cure)
                raise UsageError(message)

    def write(self, measurement: Measurement, console: Console) -> None:
        """Writes the files, and says where they are."""
        if self.json is not None:
            self.json.write_text(json.dumps(measurement.as_dict(), indent=2) + "\n")
        recordings = measurement.recordings()
        if self.report is not None:
            diagnoses = [diagnose(recording) for recording in recordings]
            title = Path(measurement.script).name
            self.report.write_text(page(title, measurement.seconds, recordings, diagnoses, machine()), "utf-8")
            console.print(f"The whole picture: {self.report}", soft_wrap=True, highlight=False)
        if self.trace is not None:
            write_trace(self.trace, recordings)
            console.print(f"The trace, for Perfetto or TensorBoard: {self.trace}", soft_wrap=True, highlight=False)


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
    way: Way,
    defaults: dict[str, Any],
    as_module: bool,
    outputs: Outputs,
) -> int:
    """Runs a script, prints the report to standard error, and returns the exit status for the process.

    The script's own outcome decides the status: 0, its `sys.exit` value, 1 after an exception (its traceback is
    printed), 130 after Ctrl-C. Raises `UsageError`, before anything runs, if there is
    no such script or no folder for a file of `outputs`.
    """
    if not as_module and not Path(script).is_file():
        message = explain(
            "no such script",
            place=script,
            expected="a Python file",
            cure="check the path; for a module use `headrace run -m NAME`",
        )
        raise UsageError(message)
    outputs.check()
    if way.plain and (ours := [OPTION_NAMES[name] for name in defaults if name in NOT_PLAIN]):
        message = explain(
            "torch's own loader cannot do this",
            place="headrace run --plain",
            found=", ".join(ours),
            cure="leave out --plain, or these options",
        )
        raise UsageError(message)
    measurement = Measurement(script)
    live = LiveView(Console(stderr=True)) if outputs.live else None
    if live is not None:
        measurement.listeners.append(lambda *_: live.update(measurement.recordings))
    replace_loader(measurement, way, defaults)
    began = time.perf_counter()
    if outputs.seconds is not None:
        measurement.deadline = began + outputs.seconds
    try:
        status = _outcome(script, arguments, as_module)
    finally:
        if live is not None:
            live.close()
    measurement.seconds = time.perf_counter() - began
    sys.stdout.flush()
    measurement.settle()
    console = Console(stderr=True)
    if outputs.full:
        for recording in measurement.recordings():
            console.print()
            console.print(Report(recording))
    else:
        report(measurement, console)
    outputs.write(measurement, console)
    return status


def _outcome(script: str, arguments: Sequence[str], as_module: bool) -> int:
    try:
        run_script(script, arguments, as_module=as_module)
    except SystemExit as ended:
        if ended.code is None or isinstance(ended.code, int):
            return ended.code or 0
        sys.stderr.write(f"{ended.code}\n")
        return 1
    except KeyboardInterrupt:
        sys.stderr.write("KeyboardInterrupt\n")
        return 130
    except Exception as error:  # noqa: BLE001 - whatever the script raises is reported as Python would
        _print_without_our_frames(error)
        return 1
    return 0


def _print_without_our_frames(error: Exception) -> None:
    trace = error.__traceback__
    while trace is not None and trace.tb_frame.f_globals.get("__name__", "").startswith(("headrace.", "runpy")):
        trace = trace.tb_next
    traceback.print_exception(type(error), error, trace)


def report(measurement: Measurement, console: Console) -> None:
    """Prints one line on the whole script and one row for each loader that was used."""
    used = [record for record in measurement.loaders if record.epochs]
    name, seconds = Path(measurement.script).name, measurement.seconds
    if not used:
        console.print(f"\nheadrace: {name} ran {seconds:.1f} s and did not iterate over any DataLoader.")
        return
    share = measurement.waited / seconds if seconds else 0.0
    console.print(
        f"\nheadrace: with {used[0].kind}'s loader, {name} ran {seconds:.1f} s "
        f"and waited {measurement.waited:.1f} s of them ([bold]{share:.0%}[/bold]) for data.",
        soft_wrap=True,
    )
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
        table.add_row(
            record.label,
            str(record.num_workers),
            str(record.epochs),
            str(record.batches),
            f"{record.samples_per_second:,.0f}",
            f"{record.waited:.2f} s ({record.waited / seconds:.0%})",
            f"{statistics.median(record.first_batches) * 1e3:.0f} ms" if record.first_batches else "-",
        )
    console.print(table)
    for record in used:
        if record.bad_samples or record.restarts:
            lost = f"{record.bad_samples} bad samples, {record.restarts} workers replaced"
            console.print(f"{record.label}: [bold]{lost}[/bold]; the log says which.")
        if record.digest is not None:
            console.print(f"{record.label}: checksum of its batches {record.digest:08x}")
    for diagnosis in (diagnose(recording) for recording in measurement.recordings()):
        console.print(_advice(diagnosis), soft_wrap=True, highlight=False, markup=False)
    for option, labels in measurement.unused_defaults.items():
        places = ", ".join(sorted(set(labels)))
        console.print(f"{OPTION_NAMES.get(option, option)} was not used at {places}: {_reason(option)}.")


def _advice(diagnosis: Diagnosis) -> str:
    """Returns what to change first, in one line."""
    best = next((one for one in diagnosis.findings if one.gain is not None and one.advice), None)
    if best is None or best.gain is None:
        return f"{diagnosis.label}: {diagnosis.summary}"
    gain = f" ({best.gain:.1f} times as fast, predicted)" if best.gain >= 1.1 else ""
    return f"{diagnosis.label}: {best.sentence} {best.advice}{gain}"


def _reason(option: str) -> str:
    reason = "the script sets it there"
    return f"{reason}, or has no workers" if option in NEED_WORKERS else reason
