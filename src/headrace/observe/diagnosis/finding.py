"""What was found out about a loader: a summary, and findings with what to change and what that would gain."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict, dataclass, field
from typing import Any

WORTH = 1.05
"""Gain from which on a change is advised."""


@dataclass(frozen=True)
class Finding:
    """One thing that holds the loop up, or that will go wrong.

    Attributes:
        name: a word for it, such as "too-few-workers"; see `RULES` in `rules.py`.
        stage: where: a part of making a batch ("read", "decode", "transform", "load", "collate", "send"), how batches
            come ("workers", "batches", "stragglers", "start", "transport", "delivery"), "source" (one that never ends),
            "training", "machine" (other processes have the cores), or what goes wrong ("memory", "random", "data").
        sentence: what was seen, with figures.
        advice: what to change; empty if nothing is to be done.
        gain: how many times as fast the loop would be after the change, predicted; None: it is not about speed, or
            nothing can be predicted.
        change: the change as arguments of the loader, where it is such.
        interval: between what bounds the gain lies, by how much the batches differ; None: nothing is predicted.

    Examples:
        >>> loader = headrace.DataLoader(list(range(8)), batch_size=4)
        >>> batches = list(loader)
        >>> advice = [finding.advice for finding in loader.diagnose().findings]
    """

    name: str
    stage: str
    sentence: str
    advice: str
    gain: float | None = None
    change: Mapping[str, Any] = field(default_factory=dict)
    interval: tuple[float, float] | None = None


@dataclass(frozen=True)
class Diagnosis:
    """What was found out about one loader.

    Attributes:
        label: of the loader.
        summary: one sentence: who waits for whom, for what share of the time, and what would be gained at best.
        wait_share: share of the loop's time that the training loop waited for batches, 0 to 1.
        limit: the stage that limits the loop; see `Finding.stage`.
        ideal_gain: how many times as fast the loop would be with a loader that costs nothing; None where others have
            the cores.
        samples_per_second: of the loop, the training included.
        findings: those of the stage that limits the loop first, then by their gains, then those without one.

    Examples:
        >>> loader = headrace.DataLoader(list(range(8)), batch_size=4)
        >>> batches = list(loader)
        >>> 0 <= loader.diagnose().wait_share <= 1
        True
    """

    label: str
    summary: str
    wait_share: float
    limit: str
    ideal_gain: float | None
    samples_per_second: float
    findings: tuple[Finding, ...] = ()

    def as_json(self) -> dict[str, Any]:
        """Gives the diagnosis as JSON knows it.

        Returns:
            Plain values by their names.

        Examples:
            >>> loader = headrace.DataLoader([1, 2, 3])
            >>> batches = list(loader)
            >>> plain = loader.diagnose().as_json()
        """
        return asdict(self)
