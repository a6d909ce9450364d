"""Every cut of a staged dataset, measured: built, opened, and read for an epoch by real loaders."""

from __future__ import annotations

import os
import shutil
import tempfile
import time
import warnings
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path

from headrace.core.errors import SampleError, UsageError
from headrace.core.process.memory import PeakMemory
from headrace.data.staged.staged import Staged
from headrace.loader.dataloader import DataLoader
from headrace.measure.bench.disk import bytes_of_files, files_below

Report = Callable[[str, float], None]
"""Called with what is being measured, and the share that is done."""


@dataclass(frozen=True)
class MeasuredEpoch:
    """One epoch with so many workers, or as much of it as was asked for. Bytes: the most that was in memory at once."""

    workers: int
    seconds: float
    batches: int
    samples: int
    bytes: int

    def scaled(self, samples: int) -> float:
        """Returns the seconds of an epoch of so many samples at this rate."""
        return self.seconds * samples / max(self.samples, 1)


@dataclass(frozen=True)
class MeasuredCut:
    """One cut. Seconds to build the cache and to open it again; its bytes on the disk."""

    cut: int
    refused: str | None
    build: float = 0.0
    load: float = 0.0
    bytes: int = 0
    epochs: tuple[MeasuredEpoch, ...] = ()


def measure_cuts(
    staged: Staged, *, batch_size: int, workers: Sequence[int], batches: int | None, report: Report
) -> list[MeasuredCut]:
    """Builds each cut in a folder of its own, which is removed again, and reads it with each number of workers.

    batches: of an epoch, at most. Raises what the steps raise; a cut that is not possible is noted.
    """
    cuts: list[MeasuredCut] = []
    count = len(staged.steps) + 1
    with tempfile.TemporaryDirectory(prefix="headrace-cuts-") as folder:
        for cut in range(count):
            report(f"cache after step {cut}: building", cut / count)
            place = Path(folder, f"cut-{cut}")
            try:
                data, build, load = _built(staged, cut, place)
            except (UsageError, SampleError) as error:
                cuts.append(MeasuredCut(cut, str(error).splitlines()[0]))
                continue

            epochs = []
            for number in workers:
                report(f"cache after step {cut}: epoch, {number} workers", (cut + 0.5) / count)
                epochs.append(_epoch(data, batch_size, number, batches))

            size = bytes_of_files(files_below(place))
            cuts.append(MeasuredCut(cut, None, build, load, size, tuple(epochs)))
            # At once: the caches of all cuts together may be larger than the disk.
            shutil.rmtree(place, ignore_errors=True)

    return cuts


def _built(staged: Staged, cut: int, place: Path) -> tuple[Staged, float, float]:
    """Returns a cut with its cache in a folder, and the seconds of building that and of opening it again.

    Nothing is built for cut 0, where all steps run at each access.
    """
    if cut == 0:
        return staged.with_cut(0, None), 0.0, 0.0

    began = time.perf_counter()
    staged.with_cut(cut, place)
    built = time.perf_counter()
    data = staged.with_cut(cut, place)
    return data, built - began, time.perf_counter() - built


def _epoch(data: Staged, batch_size: int, workers: int, batches: int | None) -> MeasuredEpoch:
    done = samples = 0
    with PeakMemory(os.getpid()) as memory, warnings.catch_warnings():
        warnings.filterwarnings(
            "ignore", "This DataLoader will create", UserWarning
        )  # more workers than cores: asked for
        loader = DataLoader(data, batch_size=batch_size, shuffle=True, num_workers=workers, seed=0)
        began = time.perf_counter()
        for _ in loader:
            done += 1
            samples += min(batch_size, len(data) - samples)
            if done == batches:
                break

        seconds = time.perf_counter() - began

    return MeasuredEpoch(workers, seconds, done, samples, memory.peak)
