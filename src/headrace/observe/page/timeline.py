"""What the timeline draws, as JSON for page.js."""

from __future__ import annotations

import json
import math
from collections.abc import Iterable
from typing import Any

import numpy as np
import numpy.typing as npt

from headrace.telemetry.preparation import first_step, prepared
from headrace.telemetry.recording import Batches, EpochTimes, Event, Recording, workers_seen

MOST_BATCHES = 6_000
"""Batches that one timeline draws."""
MOST_ON_PAGE = 24_000
"""Batches that all timelines of a page draw."""
FIRST_BATCHES = 1_000
"""How many of them are the first ones, where some are left out; the others are the latest ones."""
MOST_EVENTS = 1_000
"""Events that one timeline draws: the latest ones."""

MOMENTS = ("posted", "begun", "loaded", "collated", "sent", "arrived", "asked", "delivered")
LENGTHS = ("load_cpu", "cpu", "queued", "opened", "pinned")
COUNTS = ("epoch", "number", "worker", "samples", "bytes")


def budget(recordings: int) -> int:
    """Returns how many batches a timeline may draw when a page has so many of them."""
    return min(MOST_BATCHES, MOST_ON_PAGE // max(1, recordings))


def drawn(batches: Batches, most: int = MOST_BATCHES) -> tuple[Batches, int]:
    """Returns the batches to draw, and how many are left out after the first of them.

    What is left out is one stretch: a timeline with every other batch would show waits that never were.
    """
    left_out = len(batches) - most
    if left_out <= 0:
        return batches, 0
    first = _first(most)
    return np.concatenate([batches[:first], batches[first + left_out :]]), left_out


def began(recording: Recording) -> float:
    """Returns the time from which a recording's seconds are counted: NaN if there is none."""
    moments = [epoch.began for epoch in recording.epochs]
    moments += [event.time for event in recording.events]
    moments.append(recording.first_seen)
    for name in MOMENTS:
        moments += recording.batches[name].tolist()

    known = np.array(moments)
    known = known[np.isfinite(known)]
    if len(known):
        return float(known.min())
    return math.nan


def timeline(recording: Recording, most: int = MOST_BATCHES) -> dict[str, Any] | None:
    """Returns what page.js draws: columns of the batches, whole microseconds from `began`; None if no time is known."""
    zero = began(recording)
    rows, left_out = drawn(recording.batches, most)
    if not np.isfinite(rows["delivered"]).any():
        return None

    # Columns rather than rows: the name of a field is written once, and not for each of thousands of batches.
    columns: dict[str, Any] = {}
    for name in COUNTS:
        columns[name] = rows[name].tolist()
    for name in MOMENTS:
        columns[name] = _micros(rows[name] - zero)
    for name in LENGTHS:
        columns[name] = _micros(rows[name])

    gap = None
    if left_out:
        gap = [_first(most), left_out]

    return {
        "batches": columns,
        "count": len(rows),
        "prepared": np.flatnonzero(prepared(rows).at).tolist(),
        "first_step": first_step(rows),
        "workers": workers_seen(rows, recording.events),
        "names": {worker: recording.worker_name(worker) for worker in recording.hosts},
        "left_out": gap,
        "events": _events(recording.events[-MOST_EVENTS:], zero),
        "epochs": _epochs(recording.epochs, zero),
    }


def _first(most: int) -> int:
    return min(FIRST_BATCHES, most // 6)


def as_script(value: object) -> str:
    """Returns it as JSON that no HTML parser takes for markup."""
    # "</script>" and "<!--" end or change a script element even within a string of JSON; escaped, they are only text.
    plain = json.dumps(value, separators=(",", ":"), allow_nan=False)
    return plain.replace("<", "\\u003c").replace(">", "\\u003e").replace("&", "\\u0026")


def _micros(values: npt.NDArray[Any]) -> list[int | None] | None:
    """Returns whole microseconds, None for what is not known; None for all of it if nothing is."""
    known = np.isfinite(values)
    if not known.any():
        return None
    # NaN has no whole number, so it is replaced before the conversion, and by None behind it.
    whole = np.round(np.where(known, values, 0.0) * 1e6).astype(np.int64).astype(object)
    whole[~known] = None
    micros: list[int | None] = whole.tolist()
    return micros


def _events(events: Iterable[Event], zero: float) -> list[list[Any]]:
    """Returns events as page.js takes them: microseconds, kind, text, worker."""
    rows = []
    for event in events:
        if np.isfinite(event.time):
            rows.append([round((event.time - zero) * 1e6), event.kind, event.text, event.worker])

    return rows


def _epochs(epochs: Iterable[EpochTimes], zero: float) -> list[list[int]]:
    """Returns epochs as page.js takes them: microseconds of the beginning, number."""
    rows = []
    for epoch in epochs:
        if np.isfinite(epoch.began):
            rows.append([round((epoch.began - zero) * 1e6), epoch.epoch])

    return rows
