"""Batches that take much longer than the others, behind which the others wait, and what helps against that."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import replace
from typing import NamedTuple

import numpy as np
import numpy.typing as npt

from headrace.core.stragglers import AHEAD
from headrace.observe.diagnosis.case import Case
from headrace.observe.diagnosis.finding import WORTH, Finding
from headrace.telemetry.formatting import seconds
from headrace.workers.play.work import Rules
from headrace.workers.play.workload import Alike, Even, KnownSlowSamples, percentile

Flags = npt.NDArray[np.bool_]

MUCH = 3
"""A batch is late that takes so many times as long as usual."""

QUICK = 1e-3
"""Seconds of a usual batch below which it is not shared, and messages count for more than who makes what."""

TOO_HIGH = 0.1
"""By what share of a gain the play may be too high where workers share batches: it has no messages for their parts."""

NEARLY = 0.85
"""Share of the greatest gain that is as good: the play is a tenth off at times, and a milder change costs less."""

MOST_OF_IT = 0.5
"""Share of what late batches take more than usual, from which on it is said to be one sample's."""


class Remedy(NamedTuple):
    """Other rules for the same batches, and what they gain."""

    gain: float
    advice: str
    change: dict[str, object]
    rules: Rules


def stragglers(case: Case) -> Iterator[Finding]:
    """Yields that late batches hold up the loop, if something helps."""
    usual = percentile(case.made, 50)
    late = case.made > MUCH * usual
    if case.rules.workers < 2 or not late.any():
        return

    even = case.gain(Even())
    if even < WORTH:
        return

    remedy = _best(_remedies(case))
    if remedy.gain < WORTH:
        return

    yield Finding(
        "stragglers",
        "stragglers",
        f"A batch usually takes {seconds(usual)}; {int(late.sum())} of {len(late)} take up to "
        f"{seconds(float(case.made[late].max()))}{_because(case, late, usual)}, and the others wait for them. With "
        f"even batches the loop would be {even:.2f} times as fast.",
        remedy.advice,
        remedy.gain,
        remedy.change,
        _interval(case, remedy, late),
    )


def _because(case: Case, late: Flags, usual: float) -> str:
    """Returns whether late batches have single slow samples, in words; "": it is not known, or they have not."""
    slowest = case.rows["slowest"][late]
    known = ~np.isnan(slowest)
    if known.sum() < len(slowest) / 2:
        return ""

    share = slowest[known] / (case.made[late][known] - usual)
    if float(np.median(share)) < MOST_OF_IT:
        return ""
    return f", most of it for a single sample (up to {seconds(float(slowest[known].max()))})"


def _remedies(case: Case) -> list[Remedy]:
    """Returns what may help, the mildest change first."""
    remedies = []
    for prefetch in (4, 8, 16):
        if case.memory_with(case.rules.workers, prefetch) < case.setting.memory / 2 or not case.setting.memory:
            rules = replace(case.rules, prefetch=prefetch, ahead=AHEAD)
            advice = f"prefetch_factor={prefetch}: more batches ahead."
            remedies.append(_remedy(case, advice, {"prefetch_factor": prefetch}, rules))

    if not case.rules.free and not case.setting.is_stream and percentile(case.made, 50) >= QUICK:
        advice = "seed=0: then batches go to whichever worker is free, in the same order."
        if case.setting.could_share:
            advice = (
                "seed=0: then workers that have nothing to do help with a late batch, in the same order. From the "
                "second epoch on, samples that were slow begin earlier."
            )
        rules = replace(case.rules, free=True, shares=case.setting.could_share)
        remedies.append(_remedy(case, advice, {"seed": 0}, rules))

    if case.rules.in_order:
        rules = replace(case.rules, in_order=False, shares=False)
        advice = "in_order=False: batches come as they are ready."
        remedies.append(_remedy(case, advice, {"in_order": False}, rules))

    return remedies


def _remedy(case: Case, advice: str, change: dict[str, object], rules: Rules) -> Remedy:
    return Remedy(case.gain_of_epochs(rules), advice, change, rules)


def _best(remedies: Sequence[Remedy]) -> Remedy:
    """Returns the mildest change that gains nearly as much as any: who has to change little, tries it."""
    best = max(remedy.gain for remedy in remedies)
    return next(remedy for remedy in remedies if remedy.gain >= NEARLY * best)


def _interval(case: Case, remedy: Remedy, late: Flags) -> tuple[float, float]:
    """Returns between what bounds the gain lies.

    Where workers share batches, it is more if slow samples are known by their keys in later epochs. And it is more if
    late batches have no single slow samples, where that was not measured.
    """
    played = case.gain(rules=remedy.rules)
    low, high = case.interval(rules=remedy.rules)
    if remedy.rules.shares:
        low = min(low, played * (1 - TOO_HIGH))
        high = max(high, case.gain(KnownSlowSamples(), remedy.rules))
        if np.isnan(case.rows["slowest"][late]).any():
            high = max(high, case.gain(Alike(), remedy.rules))

    low, high = (bound / played * remedy.gain for bound in (low, high))
    return low, max(min(high, case.ideal_gain), remedy.gain)
