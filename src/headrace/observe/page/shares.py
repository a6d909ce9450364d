"""Where the time went, as figures."""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from headrace.observe.stats import stats_of
from headrace.telemetry.preparation import MAKING, steady_stages
from headrace.telemetry.recording import MAIN, Batches, LoadingPlace, Recording, stage_seconds

SOURCE_LINE = re.compile(r"\(([^()]+:\d+)\)$")
"""The file and line at the end of a place, such as "Photos.decode (train.py:12)"."""

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
    once = _once(recording)
    starting = max(0.0, stats_of(recording).waited - totals.get("wait", 0.0)) + once["wait"]
    if is_inline(recording):
        making: tuple[str, ...] = ("load", "collate")
    else:
        making = ()

    inside = []
    for stage in (*making, "open", "pin"):
        seconds = totals.get(stage, 0.0) - once.get(stage, 0.0)
        if seconds > 0:
            inside.append(Piece(stage, _LABELS[stage], seconds))

    waited = max(0.0, totals.get("wait", 0.0) - once["wait"] - _whole(inside))
    pieces = [
        Piece("train", "training loop", totals.get("loop", 0.0) - once["loop"]),
        Piece("wait", "waiting for a batch", waited),
        *inside,
    ]
    if starting > 0:
        pieces.append(Piece("start", "starting and preparing", starting))
    if once["loop"] > 0:
        pieces.append(Piece("first", "first training step", once["loop"]))
    if _whole(pieces) > 0:
        return pieces
    return []


def _whole(pieces: Sequence[Piece]) -> float:
    """Returns the seconds of all pieces together."""
    return sum(piece.seconds for piece in pieces)


def _once(recording: Recording) -> dict[str, float]:
    """Returns for each stage the seconds of what is done once, in front of a first batch or in the first step."""
    steady = steady_stages(recording.batches)
    once = {}
    for stage, seconds in stage_seconds(recording.batches).items():
        once[stage] = float((seconds - steady[stage]).sum())

    return once


def by_line(places: Sequence[LoadingPlace]) -> list[LoadingPlace]:
    """Returns the places with those of one source line made one, whose share is their sum; largest share first."""
    lines: dict[str, LoadingPlace] = {}
    for place in places:
        line = place.where
        if found := SOURCE_LINE.search(place.where):
            line = found.group(1)

        # One line of code may wait and decode: the sampler, which looks at it at random times, saw it in two places.
        earlier = lines.get(line)
        if earlier is None:
            lines[line] = place
            continue

        kinds = earlier.kind
        if place.kind not in kinds.split(", "):
            kinds = f"{kinds}, {place.kind}"
        lines[line] = LoadingPlace(kinds, earlier.where, earlier.share + place.share)

    return sorted(lines.values(), key=lambda place: -place.share)


def worker_pieces(recording: Recording) -> list[Piece]:
    """Returns how the workers spent their time, all of them together; empty if it was not measured, or there are none.

    Idleness is measured on the batches that are held, from the beginning of an epoch's work to its last delivery.
    """
    pieces = [Piece(stage, _LABELS[stage], recording.totals.get(stage, 0.0)) for stage in MAKING]
    busy = _whole(pieces)
    if is_inline(recording) or busy <= 0:
        return []

    # The pieces are of all batches, and only the latest are held: their idle time is scaled up by how long workers were
    # busy in all.
    held = recording.batches[recording.batches["worker"] != MAIN]
    stages = stage_seconds(held)
    busy_held = float(np.sum([stages[name].sum() for name in MAKING]))
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
