"""An epoch that is played through: its work, the rules of the loader, and who does what when.

So many tasks are out, each goes to a worker round robin or to whichever is free, batches are delivered in order or as
they come, and whoever wants a core shares those that there are evenly with the others. While the next batch is late,
finished ones behind it do not count. How batches that several workers make are played is in `shared_play`.

Pure: no clock, process or file.
"""

from __future__ import annotations

import math
from collections import deque
from collections.abc import Sequence
from dataclasses import dataclass, replace
from operator import attrgetter, mul

import numpy as np
import numpy.typing as npt

from headrace.core.stragglers import AHEAD, LATE, OVERDUE

Seconds = npt.NDArray[np.float64]

STEPS = 20

TINY = 1e-12


@dataclass(frozen=True)
class Work:
    """What the batches of an epoch take, one entry a batch, in seconds. Arrays are float64 [n]."""

    wait: Seconds
    """That making a batch waits for something that is not a core."""
    cpu: Seconds
    """Of a core that making a batch takes."""
    send: Seconds
    """Of a core that a worker takes to send it."""
    open: Seconds
    """That the main process takes to post, receive and unpack it."""
    pin: Seconds
    """That the main process takes to pin it, with workers or without."""
    loop: Seconds
    """That the training loop takes behind it."""
    in_workers: bool = True
    """Whether the batches were made by workers when this was measured."""
    loop_cores: float = 1.0
    """Cores that the training loop keeps busy."""
    latency: float = 0.0
    """From the end of sending to the arrival, if the main process waits for it."""
    start: float = 0.0
    """That starting one worker takes: an epoch begins when all of them are there. 0: they are there already."""
    single: Seconds | None = None
    """The share of making a batch that its slowest sample takes, 0 to 1; None: all samples are alike."""
    samples: int = 1
    """Of a batch."""
    slow_known: bool = False
    """Whether an epoch before has shown which samples are slow, so that they can be begun earlier."""

    def __len__(self) -> int:
        return len(self.cpu)

    def taken(self, places: npt.NDArray[np.int64]) -> Work:
        """Returns the work of these batches, in this order; starting takes the same share of it."""
        return replace(
            self,
            wait=self.wait[places],
            cpu=self.cpu[places],
            send=self.send[places],
            open=self.open[places],
            pin=self.pin[places],
            loop=self.loop[places],
            single=None if self.single is None else self.single[places],
            start=self.start * len(places) / max(len(self), 1),
        )

    def split(self, parts: int) -> Work:
        """Returns the same work in batches of a `parts`-th of the size; what a batch costs in any case stays."""

        def shares(whole: Seconds) -> Seconds:
            return np.repeat(whole / parts, parts)

        return replace(
            self,
            wait=shares(self.wait),
            cpu=shares(self.cpu),
            send=shares(self.send),
            open=shares(self.open),
            pin=shares(self.pin),
            loop=shares(self.loop),
            single=None if self.single is None else np.repeat(self.single, parts),
            samples=max(self.samples // parts, 1),
        )


@dataclass(frozen=True)
class Rules:
    """How a loader works. `workers` 0: the main process makes the batches."""

    workers: int
    prefetch: int = 2
    in_order: bool = True
    free: bool = False
    cores: int = 1
    ahead: int = AHEAD
    """Tasks that a worker holds where work goes to whichever is free."""
    spare: int = 0
    """Finished batches that may wait behind one that is late."""
    shares: bool = False
    """Whether several workers make a batch together, where that helps."""


class Actor:
    """A worker, or the training loop: it has something to do that wants `demand` of a core, or nothing."""

    __slots__ = ("behind", "demand", "is_early", "left", "queue", "reserved", "slow", "task")

    def __init__(self) -> None:
        self.task: int | None = None
        self.left = 0.0
        self.demand = 0.0
        self.queue: deque[int] = deque()
        """Tasks that were sent to this worker and wait."""
        self.slow = self.behind = 0.0
        """Of what it makes: seconds of a slow sample, and of those behind that one; see `shared_play`."""
        self.is_early = False
        """Whether it makes a slow sample before the batch of that."""
        self.reserved = 0
        """Tasks that it gets less, while it has such a sample."""

    @property
    def held(self) -> int:
        """How many tasks a worker has, the one that it does included."""
        return len(self.queue) + (self.task is not None) + self.reserved

    def begin(self, task: int, seconds: float, demand: float) -> None:
        """Begins with something that takes so long where there are cores for all."""
        self.task = task
        self.left = max(seconds, TINY)
        self.demand = demand


class Play:
    """One epoch."""

    def __init__(self, work: Work, rules: Rules) -> None:
        self.work = work
        self.rules = rules
        self.total = len(work)
        self.limit = rules.workers * max(rules.prefetch, 1)
        self.workers = [Actor() for _ in range(rules.workers)]
        self.loop = Actor()
        self.now = work.start * rules.workers
        self.posted = 0
        self.delivered = 0
        self.ready: dict[int, float] = {}
        """When each batch that is made and was not delivered arrived, or will."""
        self.is_late = False
        """Whether it was noticed that the next batch is late: then finished ones behind it do not count."""
        self.quiet_since = self.now
        """When a batch has come last, or the loop has begun to wait."""

        # Lists, since the play takes one number at a time, which is several times as fast from a list.
        making = work.wait + work.cpu + work.send
        serving = work.open + work.pin + work.loop
        serving_cores = work.open + work.pin + work.loop * work.loop_cores
        self.making = making.tolist()
        self.demand = ((work.cpu + work.send) / np.maximum(making, TINY)).tolist()
        self.serving = serving.tolist()
        self.loop_demand = (serving_cores / np.maximum(serving, TINY)).tolist()
        self.patience = math.inf
        if rules.spare and rules.in_order:
            self.patience = max(LATE, OVERDUE * float(np.median(making)) / rules.workers)

    def run(self) -> float:
        """Returns when the last batch was used."""
        self._post()
        while True:
            self._start_all()
            active = [actor for actor in (*self.workers, self.loop) if actor.task is not None]
            if not active and not self.ready:
                return self.now
            self._pass(active)
            for worker in self.workers:
                if worker.task is not None and worker.left <= TINY:
                    self._finish(worker, worker.task)

            if self.loop.task is not None and self.loop.left <= TINY:
                self.loop.task = None
                self.quiet_since = self.now

    def _finish(self, worker: Actor, task: int) -> None:
        """A worker has made what it was at."""
        worker.task = None
        self._arrive(task)

    def _arrive(self, task: int) -> None:
        """A batch is made."""
        self.ready[task] = self.now + self.work.latency
        self.quiet_since = self.now
        if self.rules.free or self.is_late:
            self._post()

    def _start_all(self) -> None:
        for worker in self.workers:
            if worker.task is None and worker.queue:
                self._begin(worker, worker.queue.popleft())

        if self.loop.task is None and (due := self._deliverable()) is not None:
            del self.ready[due]
            self.delivered += 1
            self.is_late = False
            self.loop.begin(due, self.serving[due], self.loop_demand[due])
            self._post()
            self._start_all()

    def _begin(self, worker: Actor, task: int) -> None:
        worker.begin(task, self.making[task], self.demand[task])

    def _deliverable(self) -> int | None:
        if self.rules.in_order:
            task = self.delivered
            if self.ready.get(task, np.inf) <= self.now + TINY:
                return task
            return None

        for task, arrived in self.ready.items():
            if arrived <= self.now + TINY:
                return task
        return None

    def _has_room(self, ahead: int) -> bool:
        """Tells whether a further task may be given out, of which a worker holds so many."""
        if self.posted - self.delivered < self.limit:
            return True
        if not self.is_late or len(self.ready) >= self.rules.spare:
            return False
        return any(worker.held < ahead for worker in self.workers)

    def _post(self) -> None:
        """Gives out as many tasks as there is room for."""
        if self.rules.free:
            self._post_freely()
            return

        while self.posted < self.total and self._has_room(self.rules.prefetch):
            self.workers[self.posted % self.rules.workers].queue.append(self.posted)
            self.posted += 1

    def _post_freely(self) -> None:
        while self.posted < self.total and self._has_room(self.rules.ahead):
            worker = min(self.workers, key=fewest_held)
            if worker.held >= self.rules.ahead:
                return
            worker.queue.append(self.posted)
            self.posted += 1

    def _pass(self, active: list[Actor]) -> None:
        """Lets time pass until somebody is done, a batch arrives for which the loop waits, or it is noticed to be
        late."""
        paces = paces_of([actor.demand for actor in active], self.rules.cores)
        step = math.inf
        for actor, pace in zip(active, paces, strict=True):
            step = min(step, actor.left / pace)

        if self.loop.task is None:
            for arrived in self.ready.values():
                if arrived > self.now + TINY:
                    step = min(step, arrived - self.now)

        noticed = self.quiet_since + self.patience
        waits = self.loop.task is None and not self.is_late and self.posted < self.total
        if waits:
            step = min(step, max(noticed - self.now, 0.0))

        for actor, pace in zip(active, paces, strict=True):
            actor.left -= step * pace

        self.now += step
        if waits and self.now >= noticed - TINY:
            self.is_late = True
            self._post()


fewest_held = attrgetter("held")


def paces_of(demands: Sequence[float], cores: int) -> list[float]:
    """Returns how fast actors come on that want so much of a core each, 0 to 1, where they share `cores` evenly.

    What an actor waits for goes on meanwhile: only its core part is stretched, by the same factor for all, such that
    all together take the cores that there are.
    """
    wanted = sum(demands)
    if wanted <= cores:
        return [1.0] * len(demands)

    # Who waits for something else in part is slowed down less, and then wants less of a core in a second. The factor is
    # found by steps: each corrects it by how far the cores are over- or underused.
    slow = wanted / cores
    for _ in range(STEPS):
        paces = [1.0 / (1.0 + min(demand, 1.0) * (slow - 1.0)) for demand in demands]
        taken = sum(map(mul, demands, paces)) / cores
        if abs(taken - 1.0) < 0.005:
            break
        slow *= taken

    return paces
