"""Rules for sources that never end: whether the source has nothing, or has more than is read."""

from __future__ import annotations

from collections.abc import Iterator

from headrace.observe.diagnosis.case import Case
from headrace.observe.diagnosis.finding import Finding
from headrace.telemetry.formatting import percent, some

SHARE = 0.3
"""Seconds of waiting for the source for each second that the loop waits, from which on it is why it waits."""

FALLS_BACK = 0.02
"""Growth of the lag, as a share of the rate of reading, from which on the source is behind."""


def waits_for_source(case: Case) -> bool:
    """Tells whether the loop waits because the source gives nothing."""
    live = case.recording.live
    return live is not None and not case.keeps_up and live.waited >= SHARE * case.waited > 0


def live_findings(case: Case) -> Iterator[Finding]:
    """Yields what is found of a source that never ends."""
    live = case.recording.live
    if live is None or live.lag < 0:
        return

    if waits_for_source(case) and live.is_empty:
        sentence = (
            f"The source is empty: all that {live.place} has is read, and the loop waited for new records for "
            f"{percent(live.waited / case.looped)} of the time. There is nothing to do here."
        )
        yield Finding("source-empty", "source", sentence, "")
        return

    if live.lag_rate <= FALLS_BACK * max(live.read_rate, 1.0):
        return

    sentence = f"The source is behind by {live.lag:,} records and falls back {live.lag_rate:,.0f}/s."
    if not waits_for_source(case):
        needed = 1 + live.lag_rate / max(case.rate, 1.0)
        sentence = f"{sentence} Reading waits for the training loop, which would have to be {needed:.1f} times as fast."
        yield Finding("source-behind", "training", sentence, "train on more machines, or on a part of the records")
        return

    needed = live.partitions * (1 + live.lag_rate / max(live.read_rate, 1.0))
    advice = (
        f"give the source {some(round(needed + 0.5), 'partition')} instead of {live.partitions}: they would keep up"
    )
    yield Finding("source-behind", "source", sentence, advice)
