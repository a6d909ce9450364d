"""One loader's recording, with what follows from it."""

from __future__ import annotations

from dataclasses import replace
from functools import cached_property

import numpy as np

from headrace.observe.findings.simulation import Rules
from headrace.observe.findings.workload import PLAYED, Change, Workload, workload_of
from headrace.observe.recording import Recording, stage_seconds

WAITS = 0.05
"""Share of waiting below which the loader keeps up."""

FIRST_WAITS = 0.15
"""Share of waiting, that for first batches included, up to which it does."""

LITTLE = 1.1
"""What an ideal loader would gain, below which training is what limits the loop."""

MOST = 32
"""Workers that are advised, at most."""


class Case:
    """A recording, with what follows from it."""

    def __init__(self, recording: Recording) -> None:
        self.recording = recording
        self.setting = recording.setting
        self.rows = recording.batches
        self.work: Workload | None = workload_of(recording)

    @cached_property
    def waited(self) -> float:
        """Seconds that the training loop waited for batches, the beginnings of epochs included."""
        return float(self.recording.totals.get("wait", 0.0)) + self.opening

    @cached_property
    def opening(self) -> float:
        """Seconds between the beginnings of epochs and the asking for their first batches."""
        return float(self.recording.totals.get("opening", 0.0))

    @cached_property
    def looped(self) -> float:
        """Seconds of training and waiting."""
        return self.waited + float(self.recording.totals.get("loop", 0.0))

    @property
    def wait_share(self) -> float:
        """Share of the time that the training loop waited."""
        return self.waited / self.looped if self.looped > 0 else 0.0

    @cached_property
    def steady_share(self) -> float:
        """Share of the time that the training loop waited, the first batches of epochs left out."""
        later = self.rows["number"] > 0
        stages = stage_seconds(self.rows)
        waits, loops = float(stages["wait"][later].sum()), float(stages["loop"].sum())
        return waits / (waits + loops) if waits + loops > 0 else 0.0

    @property
    def keeps_up(self) -> bool:
        """Whether the loader hardly holds up training: nothing, or nothing that is worth much, is to be gained."""
        hardly_waits = self.steady_share < WAITS and self.waited < FIRST_WAITS * self.looped
        return len(self.rows) > 0 and (hardly_waits or self.ideal_gain < LITTLE)

    @property
    def rate(self) -> float:
        """Samples per second of the loop."""
        return float(self.recording.totals.get("samples", 0.0)) / self.looped if self.looped > 0 else 0.0

    @cached_property
    def base(self) -> float:
        """Seconds that the play takes as it is."""
        return self.work.seconds() if self.work else 0.0

    @cached_property
    def measured(self) -> float:
        """Seconds that the batches of the play took in truth."""
        stages = stage_seconds(self.rows[-PLAYED:])
        share = self.opening / max(float(self.recording.totals.get("batches", 1.0)), 1.0) * len(self.rows[-PLAYED:])
        return float(stages["wait"].sum() + stages["loop"].sum()) + share

    @cached_property
    def ideal_gain(self) -> float:
        """How many times as fast the loop would be with a loader that costs nothing.

        At least by what it waited; more where training shares its cores with the loader.
        """
        loop = float(self.recording.totals.get("loop", 0.0))
        without_waiting = self.looped / loop if loop > 0 else 1.0
        if self.work and (ideal := self.work.ideal_seconds()) > 0:
            return max(self.base / ideal, without_waiting)
        return without_waiting

    def gain(self, change: Change | None = None, rules: Rules | None = None) -> float:
        """Returns what a change gains: never more than a loader that costs nothing."""
        if self.work is None or self.base <= 0:
            return 1.0
        work = self.work if change is None else self.work.changed(change)
        base = self.base
        if rules is not None and rules.workers == 0 and self.rules.workers:
            base = self.measured  # what goes with workers is in what was measured
        return min(base / max(work.seconds(rules), 1e-9), self.ideal_gain)

    @cached_property
    def rules(self) -> Rules:
        """By which the loader works."""
        return self.work.rules if self.work else Rules(self.setting.num_workers)

    @cached_property
    def latency(self) -> float:
        """Seconds from the end of sending to the arrival, on average, if the main process waits for it."""
        return float(np.mean([work.latency for work in self.work.epochs])) if self.work else 0.0

    @cached_property
    def batch_bytes(self) -> float:
        """Bytes of a batch, on average."""
        return float(self.rows["bytes"].mean()) if len(self.rows) else 0.0

    @cached_property
    def worker_bytes(self) -> float:
        """Bytes that a worker takes, shared pages counted once; 0 if it is not known."""
        memory, count = self.recording.memory, self.setting.num_workers
        return float(memory["workers"][-1]) / count if len(memory) and count else 0.0

    def memory_with(self, workers: int, prefetch: int) -> float:
        """Returns the bytes that so many workers and the batches ahead would take."""
        return workers * (self.worker_bytes + (prefetch + 1) * self.batch_bytes)

    @cached_property
    def most_workers(self) -> int:
        """How many workers fit into half of the memory."""
        each = self.worker_bytes + 3 * self.batch_bytes
        room = self.setting.memory / 2
        return max(min(int(room / each) if each and room else MOST, MOST), 1)

    @cached_property
    def best_workers(self) -> tuple[int, float]:
        """The smallest number of workers that is nearly as good as any, and its gain."""
        gains = {count: self.gain(rules=replace(self.rules, workers=count, prefetch=max(self.rules.prefetch, 2)))
                 for count in _counts(self.most_workers, self.rules.workers)}  # fmt: skip
        best = max(gains.values())
        count = min(count for count, gain in gains.items() if gain >= 0.98 * best)
        return count, gains[count]


def _counts(most: int, now: int) -> list[int]:
    """Returns numbers of workers to play through: all small ones, then wider steps."""
    steps = [*range(9), 10, 12, 16, 20, 24, 32, now - 1, now, now + 1]
    return sorted({count for count in steps if 0 <= count <= max(most, now)})
