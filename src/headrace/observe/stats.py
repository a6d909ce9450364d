"""What a loader did so far, in figures: what is shown, written to TensorBoard, and scraped.

Sums are over all batches; how batches differ is told from the latest ones. What was not measured is NaN, or not there.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict, dataclass, field, replace
from typing import Any

import numpy as np
import numpy.typing as npt

from headrace.telemetry.device_copies import DeviceCopies
from headrace.telemetry.live_reads import LiveReads
from headrace.telemetry.preparation import MAKING, prepared
from headrace.telemetry.recording import STAGES, Batches, EpochTimes, Recording, stage_seconds, without_nan
from headrace.telemetry.remote_reads import RemoteReads

NAN = float("nan")


@dataclass(frozen=True)
class StageStats:
    """Seconds that a stage took: over all batches, and for each of the latest ones.

    Means and the like leave out batches in front of which something was prepared once (`preparing.prepared`).
    """

    seconds: float = 0.0
    """Of all batches together; 0 for what was not measured."""
    mean: float = NAN
    p50: float = NAN
    p95: float = NAN
    max: float = NAN


@dataclass(frozen=True)
class WorkerStats:
    """What a worker did for the latest batches."""

    worker: int
    """Its number; `recording.MAIN` for the main process."""
    batches: int
    busy: float
    """Share of the time in which it made batches, from its first one on; 0 to 1."""
    seconds: float
    """Mean seconds for a batch."""
    host: str = ""
    """The other machine on which it runs; empty: it is this one."""


@dataclass(frozen=True)
class LoaderStats:
    """One loader. Times are in seconds, sizes in bytes.

    Attributes:
        label: where the script makes the loader, as file:line; or a name.
        epochs: that were begun.
        batches: that the loop got.
        samples: of these batches.
        bytes: of the tensors and arrays of all batches.
        looped: time of the training loop: waiting for batches and working on them.
        waited: time of it that the loop waited for batches, workers that were started for an epoch included.
        first_batch: median time from the beginning of an epoch to its first batch.
        prepared: time that the slowest of the latest first batches took, if something was prepared for it; 0: nothing
            was.
        stages: seconds of each of `recording.STAGES`.
        workers: in the order of their numbers; only those whose work was measured.
        memory_main: of the main process, when looked at last; 0: never.
        memory_workers: of all its children together, likewise.
        bad_samples: that were skipped or replaced.
        restarts: workers that died or hung, and were replaced.
        remote: what was read from object stores and servers; None: the data lie on this machine.
        live: what was read from a source that never ends, and how far that is ahead; None: the data end.
        copies: what was copied to a device; None: batches stay on this machine.

    Examples:
        >>> loader = headrace.DataLoader(list(range(8)), batch_size=4)
        >>> batches = list(loader)
        >>> loader.stats.batches, loader.stats.samples
        (2, 8)
    """

    label: str = "DataLoader"
    epochs: int = 0
    batches: int = 0
    samples: int = 0
    bytes: int = 0
    looped: float = 0.0
    waited: float = 0.0
    first_batch: float = NAN
    prepared: float = 0.0
    stages: Mapping[str, StageStats] = field(default_factory=dict)
    workers: tuple[WorkerStats, ...] = ()
    memory_main: int = 0
    memory_workers: int = 0
    bad_samples: int = 0
    restarts: int = 0
    remote: RemoteReads | None = None
    live: LiveReads | None = None
    copies: DeviceCopies | None = None

    @property
    def wait_share(self) -> float:
        """Share of the loop's time that it waited for batches, 0 to 1; 0 if nothing was looped over."""
        return wait_share(self.waited, self.looped)

    @property
    def samples_per_second(self) -> float:
        """Samples for each second of the loop, the training itself included."""
        if self.looped:
            return self.samples / self.looped
        return 0.0

    @property
    def bytes_per_second(self) -> float:
        """Bytes for each second of the loop."""
        if self.looped:
            return self.bytes / self.looped
        return 0.0

    def as_json(self) -> dict[str, Any]:
        """Gives the figures as JSON knows them: NaN as None.

        Returns:
            Plain values by their names.

        Examples:
            >>> loader = headrace.DataLoader([1, 2, 3])
            >>> batches = list(loader)
            >>> loader.stats.as_json()["batches"]
            3
        """
        figures = asdict(self)
        for name in ("wait_share", "samples_per_second", "bytes_per_second"):
            figures[name] = getattr(self, name)

        plain: dict[str, Any] = without_nan(figures)
        return plain


def wait_share(waited: float, looped: float) -> float:
    """Returns the share of a loop's time that it waited for batches, 0 to 1; 0 if nothing was looped over.

    Whatever headrace shows as a share of waiting is this. waited, looped: seconds, as in `LoaderStats`; what a script
    does outside of its loops is in neither.
    """
    if looped > 0:
        return waited / looped
    return 0.0


