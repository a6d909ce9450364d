"""How a batch came to be where it is wanted: what an executor tells of each, and the row that the record gets."""

from __future__ import annotations

import math
from typing import NamedTuple

from headrace.telemetry.recording import MAIN
from headrace.telemetry.stopwatch import Times, TimesHere

NAN = math.nan


class BatchTimings(NamedTuple):
    """The part of `recording.BATCH` that an executor knows. What it does not know is NaN."""

    worker: int = MAIN
    bytes: float = NAN
    posted: float = NAN
    begun: float = NAN
    loaded: float = NAN
    collated: float = NAN
    sent: float = NAN
    arrived: float = NAN
    load_cpu: float = NAN
    cpu: float = NAN
    queued: float = NAN
    opened: float = NAN
    pinned: float = NAN
    slowest: float = NAN
    others: float = NAN


class BatchRow(NamedTuple):
    """One row of `recording.BATCH`, with the same names in the same order."""

    epoch: int
    number: int
    samples: int
    asked: float
    delivered: float
    worker: int
    bytes: float
    posted: float
    begun: float
    loaded: float
    collated: float
    sent: float
    arrived: float
    load_cpu: float
    cpu: float
    queued: float
    opened: float
    pinned: float
    slowest: float
    others: float
    loop_cpu: float = NAN  # the recorder fills in these three later
    main_cpu: float = NAN
    loop_queued: float = NAN


ShortTimings = tuple[float, float, float, float]
"""`bytes`, `begun`, `loaded` and `collated` of a short batch that was made where it is wanted: no more is known of it.

A plain tuple, since each small batch pays for it.
"""


def complete(timings: BatchTimings | ShortTimings) -> BatchTimings:
    """Returns timings with all their fields."""
    if isinstance(timings, BatchTimings):
        return timings
    nbytes, begun, loaded, collated = timings
    return BatchTimings(MAIN, nbytes, NAN, begun, loaded, collated, opened=0.0, pinned=0.0)


def timings_here(times: TimesHere, nbytes: int) -> BatchTimings:
    """Returns the timings of a batch that was made where it is wanted. `times`: those of `Stopwatch.made_here`."""
    begun, loaded, collated, load_cpu, cpu, queued = times
    # The tuple that `BatchTimings(...)` makes, in a third of the time: each small batch pays for it.
    return tuple.__new__(
        BatchTimings, (MAIN, nbytes, NAN, begun, loaded, collated, NAN, NAN, load_cpu, cpu, queued, 0.0, 0.0, NAN, NAN)
    )


def timings_of_worker(
    worker: int, nbytes: int, posted: float, times: Times, arrived: float, opened: float
) -> BatchTimings:
    """Returns the timings of a batch that a worker made. opened: seconds that unpacking it took."""
    begun, loaded, collated, sent, load_cpu, cpu, queued, slowest, others = times
    return tuple.__new__(
        BatchTimings,
        (
            worker, nbytes, posted, begun, loaded, collated, sent, arrived, load_cpu, cpu, queued, opened, 0.0,
            slowest, others,
        ),
    )  # fmt: skip
