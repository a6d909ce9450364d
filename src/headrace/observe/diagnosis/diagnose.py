"""From what was measured of a loader to sentences: who holds up whom, what to change, and what that would gain.

`diagnose` is a pure function. Gains are predicted by playing the loader through with the change (`simulation`), against
the same play without it.
"""

from __future__ import annotations

from headrace.observe.diagnosis.case import WAITS, Case
from headrace.observe.diagnosis.certainty import certain, held_on_a_busy_machine
from headrace.observe.diagnosis.finding import Diagnosis, Finding
from headrace.observe.diagnosis.rules import RULES, WORTH
from headrace.observe.diagnosis.traps import WRONG_DATA, findings_of_traps
from headrace.telemetry.formatting import gain_in_words, seconds, some
from headrace.telemetry.recording import Recording


def diagnose(recording: Recording) -> Diagnosis:
    """Returns what can be said of a loader. With too few batches: a diagnosis without findings that says so."""
    case = Case(recording)
    found = [*_of_rules(case), *findings_of_traps(recording)]
    limit = _limit(case, found)
    found.sort(key=lambda one: (one.name not in WRONG_DATA, one.stage != limit, one.gain is None, -(one.gain or 0.0)))
    return Diagnosis(
        label=recording.label,
        summary=_summary(case, found),
        wait_share=case.wait_share,
        limit=limit,
        ideal_gain=case.ideal_gain,
        samples_per_second=case.rate,
        findings=tuple(found),
    )


def _of_rules(case: Case) -> list[Finding]:
    if case.work is None:
        return []

    found = [finding for rule in RULES for finding in rule(case)]
    if case.machine_is_busy:
        return held_on_a_busy_machine(found)
    return certain(case, found)


def _summary(case: Case, found: list[Finding]) -> str:
    if not len(case.rows):
        return "No batch was delivered."

    waits = f"The loop waited {case.wait_share:.0%} of the time for data"
    if case.prepared_wait > 0:
        waits = f"{waits}, {seconds(case.prepared_wait)} of it for what is prepared once"
    if case.wait_share < WAITS:
        return f"{waits}: the loader keeps up, at {case.rate:,.0f} samples/s."
    if case.machine_is_busy:
        return f"{waits}, on a machine where other processes took {case.other_cores:.1f} cores."

    if case.ideal_gain < 100:
        gain = f"{case.ideal_gain:.1f}"
    else:
        gain = "more than 100"

    ideal = f"with a loader that costs nothing it would be {gain} times as fast"
    if case.work is not None and not case.is_long_enough:
        return f"{waits}; {some(case.work.batches, 'batch', 'batches')} are too few to predict what would help."
    if case.prepared_wait > 0:
        ideal = f"{ideal} from then on"

    best = next((one for one in found if one.gain is not None and one.gain >= WORTH and one.advice), None)
    if best is None or best.gain is None:
        return f"{waits}; {ideal}."
    return f"{waits}; {ideal}. What helps most ({best.name}): {gain_in_words(best.gain, best.interval)}."


STRUCTURE = ("start", "batches", "stragglers", "transport", "delivery")
"""Stages that are about how batches come, rather than about making one."""


def _limit(case: Case, found: list[Finding]) -> str:
    """Returns the stage that limits the loop: of several that would help, the one that explains the most by itself."""
    if case.keeps_up:
        return "training"
    if case.machine_is_busy:
        return "machine"

    gains = {stage: max(one.gain or 0.0 for one in found if one.stage == stage) for stage in {f.stage for f in found}}
    best = max(gains.values(), default=0.0)
    for stage in STRUCTURE:
        if gains.get(stage, 0.0) >= max(0.8 * best, WORTH):
            return stage

    if gains.get("workers", 0.0) >= max(min(0.85 * case.ideal_gain, best), WORTH):
        return "workers"

    if case.work is not None:
        parts = case.work.parts
    else:
        parts = {}

    if parts:
        return max(parts, key=lambda part: parts[part])
    return "load"
