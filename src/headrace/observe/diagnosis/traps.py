"""Known traps of data loaders: what each is, and what to do about it. Whoever meets one notes it in the recording."""

from __future__ import annotations

from collections.abc import Iterator
from typing import NamedTuple

from headrace.observe.diagnosis.finding import Finding
from headrace.telemetry.recording import Recording


class TrapFinding(NamedTuple):
    """What is known of a trap."""

    stage: str
    sentence: str
    advice: str


TRAPS = {
    "python-objects": TrapFinding(
        "memory",
        "{} Reading Python objects changes their reference counts, which copies their pages into each worker.",
        "Hold them in arrays: headrace.compact(...).",
    ),
    "generator-copied": TrapFinding(
        "random",
        "{} Each worker has a copy of it in the same state, so all of them draw the same numbers.",
        "seed=, which seeds it for each sample; or draw from headrace.rng() or the global generators.",
    ),
    "stream-repeats": TrapFinding(
        "data",
        "{} So each sample comes once for every worker.",
        "shard='auto', or headrace.shard(...) in __iter__.",
    ),
    "handle-shared": TrapFinding(
        "data",
        "{} After a fork all workers share its place in the file and its locks, and get wrong data or hang.",
        "Open it in the worker at the first access, or use headrace.open, which does.",
    ),
    "not-pinned": TrapFinding(
        "delivery",
        "{} Batches in ordinary memory are copied to it more slowly, and not while it computes.",
        "device='cuda', or pin_memory=True and .to(device, non_blocking=True).",
    ),
}
"""By the names of `Trap`. `{}` stands for the particulars."""


WRONG_DATA = frozenset(name for name, known in TRAPS.items() if known.stage in ("data", "random"))
"""Findings that are about which samples come, or about what is in them. They come before those about speed."""


def findings_of_traps(recording: Recording) -> Iterator[Finding]:
    """Yields a finding for each trap of a recording."""
    for trap in recording.setting.traps:
        known = TRAPS[trap.name]
        yield Finding(trap.name, known.stage, known.sentence.format(trap.text), known.advice)
