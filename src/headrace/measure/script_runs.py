"""Runs of a script under `headrace run`, each in a process of its own, with what it cost the machine."""

from __future__ import annotations

import json
import resource
import signal
import subprocess
import sys
import tempfile
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from headrace.core.process.memory import PeakMemory


@dataclass(frozen=True)
class ScriptRun:
    """What one run of a script showed.

    status: of the script. measurement: what `headrace run --json` writes; empty if it wrote nothing. errors: what it
    printed to standard error. peak_bytes: memory of all its processes, shared pages counted once. cpu_seconds: of all
    its processes, those that were not waited for left out.
    """

    status: int
    measurement: dict[str, Any]
    errors: str
    peak_bytes: int
    cpu_seconds: float

    @property
    def loaders(self) -> list[dict[str, Any]]:
        """The records of all loaders, those of the processes that the script started behind its own."""
        found = list(self.measurement["loaders"])
        for child in self.measurement["children"]:
            found += child["loaders"]
        return [loader for loader in found if loader["epochs"]]

    @property
    def busiest(self) -> dict[str, Any]:
        """The record of the loader that delivered most samples."""
        record: dict[str, Any] = max(self.loaders, key=lambda loader: loader["samples"])
        return record

    @property
    def digests(self) -> list[int]:
        """The checksum of the batches of each loader."""
        return [loader["digest"] for loader in self.loaders]


def run_measured(
    arguments: Sequence[str],
    on_line: Callable[[str], None],
) -> ScriptRun:
    """Runs a script under `headrace run --digest`, and returns what was measured.

    arguments: options of `headrace run`, the script, and its own. on_line: called with each line that the script
    prints. Ctrl-C ends the script, too.
    """
    with tempfile.TemporaryDirectory(prefix="headrace-") as scratch:
        report = Path(scratch) / "measurement.json"
        # Standard error goes to a file: two pipes would need two readers, or the one that nobody reads fills up and
        # stops the script. Unbuffered (-u), so that lines come as they are printed.
        complaints = Path(scratch) / "stderr.txt"
        command = [sys.executable, "-u", "-m", "headrace", "run", "--digest", "--json", str(report), *arguments]
        before = _cpu_seconds_of_children()
        with (
            complaints.open("w") as stderr,
            subprocess.Popen(command, stdout=subprocess.PIPE, stderr=stderr, text=True, errors="replace") as process,
            PeakMemory(process.pid) as memory,
        ):
            # After Ctrl-C the run must not go on alone: `Popen` would wait for its end on leaving the block.
            try:
                for line in _lines(process):
                    on_line(line)
            except BaseException:
                process.send_signal(signal.SIGTERM)
                raise

        measurement = {}
        if report.exists():
            measurement = json.loads(report.read_text())
        spent = _cpu_seconds_of_children() - before
        return ScriptRun(process.returncode, measurement, complaints.read_text(), memory.peak, spent)


def _lines(process: subprocess.Popen[str]) -> Iterator[str]:
    for line in process.stdout or []:
        yield line.rstrip()


def _cpu_seconds_of_children() -> float:
    usage = resource.getrusage(resource.RUSAGE_CHILDREN)
    return usage.ru_utime + usage.ru_stime
