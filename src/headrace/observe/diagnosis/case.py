"""One loader's recording, with what follows from it."""

from __future__ import annotations

import math
from dataclasses import replace
from functools import cached_property

import numpy as np

from headrace.observe.stats import wait_share, waited_and_looped
from headrace.telemetry.neighbours import OTHERS
from headrace.telemetry.preparation import MAKING, Prepared, prepared, steady_stages
from headrace.telemetry.recording import Recording, stage_seconds
from headrace.workers.play.work import Rules, Seconds
from headrace.workers.play.workload import Change, Workload, workload_of

WAITS = 0.05
"""Share of waiting below which the loader keeps up."""

FIRST_WAITS = 0.15
"""Share of waiting, that for first batches included, up to which it does."""

LITTLE = 1.1
"""What an ideal loader would gain, below which training is what limits the loop."""

MOST = 32
"""Workers that are advised, at most."""

BATCHES = 12
"""Batches that a prediction needs, at least."""

DRAWS, DRAWN = 16, 96
"""How often batches are drawn anew for an interval, and how many of them at most."""

LONGEST = 2048
"""Batches of an epoch that are played through, at most."""

ERROR = 0.04
"""What a play errs by, as a share of a gain, even where all batches are alike."""

LOST = 0.15
"""Share of its work that a loop may wait for cores which others have, before the machine is called busy."""


