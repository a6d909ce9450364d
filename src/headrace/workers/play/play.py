"""An epoch that is played through: the loader's own dispatcher gives out the work, simulated workers do it.

The play is the carrier of a real `Dispatcher`, the workers that it looks at, and its clock. So the rules are the
loader's. What is played is time: how long each worker and the loop are busy, where they share the cores that there are.

The samples of a batch are alike, but for the slowest one, which lies in the middle: that one cannot be cut.

Pure: no clock, process or file.
"""

from __future__ import annotations

import math
from collections import deque
from collections.abc import Sequence
from types import SimpleNamespace
from typing import Any, NamedTuple

import numpy as np

from headrace.batches.index import Positioned
from headrace.core.process.activity import IDLE, LOAD
from headrace.core.stragglers import MUCH, SLOW
from headrace.epoch.slow_samples import SlowSamples
from headrace.workers.dispatch import Dispatcher
from headrace.workers.play.cores import paces_of
from headrace.workers.play.work import Rules, Work
from headrace.workers.stragglers.early import DrawnAhead
from headrace.workers.stragglers.parts import MadeParts, Parts

TINY = 1e-12


class PlayedBatch(NamedTuple):
    """What a simulated worker answers."""

    number: int
    arrives: float
    seconds: float
    rows: int = -1
    """See `PartAnswer.rows`."""
    slow: Sequence[tuple[int, float]] = ()
    """See `PartAnswer.slow`."""
    status: str = "batch"
    nbytes: int = 1
    """Each batch has one, so that bytes of batches count them."""


class Actor:
    """A worker, or the training loop: it has something to do that wants `demand` of a core, or nothing."""

    __slots__ = ("demand", "index", "left", "number", "queue", "rows", "whole")

    def __init__(self) -> None:
        self.number: int | None = None
        """The task that it does; None: nothing."""
        self.index: Any = None
        self.whole = 0.0
        """Seconds that it takes, with a core for everybody."""
        self.left = 0.0
        self.demand = 0.0
        self.rows = -1
        """How many samples it makes, if it was told to stop; -1: all."""
        self.queue: deque[tuple[int, Any]] = deque()
        """What was given to it and waits."""

    def begin(self, number: int, index: Any, seconds: float, demand: float) -> None:
        """Begins with something that takes so long where there are cores for all."""
        self.number = number
        self.index = index
        self.whole = self.left = max(seconds, TINY)
        self.demand = demand
        self.rows = -1


class PlayedEpoch:
    """What a dispatcher asks of an `Epoch`. The key of a sample says its batch and its row."""

    is_live = False
    next_replica = 0
    deferral = None

    def __init__(self, batches: int, samples: int, rules: Rules) -> None:
        """samples: of a batch that may be cut; 0: none may."""
        self.record = SimpleNamespace(replicas=rules.workers)
        self.spec = SimpleNamespace(in_order=rules.in_order, persistent_workers=True)
        self.any_replica_will_do = rules.free
        self._left = iter(range(batches))
        self._samples = samples

    def take(self) -> tuple[int, Any]:
        number = next(self._left)
        if not self._samples:
            return number, number
        keys = range(number * self._samples, (number + 1) * self._samples)
        return number, Positioned([*keys], keys)


