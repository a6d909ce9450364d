"""How a batch came to be where it is wanted: what an engine leaves of each for the loader's record."""

from __future__ import annotations

import math

from headrace.telemetry.recording import MAIN
from headrace.telemetry.stopwatch import TimesHere

NAN = math.nan

Journey = tuple[float, ...]
"""From `worker` to `pinned` of `observe.recording.BATCH`."""

UNKNOWN = (NAN, NAN, NAN)
"""What follows it in `BATCH`: the recorder fills it in later."""

UNKNOWN_JOURNEY: Journey = (NAN,) * 13
"""Of a batch of which an engine left nothing."""


def journey_here(times: TimesHere, nbytes: int, pinned: float) -> Journey:
    """Returns the journey of a batch that was made where it is wanted. `times`: those of `Stopwatch.made_here`."""
    begun, loaded, collated, load_cpu, cpu, queued = times
    return MAIN, nbytes, NAN, begun, loaded, collated, NAN, NAN, load_cpu, cpu, queued, 0.0, pinned
