"""From what was measured of a loader to what its batches take: the input of `simulation`, and shares of the stages."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, replace

import numpy as np
import numpy.typing as npt

from headrace.core.stragglers import AHEAD, SPARE
from headrace.telemetry.preparation import steady_batches, steady_stages
from headrace.telemetry.recording import Batches, Recording
from headrace.workers.play.simulation import seconds_for
from headrace.workers.play.work import Rules, Seconds, Work

PLAYED = 512
"""Batches that are played through, at most: the latest ones."""

KINDS = ("read", "decode", "transform", "load")
"""What loading consists of; "load" is what cannot be told."""


@dataclass(frozen=True)
class Workload:
    """The latest batches of a loader, epoch by epoch, and the rules by which they were delivered."""

    epochs: tuple[Work, ...]
    rules: Rules
    is_first: bool
    """Whether the first of these epochs is the loader's first."""
    parts: Mapping[str, float]
    """Shares of making a batch, 0 to 1, by core seconds and waiting: `KINDS`, "collate", "send"."""
    took: tuple[Seconds, ...] = ()
    """Of each batch of each epoch, the seconds of waiting and training that were measured. The first batch of an epoch
    takes what is usual: starts are not in it."""

    @property
    def batches(self) -> int:
        """How many batches there are."""
        return sum(map(len, self.epochs))

    def seconds(self, rules: Rules | None = None) -> float:
        """Returns how long the batches take, by other rules or by the loader's own."""
        return sum(seconds_for(work, rules or self.rules) for work in self.epochs)

    def ideal_seconds(self) -> float:
        """Returns how long they take if a loader costs nothing."""
        return float(sum(work.loop.sum() for work in self.epochs))

    def took_seconds(self) -> float:
        """Returns how long the batches took in truth, without the starts of epochs."""
        return float(sum(map(np.sum, self.took)))

    def drawn(self, chance: np.random.Generator, most: int) -> Workload:
        """Returns as many batches, `most` at most, drawn from these in blocks of neighbours (a block bootstrap).

        Neighbours stay together, since slow times of a disk or a machine last for several batches.
        """
        epochs: list[Work] = []
        took: list[Seconds] = []
        left = most
        for work, seconds in zip(reversed(self.epochs), reversed(self.took), strict=True):
            count = min(len(work), left)
            if not count:
                break
            places = _blocks(len(work), count, chance)
            epochs.insert(0, work.taken(places))
            took.insert(0, seconds[places])
            left -= count

        is_first = self.is_first and len(epochs) == len(self.epochs)
        return replace(self, epochs=tuple(epochs), took=tuple(took), is_first=is_first)

    def repeated(self, batches: int) -> Workload:
        """Returns one epoch of so many batches: those of the longest epoch, again and again."""
        work, took = max(zip(self.epochs, self.took, strict=True), key=lambda one: len(one[0]))
        places = np.arange(batches) % len(work)
        # Workers are started once, however long the epoch.
        longer = replace(work.taken(places), start=work.start)
        return replace(self, epochs=(longer,), took=(took[places],))

    def changed(self, change: Change) -> Workload:
        """Returns it with something else in the place of each epoch that the change is for."""
        epochs = list(map(change, self.epochs))
        if self.is_first and not change.also_first:
            epochs[0] = self.epochs[0]

        return replace(self, epochs=tuple(epochs))


class Change:
    """What becomes of an epoch's work."""

    also_first = True
    """Whether that holds for the loader's first epoch, too."""

    def __call__(self, work: Work) -> Work:
        """Returns the work after the change."""
        raise NotImplementedError


@dataclass(frozen=True)
class Without(Change):
    """Making a batch takes less: so much of its waiting and of its core seconds is gone, 0 to 1."""

    wait: float = 0.0
    cpu: float = 0.0
    send: float = 0.0
    open: float = 0.0

    def __call__(self, work: Work) -> Work:
        return replace(
            work,
            wait=work.wait * (1 - self.wait),
            cpu=work.cpu * (1 - self.cpu),
            send=work.send * (1 - self.send),
            open=work.open * (1 - self.open),
            pin=work.pin * (1 - self.open),
        )


@dataclass(frozen=True)
class LaterWithout(Without):
    """As `Without`, but for the loader's first epoch, which stays as it is."""

    also_first = False


class Even(Change):
    """Every batch takes as long as the average one, and its samples are alike."""

    def __call__(self, work: Work) -> Work:
        return replace(work, wait=_evened(work.wait), cpu=_evened(work.cpu), send=_evened(work.send), single=None)


