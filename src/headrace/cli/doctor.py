"""`headrace doctor` on a script or on data: runs it for a while, and says where the time goes."""

from __future__ import annotations

import json
import subprocess
import sys
import tempfile
from collections.abc import Mapping, Sequence
from dataclasses import replace
from operator import itemgetter
from pathlib import Path
from typing import Any

from rich.box import SIMPLE_HEAD
from rich.table import Table

from headrace.cli.run import Outputs, run_and_report
from headrace.core.errors import UsageError
from headrace.core.text.urls import shown_url
from headrace.data.opening import open as open_data
from headrace.loader.reporting import Report
from headrace.measure.loader_replacement import Replacement
from headrace.measure.trial_runs import collate_apart, differ_in_size, record_loading, worker_counts_to_try
from headrace.observe.stats import stats_of
from headrace.storage.locations import local_path
from headrace.telemetry.recording import LoadingPlace
from headrace.telemetry.terminal import Terminal


def examine_script(
    script: str,
    arguments: Sequence[str],
    *,
    replacement: Replacement,
    as_module: bool,
    seconds: float,
    report: Path | None,
) -> int:
    """Runs a script for so long, and prints what holds it up.

    With `replacement.ideal` the script is then run once more, with a loader that costs nothing: it writes its files
    again. Everything but the script's own words goes to standard error. Returns the exit status of the script. Raises
    `UsageError` if there is no such script.
    """
    console = Terminal(stderr=True)
    with tempfile.TemporaryDirectory() as scratch:
        real = Path(scratch) / "real.json"
        ideal = Path(scratch) / "ideal.json"
        outputs = Outputs(json=real, report=report, seconds=seconds, full=True)
        real_replacement = replacement._replace(ideal=False)
        status = run_and_report(
            script, arguments, replacement=real_replacement, defaults={}, as_module=as_module, outputs=outputs
        )
        figures = json.loads(real.read_text())
        if not any(map(itemgetter("batches"), figures["loaders"])):
            console.print(f"headrace: {script} did not get a batch from any DataLoader.", highlight=False)
            return status

        # In a process of its own: what the script has imported and set up is still there in this one.
        if status or not replacement.ideal:
            return status
        console.print("\nOnce more, with the first batch of each loader again and again ...", highlight=False)
        command = [sys.executable, "-m", "headrace", "run", "--ideal", "--json", str(ideal), "--seconds", str(seconds)]
        if replacement.plain:
            command.append("--plain")
        if as_module:
            command.append("-m")
        command += [script, *arguments]
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

    # Not strict: with a batch that repeats, a script may make another number of loaders.
    gains = {diagnosis["label"]: diagnosis["ideal_gain"] for diagnosis in real["diagnoses"]}
    for loader, other in zip(real["loaders"], ideal["loaders"], strict=False):
        if loader["samples_per_second"] and other["samples_per_second"]:
            gain = other["samples_per_second"] / loader["samples_per_second"]
            predicted = "-"
            if gains.get(loader["label"]) is not None:
                predicted = f"{gains[loader['label']]:.2f}x"

            table.add_row(
                loader["label"],
                f"{loader['samples_per_second']:,.0f}",
                f"{other['samples_per_second']:,.0f}",
                f"{gain:.2f}x",
                predicted,
            )

    return table


def examine(
    uri: str | None,
    batch_size: int,
    seconds: float,
    workers: Sequence[int] | None,
    json_output: bool,
    options: Mapping[str, object] | None = None,
) -> int:
    """Loads stored data for so long with each number of workers, and prints what holds the loader up.

    Returns the exit status. Raises `HeadraceError` if there are no such data.
    """
    if uri is None:
        expected = "a training script, data, or --plan SCRIPT.py:NAME"
        raise UsageError.about("nothing to look at", place="headrace doctor", found="no target", expected=expected)

    if workers is None:
        workers = worker_counts_to_try()

    dataset = open_data(uri, options=options)
    uri = shown_url(local_path(uri))
    if not len(dataset):
        raise UsageError.about("there is nothing to load", place=uri, found="no samples")

    console = Terminal()
    table = Table("workers", "samples/s", "MB/s", "first batch", box=SIMPLE_HEAD, pad_edge=False)
    differ = differ_in_size(dataset)
    collate_fn = None
    if differ:
        collate_fn = collate_apart

    recordings = []
    figures = []
    for count in workers:
        recording = record_loading(dataset, batch_size, count, seconds, collate_fn=collate_fn)
        stats = stats_of(recording)
        recordings.append((stats.samples_per_second, count, recording))
        figures.append({"workers": count, **stats.as_json()})
        table.add_row(
            str(count), f"{stats.samples_per_second:,.0f}", f"{stats.bytes_per_second / 1e6:,.1f}",
            f"{stats.first_batch * 1e3:,.0f} ms",
        )  # fmt: skip

    # Of several that are as fast, the one that was tried first.
    _, best, recording = max(recordings, key=itemgetter(0))
    if json_output:
        console.out(json.dumps({"uri": uri, "best": best, "runs": figures}, indent=2), highlight=False)
        return 0

    console.print(f"[bold]{uri}[/bold]: {len(dataset):,} samples, {seconds:g} s with each number of workers")
    console.print(table)
    if differ:
        console.print("The samples differ in size, so that they stay apart in a batch; training would resize them.")

    console.print(
        f"num_workers={best} is the fastest. There is no training here, so that all is waiting:", style="bold"
    )
    # Without workers nobody looks where loading spends its time. What another run of the same data saw holds here, too.
    places: tuple[LoadingPlace, ...] = ()
    for _, _, other in recordings:
        places = max(places, other.places, key=len)

    console.print(Report(replace(recording, places=places)))
    console.print(f"headrace bench {uri} compares it with other formats.", highlight=False)
    return 0
