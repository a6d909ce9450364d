"""`headrace doctor` on a script or on data: runs it for a while, and says where the time goes."""

from __future__ import annotations

import json
import logging
import subprocess
import sys
import tempfile
import time
import warnings
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import torch
from rich.box import SIMPLE_HEAD
from rich.table import Table
from torch.utils.data import default_collate

from headrace.cli.run import Outputs, run_and_report
from headrace.core.errors import UsageError, explain
from headrace.core.machine import cores
from headrace.data.stored import open as open_data
from headrace.loader.dataloader import DataLoader
from headrace.loader.reporting import Report
from headrace.measure.replacing import Way
from headrace.observe.stats import stats_of
from headrace.telemetry.formatting import some
from headrace.telemetry.recording import Recording
from headrace.telemetry.terminal import Terminal

WARM = 0.5
"""Seconds for which a loader runs before it is measured."""

LOOK = 16
"""Samples that are looked at to see whether all have one shape."""


def examine_script(
    script: str, arguments: Sequence[str], *, way: Way, as_module: bool, seconds: float, report: Path | None
) -> int:
    """Runs a script for so long, and prints what holds it up.

    With `way.ideal` the script is then run once more, with a loader that costs nothing: it writes its files again.
    Everything but the script's own words goes to standard error. Returns the exit status of the script. Raises
    `UsageError` if there is no such script.
    """
    console = Terminal(stderr=True)
    with tempfile.TemporaryDirectory() as scratch:
        real = Path(scratch) / "real.json"
        ideal = Path(scratch) / "ideal.json"
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
        console.print(
            "gain: one batch again and again, measured, the time between epochs left out. predicted: from the first "
            "run alone, its first batches included.",
            soft_wrap=True,
        )

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

    if workers is None:
        workers = numbers_to_try()

    dataset = open_data(uri)
    if not len(dataset):
        raise UsageError(explain("there is nothing to load", place=uri, found="no samples"))

    console = Terminal()
    table = Table("workers", "samples/s", "MB/s", "first batch", box=SIMPLE_HEAD, pad_edge=False)
    differ = _differ_in_size(dataset)
    recordings = []
    for count in workers:
        recording = _recording(dataset, batch_size, count, seconds, collate_fn=apart if differ else None)
        stats = stats_of(recording)
        recordings.append((stats, count, recording))
        table.add_row(
            str(count), f"{stats.samples_per_second:,.0f}", f"{stats.bytes_per_second / 1e6:,.1f}",
            f"{stats.first_batch * 1e3:,.0f} ms",
        )  # fmt: skip

    _, best, recording = max(recordings, key=lambda one: one[0].samples_per_second)
    if json_output:
        figures = [{"workers": count, **stats.as_json()} for stats, count, _ in recordings]
        console.out(json.dumps({"uri": uri, "best": best, "runs": figures}, indent=2), highlight=False)
        return 0

    console.print(f"[bold]{uri}[/bold]: {len(dataset):,} samples, {seconds:g} s with each number of workers")
    console.print(table)
    if differ:
        console.print("The samples differ in size, so that they stay apart in a batch; training would resize them.")

    console.print(
        f"num_workers={best} is the fastest. There is no training here, so that all is waiting:", style="bold"
    )
    places = max((one.places for _, _, one in recordings), key=len)  # without workers nobody looks where they are
    console.print(Report(replace(recording, places=places)))
    console.print(f"headrace bench {uri} compares it with other forms.", highlight=False)
    return 0


def _recording(dataset: Any, batch_size: int, workers: int, seconds: float, *, collate_fn: Any) -> Recording:
    """Loads for so long with so many workers. That they are more than the cores is what is to be tried."""
    logger = logging.getLogger("headrace")
    level = logger.level
    with warnings.catch_warnings():
        warnings.filterwarnings("ignore", "This DataLoader will create")
        logger.setLevel(logging.ERROR)
        try:
            options = {"num_workers": workers, "seed": 0, "collate_fn": collate_fn}
            loader: Any = DataLoader(dataset, batch_size, shuffle=True, **options)
            _load(loader, seconds)
        finally:
            logger.setLevel(level)

    recording: Recording = loader.recording
    setting = replace(recording.setting, tuned=True)  # the best number of workers will be what was measured
    return replace(recording, label=some(workers, "worker"), setting=setting)


def _load(loader: Any, seconds: float) -> None:
    ends = time.perf_counter() + WARM + seconds
    while time.perf_counter() < ends:
        for _ in loader:
            if time.perf_counter() >= ends:
                return


def _differ_in_size(dataset: Any) -> bool:
    """Returns whether some column of the first samples has arrays of several shapes, which no batch can hold."""
    samples = [dataset[int(number)] for number in np.linspace(0, len(dataset) - 1, min(len(dataset), LOOK))]
    shapes = {name: {np.shape(sample[name]) for sample in samples} for name in samples[0]}
    ragged = {field.name for field in dataset.schema if field.kind == "ragged"}
    return any(len(found) > 1 for name, found in shapes.items() if name not in ragged)


def apart(samples: list[dict[str, Any]]) -> dict[str, Any]:
    """Returns a batch in which columns of several shapes are lists of tensors."""
    batch: dict[str, Any] = {}
    for name in samples[0]:
        values = [sample[name] for sample in samples]
        alike = len({np.shape(value) for value in values}) == 1
        if alike:
            batch[name] = default_collate(values)
        else:
            batch[name] = [torch.as_tensor(value) for value in values]

    return batch


def numbers_to_try() -> list[int]:
    """Returns the numbers of workers that are worth a look on this machine."""
    return sorted({0, 1, cores(), 2 * cores()})
