"""Which findings can be relied upon: not those of few batches, of chance, or of a machine that others keep busy."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace

from headrace.observe.diagnosis.case import Case
from headrace.observe.diagnosis.finding import Finding
from headrace.telemetry.formatting import seconds, some

BUSY = "machine-busy"
"""The finding that other processes have the cores."""

CLEAR_ON_A_BUSY_MACHINE = {
    BUSY, "training-limits", "slow-first-batch", "workers-fill-memory", "memory-grows", "server-refuses",
    "cache-too-small",
}  # fmt: skip
"""Findings that do not rest on who had a core."""

CPU_PARTS = {"slow-decode", "slow-transform", "slow-load", "slow-collate"}
"""Findings that core seconds tell, whoever else runs; only their gains rest on who had a core."""


OF_REQUESTS = {"network-limits", "latency-limits", "small-objects", "cache-too-small"}
"""Findings that requests tell, of which a batch has many: few batches allow them, without a gain."""


def machine(case: Case) -> Iterator[Finding]:
    """Yields that other processes have the cores, if they do."""
    if not case.machine_is_busy:
        return

    cores = max(case.setting.cores, 1)
    yield Finding(
        BUSY,
        "machine",
        f"This machine is busy: other processes took {case.other_cores:.1f} of {some(cores, 'core')}. The loop and its "
        f"workers ran for {seconds(case.ran)} and were queued for a core for {seconds(case.queued)}.",
        "Measure again when the other processes have ended, or on another machine. Gains, and advice on workers, "
        "waiting and starts, are left out here: they would rest on who had a core.",
    )


def certain(case: Case, found: list[Finding]) -> list[Finding]:
    """Returns the findings that predict nothing, or a gain that is a gain at both ends of its interval.

    Few batches allow no prediction at all.
    """
    if not case.is_long_enough:
        kept = []
        for finding in found:
            if finding.gain is None or finding.name in OF_REQUESTS:
                kept.append(replace(finding, gain=None, interval=None))
        return kept

    # An interval that reaches below 1 allows for a change that makes the loop slower.
    return [finding for finding in found if finding.interval is None or finding.interval[0] > 1.0]


def held_on_a_busy_machine(found: list[Finding]) -> list[Finding]:
    """Returns the findings that still hold where others took the cores; none has a gain."""
    clear = []
    for finding in found:
        if finding.name in CLEAR_ON_A_BUSY_MACHINE | CPU_PARTS:
            clear.append(replace(finding, gain=None, interval=None))

    return clear
