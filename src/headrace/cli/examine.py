"""`headrace doctor` on a script or on data: runs it for a while, and says where the time goes."""

from __future__ import annotations

import json
import subprocess
import sys
import tempfile
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from rich.box import SIMPLE_HEAD
from rich.console import Console
from rich.table import Table

from headrace.cli.run import Outputs, run_and_report
from headrace.core.errors import UsageError, explain
from headrace.core.machine import cores
from headrace.dataset.stored import open as open_data
from headrace.loader import DataLoader
from headrace.observed import Report
from headrace.script import Way

WARM = 0.5
"""Seconds for which a loader runs before it is measured."""


def examine_script(
    script: str, arguments: Sequence[str], *, way: Way, as_module: bool, seconds: float, report: Path | None
) -> int:
    """Runs a script for so long, and prints what holds it up.

    With `way.ideal` the script is then run once more, with a loader that costs nothing: it writes its files again.
    Everything but the script's own words goes to standard error. Returns the exit status of the script. Raises
    `UsageError` if there is no such script.
    """
    console = Console(stderr=True)
    with tempfile.TemporaryDirectory() as scratch:
        real, ideal = Path(scratch) / "real.json", Path(scratch) / "ideal.json"
        outputs = Outputs(json=real, report=report, seconds=seconds, full=True)
        real_way = way._replace(ideal=False)
        status = run_and_report(script, arguments, way=real_way, defaults={}, as_module=as_module, outputs=outputs)
        figures = json.loads(real.read_text())
        if not figures["loaders"] or not any(loader["batches"] for loader in figures["loaders"]):
            console.print(f"headrace: {script} did not get a batch from any DataLoader.", highlight=False)
            return status
        if status or not way.ideal:
            return status
        console.print("\nOnce more, with the first batch of each loader again and again ...", highlight=False)
        command = [sys.executable, "-m", "headrace", "run", "--ideal", "--json", str(ideal), "--seconds", str(seconds)]
        command += [*(["--plain"] if way.plain else []), *(["-m"] if as_module else []), script, *arguments]
        done = subprocess.run(command, stdout=subprocess.DEVNULL, stderr=subprocess.PIPE, text=True, check=False)
        if done.returncode or not ideal.exists():
            console.print("The script does not run with a batch that repeats, so the prediction stands:")
            console.print(done.stderr.strip().splitlines()[-1:], markup=False, highlight=False)
            return status
        console.print(_ideal_table(figures, json.loads(ideal.read_text())))
    return status


def _ideal_table(real: dict[str, Any], ideal: dict[str, Any]) -> Table:
    """Compares a run with one whose loaders cost nothing."""
    table = Table("loader", "samples/s", "with an ideal loader", "gain", "predicted", box=SIMPLE_HEAD, pad_edge=False)
    for column in table.columns[1:]:
        column.justify = "right"
    gains = {one["label"]: one["ideal_gain"] for one in real["diagnoses"]}
    for one, other in zip(real["loaders"], ideal["loaders"], strict=False):
        if one["samples_per_second"] and other["samples_per_second"]:
            gain = other["samples_per_second"] / one["samples_per_second"]
            table.add_row(
                one["label"],
                f"{one['samples_per_second']:,.0f}",
                f"{other['samples_per_second']:,.0f}",
                f"{gain:.2f}x",
                f"{gains[one['label']]:.2f}x" if one["label"] in gains else "-",
            )
    return table


def examine(uri: str | None, batch_size: int, seconds: float, workers: Sequence[int] | None, json_output: bool) -> int:
    """Loads stored data for so long with each number of workers, and prints what holds the loader up.

    Returns the exit status. Raises `HeadraceError` if there are no such data.
    """
    if uri is None:
        expected = "a training script, data, or --plan SCRIPT.py:NAME"
        raise UsageError(explain("nothing to look at", place="headrace doctor", found="no target", expected=expected))
    workers = numbers_to_try() if workers is None else workers
    dataset = open_data(uri)
    if not len(dataset):
        raise UsageError(explain("there is nothing to load", place=uri, found="no samples"))
    console = Console()
    table = Table("workers", "samples/s", "MB/s", "first batch", box=SIMPLE_HEAD, pad_edge=False)
    reports = []
    for count in workers:
        loader: Any = DataLoader(dataset, batch_size, shuffle=True, num_workers=count, seed=0)
        _load(loader, seconds)
        stats = loader.stats
        reports.append((stats.samples_per_second, count, Report(loader.recording), stats))
        table.add_row(
            str(count), f"{stats.samples_per_second:,.0f}", f"{stats.bytes_per_second / 1e6:,.1f}",
            f"{stats.first_batch * 1e3:,.0f} ms",
        )  # fmt: skip
    _, best, report, _ = max(reports, key=lambda one: one[0])
    if json_output:
        figures = [{"workers": count, **stats.as_json()} for _, count, _, stats in reports]
        console.out(json.dumps({"uri": uri, "best": best, "runs": figures}, indent=2), highlight=False)
        return 0
    console.print(f"[bold]{uri}[/bold]: {len(dataset):,} samples, {seconds:g} s with each number of workers")
    console.print(table)
    console.print(
        f"num_workers={best} is the fastest. There is no training here, so that all is waiting:", style="bold"
    )
    console.print(report)
    console.print(f"headrace bench {uri} compares it with other forms.", highlight=False)
    return 0


def _load(loader: Any, seconds: float) -> None:
    ends = time.perf_counter() + WARM + seconds
    while time.perf_counter() < ends:
        for _ in loader:
            if time.perf_counter() >= ends:
                return


def numbers_to_try() -> list[int]:
    """Returns the numbers of workers that are worth a look on this machine."""
    return sorted({0, 1, cores(), 2 * cores()})