class Case:
    """A recording, with what follows from it."""

    def __init__(self, recording: Recording) -> None:
        self.recording = recording
        self.setting = recording.setting
        self.rows = recording.batches
        self.work: Workload | None = workload_of(recording)
        # By the ids of `_draws`: a workload holds arrays, so it has no hash. The draws live as long as the case, so no
        # id is given to something else.
        self._bases: dict[int, float] = {}

    @property
    def waited(self) -> float:
        """Seconds that the training loop waited for batches; see `waited_and_looped`."""
        return self._waited_and_looped[0]

    @property
    def looped(self) -> float:
        """Seconds of training and waiting."""
        return self._waited_and_looped[1]

    @property
    def wait_share(self) -> float:
        """Share of the time that the training loop waited."""
        return wait_share(self.waited, self.looped)

    @cached_property
    def _waited_and_looped(self) -> tuple[float, float]:
        return waited_and_looped(self.recording)

    @cached_property
    def stages(self) -> dict[str, Seconds]:
        """Seconds of each stage of each batch that is held, without what was prepared once."""
        return steady_stages(self.rows)

    @cached_property
    def made(self) -> Seconds:
        """Seconds of making each batch, those of all workers that made parts of it together."""
        stages = self.stages
        return np.asarray(
            stages["load"] + stages["collate"] + stages["send"] + np.nan_to_num(self.rows["others"]), np.float64
        )

    @cached_property
    def prepared(self) -> Prepared:
        """What first batches bore."""
        return prepared(self.rows)

    @cached_property
    def prepared_wait(self) -> float:
        """Seconds that the loop waited for what is prepared once."""
        whole = stage_seconds(self.rows)["wait"]
        return float((whole - self.stages["wait"]).sum())

    @cached_property
    def steady_share(self) -> float:
        """Share of the time that the training loop waited, the first batches of epochs left out."""
        later = self.rows["number"] > 0
        waits = float(self.stages["wait"][later].sum())
        loops = float(self.stages["loop"].sum())
        if waits + loops > 0:
            return waits / (waits + loops)
        return 0.0

    @property
    def is_long_enough(self) -> bool:
        """Whether there are batches enough to predict from."""
        return self.work is not None and self.work.batches >= BATCHES

    @cached_property
    def other_cores(self) -> float:
        """How many cores other processes took, on average; 0 if it is not known."""
        totals = self.recording.totals
        looked = totals.get("looked", 0.0)
        if looked > 0:
            return totals.get("other_cores", 0.0) / looked
        return 0.0

    @cached_property
    def queued(self) -> float:
        """Seconds in which the loop and its workers, all together, were ready to run and had no core."""
        totals = self.recording.totals
        return float(totals.get("queued", 0.0)) + float(totals.get("loop_queued", 0.0))

    @cached_property
    def ran(self) -> float:
        """Core seconds of the loop and its workers, all together."""
        totals = self.recording.totals
        return float(totals.get("cpu", 0.0)) + float(totals.get("main_cpu", 0.0))

    @cached_property
    def asleep(self) -> float:
        """Seconds in which workers, all together, made batches and wanted no core: they waited for storage or so."""
        totals = self.recording.totals
        made = float(totals.get("others", 0.0))
        for stage in MAKING:
            made += float(totals.get(stage, 0.0))

        with_cores = float(totals.get("cpu", 0.0)) + float(totals.get("queued", 0.0))
        return max(made - with_cores, 0.0)

    @cached_property
    def machine_is_busy(self) -> bool:
        """Whether other processes took so many cores that the times of this loop tell little of its loader.

        Waiting for a core is blamed on others by their part of what all took: too many workers queue for each other.
        """
        if self.other_cores < OTHERS or self.queued + self.ran <= 0:
            return False
        own_cores = self.recording.totals.get("own_cores", 0.0) / self.recording.totals["looked"]
        queued_share = self.queued / (self.queued + self.ran + self.asleep)
        return queued_share * self.other_cores / (self.other_cores + own_cores) >= LOST

    @property
    def keeps_up(self) -> bool:
        """Whether the loader hardly holds up training: nothing, or nothing that is worth much, is to be gained."""
        waited = self.waited - self.prepared_wait
        # Where all of the time was waiting, as in epochs of one batch, no gain follows from it, and nothing keeps up.
        if waited > 0 and not self.has_trained:
            return False
        hardly_waits = self.steady_share < WAITS and waited < FIRST_WAITS * self.looped
        return len(self.rows) > 0 and (hardly_waits or self.ideal_gain < LITTLE)

    @property
    def has_trained(self) -> bool:
        """Whether any time passed between batches: that behind the last batch of an epoch is not measured."""
        return float(self.recording.totals.get("loop", 0.0)) > 0

    @property
    def rate(self) -> float:
        """Samples per second of the loop."""
        if self.looped > 0:
            return float(self.recording.totals.get("samples", 0.0)) / self.looped
        return 0.0

    @cached_property
    def base(self) -> float:
        """Seconds that the play takes as it is."""
        if self.work:
            return self.work.seconds()
        return 0.0

    @cached_property
    def ideal_gain(self) -> float:
        """How many times as fast the loop would be with a loader that costs nothing.

        At least by what it waited, but for what is prepared once; more where training shares its cores with the loader.
        """
        loop = float(self.recording.totals.get("loop", 0.0))
        if loop > 0:
            without_waiting = (self.looped - self.prepared_wait) / loop
        else:
            without_waiting = 1.0

        if self.work and (ideal := self.work.ideal_seconds()) > 0:
            return max(self.base / ideal, without_waiting)
        return without_waiting

    def gain(self, change: Change | None = None, rules: Rules | None = None) -> float:
        """Returns what a change gains: never more than a loader that costs nothing."""
        if self.work is None or self.base <= 0:
            return 1.0
        return min(self._gain_of(self.work, change, rules), self.ideal_gain)

    def interval(self, change: Change | None = None, rules: Rules | None = None) -> tuple[float, float]:
        """Returns between what bounds the gain of a change lies, by how much the batches differ from each other.

        The play is repeated with batches that are drawn anew: the interval holds nine of ten of the gains, and
        `ERROR` on both sides of the gain itself. Fewer batches than there are differ more from draw to draw, by the
        root of their share, which is taken out again.
        """
        gain = self.gain(change, rules)
        if self.work is None:
            return gain, gain

        gains = [self._gain_of(work, change, rules) for work in self._draws]
        low, high = np.percentile(gains, (5, 95))
        narrower = math.sqrt(min(DRAWN / self.work.batches, 1.0))
        low = gain - (gain - float(low)) * narrower
        high = gain + (float(high) - gain) * narrower
        low = min(low, gain * (1 - ERROR))
        high = max(high, gain * (1 + ERROR))
        return low, max(min(high, self.ideal_gain), gain)

    def gain_of_epochs(self, rules: Rules) -> float:
        """Returns what other rules gain in epochs of full length, up to `LONGEST` batches: one waits at their ends."""
        longer = self._longer
        if longer is None or self.base <= 0:
            return self.gain(rules=rules)
        return min(self._gain_of(longer, None, rules), self.ideal_gain)

    @cached_property
    def _longer(self) -> Workload | None:
        """The batches again and again, until they are an epoch; None: they are one."""
        if self.work is None or not self.setting.length:
            return None
        known = max(map(len, self.work.epochs))
        wanted = min(self.setting.length, LONGEST)
        return self.work.repeated(wanted) if wanted > known else None

    @cached_property
    def _draws(self) -> list[Workload]:
        if self.work is None:
            return []

        # A fixed seed: the same recording always has the same diagnosis.
        chance = np.random.default_rng(0)
        return [self.work.drawn(chance, DRAWN) for _ in range(DRAWS)]

    def _gain_of(self, work: Workload, change: Change | None, rules: Rules | None) -> float:
        """Returns what a change gains for these batches."""
        if change is None:
            after = work
        else:
            after = work.changed(change)

        if rules is not None and rules.workers == 0 and self.rules.workers:
            # All that goes with workers is in what was measured. Their start is not: it is over once, and batches whose
            # making waits would lose what workers do at the same time.
            base = work.took_seconds()
        else:
            base = self._seconds_of(work)

        return base / max(after.seconds(rules), 1e-9)

    def _seconds_of(self, work: Workload) -> float:
        """Returns how long batches take as it is; played once for each draw."""
        if work is self.work:
            return self.base
        if id(work) not in self._bases:
            self._bases[id(work)] = work.seconds()
        return self._bases[id(work)]

    @cached_property
    def rules(self) -> Rules:
        """By which the loader works."""
        if self.work:
            return self.work.rules
        return Rules(self.setting.num_workers)

    def rules_with(self, workers: int) -> Rules:
        """Returns the loader's rules with another number of workers."""
        return replace(self.rules, workers=workers, prefetch=max(self.rules.prefetch, 2))

    @cached_property
    def latency(self) -> float:
        """Seconds from the end of sending to the arrival, on average, if the main process waits for it."""
        if self.work is None:
            return 0.0

        latencies = [work.latency for work in self.work.epochs]
        return float(np.mean(latencies))

    @cached_property
    def batch_bytes(self) -> float:
        """Bytes of a batch, on average."""
        if len(self.rows):
            return float(self.rows["bytes"].mean())
        return 0.0

    @cached_property
    def worker_bytes(self) -> float:
        """Bytes that a worker takes, shared pages counted once; 0 if it is not known."""
        memory = self.recording.memory
        count = self.setting.num_workers
        if len(memory) and count:
            return float(memory["workers"][-1]) / count
        return 0.0

    def memory_with(self, workers: int, prefetch: int) -> float:
        """Returns the bytes that so many workers and the batches ahead would take."""
        return workers * (self.worker_bytes + (prefetch + 1) * self.batch_bytes)

    @cached_property
    def most_workers(self) -> int:
        """How many workers fit into half of the memory."""
        # A worker holds the batch that it makes, and two ahead as by default. The other half of the memory stays for
        # the training script, and for what grows.
        each = self.worker_bytes + 3 * self.batch_bytes
        room = self.setting.memory / 2
        if not each or not room:
            return MOST
        return max(min(int(room / each), MOST), 1)

    @cached_property
    def best_workers(self) -> tuple[int, float]:
        """The smallest number of workers that is nearly as good as any, and its gain."""
        gains = {}
        for count in _counts(self.most_workers, self.rules.workers):
            gains[count] = self.gain(rules=self.rules_with(count))

        # A play does not tell two gains apart that differ by 2 %, and each worker takes memory: the fewest win.
        nearly_best = 0.98 * max(gains.values())
        count = next(count for count, gain in gains.items() if gain >= nearly_best)
        return count, gains[count]


def _counts(most: int, now: int) -> list[int]:
    """Returns numbers of workers to play through, in ascending order: all small ones, then wider steps."""
    steps = {*range(9), 10, 12, 16, 20, 24, 32, now - 1, now, now + 1}
    possible = range(max(most, now) + 1)
    return sorted(steps.intersection(possible))
