"""Recordings whose every figure is known: a loop by recurrences, without chance, with cores for everybody."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

import numpy as np

from headrace.telemetry.recording import BATCH, MAIN, EpochTimes, Recording, Setting, stage_seconds, totals_of

MS = 1e-3
BEGAN = 1000.0


@dataclass(frozen=True)
class Loop:
    """What a batch takes in each stage, in seconds: a number for all, or an array with one for each of an epoch's."""

    load: Any = 0.0
    load_cpu: Any = None
    """Core seconds of loading; None: all of it."""
    collate: Any = 0.0
    send: Any = 0.0
    open: float = 0.0
    pin: float = 0.0
    loop: float = 0.0
    latency: float = 0.0
    slowest: Any = np.nan
    """Seconds of the slowest sample; NaN: samples were not timed."""
    queued: Any = 0.0
    """Of making a batch: seconds without a core."""
    start: float = 0.0
    """From the beginning of an epoch to the first worker."""
    workers: int = 2
    prefetch: int = 2
    batches: int = 200
    """Of an epoch."""
    epochs: int = 1
    fresh: bool = True
    nbytes: int = 1000
    setting: dict[str, Any] = field(default_factory=dict)
    recording: dict[str, Any] = field(default_factory=dict)
    totals: dict[str, float] = field(default_factory=dict)
    """Sums that no batch has, such as "other_cores"."""


def recording_of(given: Loop) -> Recording:
    """Returns what such a loader leaves."""
    parts, epochs, now = [], [], BEGAN
    for epoch in range(given.epochs):
        rows = _here(given, now) if given.workers == 0 else _by_workers(given, now)
        rows["epoch"] = epoch
        ended = float(rows["delivered"][-1]) + given.loop
        first = float(rows["delivered"][0])
        epochs.append(EpochTimes(epoch, now, first, ended, len(rows), given.workers, given.fresh or not epoch))
        parts.append(rows)
        now = ended + 1.0
    rows = np.concatenate(parts)
    made_here = stage_seconds(rows)["open"]
    rows["samples"], rows["bytes"], rows["loop_queued"] = 16, given.nbytes, 0.0
    rows["loop_cpu"] = rows["main_cpu"] = given.loop + made_here
    opening = sum(float(part["asked"][0]) - one.began for part, one in zip(parts, epochs, strict=True))
    setting = {
        "backend": "process" if given.workers else "inline", "num_workers": given.workers, "batch_size": 16,
        "prefetch_factor": given.prefetch, "cores": 64, "memory": 10**12, "dataset": "Photos",
    }  # fmt: skip
    return Recording(
        label="train.py:7",
        setting=Setting(**{**setting, **given.setting}),
        batches=rows,
        epochs=tuple(epochs),
        totals=totals_of(rows) | {"opening": opening} | given.totals,
        first_seen=BEGAN,
        **given.recording,
    )


def _blank(given: Loop) -> np.ndarray:
    rows = np.zeros(given.batches, BATCH)
    for name in BATCH.names or ():
        if BATCH[name].kind == "f":
            rows[name] = np.nan
    rows["number"] = np.arange(given.batches)
    rows["load_cpu"] = given.load if given.load_cpu is None else given.load_cpu
    rows["cpu"] = rows["load_cpu"] + given.collate + given.send
    rows["queued"], rows["opened"], rows["pinned"] = given.queued, given.open, given.pin
    rows["slowest"] = given.slowest
    return rows


def _by_workers(given: Loop, began: float) -> np.ndarray:
    rows, limit = _blank(given), given.workers * given.prefetch
    load, collate, send = (np.broadcast_to(one, given.batches) for one in (given.load, given.collate, given.send))
    rows["worker"] = np.arange(given.batches) % given.workers
    asked = began + given.start
    for task, row in enumerate(rows):
        free = rows["sent"][task - given.workers] if task >= given.workers else began + given.start
        row["posted"] = rows["delivered"][task - limit] - given.open - given.pin if task >= limit else began
        row["begun"] = max(row["posted"], free)
        row["loaded"] = row["begun"] + load[task]
        row["collated"] = row["loaded"] + collate[task]
        row["sent"] = row["collated"] + send[task]
        row["asked"] = asked
        row["arrived"] = max(row["sent"] + given.latency, asked)
        row["delivered"] = row["arrived"] + given.open + given.pin
        asked = row["delivered"] + given.loop
    return rows


def _here(given: Loop, began: float) -> np.ndarray:
    rows = _blank(given)
    load, collate = (np.broadcast_to(one, given.batches) for one in (given.load, given.collate))
    rows["worker"], asked = MAIN, began
    for task, row in enumerate(rows):
        row["asked"] = row["begun"] = asked
        row["loaded"] = asked + load[task]
        row["collated"] = row["delivered"] = row["loaded"] + collate[task]
        asked = row["delivered"] + given.loop
    return rows
