"""`headrace demo`: one ordinary training script, both loaders, one table."""

from __future__ import annotations

import json
import statistics
import subprocess
import sys
import tempfile
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeRemainingColumn
from rich.table import Table

from headrace.cli.photos import make_photo_folder
from headrace.core.memory import PeakMemory
from headrace.telemetry.terminal import Terminal


@dataclass
class Run:
    """What one run of the script showed."""

    name: str
    status: int
    measurement: dict[str, Any]
    peak_bytes: int

    @property
    def training(self) -> dict[str, Any]:
        """The record of the script's busiest loader."""
        record: dict[str, Any] = max(self.measurement["loaders"], key=lambda loader: loader["samples"])
        return record

    @property
    def digests(self) -> list[int]:
        """The checksum of the batches of each loader."""
        return [loader["digest"] for loader in self.measurement["loaders"]]


def run_demo(folder: Path, *, photos: int, epochs: int, workers: int) -> int:
    """Makes the photos if they are not there yet, trains twice, prints the table; returns the exit status."""
    console = Terminal()
    _make_photos(console, folder, photos)
    script = _example()
    arguments = [str(folder), "--epochs", str(epochs), "--workers", str(workers)]
    console.print(f"Training with {script.name}, which imports torch only, once with each loader.\n")
    runs = []
    page = folder / "report.html"
    for name, options in (("torch", ["--plain"]), ("headrace", ["--report", str(page)])):
        run = _train(console, name, [*options, str(script), *arguments])
        if run.status != 0:
            console.print(f"[red]The run with {name}'s loader ended with status {run.status}.[/red]")
            return run.status
        runs.append(run)

    _print_table(console, *runs)
    console.print(f"Where the time went in the second run: {page}", soft_wrap=True, highlight=False)
    return 0


def _make_photos(console: Console, folder: Path, count: int) -> None:
    columns = (TextColumn("{task.description}"), BarColumn(), MofNCompleteColumn(), TimeRemainingColumn())
    with Progress(*columns, console=console, transient=True) as progress:
        task = progress.add_task(f"Making photos in {folder}", total=count)
        make_photo_folder(folder, count, progress=lambda done: progress.update(task, completed=done))
    console.print(f"{count} photographs in {folder}: crops of those in scikit-image and scikit-learn.", soft_wrap=True)


def _example() -> Path:
    """Returns the training script: beside this file in an installed package, in `examples/` in a checkout."""
    installed = Path(__file__).with_name("train_images.py")
    if installed.exists():
        return installed
    return Path(__file__).parents[3] / "examples" / "train_images.py"


def _train(console: Console, name: str, arguments: list[str]) -> Run:
    console.print(f"[bold]{name}[/bold]")
    with tempfile.TemporaryDirectory() as scratch:
        report = Path(scratch) / "measurement.json"
        complaints = Path(scratch) / "stderr.txt"
        command = [sys.executable, "-u", "-m", "headrace", "run", "--digest", "--json", str(report), *arguments]
        with (
            complaints.open("w") as stderr,
            subprocess.Popen(command, stdout=subprocess.PIPE, stderr=stderr, text=True) as process,
            PeakMemory(process.pid) as memory,
        ):
            try:
                for line in process.stdout or []:
                    console.print(f"  {line.rstrip()}", style="dim", markup=False, highlight=False, soft_wrap=True)
            except BaseException:  # Ctrl-C: the run must not go on alone
                process.terminate()
                raise

        if process.returncode != 0:
            console.print(complaints.read_text(), style="red", markup=False, highlight=False)
        if report.exists():
            measurement = json.loads(report.read_text())
        else:
            measurement = {}

    return Run(name, process.returncode, measurement, memory.peak)


def _print_table(console: Console, torch_run: Run, our_run: Run) -> None:
    table = Table("", "torch", "headrace", "ratio", title="The same script, the same photos, the same machine")
    for column in table.columns[1:]:
        column.justify = "right"

    rows = (
        ("time for the whole run (s)", lambda run: run.measurement["seconds"], "{:,.1f}"),
        ("samples/s", _samples_per_second, "{:,.0f}"),
        ("share of time waiting for data", _share_waiting, "{:.1%}"),
        ("time to first batch (ms)", _first_batch_ms, "{:,.0f}"),
        ("peak memory, all processes (MB)", lambda run: run.peak_bytes / 1e6, "{:,.0f}"),
    )
    for title, measure, form in rows:
        theirs = measure(torch_run)
        ours = measure(our_run)
        if theirs:
            ratio = f"{ours / theirs:.2f}"
        else:
            ratio = "-"
        table.add_row(title, form.format(theirs), form.format(ours), ratio)

    console.print()
    console.print(table)
    if torch_run.digests == our_run.digests:
        console.print("Both runs got the same batches in the same order (checksums compared).")
    else:
        console.print("[red]The two runs got different batches: please report this.[/red]")


def _samples_per_second(run: Run) -> float:
    return float(run.training["samples_per_second"])


def _share_waiting(run: Run) -> float:
    return float(run.measurement["waited"]) / float(run.measurement["seconds"])


def _first_batch_ms(run: Run) -> float:
    return float(statistics.median(run.training["first_batches"])) * 1e3
