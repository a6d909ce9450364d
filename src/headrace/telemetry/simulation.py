"""How long an epoch would take with other workers, another order of delivery or quicker stages: it is played through.

What was measured of each batch is split into what does not depend on who else runs: seconds of a core, and seconds of
waiting for something else (a disk, a server). Then the loader's rules are played with them: so many tasks are out, each
goes to a worker round robin or to whichever is free, batches are delivered in order or as they come, and whoever wants
a core shares those that there are evenly with the others.

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

Seconds = npt.NDArray[np.float64]

AHEAD = 2
"""Tasks that a worker holds where work goes to whichever is free, as in the in-flight window."""

COLD, WARM = 100e-6, 0.4
"""Seconds that a worker takes more for a batch than the main process would, since it slept before it (measured with
batches of 0.05 to 0.3 ms); and the share of its time that is left at least."""

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
        )


@dataclass(frozen=True)
class Rules:
    """How a loader works. `workers` 0: the main process makes the batches."""

    workers: int
    prefetch: int = 2
    in_order: bool = True
    free: bool = False
    cores: int = 1


def seconds_for(work: Work, rules: Rules) -> float:
    """Returns how long the epoch takes by these rules, in seconds."""
    if not len(work):
        return 0.0

    if rules.workers == 0:
        made = work.wait + work.cpu
        if work.in_workers:
            # A batch that mostly waits (for a disk, a server) waits as long in any process: its core seconds shrink.
            shrinks = np.where(work.wait > work.cpu, work.cpu, made)
            made = made - np.minimum(COLD, (1 - WARM) * shrinks)
        return float((made + work.pin + work.loop).sum())

    return _Play(work, rules).run()


class _Actor:
    """A worker, or the training loop: it has something to do that wants `demand` of a core, or nothing."""

    __slots__ = ("demand", "left", "queue", "task")

    def __init__(self) -> None:
        self.task: int | None = None
        self.left = 0.0
        self.demand = 0.0
        self.queue: deque[int] = deque()
        """Tasks that were sent to this worker and wait."""

    @property
    def held(self) -> int:
        """How many tasks a worker has, the one that it does included."""
        return len(self.queue) + (self.task is not None)

    def begin(self, task: int, seconds: float, demand: float) -> None:
        self.task = task
        self.left = max(seconds, TINY)
        self.demand = demand


class _Play:
    def __init__(self, work: Work, rules: Rules) -> None:
        self.work = work
        self.rules = rules
        self.total = len(work)
        self.limit = rules.workers * max(rules.prefetch, 1)
        self.workers = [_Actor() for _ in range(rules.workers)]
        self.loop = _Actor()
        self.now = work.start * rules.workers
        self.posted = 0
        self.delivered = 0
        self.ready: dict[int, float] = {}
        """When each batch that is made and was not delivered arrived, or will."""

        # Lists, since the play takes one number at a time, which is several times as fast from a list.
        making = work.wait + work.cpu + work.send
        serving = work.open + work.pin + work.loop
        serving_cores = work.open + work.pin + work.loop * work.loop_cores
        self.making = making.tolist()
        self.demand = ((work.cpu + work.send) / np.maximum(making, TINY)).tolist()
        self.serving = serving.tolist()
        self.loop_demand = (serving_cores / np.maximum(serving, TINY)).tolist()

    def run(self) -> float:
        """Returns when the last batch was used."""
        for _ in range(min(self.limit, self.total)):
            self._post()

        while True:
            self._start_all()
            active = [actor for actor in (*self.workers, self.loop) if actor.task is not None]
            if not active and not self.ready:
                return self.now
            self._pass(active)
            for worker in self.workers:
                if worker.task is not None and worker.left <= TINY:
                    self.ready[worker.task] = self.now + self.work.latency
                    worker.task = None
                    if self.rules.free:
                        self._post_freely()

            if self.loop.task is not None and self.loop.left <= TINY:
                self.loop.task = None

    def _start_all(self) -> None:
        for worker in self.workers:
            if worker.task is None and worker.queue:
                task = worker.queue.popleft()
                worker.begin(task, self.making[task], self.demand[task])

        if self.loop.task is None and (due := self._deliverable()) is not None:
            del self.ready[due]
            self.delivered += 1
            self.loop.begin(due, self.serving[due], self.loop_demand[due])
            self._post()
            self._start_all()

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

    def _post(self) -> None:
        if self.rules.free:
            self._post_freely()
        elif self.posted < self.total:
            self.workers[self.posted % self.rules.workers].queue.append(self.posted)
            self.posted += 1

    def _post_freely(self) -> None:
        while self.posted < self.total and self.posted - self.delivered < self.limit:
            worker = min(self.workers, key=_held)
            if worker.held >= AHEAD:
                return
            worker.queue.append(self.posted)
            self.posted += 1

    def _pass(self, active: list[_Actor]) -> None:
        """Lets time pass until somebody is done, or a batch arrives for which the loop waits."""
        paces = paces_of([actor.demand for actor in active], self.rules.cores)
        step = math.inf
        for actor, pace in zip(active, paces, strict=True):
            step = min(step, actor.left / pace)

        if self.loop.task is None:
            for arrived in self.ready.values():
                if arrived > self.now + TINY:
                    step = min(step, arrived - self.now)

        for actor, pace in zip(active, paces, strict=True):
            actor.left -= step * pace

        self.now += step


_held = attrgetter("held")


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
