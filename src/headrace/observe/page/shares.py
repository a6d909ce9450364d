"""Where the time went, as figures."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from headrace.observe.recording import MAIN, Batches, Recording, stage_seconds
from headrace.observe.stats import stats_of

Floats = npt.NDArray[np.float64]


@dataclass(frozen=True)
class Piece:
    """A part of the time: `stage` is the name of its colour in page.css."""

    stage: str
    label: str
    seconds: float


def is_inline(recording: Recording) -> bool:
    """Returns whether the main process makes the batches."""
    return recording.setting.num_workers == 0


def main_pieces(recording: Recording) -> list[Piece]:
    """Returns how the main process spent its time; empty if nothing is known.

    Batches are opened, pinned and, without workers, made while the loop waits: waiting is what is left of that.
    """
    totals = recording.totals
    starting = max(0.0, stats_of(recording).waited - totals.get("wait", 0.0))
    making = ("load", "collate") if is_inline(recording) else ()
    inside = [Piece(stage, _LABELS[stage], totals.get(stage, 0.0)) for stage in (*making, "open", "pin")]
    inside = [piece for piece in inside if piece.seconds > 0]
    waited = max(0.0, totals.get("wait", 0.0) - sum(piece.seconds for piece in inside))
    pieces = [
        Piece("train", "training loop", totals.get("loop", 0.0)),
        Piece("wait", "waiting for a batch", waited),
        *inside,
        *([Piece("start", "starting epochs", starting)] if starting > 0 else []),
    ]
    return pieces if sum(piece.seconds for piece in pieces) > 0 else []


def worker_pieces(recording: Recording) -> list[Piece]:
    """Returns how the workers spent their time, all of them together; empty if it was not measured, or there are none.

    Idleness is measured on the batches that are held, from the beginning of an epoch's work to its last delivery.
    """
    totals = recording.totals
    pieces = [Piece(stage, _LABELS[stage], totals.get(stage, 0.0)) for stage in ("load", "collate", "send")]
    busy = sum(piece.seconds for piece in pieces)
    if is_inline(recording) or busy <= 0:
        return []
    held = recording.batches[recording.batches["worker"] != MAIN]
    stages = stage_seconds(held)
    busy_held = float(sum(stages[name].sum() for name in ("load", "collate", "send")))
    if busy_held > 0:
        idle = max(0.0, _worker_seconds(recording, held) - busy_held)
        pieces.append(Piece("idle", _LABELS["idle"], idle * busy / busy_held))
    return pieces


def _worker_seconds(recording: Recording, held: Batches) -> float:
    """Returns for how long there were workers, times how many."""
    workers = {epoch.epoch: epoch.workers for epoch in recording.epochs}
    total = 0.0
    for epoch in np.unique(held["epoch"]):
        rows = held[held["epoch"] == epoch]
        begun = rows["begun"][np.isfinite(rows["begun"])]
        ends = np.concatenate([rows["delivered"], rows["sent"]])
        ends = ends[np.isfinite(ends)]
        if len(begun) and len(ends):
            known = workers.get(int(epoch), 0) or len(np.unique(rows["worker"]))
            total += known * float(ends.max() - begun.min())
    return total


def between_deliveries(batches: Batches) -> Floats:
    """Returns the seconds from each delivery to the next one of the same epoch, where both are known."""
    if len(batches) < 2:
        return np.zeros(0)
    gaps = np.diff(batches["delivered"])[batches["epoch"][1:] == batches["epoch"][:-1]]
    return np.asarray(gaps[np.isfinite(gaps) & (gaps >= 0)], np.float64)


def making(batches: Batches) -> Floats:
    """Returns the seconds from the beginning of the work on each batch to its end, where both are known."""
    ends = np.full(len(batches), np.nan)
    for name in ("loaded", "collated", "sent"):
        ends = np.where(np.isfinite(batches[name]), batches[name], ends)
    taken = ends - batches["begun"]
    return np.asarray(taken[np.isfinite(taken) & (taken >= 0)], np.float64)


_LABELS = {
    "load": "loading",
    "collate": "collating",
    "send": "sending",
    "idle": "idle",
    "open": "opening",
    "pin": "pinning",
}
