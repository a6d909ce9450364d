"""Where figures of a loader go while it runs: TensorBoard, and a file that Prometheus' exporters read.

Each writer is called with one `LoaderStats`, from one thread at a time, and may serve several loaders: their labels
tell them apart.
"""

from __future__ import annotations

import math
import os
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Any

from headrace.core.errors import UsageError
from headrace.core.extras import extra
from headrace.core.files.atomic_file import write_atomically
from headrace.core.world import current_world
from headrace.observe.stats import LoaderStats, StageStats, WorkerStats
from headrace.telemetry.recording import MAIN


class TensorBoardWriter:
    """Writes scalars for TensorBoard; the step is the number of batches so far.

    Args:
        where: a folder, which is made at the first call, or a `SummaryWriter`, which stays its owner's.
        prefix: what all names begin with; the loader's label follows.

    Raises:
        MissingExtraError: tensorboard is not installed.

    Examples:
        >>> writer = headrace.TensorBoardWriter("runs/first")
        >>> loader = headrace.DataLoader(list(range(6)), batch_size=2, on_stats=writer)
    """

    def __init__(self, where: str | os.PathLike[str] | Any, prefix: str = "headrace") -> None:
        if isinstance(where, (str, os.PathLike)):
            # Imported here only to fail here: a missing package shall be told before the training, not in its middle.
            # The writer itself is made at the first call, so that a loader that is never iterated leaves no folder.
            extra("tensorboard", "tensorboard")
            self._folder: str | None = os.fspath(where)
            self._writer: Any = None
        else:
            self._folder = None
            self._writer = where

        if prefix.strip("/"):
            self._prefix = f"{prefix.strip('/')}/"
        else:
            self._prefix = ""

    def __call__(self, stats: LoaderStats) -> None:
        """Writes the figures, and flushes them to the disk."""
        if self._writer is None:
            self._writer = extra("torch.utils.tensorboard", "tensorboard").SummaryWriter(self._folder)

        for name, value in _scalars(stats):
            if not math.isnan(value):
                self._writer.add_scalar(f"{self._prefix}{stats.label}/{name}", value, stats.batches)

        self._writer.flush()

    def close(self) -> None:
        """Closes the file, if it is of its own making; another call opens a new one.

        Examples:
            >>> writer = headrace.TensorBoardWriter("runs/first")
            >>> writer.close()
        """
        if self._folder is not None and self._writer is not None:
            self._writer.close()
            self._writer = None


def _scalars(stats: LoaderStats) -> Iterator[tuple[str, float]]:
    yield "wait_share", stats.wait_share
    yield "samples_per_second", stats.samples_per_second
    yield "bytes_per_second", stats.bytes_per_second
    yield "first_batch_seconds", stats.first_batch
    yield "epochs", float(stats.epochs)
    for name, stage in stats.stages.items():
        if stage.seconds:
            yield f"{name}_seconds/mean", stage.mean
            yield f"{name}_seconds/p95", stage.p95

    for worker in stats.workers:
        yield f"busy/{_name(worker)}", worker.busy

    if stats.memory_main:
        yield "memory_bytes/main", float(stats.memory_main)
        yield "memory_bytes/workers", float(stats.memory_workers)

    yield "bad_samples", float(stats.bad_samples)
    yield "restarts", float(stats.restarts)


class OpenMetricsWriter:
    """Writes a file in OpenMetrics' text format, whole at every call: it is written aside and renamed.

    Args:
        path: of the file; a textfile collector of node_exporter takes files of its folder that end in `.prom`.
            Processes that run side by side, such as ranks, need a file each. All series have the label `rank`.

    Raises:
        UsageError: there is no such folder.
        MissingExtraError: prometheus-client is not installed.

    Examples:
        >>> writer = headrace.OpenMetricsWriter("loader.prom")
        >>> loader = headrace.DataLoader(list(range(6)), batch_size=2, on_stats=writer)
    """

    def __init__(self, path: str | os.PathLike[str]) -> None:
        self._path = Path(path)
        if not self._path.absolute().parent.is_dir():
            fix = "make the folder first, or choose another file"
            raise UsageError.about("metrics cannot be written", place=path, found="no such folder", fix=fix)

        extra("prometheus_client", "metrics")
        self._latest: dict[str, LoaderStats] = {}

    def __call__(self, stats: LoaderStats) -> None:
        """Writes the figures of this loader, and the latest ones of those that came before."""
        self._latest[stats.label] = stats
        write_atomically(self._path, self._text())

    def _text(self) -> bytes:
        # A registry of its own: the default one belongs to the user's program, and refuses a second family of a name.
        registry = extra("prometheus_client", "metrics").CollectorRegistry()
        registry.register(_Families(list(self._latest.values())))
        written: bytes = extra("prometheus_client.openmetrics.exposition", "metrics").generate_latest(registry)
        return written


