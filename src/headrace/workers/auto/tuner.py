"""How many workers, and how many batches ahead: decided from what is measured while training goes on.

Pure: no process, file or clock. A `Tuner` is shown the latest batches now and then, and answers what to try next. It
begins with one worker, plays the loader through with other numbers (`workers/play/simulation.py`), goes to the one
that promises most, and then tries the numbers beside it, for about a second each, as long as that helps. What it
measures counts; what it predicts only says where to look. Nothing is tried that would not fit into the memory.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import dataclass, replace
from typing import NamedTuple

import numpy as np

from headrace.telemetry.formatting import size
from headrace.telemetry.recording import Batches, Recording
from headrace.workers.play.workload import workload_of

LEAST_SECONDS, LEAST_BATCHES = 1.2, 24
"""What a setting is measured with, at least; `PATIENCE` seconds will do where batches are slow."""

PATIENCE = 4.0

MANY = 2000
"""Batches that will do in any case."""

AS_GOOD = 0.98
"""A smaller setting that is this fast, compared with the best, is taken."""

DRIFT = 0.75
"""Share of the rate that was settled on, below which all is looked at anew."""

BROKEN = 0.7
"""Share of the predicted rate below which what was measured may have been disturbed, and is measured again."""

PAUSE, PAUSES = 0.5, 20
"""Seconds, and times the usual step of training, from which on a step has done something else, too: a validation, or a
checkpoint."""

KEEPS_UP = 0.01
"""Share of waiting below which more workers cannot help."""

SLACK = 1.15
"""How much more memory a further worker is thought to take than those that there are."""

COUNTS = (*range(9), 10, 12, 14, 16, 20, 24, 28, 32)
"""Numbers of workers that are played through."""

SHOWN = 192
"""Batches with which they are: the loop waits meanwhile."""

AHEAD = (2, 4, 8, 16)
"""Batches ahead for each worker that are tried."""


class Choice(NamedTuple):
    """A setting."""

    workers: int
    """0: batches are made where they are used."""
    prefetch: int


@dataclass(frozen=True)
class Limits:
    """Within what a setting is looked for."""

    most: int
    """Workers."""
    budget: int
    """Bytes that the workers and the batches ahead may take."""
    may_be_none: bool = True
    """Whether batches may be made without workers."""
    tunes_workers: bool = True
    tunes_prefetch: bool = True


class Taken(NamedTuple):
    """What is taken of the memory now, in bytes."""

    worker: float
    """By one worker, without the batches ahead."""
    batch: float


class Tuner:
    """One loader's. `now` is what is being measured, `reason` why it was chosen."""

    def __init__(self, limits: Limits, first: Choice) -> None:
        self.limits = limits
        self._first = first
        self.now = first
        self.reason = "to begin with"
        self.settled = False
        self._rates: dict[Choice, float] = {}
        self._since = -math.inf
        self._to_try: list[tuple[Choice, str]] | None = None
        self._promised: tuple[Choice, float] | None = None  # the setting that was predicted to be best, and its rate
        self._slow = 0
        self._enough = limits.most
        """Workers with which training hardly waits."""

    def anew(self) -> Tuner:
        """Returns one that knows nothing yet."""
        return Tuner(self.limits, self._first)

    def changed(self, now: float) -> None:
        """The loader works by `now` from this time on."""
        self._since = now

    def look(self, now: float, recording: Recording, taken: Taken) -> Choice | None:
        """Returns what to change to; None: nothing for now."""
        rows = self._measured(recording.batches)
        if (tight := self._too_much(taken)) is not None:
            return self._go(tight, f"the memory: a worker takes {size(taken.worker)}")
        if not self._is_enough(rows):
            return None

        rate = _rate(rows)
        if self.settled:
            return self._watch(rate, now)

        self._rates[self.now] = rate
        if self._to_try is None:
            self._to_try = list(self._promising(recording, taken))
        if _wait_share(rows) < KEEPS_UP:  # nothing can be faster than training itself
            self._enough = min(self._enough, self.now.workers)
            self._to_try = [one for one in self._to_try if one[0].workers < self.now.workers]

        return self._next(taken)

    def _measured(self, rows: Batches) -> Batches:
        """Returns the batches that were ordered and delivered since the last change."""
        ordered = np.where(np.isnan(rows["posted"]), rows["asked"], rows["posted"])
        return rows[ordered >= self._since]

    def _is_enough(self, rows: Batches) -> bool:
        if len(rows) < 4:
            return False
        spent = _spent(rows)[1]
        return spent >= PATIENCE or len(rows) >= MANY or (spent >= LEAST_SECONDS and len(rows) >= LEAST_BATCHES)

    def _watch(self, rate: float, now: float) -> Choice | None:
        """Looks whether what was settled on still holds."""
        self._since = now
        if rate < DRIFT * self._rates.get(self.now, 0.0):
            self._slow = self._slow + 1
        else:
            self._slow = 0

        if self._slow >= 3:
            self._slow = 0
            self.settled = False
            self._to_try = None
            self._rates.clear()
            self._enough = self.limits.most

        return None

    # -- where to look -------------------------------------------------------------------------------------------------

    def _promising(self, recording: Recording, taken: Taken) -> Iterator[tuple[Choice, str]]:
        """Yields settings that promise more than the one that was measured, the most promising first."""
        # without epochs: the workers are there already
        work = workload_of(replace(recording, epochs=(), batches=recording.batches[-SHOWN:]))
        if work is None or not self.limits.tunes_workers:
            return

        rules = replace(work.rules, workers=self.now.workers, prefetch=self.now.prefetch, free=True)
        counts = [count for count in COUNTS if (not self.limits.may_be_none) <= count <= self.limits.most]
        seconds = {count: work.seconds(replace(rules, workers=count)) for count in counts if self._fits(count, taken)}
        best = min(seconds.values(), default=math.inf)
        count = min((count for count, one in seconds.items() if one <= 1.03 * best), default=self.now.workers)
        if count != self.now.workers:
            gain = work.seconds(rules) / max(seconds[count], 1e-9)
            self._promised = Choice(count, self.now.prefetch), gain * self._rates[self.now]
            yield Choice(count, self.now.prefetch), f"predicted to be {gain:.2f} times as fast"

        if 0 in seconds and count != 0 and seconds[0] <= 1.2 * best:
            yield Choice(0, self.now.prefetch), "a batch may be made sooner than handed over"

    def _next(self, taken: Taken) -> Choice | None:
        """Returns the next setting to try, or the best one once there is none left."""
        to_try = self._to_try or []
        while to_try:
            choice, reason = to_try.pop(0)
            if choice not in self._rates and self._fits(choice.workers, taken, choice.prefetch):
                return self._go(choice, reason)

        best = self.best
        beside = next((one for one in self._beside(best, taken) if one not in self._rates), None)
        if beside is not None and self._fits(beside.workers, taken, beside.prefetch):
            return self._go(beside, f"beside {_words(best)}, the best so far")
        if beside is not None:
            self._rates[beside] = 0.0  # it does not fit
            return self._next(taken)

        if self._promised is not None and self._rates[best] < BROKEN * self._promised[1]:
            (choice, _) = self._promised
            self._promised = None
            self._rates = {one: rate for one, rate in self._rates.items() if one.workers != choice.workers}
            return self._go(choice, "once more: it was much slower than predicted")

        self.settled = True
        return self._go(best, "the best of " + ", ".join(self._figures()))

    @property
    def best(self) -> Choice:
        """The best of what was measured: of nearly equal ones that with fewest workers and batches ahead."""
        top = max(self._rates.values())
        return min(choice for choice, rate in self._rates.items() if rate >= AS_GOOD * top)

    def _beside(self, best: Choice, taken: Taken) -> Iterator[Choice]:
        """Yields the settings next to the best one, as far as it pays to look."""
        if self.limits.tunes_workers:
            step = max(best.workers // 3, 1)
            larger = [one.workers for one in self._rates if one.workers > best.workers]
            most = min(best.workers + step, self.limits.most, self._enough)
            fitting = (count for count in range(most, best.workers, -1) if self._fits(count, taken, best.prefetch))
            more = next(fitting, best.workers)
            if not larger and more > best.workers:
                yield Choice(more, best.prefetch)
            if best.workers > 1 or (best.workers and self.limits.may_be_none):
                yield Choice(best.workers - step, best.prefetch)

        if self.limits.tunes_prefetch and 0 < best.workers and self._enough == self.limits.most:
            if best.prefetch in AHEAD:
                longer = AHEAD[min(AHEAD.index(best.prefetch) + 1, len(AHEAD) - 1)]
            else:
                longer = 2

            if self._rates.get(Choice(best.workers, longer)) is None:
                yield Choice(best.workers, longer)

    def _figures(self) -> list[str]:
        tried = sorted((choice, rate) for choice, rate in self._rates.items() if rate)
        return [f"{_words(choice)}: {rate:,.1f} batches/s" for choice, rate in tried]

    def _go(self, choice: Choice, reason: str) -> Choice | None:
        self.reason = reason
        if choice == self.now:
            return None
        self.now = choice
        return choice

    # -- memory --------------------------------------------------------------------------------------------------------

    def _fits(self, workers: int, taken: Taken, prefetch: int | None = None) -> bool:
        ahead = (self.now.prefetch if prefetch is None else prefetch) + 1
        if workers <= 1 and ahead <= self._first.prefetch + 1:
            return True  # with less there is no loader
        return workers * (SLACK * taken.worker + ahead * taken.batch) <= self.limits.budget

    def _too_much(self, taken: Taken) -> Choice | None:
        """Returns a smaller setting if what is taken is more than there is room for."""
        workers, prefetch = self.now
        if workers * (taken.worker + (prefetch + 1) * taken.batch) <= self.limits.budget:
            return None
        if prefetch > 1 and taken.batch > taken.worker and self.limits.tunes_prefetch:
            return Choice(workers, max(prefetch // 2, 1))
        if workers > 1 and self.limits.tunes_workers:
            return Choice(workers - 1, prefetch)
        return None


def _rate(rows: Batches) -> float:
    """Returns batches per second, of the training loop with its waiting."""
    count, seconds = _spent(rows)
    if seconds > 0:
        return count / seconds
    return 0.0


def _spent(rows: Batches) -> tuple[int, float]:
    """Returns how many batches were delivered in how many seconds, without pauses and what lies between epochs."""
    count = 0
    seconds = 0.0
    for epoch in np.unique(rows["epoch"]):
        own = rows[rows["epoch"] == epoch]
        whole = own["number"][0] == 0
        count += len(own) - (not whole)
        seconds += float(own["delivered"][-1] - (own["asked"] if whole else own["delivered"])[0])
        loops = own["asked"][1:] - own["delivered"][:-1]
        seconds -= float(loops[loops > max(PAUSE, PAUSES * float(np.median(loops)))].sum()) if len(loops) else 0.0

    return count, seconds


def _wait_share(rows: Batches) -> float:
    """Returns the share of waiting, the first batches of epochs left out."""
    _, seconds = _spent(rows)
    later = rows[1:][rows["number"][1:] > 0]
    if seconds > 0:
        return float((later["delivered"] - later["asked"]).sum()) / seconds
    return 0.0


def _words(choice: Choice) -> str:
    workers = f"{choice.workers} worker{'' if choice.workers == 1 else 's'}"
    if choice.prefetch == 2 or not choice.workers:
        return workers
    return f"{workers} x {choice.prefetch} batches ahead"
