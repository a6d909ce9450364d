"""From what was measured of a loader to sentences: who holds up whom, what to change, and what that would gain.

`diagnose` is a pure function. Gains are predicted by playing the loader through with the change (`simulation`), against
the same play without it.
"""

from __future__ import annotations

from headrace.observe.diagnosis.case import WAITS, Case
from headrace.observe.diagnosis.certainty import certain, held_on_a_busy_machine
from headrace.observe.diagnosis.finding import WORTH, Diagnosis, Finding
from headrace.observe.diagnosis.rules import RULES
from headrace.observe.diagnosis.traps import WRONG_DATA, findings_of_traps
from headrace.telemetry.formatting import gain_in_words, seconds, some
from headrace.telemetry.recording import Recording


def diagnose(recording: Recording) -> Diagnosis:
    """Returns what can be said of a loader. With too few batches: a diagnosis without findings that says so."""
    case = Case(recording)
    found = [*_of_rules(case), *findings_of_traps(recording)]
    limit = _limit(case, found)

    def rank(finding: Finding) -> tuple[bool, bool, bool, float]:
        """Wrong data come before slow ones, the limiting stage before others, and gains before mere remarks."""
        is_right = finding.name not in WRONG_DATA
        return is_right, finding.stage != limit, finding.gain is None, -(finding.gain or 0.0)

    found.sort(key=rank)
    return Diagnosis(
        label=recording.label,
        summary=_summary(case, found),
        wait_share=case.wait_share,
        limit=limit,
        ideal_gain=None if case.machine_is_busy else case.ideal_gain,
        samples_per_second=case.rate,
        findings=tuple(found),
    )


def _of_rules(case: Case) -> list[Finding]:
    if case.work is None:
        return []

    found: list[Finding] = []
    for rule in RULES:
        found += rule(case)

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

    if not case.has_trained:
        return f"{waits}: no training was measured between batches, as where an epoch is a single batch."

    # A loop that does nothing but wait would be thousands of times as fast: such a figure only says that no training
    # was measured.
    ideal = "there is hardly any training between the batches"
    if case.ideal_gain < 100:
        ideal = f"with a loader that costs nothing it would be {case.ideal_gain:.1f} times as fast"
    if case.work is not None and not case.is_long_enough:
        return f"{waits}; {some(case.work.batches, 'batch', 'batches')} are too few to predict what would help."
    if case.prepared_wait > 0 and case.ideal_gain < 100:
        ideal = f"{ideal} from then on"

    for finding in found:
        if finding.gain is not None and finding.gain >= WORTH and finding.advice:
            best = f"What helps most ({finding.name}): {gain_in_words(finding.gain, finding.interval)}."
            return f"{waits}; {ideal}. {best}"

    return f"{waits}; {ideal}."


STRUCTURE = ("start", "batches", "stragglers", "transport", "delivery")
"""Stages that are about how batches come, rather than about making one."""


def _limit(case: Case, found: list[Finding]) -> str:
    """Returns the stage that limits the loop: of several that would help, the one that explains the most by itself."""
    if case.keeps_up:
        return "training"
    if case.machine_is_busy:
        return "machine"

    gains: dict[str, float] = {}
    for finding in found:
        gains[finding.stage] = max(finding.gain or 0.0, gains.get(finding.stage, 0.0))

    # How batches come is named before how one is made: where an epoch has two batches, or one batch in ten is slow,
    # each stage of making one looks slow as well. More workers help with nearly everything, so they have to explain
    # more.
    best = max(gains.values(), default=0.0)
    for stage in STRUCTURE:
        if gains.get(stage, 0.0) >= max(0.8 * best, WORTH):
            return stage

    if gains.get("workers", 0.0) >= max(min(0.85 * case.ideal_gain, best), WORTH):
        return "workers"

    if case.work is None or not case.work.parts:
        return "load"

    parts = case.work.parts
    return max(parts, key=lambda part: parts[part])