COUNTERS = (
    ("batches", "", "Batches that the training loop got."),
    ("samples", "", "Samples of these batches."),
    ("bytes", "bytes", "Bytes of the tensors and arrays of these batches."),
    ("epochs", "", "Epochs that were begun."),
    ("looped", "seconds", "Time of the training loop: waiting for batches and working on them."),
    ("waited", "seconds", "Time that the training loop waited for batches."),
    ("bad_samples", "", "Samples that were skipped or replaced."),
    ("restarts", "", "Workers that died or hung, and were replaced."),
)
"""Fields of `LoaderStats` that only grow: name, unit, help."""

GAUGES = (
    ("wait_share", "ratio", "Share of the loop's time that it waited for batches."),
    ("first_batch", "seconds", "Median time from the beginning of an epoch to its first batch."),
    ("memory_main", "bytes", "Memory of the main process."),
    ("memory_workers", "bytes", "Memory of all its children, shared pages counted once."),
)
"""Fields of `LoaderStats` that rise and fall."""

OF_A_SOURCE = (
    ("lag", "records", "Records that a source has and that were not read yet."),
    ("read_rate", "", "Records of a source that were read each second, of late."),
)
"""Fields of `LiveReads`: name, unit, help."""

OF_A_STAGE = (
    ("mean", "Mean time of a stage for one of the latest batches."),
    ("p50", "Median time of a stage for one of the latest batches."),
    ("p95", "Time of a stage that 95 of 100 of the latest batches keep within."),
    ("max", "Longest time of a stage for one of the latest batches."),
)
"""Fields of `StageStats`: name, help."""


class _Families:
    """What prometheus_client collects: families of metrics, made when asked for."""

    def __init__(self, loaders: Iterable[LoaderStats]) -> None:
        self._loaders = list(loaders)
        self._rank = str(current_world().rank)
        self._core = extra("prometheus_client.core", "metrics")

    def collect(self) -> Iterator[Any]:
        yield from self._of_loaders()
        yield from self._of_sources()
        yield from self._of_stages()
        yield from self._of_workers()

    def _of_loaders(self) -> Iterator[Any]:
        for name, unit, words in COUNTERS:
            family = self._family("Counter", name, unit, words, ("loader",))
            for loader in self._loaders:
                self._add(family, (loader.label,), getattr(loader, name))
            yield family

        for name, unit, words in GAUGES:
            family = self._family("Gauge", name, unit, words, ("loader",))
            for loader in self._loaders:
                # 0 bytes of memory: nobody has looked yet.
                if loader.memory_main or not name.startswith("memory"):
                    self._add(family, (loader.label,), getattr(loader, name))
            yield family

    def _of_sources(self) -> Iterator[Any]:
        for name, unit, words in OF_A_SOURCE:
            family = self._family("Gauge", f"source_{name}", unit, words, ("loader", "source"))
            for loader in self._loaders:
                # Below 0: not known.
                if loader.live is not None and getattr(loader.live, name) >= 0:
                    self._add(family, (loader.label, loader.live.place), getattr(loader.live, name))
            yield family

    def _of_stages(self) -> Iterator[Any]:
        names = ("loader", "stage")
        total = self._family("Counter", "stage", "seconds", "Time of a stage, of all batches.", names)
        for labels, stage in self._stages():
            self._add(total, labels, stage.seconds)
        yield total

        for field, words in OF_A_STAGE:
            family = self._family("Gauge", f"stage_{field}", "seconds", words, names)
            for labels, stage in self._stages():
                self._add(family, labels, getattr(stage, field))
            yield family

    def _stages(self) -> Iterator[tuple[tuple[str, str], StageStats]]:
        """Yields the labels and figures of each stage that took time, loader by loader."""
        for loader in self._loaders:
            for name, stage in loader.stages.items():
                if stage.seconds:
                    yield (loader.label, name), stage

    def _of_workers(self) -> Iterator[Any]:
        names = ("loader", "worker")
        busy = self._family("Gauge", "worker_busy", "ratio", "Share of the time in which it made batches.", names)
        took = self._family("Gauge", "worker_batch", "seconds", "Mean time that it took for a batch.", names)
        for loader in self._loaders:
            for worker in loader.workers:
                labels = (loader.label, _name(worker))
                self._add(busy, labels, worker.busy)
                self._add(took, labels, worker.seconds)

        yield busy
        yield took

    def _family(self, kind: str, name: str, unit: str, words: str, labels: tuple[str, ...]) -> Any:
        return getattr(self._core, f"{kind}MetricFamily")(
            f"headrace_{name}", words, labels=("rank", *labels), unit=unit
        )

    def _add(self, family: Any, labels: tuple[str, ...], value: float) -> None:
        # A sample of NaN would stay on a dashboard as a gap. A sample that is missing says that nothing was measured.
        if not math.isnan(value):
            family.add_metric((self._rank, *labels), value)


def _name(worker: WorkerStats) -> str:
    if worker.worker == MAIN:
        return "main"
    return str(worker.worker)