def waited_and_looped(recording: Recording) -> tuple[float, float]:
    """Returns the seconds that a loop waited for batches, and its seconds of waiting and training.

    Waited for are: the beginnings of epochs (starting workers), the batches, and the news that an epoch is at its end.
    """
    totals = recording.totals
    waited = totals.get("wait", 0.0) + totals.get("opening", _opening(recording)) + totals.get("ending", 0.0)
    return float(waited), float(waited + totals.get("loop", 0.0))


def stats_of(recording: Recording) -> LoaderStats:
    """Returns the figures of a recording: of an empty one, too, and of one that lacks most times."""
    totals = recording.totals
    batches = recording.batches
    memory = recording.memory
    waited, looped = waited_and_looped(recording)

    # The latest epochs are held, and an epoch knows its number: counting those that are held would be too few.
    epochs = 0
    if recording.epochs:
        epochs = recording.epochs[-1].epoch + 1

    memory_main = 0
    memory_workers = 0
    if len(memory):
        memory_main = int(memory["main"][-1])
        memory_workers = int(memory["workers"][-1])

    return LoaderStats(
        label=recording.label,
        epochs=epochs,
        batches=int(totals.get("batches", 0)),
        samples=int(totals.get("samples", 0)),
        bytes=int(totals.get("bytes", 0)),
        looped=looped,
        waited=waited,
        first_batch=_first_batch(recording.epochs),
        prepared=prepared(batches).seconds,
        stages=_stages(batches, totals),
        workers=_workers(batches, recording.hosts),
        memory_main=memory_main,
        memory_workers=memory_workers,
        bad_samples=recording.bad_samples,
        restarts=recording.restarts,
        remote=_without_windows(recording.remote),
        live=recording.live,
        copies=None if recording.copies is None else replace(recording.copies, recent=()),
    )


def _without_windows(remote: RemoteReads | None) -> RemoteReads | None:
    if remote is None:
        return None
    return remote.without_windows()


def _opening(recording: Recording) -> float:
    """Returns the seconds between the beginnings of epochs and the asking for their first batches, as far as known."""
    rows = recording.batches[recording.batches["number"] == 0]
    asked = dict(zip(rows["epoch"].tolist(), rows["asked"].tolist(), strict=True))
    took = []
    for epoch in recording.epochs:
        if epoch.epoch in asked:
            took.append(asked[epoch.epoch] - epoch.began)

    return float(np.nansum(took))


def _first_batch(epochs: tuple[EpochTimes, ...]) -> float:
    took = np.array([epoch.first - epoch.began for epoch in epochs], np.float64)
    took = took[~np.isnan(took)]
    if len(took):
        return float(np.median(took))
    return NAN


def _stages(batches: Batches, totals: Mapping[str, float]) -> dict[str, StageStats]:
    found = {}
    seconds = stage_seconds(batches)
    steady = ~prepared(batches).at
    for name in (*MAKING, "wait"):
        seconds[name] = seconds[name][steady]

    # Nothing was asked for after the last batch of an epoch: the 0 that stands there is no step of training.
    followed = batches["epoch"][1:] == batches["epoch"][:-1]
    seconds["loop"] = seconds["loop"][:-1][followed]
    for name in STAGES:
        total = totals.get(name, 0.0)
        values = seconds[name]
        if len(values):
            middle, high = np.percentile(values, (50, 95))
            found[name] = StageStats(total, float(values.mean()), float(middle), float(high), float(values.max()))
        else:
            found[name] = StageStats(total)

    return found


def _workers(batches: Batches, hosts: Mapping[int, str]) -> tuple[WorkerStats, ...]:
    measured = batches[~np.isnan(batches["begun"])]
    seconds = stage_seconds(measured)
    busy = seconds["load"] + seconds["collate"] + seconds["send"]
    steady = ~prepared(measured).at
    starts, ends = _epoch_bounds(measured)
    found = []
    for worker in np.unique(measured["worker"]).tolist():
        made_by_it = measured["worker"] == worker
        busy_seconds = float(busy[made_by_it].sum())
        # A worker may have been added in the middle of an epoch: before its first batch it was not idle, but not there.
        since = measured["begun"][made_by_it].min()
        span = float((ends - np.maximum(starts, since)).clip(0).sum())
        if span:
            share = min(busy_seconds / span, 1.0)
        else:
            share = NAN

        usual = busy[made_by_it & steady]
        if len(usual):
            each = float(usual.mean())
        else:
            each = NAN
        found.append(WorkerStats(worker, int(made_by_it.sum()), share, each, hosts.get(worker, "")))

    return tuple(found)


def _epoch_bounds(batches: Batches) -> tuple[npt.NDArray[np.float64], npt.NDArray[np.float64]]:
    """Returns for each epoch when its first batch was begun, and the last one delivered; float64 [epochs]."""
    epochs, at = np.unique(batches["epoch"], return_inverse=True)
    starts = np.full(len(epochs), np.inf)
    ends = np.full(len(epochs), -np.inf)
    np.minimum.at(starts, at, batches["begun"])
    # fmax and not maximum: a moment that was not measured is NaN, and must not wipe out the others.
    for moment in ("delivered", "collated", "sent"):
        np.fmax.at(ends, at, batches[moment])

    return starts, ends
