"""What was found out about a loader: a summary, and findings with what to change and what that would gain."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict, dataclass, field
from typing import Any

WORTH = 1.05
"""Gain from which on a change is advised."""


@dataclass(frozen=True)
class Finding:
    """One thing that holds the loop up, or that will go wrong."""

    name: str
    """A word for it, such as "too-few-workers"; see `RULES` in `rules.py`."""
    stage: str
    """Where: a part of making a batch ("read", "decode", "transform", "load", "collate", "send"), how batches come
    ("workers", "batches", "stragglers", "start", "transport", "delivery"), "source" (one that never ends), "training",
    "machine" (other processes have the cores), or what goes wrong ("memory", "random", "data")."""
    sentence: str
    """What was seen, with figures."""
    advice: str
    """What to change; empty if nothing is to be done."""
    gain: float | None = None
    """How many times as fast the loop would be after the change, predicted; None: it is not about speed, or
    nothing can be predicted."""
    change: Mapping[str, Any] = field(default_factory=dict)
    """The change as arguments of the loader, where it is such."""
    interval: tuple[float, float] | None = None
    """Between what bounds the gain lies, by how much the batches differ; None: nothing is predicted."""


@dataclass(frozen=True)
class Diagnosis:
    """What was found out about one loader."""

    label: str
    summary: str
    """One sentence: who waits for whom, for what share of the time, and what would be gained at best."""
    wait_share: float
    """Share of the loop's time that the training loop waited for batches, 0 to 1."""
    limit: str
    """The stage that limits the loop; see `Finding.stage`."""
    ideal_gain: float | None
    """How many times as fast the loop would be with a loader that costs nothing; None where others have the cores."""
    samples_per_second: float
    findings: tuple[Finding, ...] = ()
    """Those of the stage that limits the loop first, then by their gains, then those without one."""

    def as_json(self) -> dict[str, Any]:
        """Returns it as JSON knows it."""
        return asdict(self)
