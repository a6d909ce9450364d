"""`headrace run`: runs the script and prints how long it waited for data."""

from __future__ import annotations

import json
import statistics
import sys
import time
import traceback
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from rich.box import SIMPLE_HEAD
from rich.console import Console
from rich.table import Table

from headrace.core.errors import UsageError, explain
from headrace.script import NEED_WORKERS, NOT_PLAIN, Measurement, replace_loader, run_script

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


def run_and_report(
    script: str,
    arguments: Sequence[str],
    *,
    plain: bool,
    digest: bool,
    defaults: dict[str, Any],
    as_module: bool,
    json_file: Path | None,
) -> int:
    """Runs a script, prints the report to standard error, and returns the exit status for the process.

    The script's own outcome decides the status: 0, its `sys.exit` value, 1 after an exception (its traceback is
    printed), 130 after Ctrl-C. Raises `UsageError`, before anything runs, if there is
    no such script or no folder for `json_file`.
    """
    if not as_module and not Path(script).is_file():
        message = explain(
            "no such script",
            place=script,
            expected="a Python file",
            cure="check the path; for a module use `headrace run -m NAME`",
        )
        raise UsageError(message)
    if json_file is not None and not json_file.absolute().parent.is_dir():
        message = explain(
            "the figures could not be written after the run",
            place=json_file,
            found="no such folder",
            cure="make the folder first, or choose another file",
        )
        raise UsageError(message)
    if plain and (ours := [OPTION_NAMES[name] for name in defaults if name in NOT_PLAIN]):
        message = explain(
            "torch's own loader cannot do this",
            place="headrace run --plain",
            found=", ".join(ours),
            cure="leave out --plain, or these options",
        )
        raise UsageError(message)
    measurement = Measurement(script)
    replace_loader(measurement, plain=plain, digest=digest, defaults=defaults)
    began = time.perf_counter()
    status = _outcome(script, arguments, as_module)
    measurement.seconds = time.perf_counter() - began
    sys.stdout.flush()
    measurement.settle()
    report(measurement, Console(stderr=True))
    if json_file is not None:
        json_file.write_text(json.dumps(measurement.as_dict(), indent=2) + "\n")
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
    for option, labels in measurement.unused_defaults.items():
        places = ", ".join(sorted(set(labels)))
        console.print(f"{OPTION_NAMES.get(option, option)} was not used at {places}: {_reason(option)}.")


def _reason(option: str) -> str:
    reason = "the script sets it there"
    return f"{reason}, or has no workers" if option in NEED_WORKERS else reason