class Play:
    """One epoch."""

    def __init__(self, work: Work, rules: Rules) -> None:
        self.now = work.start * rules.workers
        self._latency = work.latency
        self._cores = rules.cores
        self._workers = [Actor() for _ in range(rules.workers)]
        self._loop = Actor()
        self._active: list[Actor] = []
        self._came: deque[PlayedBatch] = deque()
        self._shares = rules.shares and rules.in_order and rules.workers > 1
        self._samples = max(work.samples, 1)

        # Lists, since the play takes one number at a time, which is several times as fast from a list.
        making = work.wait + work.cpu + work.send
        serving = work.open + work.pin + work.loop
        serving_cores = work.open + work.pin + work.loop * work.loop_cores
        self._making = making.tolist()
        self._demand = ((work.cpu + work.send) / np.maximum(making, TINY)).tolist()
        self._serving = serving.tolist()
        self._loop_demand = (serving_cores / np.maximum(serving, TINY)).tolist()

        epoch: Any = PlayedEpoch(len(work), self._samples if self._shares else 0, rules)
        self._dispatcher: Dispatcher[Any] = Dispatcher(
            epoch,
            rules.workers,
            rules.workers * max(rules.prefetch, 1),
            self._clock,
            fills=True,
            ahead=rules.ahead,
            spare_bytes=rules.spare if rules.in_order else 0,
        )
        if self._shares:
            self._share(work, rules, epoch)

    def _clock(self) -> float:
        return self.now

    def _share(self, work: Work, rules: Rules, epoch: PlayedEpoch) -> None:
        """Has workers make batches together."""
        making = np.array(self._making)
        share = np.zeros(len(work)) if work.single is None else work.single
        single = making * np.clip(share, 1 / self._samples, 1.0)
        usual = (making - single) / max(self._samples - 1, 1)
        self._single = single.tolist()
        self._usual = usual.tolist()
        self._is_slow = (single > np.maximum(SLOW, MUCH * usual)).tolist()

        samples = SlowSamples()
        samples.usual = float(np.median(usual))
        if work.slow_known:
            slow = [
                (batch * self._samples + self._samples // 2, self._single[batch])
                for batch in range(len(work))
                if self._is_slow[batch]
            ]
            samples.note(range(len(work) * self._samples), float(making.sum()), slow)

        parts = Parts(
            self._dispatcher.tasks,
            DrawnAhead(epoch.take, samples),
            self._dispatcher.lateness,
            self,
            _joined,
            draws_early=work.slow_known and rules.spare > 0 and self._samples > 1,
            batch_size=self._samples,
        )
        self._dispatcher.share(parts)

    def run(self) -> float:
        """Returns when the last batch was used."""
        dispatcher = self._dispatcher
        dispatcher.prime(self)
        while True:
            try:
                task, _, _ = dispatcher.next_delivery(self, 1)
            except StopIteration:
                return self.now

            self._loop.begin(task, None, self._serving[task], self._loop_demand[task])
            self._active.append(self._loop)
            while self._loop.number is not None:
                self._pass(math.inf)

    # -- what a dispatcher asks of its carrier -------------------------------------------------------------------------

    def submit(self, worker: int, task: int, replica: int, index: Any) -> None:
        actor = self._workers[worker]
        actor.queue.append((task, index))
        if actor.number is None:
            self._begin_next(actor)

    def withdraw(self, worker: int, task: int) -> bool:
        """See `Carrier.withdraw`. A worker that has not begun a task leaves it alone."""
        queue = self._workers[worker].queue
        for posted in queue:
            if posted[0] == task:
                queue.remove(posted)
                return True
        return False

    def flush(self, least: int = 1) -> None:
        """See `Carrier.flush`. `submit` sends at once."""

    def close(self) -> None:
        """See `Carrier.close`. There is nothing to end."""

    def collect(self) -> None:
        """See `Carrier.collect`: the loop waits."""
        dispatcher = self._dispatcher
        patience = dispatcher.look_again
        noticed = math.inf if patience is None else self.now + patience
        while not self._file():
            if self.now >= noticed - TINY:
                dispatcher.look(self)
                patience = dispatcher.look_again
                noticed = math.inf if patience is None else self.now + patience
            arrives = self._came[0].arrives if self._came else math.inf
            self._pass(min(noticed, arrives))

    def _file(self) -> bool:
        """Files what has arrived. False: nothing has."""
        came = self._came
        any_came = False
        while came and came[0].arrives <= self.now + TINY:
            made = came.popleft()
            self._dispatcher.file(made.number, made, self, made.nbytes, made.seconds)
            any_came = True
        return any_came

    # -- what workers do -----------------------------------------------------------------------------------------------

    def doing(self, worker: int) -> tuple[int, int, int]:
        actor = self._workers[worker]
        if actor.number is None:
            return -1, IDLE, -1
        return actor.number, LOAD, self._place(actor.index.index, actor.whole - actor.left)

    def stop_at(self, worker: int, task: int, row: int) -> None:
        actor = self._workers[worker]
        made = actor.whole - actor.left
        actor.rows = row
        actor.whole = self._seconds_of(actor.index.index[:row])
        actor.left = max(actor.whole - made, 0.0)

    def recall(self, worker: int, task: int) -> None:
        """See `Watched.recall`. The worker has begun it."""

    def _begin_next(self, actor: Actor) -> None:
        number, index = actor.queue.popleft()
        if self._shares:
            batch = index.index[0] // self._samples
            seconds = self._seconds_of(index.index)
        else:
            batch = index
            seconds = self._making[batch]
        actor.begin(number, index, seconds, self._demand[batch])
        self._active.append(actor)

    def _seconds_of(self, keys: Sequence[int]) -> float:
        """Returns how long some samples of a batch take."""
        batch, row = divmod(keys[0], self._samples)
        if len(keys) == self._samples:
            return float(self._making[batch])
        slowest = keys[0] - row + self._samples // 2
        seconds = len(keys) * self._usual[batch]
        if slowest in keys:
            seconds += self._single[batch] - self._usual[batch]
        return float(seconds)

    def _place(self, keys: Sequence[int], seconds: float) -> int:
        """Returns the place of the sample at which a worker is that has worked for so long."""
        batch, row = divmod(keys[0], self._samples)
        slowest = keys[0] - row + self._samples // 2
        usual = max(self._usual[batch], TINY)
        last = len(keys) - 1
        if slowest not in keys:
            return min(int(seconds / usual), last)

        at = keys.index(slowest)
        if seconds < at * usual:
            return int(seconds / usual)
        behind = seconds - at * usual - self._single[batch]
        if behind < 0:
            return at
        return min(at + 1 + int(behind / usual), last)

    def _slow_in(self, keys: Sequence[int]) -> Sequence[tuple[int, float]]:
        """Returns the places of slow samples, and their seconds, as a worker tells them."""
        batch, row = divmod(keys[0], self._samples)
        slowest = keys[0] - row + self._samples // 2
        if len(keys) > 1 and self._is_slow[batch] and slowest in keys:
            return [(keys.index(slowest), self._single[batch])]
        return ()

    # -- time ----------------------------------------------------------------------------------------------------------

    def _pass(self, until: float) -> None:
        """Lets time pass until somebody is done, at most until a moment."""
        active = self._active
        step = until - self.now
        demands = [actor.demand for actor in active]
        if sum(demands) <= self._cores:
            for actor in active:
                if actor.left < step:
                    step = actor.left
            for actor in active:
                actor.left -= step
        else:
            paces = paces_of(demands, self._cores)
            step = min(step, min(actor.left / pace for actor, pace in zip(active, paces, strict=True)))
            for actor, pace in zip(active, paces, strict=True):
                actor.left -= step * pace

        self.now += step
        for actor in [one for one in active if one.left <= TINY]:
            active.remove(actor)
            self._finish(actor)

    def _finish(self, actor: Actor) -> None:
        number = actor.number
        actor.number = None
        if actor is self._loop or number is None:
            return

        slow: Sequence[tuple[int, float]] = ()
        rows = -1
        if self._shares:
            keys = actor.index.index
            if 0 <= actor.rows < len(keys):
                rows = actor.rows
                keys = keys[:rows]
            slow = self._slow_in(keys)
        self._came.append(PlayedBatch(number, self.now + self._latency, actor.whole, rows, slow))
        if actor.queue:
            self._begin_next(actor)


def _joined(parts: MadeParts, count: int) -> Any:
    return parts[-1][1]
