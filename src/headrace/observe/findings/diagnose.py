"""From what was measured of a loader to sentences: who holds up whom, what to change, and what that would gain.

`diagnose` is a pure function. Gains are predicted by playing the loader through with the change (`simulation`), against
the same play without it.
"""

from __future__ import annotations

from headrace.observe.diagnosis import Diagnosis, Finding
from headrace.observe.findings.case import Case
from headrace.observe.findings.rules import RULES, WAITS, WORTH
from headrace.observe.findings.traps import findings_of_traps
from headrace.observe.recording import Recording


def diagnose(recording: Recording) -> Diagnosis:
    """Returns what can be said of a loader. With too few batches: a diagnosis without findings that says so."""
    case = Case(recording)
    found = sorted((*_of_rules(case), *findings_of_traps(recording)), key=lambda one: -(one.gain or 0.0))
    return Diagnosis(
        label=recording.label,
        summary=_summary(case, found),
        wait_share=case.wait_share,
        limit=_limit(case, found),
        ideal_gain=case.ideal_gain,
        samples_per_second=case.rate,
        findings=tuple(found),
    )


def _of_rules(case: Case) -> list[Finding]:
    return [finding for rule in RULES for finding in rule(case)] if case.work is not None else []


def _summary(case: Case, found: list[Finding]) -> str:
    if not len(case.rows):
        return "No batch was delivered."
    waits = f"Training waited {case.wait_share:.0%} of the time for data"
    if case.wait_share < WAITS:
        return f"{waits}: the loader keeps up, at {case.rate:,.0f} samples/s."
    ideal = f"with a loader that costs nothing the loop would be {case.ideal_gain:.1f} times as fast"
    best = next((one for one in found if one.gain is not None and one.gain >= WORTH and one.advice), None)
    if best is None or best.gain is None:
        return f"{waits}; {ideal}."
    return f"{waits}; {ideal}. The most to be had: {best.name.replace('-', ' ')}, {best.gain:.1f}x."


def _limit(case: Case, found: list[Finding]) -> str:
    if case.wait_share < WAITS:
        return "training"
    first = next((one for one in found if one.gain is not None), None)
    if first is not None:
        return first.stage
    if case.work is not None:
        return max(case.work.parts, key=lambda part: case.work.parts[part] if case.work else 0.0)
    return "load"
