"""What the timeline draws, as JSON for page.js."""

from __future__ import annotations

import json
from typing import Any

import numpy as np
import numpy.typing as npt

from headrace.telemetry.preparing import first_step, prepared
from headrace.telemetry.recording import MAIN, Batches, Event, Recording

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
    known = [epoch.began for epoch in recording.epochs] + [recording.first_seen]
    known += [event.time for event in recording.events]
    for name in MOMENTS:
        values = recording.batches[name]
        known += [float(values[np.isfinite(values)].min())] if np.isfinite(values).any() else []

    finite = [value for value in known if np.isfinite(value)]
    return min(finite, default=float("nan"))


def timeline(recording: Recording, most: int = MOST_BATCHES) -> dict[str, Any] | None:
    """Returns what page.js draws: columns of the batches, whole microseconds from `began`; None if no time is known."""
    zero = began(recording)
    rows, left_out = drawn(recording.batches, most)
    if not np.isfinite(rows["delivered"]).any():
        return None

    columns: dict[str, Any] = {name: rows[name].tolist() for name in COUNTS}
    columns |= {name: _micros(rows[name] - zero) for name in MOMENTS}
    columns |= {name: _micros(rows[name]) for name in LENGTHS}
    return {
        "batches": columns,
        "count": len(rows),
        "prepared": np.flatnonzero(prepared(rows).at).tolist(),
        "first_step": first_step(rows),
        "workers": _workers(recording, rows),
        "left_out": [_first(most), left_out] if left_out else None,
        "events": [_event(event, zero) for event in recording.events[-MOST_EVENTS:] if np.isfinite(event.time)],
        "epochs": [[round((one.began - zero) * 1e6), one.epoch] for one in recording.epochs if np.isfinite(one.began)],
    }


def _first(most: int) -> int:
    return min(FIRST_BATCHES, most // 6)


def as_script(value: object) -> str:
    """Returns it as JSON that no HTML parser takes for markup."""
    plain = json.dumps(value, separators=(",", ":"), allow_nan=False)
    return plain.replace("<", "\\u003c").replace(">", "\\u003e").replace("&", "\\u0026")


def _workers(recording: Recording, rows: Batches) -> list[int]:
    numbers = {int(worker) for worker in np.unique(rows["worker"][np.isfinite(rows["begun"])])}
    numbers |= {event.worker for event in recording.events if event.worker is not None}
    return sorted(numbers - {MAIN})


def _micros(values: npt.NDArray[Any]) -> list[int | None] | None:
    """Returns whole microseconds, None for what is not known; None for all of it if nothing is."""
    known = np.isfinite(values)
    if not known.any():
        return None
    whole = np.round(np.where(known, values, 0.0) * 1e6).astype(np.int64)
    return [value if is_known else None for value, is_known in zip(whole.tolist(), known.tolist(), strict=True)]


def _event(event: Event, zero: float) -> list[Any]:
    return [round((event.time - zero) * 1e6), event.kind, event.text, event.worker]