class Alike(Change):
    """The samples of each batch are alike, also those of a batch that is late."""

    def __call__(self, work: Work) -> Work:
        return replace(work, single=None)


class KnownSlowSamples(Change):
    """It is known from an epoch before which samples are slow."""

    also_first = False

    def __call__(self, work: Work) -> Work:
        return replace(work, slow_known=True)


@dataclass(frozen=True)
class Split(Change):
    """Batches have a `parts`-th of their size."""

    parts: int

    def __call__(self, work: Work) -> Work:
        return work.split(self.parts)


class Kept(Change):
    """Workers are there already when the epoch begins."""

    also_first = False

    def __call__(self, work: Work) -> Work:
        return replace(work, start=0.0)


def _blocks(length: int, count: int, chance: np.random.Generator) -> npt.NDArray[np.int64]:
    """Returns `count` places of 0 to `length`, as blocks of neighbours; behind the end comes 0."""
    size = max(round(count ** (1 / 3)), 1)
    starts = chance.integers(0, length, -(-count // size))
    places = (starts[:, None] + np.arange(size)[None, :]) % length
    return np.asarray(places.ravel()[:count], np.int64)


def _evened(seconds: Seconds) -> Seconds:
    if not len(seconds):
        return seconds
    return np.full_like(seconds, seconds.mean())


def workload_of(recording: Recording) -> Workload | None:
    """Returns what the latest batches took; None if too little is known."""
    rows = steady_batches(recording.batches)[-PLAYED:]
    if len(rows) < 2 or np.isnan(rows["begun"]).all():
        return None

    setting = recording.setting
    rules = Rules(
        setting.num_workers,
        setting.prefetch_factor,
        setting.in_order,
        setting.free,
        max(setting.cores + setting.remote_cores, 1),
        max(setting.prefetch_factor, AHEAD) if setting.adapts else AHEAD,
        min(int(setting.spare_memory // max(rows["bytes"].max(), 1)), SPARE),
        setting.shares,
    )
    stages = _rows_of_stages(steady_stages(recording.batches), slice(-PLAYED, None))
    starts = {epoch.epoch: epoch.began for epoch in recording.epochs}
    loop = _loops(rows, stages)
    took = _took(rows, stages)
    epochs = []
    taken = []
    for epoch in np.unique(rows["epoch"]):
        of_epoch = rows["epoch"] == epoch
        stages_of_epoch = _rows_of_stages(stages, of_epoch)
        work = _work(rows[of_epoch], stages_of_epoch, loop[of_epoch], starts.get(epoch), rules.workers)
        if setting.shares and epoch > 0:
            work = replace(work, slow_known=True)
        epochs.append(work)
        taken.append(took[of_epoch])

    is_first = int(rows["epoch"][0]) == 0
    return Workload(tuple(epochs), rules, is_first, _parts(recording, rows, stages), tuple(taken))


def _rows_of_stages(stages: Mapping[str, Seconds], rows: slice | npt.NDArray[np.bool_]) -> dict[str, Seconds]:
    """Returns the seconds of each stage of some batches only."""
    return {name: seconds[rows] for name, seconds in stages.items()}


def _took(rows: Batches, stages: Mapping[str, Seconds]) -> Seconds:
    """Returns for each batch the seconds of waiting and training, float64 [n]; see `Workload.took`."""
    waited = stages["wait"].copy()
    first = rows["number"] == 0
    if not first.all():
        waited[first] = np.minimum(waited[first], np.median(waited[~first]))
    return np.asarray(waited + _known_loops(rows, stages), np.float64)


def _known_loops(rows: Batches, stages: Mapping[str, Seconds]) -> Seconds:
    """Returns the seconds of training behind each batch; behind the last one of an epoch, what is usual."""
    loop = stages["loop"].copy()
    known = np.zeros(len(rows), bool)
    known[:-1] = rows["epoch"][1:] == rows["epoch"][:-1]
    if known.any():
        usual = float(np.median(loop[known]))
    else:
        usual = 0.0

    loop[~known] = usual
    return loop


def _loops(rows: Batches, stages: Mapping[str, Seconds]) -> Seconds:
    """Returns the seconds of training behind each batch, without waiting for a core; float64 [n]."""
    loop = _known_loops(rows, stages)
    cpu = float(np.nansum(rows["main_cpu"]))
    queued = float(np.nansum(rows["loop_queued"]))
    total = float(loop.sum())
    # Queueing was shared out evenly among the batches, so that only its sum is known. Some of it fell into waiting.
    if total > 0 and queued > 0:
        queued *= total / (total + float(stages["wait"].sum()))
        loop *= max(1.0 - queued / total, cpu / (cpu + queued))

    return loop


def _work(rows: Batches, stages: Mapping[str, Seconds], loop: Seconds, began: float | None, workers: int) -> Work:
    # Batches whose CPU time was not asked for are short ones, which keep a core busy.
    queued = np.nan_to_num(rows["queued"])
    whole = stages["load"] + stages["collate"] + stages["send"] + np.nan_to_num(rows["others"])
    cpu = np.where(np.isnan(rows["cpu"]), whole, rows["cpu"])

    # Sending took its share of the queueing. What is neither core time nor queueing was waiting for something else.
    ran = 1.0 - np.minimum(queued / np.maximum(whole, 1e-12), 1.0)
    send = np.minimum(stages["send"] * ran, cpu)
    waits = (whole - np.minimum(cpu, whole) - queued).clip(0)

    # What the main process does for a batch, beside training: posting, receiving, unpacking.
    busy = float(np.nansum(rows["main_cpu"]) - loop.sum()) / len(rows)
    opened = np.maximum(stages["open"], busy - stages["pin"])
    loop_cpu = np.nan_to_num(rows["loop_cpu"]).sum() - stages["open"].sum()
    cores = max(loop_cpu, 0.0) / max(float(loop.sum()), 1e-9)

    # Of batches for which the main process waited: nothing else held it up between sending and arrival.
    latency = 0.0
    waited_for = rows["asked"] < rows["sent"]
    if waited_for.any():
        latency = float(np.median(stages["transport"][waited_for]))

    # Workers are started one after the other, so each has its share of the time to the first batch that was begun.
    start = 0.0
    if began is not None and rows["number"][0] == 0 and not np.isnan(rows["begun"]).all():
        start = max(float(np.nanmin(rows["begun"])) - began, 0.0) / max(workers, 1)

    return Work(
        wait=waits,
        cpu=(cpu - send).clip(0),
        send=send,
        open=opened,
        pin=stages["pin"],
        loop=loop,
        in_workers=workers > 0,
        loop_cores=max(cores, 0.0),
        latency=latency,
        start=start,
        single=_shares_of_single(rows, whole),
        samples=max(int(np.median(rows["samples"])), 1),
    )


def _shares_of_single(rows: Batches, made: Seconds) -> Seconds:
    """Returns the share of making each batch that its slowest sample takes; see `Work.single`.

    Where samples were not timed, what a batch takes more than usual counts as one sample's.
    """
    usual = float(np.median(made))
    extra = (made - usual).clip(0) + usual / np.maximum(rows["samples"], 1)
    slowest = np.where(np.isnan(rows["slowest"]), extra, rows["slowest"])
    return np.asarray((slowest / np.maximum(made, 1e-12)).clip(0, 1), np.float64)


def _parts(recording: Recording, rows: Batches, stages: Mapping[str, Seconds]) -> dict[str, float]:
    """Returns the shares of making a batch; see `Workload.parts`. All waiting while loading counts as reading."""
    load = float(stages["load"].sum()) + float(np.nansum(rows["others"]))
    collate = float(stages["collate"].sum())
    send = float(stages["send"].sum())
    whole = max(load + collate + send, 1e-12)
    ran = 1.0 - min(float(np.nansum(rows["queued"])) / whole, 1.0)
    load_cpu = min(float(np.where(np.isnan(rows["load_cpu"]), stages["load"], rows["load_cpu"]).sum()), load)
    load = max(load * ran, load_cpu)
    collate = collate * ran
    send = send * ran
    whole = max(load + collate + send, 1e-12)
    # How often workers were seen in code that keeps a core busy. Who was seen reading waited, which CPU times tell
    # better.
    seen = {"decode": 0.0, "transform": 0.0, "other": 0.0}
    for place in recording.places:
        if place.kind != "read":
            seen[place.kind] += place.share

    total = sum(seen.values())
    if not total:
        seen["other"] = 1.0
        total = 1.0

    return {
        "collate": collate / whole,
        "send": send / whole,
        "read": (load - load_cpu) / whole,
        "decode": seen["decode"] / total * load_cpu / whole,
        "transform": seen["transform"] / total * load_cpu / whole,
        "load": seen["other"] / total * load_cpu / whole,
    }


def percentile(values: Seconds, share: float) -> float:
    """Returns a percentile of values that are not NaN; NaN if there are none."""
    values = values[~np.isnan(values)]
    if len(values):
        return float(np.percentile(values, share))
    return math.nan
