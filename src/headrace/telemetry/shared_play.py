"""An epoch whose batches several workers make together, played through; see `workers/processes/sharing.py`.

The samples of a batch are alike, but for the slowest one, which lies in the middle: that one cannot be cut.
"""

from __future__ import annotations

import math
from collections import deque

import numpy as np

from headrace.core.stragglers import FARTHER, MUCH, SLOW, SPARE, WORTH_SHARING
from headrace.telemetry.play import TINY, Actor, Play, Rules, Seconds, Work, fewest_held


class SharedPlay(Play):
    """One epoch. In the queue of a worker, `~task` stands for the slow sample of a task, begun before its batch."""

    def __init__(self, work: Work, rules: Rules) -> None:
        super().__init__(work, rules)
        samples = max(work.samples, 1)
        making = np.array(self.making)
        share = np.zeros(len(work)) if work.single is None else work.single
        single = making * np.clip(share, 1 / samples, 1.0)
        usual = (making - single) / max(samples - 1, 1)
        self.samples = samples
        self.single = single.tolist()
        self.usual = usual.tolist()
        """Seconds of each sample of a batch but the slowest."""
        self.is_worth_it = float(np.median(usual)) * samples >= WORTH_SHARING
        self.missing = [1] * self.total
        """How many parts of each batch are not made yet."""
        self.early: set[int] = set()
        """Tasks whose slow sample was begun before them."""
        self.early_out = 0
        self.slow: deque[int] = deque()
        self.most_early = 0
        self.horizon = 0
        if work.slow_known and rules.spare and samples > 1:
            self._know_slow_ones(making, single, usual)

    def _know_slow_ones(self, making: Seconds, single: Seconds, usual: Seconds) -> None:
        slow = single > np.maximum(SLOW, MUCH * usual)
        if not slow.any():
            return
        self.slow.extend(np.flatnonzero(slow).tolist())
        share = float(single[slow].sum() / making.sum())
        workers = self.rules.workers
        self.most_early = min(workers - 1, math.ceil(share * workers))
        pace = max(float(np.median(usual)) * self.samples / workers, 1e-6)
        self.horizon = int(min(FARTHER * float(single.max()) / pace + self.limit, SPARE))

    def _post_freely(self) -> None:
        self._begin_early()
        super()._post_freely()

    def _begin_early(self) -> None:
        """Begins slow samples of the batches that come next."""
        while self.slow and self.early_out < self.most_early:
            task = self.slow[0]
            if task >= self.posted:
                worker = min(self.workers, key=fewest_held)
                if task >= self.posted + self.horizon or worker.held >= self.rules.ahead:
                    return
                # Its worker gets nothing else meanwhile: that would be late.
                worker.queue.append(~task)
                worker.reserved = self.rules.ahead
                self.early.add(task)
                self.missing[task] += 1
                self.early_out += 1
            self.slow.popleft()

    def _begin(self, worker: Actor, task: int) -> None:
        is_early = task < 0
        if is_early:
            task = ~task
        slow = self.single[task]
        rest = self.making[task] - slow
        if is_early:
            self._begin_part(worker, task, 0.0, slow)
            worker.is_early = True
        elif task in self.early:
            self._begin_part(worker, task, rest, 0.0)
        elif task == 0 and self.missing[0] == 1 and self.usual[0] * self.samples >= 2 * WORTH_SHARING:
            idle = [other for other in self.workers if other.task is None and other is not worker]
            self._cut(0, rest, slow, rest / 2, [worker, *idle][: self.samples])
        else:
            self._begin_part(worker, task, rest, slow)

    def _begin_part(self, worker: Actor, task: int, usual: float, slow: float) -> None:
        """A worker begins samples that take `usual` seconds together, and a slow one amid them."""
        worker.begin(task, usual + slow, self.demand[task])
        worker.slow = slow
        worker.behind = usual / 2 if slow else 0.0

    def _cut(self, task: int, usual: float, slow: float, before: float, workers: list[Actor]) -> None:
        """Gives samples that take `usual` seconds, and a slow one `before` seconds behind the first, to workers."""
        self.missing[task] += len(workers) - 1
        one = min(self.usual[task], slow)
        each = (usual + one) / len(workers)
        place = min(int(before / max(each, TINY)), len(workers) - 1)
        for at, worker in enumerate(workers):
            if slow and at == place:
                self._begin_part(worker, task, max(each - one, 0.0), slow)
            else:
                self._begin_part(worker, task, each, 0.0)

    def _finish(self, worker: Actor, task: int) -> None:
        worker.task = None
        if worker.is_early:
            worker.is_early = False
            worker.reserved = 0
            self.early_out -= 1
        self.missing[task] -= 1
        if not self.missing[task]:
            self._arrive(task)
        else:
            self._post()

    def _start_all(self) -> None:
        super()._start_all()
        if self.is_worth_it and (self.is_late or self.posted == self.total) and self.delivered not in self.ready:
            self._help()

    def _help(self) -> None:
        """Workers that have nothing to do help with the oldest batches."""
        idle = [worker for worker in self.workers if worker.task is None]
        if not idle:
            return

        out: list[tuple[int, bool, Actor]] = []
        for worker in self.workers:
            if worker.task is not None and not worker.is_early:
                out.append((worker.task, False, worker))
            out.extend((task, True, worker) for task in worker.queue if task >= 0)

        for task, is_queued, worker in sorted(out, key=lambda one: one[:2]):
            if not idle:
                return
            if is_queued:
                worker.queue.remove(task)
                self._begin(idle.pop(), task)
            else:
                self._share_rest(task, worker, idle)

    def _share_rest(self, task: int, worker: Actor, idle: list[Actor]) -> None:
        """Gives the samples behind the one that a worker is at to workers that are idle."""
        one = self.usual[task]
        before = worker.left - worker.slow - worker.behind
        if worker.slow and before > 0:
            slow, usual = worker.slow, max(before - one, 0.0) + worker.behind
        elif worker.slow:
            slow, usual = 0.0, min(worker.behind, worker.left - one)
        else:
            slow, usual = 0.0, worker.left - one

        rows = int(usual / max(one, TINY) + 1e-6) + (slow > 0)
        if rows * one < WORTH_SHARING:
            return
        worker.left = max(worker.left - usual - slow, 0.0)
        worker.behind = 0.0
        if slow:
            worker.slow = 0.0
        count = min(len(idle), max(int(rows * one / WORTH_SHARING), 1), rows)
        self.missing[task] += 1
        self._cut(task, usual, slow, max(before - one, 0.0), [idle.pop() for _ in range(count)])
