"""`headrace demo`: one ordinary training script, both loaders, one table."""

from __future__ import annotations

import importlib.util
import json
import os
import statistics
import subprocess
import sys
import tempfile
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeRemainingColumn
from rich.table import Table

from headrace.core.errors import UsageError
from headrace.core.process.memory import PeakMemory
from headrace.telemetry.terminal import Terminal


@dataclass
class DemoRun:
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
    make_photos(console, folder, photos)
    script = example("train_images.py")
    arguments = [str(folder), "--epochs", str(epochs), "--workers", str(workers)]
    console.print(f"Training with {script.name}, which imports torch only, once with each loader.\n")
    runs = []
    page = folder / "report.html"
    for name, options in (("torch", ["--plain"]), ("headrace", ["--report", str(page)])):
        run = train(console, name, [*options, str(script), *arguments])
        if run.status != 0:
            console.print(f"[red]The run with {name}'s loader ended with status {run.status}.[/red]")
            return run.status
        runs.append(run)

    print_table(console, runs[0], runs[1], "The same script, the same photos, the same machine")
    console.print(f"Where the time went in the second run: {page}", soft_wrap=True, highlight=False)
    return 0


def make_photos(console: Console, folder: Path, count: int) -> None:
    """Makes the photos if they are not there yet. Raises `UsageError` if they cannot be written."""
    make_photo_folder = _photo_maker()
    columns = (TextColumn("{task.description}"), BarColumn(), MofNCompleteColumn(), TimeRemainingColumn())
    with Progress(*columns, console=console, transient=True) as progress:
        task = progress.add_task(f"Making photos in {folder}", total=count)
        try:
            make_photo_folder(folder, count, progress=lambda done: progress.update(task, completed=done))
        except OSError as error:
            raise UsageError.about(
                "the photos cannot be written",
                place=folder,
                found=error.strerror or error,
                expected="a folder that may be written",
                cure="give another one: headrace demo --folder FOLDER",
            ) from error

    console.print(f"{count} photographs in {folder}: crops of those in scikit-image and scikit-learn.", soft_wrap=True)


def example(name: str) -> Path:
    """Returns the path of an example: beside this file in an installed package, in `examples/` in a checkout."""
    installed = Path(__file__).with_name(name)
    if installed.exists():
        return installed
    return Path(__file__).parents[3] / "examples" / name


def _photo_maker() -> Callable[..., None]:
    """Returns `make_photo_folder` of `examples/photos.py`."""
    name = "headrace_demo_photos"
    spec = importlib.util.spec_from_file_location(name, example("photos.py"))
    if spec is None or spec.loader is None:
        raise ImportError("examples/photos.py cannot be loaded")

    # Entered before it runs: dataclasses of a module look it up there while they are made.
    module = importlib.util.module_from_spec(spec)
    sys.modules[name] = module
    spec.loader.exec_module(module)
    maker: Callable[..., None] = module.make_photo_folder
    return maker


def train(console: Console, name: str, arguments: list[str], environment: Mapping[str, str] | None = None) -> DemoRun:
    """Runs a script under `headrace run`, shows what it prints, and returns what was measured.

    arguments: options of `headrace run`, the script, and its own. environment: variables beside those of this process.
    """
    console.print(f"[bold]{name}[/bold]")
    with tempfile.TemporaryDirectory() as scratch:
        report = Path(scratch) / "measurement.json"
        # Standard error goes to a file: two pipes would need two readers, or the one that nobody reads fills up and
        # stops the script. Unbuffered (-u), so that lines come as they are printed.
        complaints = Path(scratch) / "stderr.txt"
        command = [sys.executable, "-u", "-m", "headrace", "run", "--digest", "--json", str(report), *arguments]
        variables = {**os.environ, **(environment or {})}
        with (
            complaints.open("w") as stderr,
            subprocess.Popen(command, stdout=subprocess.PIPE, stderr=stderr, text=True, env=variables) as process,
            PeakMemory(process.pid) as memory,
        ):
            # After Ctrl-C the run must not go on alone: `Popen` would wait for its end on leaving the block.
            try:
                for line in process.stdout or []:
                    console.print(f"  {line.rstrip()}", style="dim", markup=False, highlight=False, soft_wrap=True)
            except BaseException:
                process.terminate()
                raise

        if process.returncode != 0:
            console.print(complaints.read_text(), style="red", markup=False, highlight=False)
        if report.exists():
            measurement = json.loads(report.read_text())
        else:
            measurement = {}

    return DemoRun(name, process.returncode, measurement, memory.peak)


def print_table(console: Console, first: DemoRun, second: DemoRun, title: str) -> None:
    """Prints two runs side by side, and whether they got the same batches."""
    table = Table("", first.name, second.name, "ratio", title=title)
    for column in table.columns[1:]:
        column.justify = "right"

    rows = (
        ("time for the whole run (s)", lambda run: run.measurement["seconds"], "{:,.1f}"),
        ("samples/s", _samples_per_second, "{:,.0f}"),
        ("share of time waiting for data", _share_waiting, "{:.1%}"),
        ("time to first batch (ms)", _first_batch_ms, "{:,.0f}"),
        ("peak memory, all processes (MB)", lambda run: run.peak_bytes / 1e6, "{:,.0f}"),
    )
    for words, measure, form in rows:
        before = measure(first)
        after = measure(second)
        if before:
            ratio = f"{after / before:.2f}"
        else:
            ratio = "-"
        table.add_row(words, form.format(before), form.format(after), ratio)

    # Speeds can only be compared if both runs trained on the same batches.
    console.print()
    console.print(table)
    if first.digests == second.digests:
        console.print("Both runs got the same batches in the same order (checksums compared).")
    else:
        console.print("[red]The two runs got different batches: please report this.[/red]")


def _samples_per_second(run: DemoRun) -> float:
    return float(run.training["samples_per_second"])


def _share_waiting(run: DemoRun) -> float:
    return float(run.measurement["waited"]) / float(run.measurement["seconds"])


def _first_batch_ms(run: DemoRun) -> float:
    return float(statistics.median(run.training["first_batches"])) * 1e3
