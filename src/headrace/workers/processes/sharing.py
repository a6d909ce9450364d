"""Batches that several workers make together, so that one slow sample holds up neither them nor the loop.

Which worker makes a sample changes nothing, since its random numbers follow from its place in the epoch. So a batch may
be cut into parts. Three things are done with that:

- the first batch of an epoch is cut over all workers, and is there so many times sooner;
- a worker that has nothing to do, while the loop waits for a batch, takes over what the worker of that batch has not
  begun: tasks that lie behind it, or the samples behind the one that it is at;
- samples that are known to be slow are begun before the batches that they belong to.

A part is a task of its own for the worker, with a number from `FIRST_PART` on. Parts that were made twice do no harm.
Where parts cannot be joined, or one of them raises, one worker makes the whole batch.
"""

from __future__ import annotations

import math
from collections import deque
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any, NamedTuple, Protocol

from headrace.batches.collate import SlotCollate
from headrace.batches.index import Positioned, can_be_cut, part_of
from headrace.batches.join import NotAlikeError, Part, join
from headrace.batches.whole_batches import fetches_batches
from headrace.core.batch_memory import OwnMemory
from headrace.core.process.activity import COLLATE, LOAD
from headrace.core.spans import NothingYetError
from headrace.core.stragglers import FARTHER, SPARE, WORTH_SHARING
from headrace.core.torch_internals import torch_default_collate
from headrace.epoch.epoch import Epoch
from headrace.telemetry.stopwatch import Times, joined_times
from headrace.workers.dispatch import Carrier, Dispatcher
from headrace.workers.processes.arrived import Arrived
from headrace.workers.processes.prefetch import may_draw_early
from headrace.workers.processes.scale import Scale

FIRST_PART = 1 << 40
"""The number of the first part; tasks have lower ones."""

PAUSES = (2e-3, 0.1)
"""Seconds until idle workers are given something to do after all: the first time, and at most."""

STUCK = 16e-3
"""Pause from which on idle workers help with quick batches, too: a worker that makes such a one is held up."""


class Joined(NamedTuple):
    """A batch of parts. Looks like `Arrived`, but its memory is its own."""

    status: str
    batch: Any
    worker: int
    times: Times
    nbytes: int
    at: float

    def opened(self) -> tuple[Any, Any, Any]:
        return self.batch, None, ()


class Workers(Protocol):
    """Workers that may be told that others do a part of their work."""

    def doing(self, worker: int) -> tuple[int, int, int]:
        """Returns what a worker does at this moment: number of the task, stage, and place of the sample."""

    def stop_at(self, worker: int, task: int, row: int) -> None:
        """Tells a worker that it need not make this sample of a task, nor those behind it."""

    def recall(self, worker: int, task: int) -> None:
        """Tells a worker to leave a task alone, unless it has begun it."""


class Given(NamedTuple):
    """A part that a worker was given: samples of a batch, in the order of the part's index."""

    task: int
    all_rows: Sequence[int]
    rows: Sequence[int]
    """Those of them that are expected of it; others make the rest."""
    weight: int
    """As how many tasks it counts."""


@dataclass
class Cut:
    """A batch of which parts were given out."""

    index: Positioned
    missing: set[int]
    """Rows that nobody has made yet."""
    parts: list[tuple[Sequence[int], Arrived]] = field(default_factory=list)
    out: set[int] = field(default_factory=set)
    """Numbers of the parts that are being made."""

    @property
    def nbytes(self) -> int:
        """Bytes of the parts that are made."""
        return sum(arrived.nbytes for _, arrived in self.parts)


def shares_batches(epoch: Epoch) -> bool:
    """Tells whether several workers may make a batch of this epoch together, and nobody can see it."""
    return epoch.any_replica_will_do and could_share_batches(epoch)


def could_share_batches(epoch: Epoch) -> bool:
    """Tells whether they may where any replica may make any batch.

    Samples must be loaded one by one and collated by torch's rules. A dataset with a state may count its samples, and
    what becomes of bad ones is decided for whole batches.
    """
    spec = epoch.spec
    if not epoch.is_map or not spec.batched or not spec.in_order or epoch.is_live:
        return False
    if epoch.policy is not None or not epoch.slow_samples.splits:
        return False
    if spec.collate_fn is not torch_default_collate or SlotCollate(OwnMemory()).memory is None:
        return False
    return not fetches_batches(spec.dataset) and not getattr(spec.dataset, "__getitems__", None)


class SharingDispatcher(Dispatcher["Arrived | Joined"]):
    """A dispatcher that cuts batches into parts. For map-style datasets with `seed=`."""

    def __init__(self, epoch: Epoch, workers: Workers, scale: Scale, *, spare_bytes: int) -> None:
        super().__init__(epoch, scale.most, scale.limit, fills=True, spare_bytes=spare_bytes)
        self._pool = workers
        self._samples = epoch.slow_samples
        self._knows_slow_ones = bool(self._samples) and may_draw_early(epoch.spec)
        self._given: dict[int, Given] = {}
        self._cuts: dict[int, Cut] = {}
        self._whole: set[int] = set()  # tasks that one worker makes, since their parts could not be joined
        self._next_part = FIRST_PART
        self._drawn: deque[tuple[int, Any]] = deque()
        self._slow: deque[tuple[int, int]] = deque()  # tasks and rows of slow samples that were drawn
        self._early: set[int] = set()  # parts with such a sample that are being made
        self._early_bytes = 0  # of those that are made, and whose batch is not given out yet
        self._ended = False
        self._horizon = 0
        self._pause = PAUSES[0]
        self._most_rows = 1

    # -- what is given out ---------------------------------------------------------------------------------------------

    def give_out(self, carrier: Carrier) -> None:
        if self._knows_slow_ones and self.window.next_task:  # not before the first batch, which would wait for them
            self._begin_early(carrier)
        super().give_out(carrier)
        if self.sampler_ended:
            self._help(carrier)

    @property
    def look_again(self) -> float | None:
        """See `Dispatcher.look_again`: a worker may begin with a slow batch after the others have got idle."""
        if self._looked and self.window.idle():
            return self._pause
        return super().look_again

    def look(self, carrier: Carrier) -> bool:
        others_may_come = super().look(carrier)
        self._pause = min(2 * self._pause, PAUSES[1])
        self._help(carrier)
        return others_may_come

    def _is_worth(self, samples: int) -> bool:
        """Tells whether it is worth the messages that an idle worker makes so many samples of another one."""
        return self._samples.usual * samples >= WORTH_SHARING or self._pause >= STUCK

    def _take(self) -> tuple[int, Any]:
        if self._drawn:
            return self._drawn.popleft()
        return super()._take()

    def is_at_end(self, carrier: Carrier) -> bool:
        return not self._drawn and super().is_at_end(carrier)

    def _hand_out(self, task: int, replica: int, index: Any, carrier: Carrier) -> None:
        cut = self._cuts.get(task)
        if can_be_cut(index):
            self._most_rows = max(self._most_rows, len(index.index))
            if task == 0 and task not in self._whole:
                cut = self._cut_first(index, replica, carrier)
        if cut is None:
            super()._hand_out(task, replica, index, carrier)
            return

        self._early_bytes -= cut.nbytes
        rows = sorted(cut.missing - self._rows_out(cut))
        cut.out.add(task)
        self._given[task] = Given(task, rows, rows, 1)
        super()._hand_out(task, replica, part_of(index, rows), carrier)

    def _cut_first(self, index: Any, replica: int, carrier: Carrier) -> Cut | None:
        """Gives all replicas but one a part of the first batch."""
        others = [other for other in range(self.window.open_replicas) if other != replica]
        cut = self._cuts.get(0, Cut(index, set(range(len(index.index)))))  # slow samples of it may have been begun
        rows = sorted(cut.missing - self._rows_out(cut))
        is_quick = 0 < self._samples.usual * len(rows) < 2 * WORTH_SHARING
        if len(rows) < 2 or not others or is_quick:
            return self._cuts.get(0)

        self._cuts[0] = cut
        size = math.ceil(len(rows) / (len(others) + 1))
        for place, other in enumerate(others, 1):
            part = rows[place * size : (place + 1) * size]
            if part:
                self._give_part(0, part, other, carrier)
        return cut

    def _give_part(self, task: int, rows: Sequence[int], replica: int, carrier: Carrier, weight: int = 1) -> int:
        number = self._next_part
        self._next_part += 1
        cut = self._cuts[task]
        cut.out.add(number)
        self._given[number] = Given(task, rows, rows, weight)
        self.window.begin_part(replica, weight)
        index = part_of(cut.index, rows)
        self.out[number] = replica, index
        carrier.submit(replica % self._workers, number, replica, index)
        return number

    # -- what comes back -----------------------------------------------------------------------------------------------

    def file(  # type: ignore[override]  # no part of a batch is `Joined`
        self, task: int, result: Arrived, carrier: Carrier, nbytes: int = 0, seconds: float = 0.0
    ) -> None:
        """See `Dispatcher.file`. task: may also be the number of a part."""
        self._pause = PAUSES[0]
        if task not in self.out:
            return  # another worker was quicker
        if result.status == "batch":
            self._note(task, result)

        given = self._given.get(task)
        if given is None and result.rows < 0:
            super().file(task, result, carrier, nbytes, seconds)
            return

        if given is None:
            given = self._cut(task)  # it was told to stop at a task of that number in another epoch
        self._file_part(task, given, result, carrier)
        self._note_cost(nbytes, self._usual)
        self.give_out(carrier)

    def _cut(self, task: int) -> Given:
        """Begins to cut a task that a worker has got as a whole."""
        index = self.out[task][1]
        rows = range(len(index.index))
        self._cuts[task] = Cut(index, set(rows), out={task})
        given = self._given[task] = Given(task, rows, rows, 1)
        return given

    def _note(self, number: int, result: Arrived) -> None:
        """Notes how long samples took."""
        index = self.out[number][1]
        if not can_be_cut(index):
            return
        keys = index.index
        if result.rows >= 0:
            keys = keys[: result.rows]
        if number in self._early:
            self._samples.note_alone(keys[0], result.seconds)
        else:
            self._samples.note(keys, result.seconds, result.slow)

    def _file_part(self, number: int, given: Given, result: Arrived, carrier: Carrier) -> None:
        cut = self._cuts[given.task]
        self._end_part(number, cut)
        if given.task in self._whole:
            del self._cuts[given.task]
            self.window.arrive_joined(given.task, result)
            return
        if result.status != "batch":
            self._make_whole(given.task, carrier)
            return

        rows = given.all_rows if result.rows < 0 else given.all_rows[: result.rows]
        cut.parts.append((rows, result))
        if given.task >= self.window.next_task:
            self._early_bytes += result.nbytes
        cut.missing.difference_update(rows)
        if cut.missing:
            # Rows that nobody makes: it has stopped before the place where others begin.
            lost = sorted(cut.missing - self._rows_out(cut))
            if lost and given.task < self.window.next_task:
                self._give_part(given.task, lost, self._least_busy(), carrier)
            return

        for other in list(cut.out):
            self._drop(other, cut, carrier)
        self._join(given.task, cut, carrier)

    def _rows_out(self, cut: Cut) -> set[int]:
        """Returns the rows of a batch that are being made."""
        return {row for number in cut.out for row in self._given[number].rows}

    def _least_busy(self) -> int:
        replica = self.window.least_busy()
        return 0 if replica is None else replica

    def _end_part(self, number: int, cut: Cut) -> None:
        replica, _ = self.out.pop(number)
        self.window.end_part(replica, self._given.pop(number).weight)
        cut.out.discard(number)
        self._early.discard(number)

    def _drop(self, number: int, cut: Cut, carrier: Carrier) -> None:
        """Forgets a part that nobody needs any more; its worker may still send it."""
        worker = self.out[number][0] % self._workers
        self._end_part(number, cut)
        if not carrier.withdraw(worker, number):
            self._pool.recall(worker, number)

    def _join(self, task: int, cut: Cut, carrier: Carrier) -> None:
        opened: list[Part] = []
        for rows, arrived in cut.parts:
            batch = arrived.opened()[0]
            opened.append((rows, batch))

        last = cut.parts[-1][1]
        try:
            batch = join(opened, len(cut.index.index))
        except NotAlikeError:
            self._samples.splits = False
            self._make_whole(task, carrier)
            return

        del self._cuts[task]
        times = joined_times([arrived.times for _, arrived in cut.parts])
        self.window.arrive_joined(task, Joined("batch", batch, last.worker, times, cut.nbytes, last.at))

    def _make_whole(self, task: int, carrier: Carrier) -> None:
        """Has one worker make a batch whose parts cannot be joined."""
        cut = self._cuts[task]
        for number in list(cut.out):
            self._drop(number, cut, carrier)

        self._whole.add(task)
        if task >= self.window.next_task:
            self._early_bytes -= cut.nbytes
            del self._cuts[task]  # it was not given out yet
            return

        # Under a new number: a worker may have been told to stop in the middle of the task.
        rows = range(len(cut.index.index))
        self._cuts[task] = Cut(cut.index, set(rows))
        self._give_part(task, rows, self._least_busy(), carrier)

    # -- workers that have nothing to do -------------------------------------------------------------------------------

    def _help(self, carrier: Carrier) -> None:
        """Has workers that have nothing to do help with the oldest batches, while the loop may wait for one."""
        if not (self._is_worth(self._most_rows) and self.window.is_late and self._samples.splits):
            return
        idle = self.window.idle()

        for number in sorted(self.out, key=self.task_of):
            if not idle:
                return
            replica, index = self.out[number]
            if not can_be_cut(index) or number in self._early:
                continue
            task, stage, place = self._pool.doing(replica % self._workers)
            if task != number and stage in (LOAD, COLLATE):
                self._take_over(number, idle.pop(), carrier)
            elif task == number and stage == LOAD:
                self._share_rest(number, place, idle, carrier)

    def _take_over(self, number: int, replica: int, carrier: Carrier) -> None:
        """Gives a task, which lies behind another one at its worker, to a replica."""
        before, index = self.out[number]
        worker = before % self._workers
        if not carrier.withdraw(worker, number):
            self._pool.recall(worker, number)

        given = self._given.get(number)
        if given is None:
            self.window.move(number, replica)
        else:
            self.window.end_part(before, given.weight)
            self.window.begin_part(replica, given.weight)
        self.out[number] = replica, index
        carrier.submit(replica % self._workers, number, replica, index)

    def _share_rest(self, number: int, place: int, idle: list[int], carrier: Carrier) -> None:
        """Gives the samples behind the one that a worker is at to replicas that are idle."""
        replica, index = self.out[number]
        given = self._given.get(number)
        task = self.task_of(number)
        rows = range(len(index.index)) if given is None else given.rows
        rest = rows[place + 1 :]
        if place < 0 or task in self._whole or not rest or not self._is_worth(len(rest)):
            return

        if given is None:
            given = self._cut(task)
        self._given[number] = given._replace(rows=rows[: place + 1])
        self._pool.stop_at(replica % self._workers, number, place + 1)
        shares = min(len(idle), max(int(len(rest) * self._samples.usual / WORTH_SHARING), 1), len(rest))
        size = math.ceil(len(rest) / shares)
        for start in range(0, len(rest), size):
            self._give_part(task, rest[start : start + size], idle.pop(), carrier)

    # -- samples that are known to be slow -----------------------------------------------------------------------------

    def _begin_early(self, carrier: Carrier) -> None:
        """Begins slow samples of the batches that come next, in as many workers as there is such work."""
        if not self._samples.splits:
            return

        self._draw()
        workers = self.window.open_replicas
        most = min(workers - 1, math.ceil(self._samples.share * workers))
        while self._slow and len(self._early) < most and self._early_bytes < self._spare_bytes:
            task, row = self._slow[0]
            if task < self.window.next_task or task in self._whole:
                self._slow.popleft()  # it is too late
                continue

            replica = self.window.least_busy()
            if replica is None or self.window.making(replica) >= self.window.ahead:
                return
            self._slow.popleft()
            index = self._drawn[task - self.window.next_task][1]
            cut = self._cuts.get(task)
            if cut is None:
                cut = self._cuts[task] = Cut(index, set(range(len(index.index))))
            # Its worker gets nothing else meanwhile: that would be late.
            self._early.add(self._give_part(task, [row], replica, carrier, self.window.ahead))

    def _draw(self) -> None:
        """Draws so many batches ahead that the slowest sample can be made until its batch is due."""
        if not self._horizon:
            batch = self._samples.usual * (self._epoch.spec.batch_size or 1) / self.window.open_replicas
            far = FARTHER * self._samples.longest / max(batch, 1e-6) + self.window.limit
            self._horizon = int(min(far, SPARE))

        while not self._ended and len(self._drawn) < self._horizon:
            try:
                number, index = self._epoch.take()
            except (StopIteration, NothingYetError):
                self._ended = True
                return
            task = self.window.next_task + len(self._drawn)
            self._drawn.append((number, index))
            if can_be_cut(index):
                slow = [row for row, key in enumerate(index.index) if key in self._samples]
                # One sample is left for the worker that is given the batch.
                self._slow.extend((task, row) for row in slow[: len(index.index) - 1])

    # -- what others ask -----------------------------------------------------------------------------------------------

    def task_of(self, number: int) -> int:
        given = self._given.get(number)
        return number if given is None else given.task

    def comes_before(self, task: int, worker: int) -> bool:
        return any(
            self.task_of(other) < task and replica % self._workers != worker for other, (replica, _) in self.out.items()
        )

    def unanswered(self, worker: int) -> list[tuple[int, int, Any]]:
        """See `Dispatcher.unanswered`; parts are among them."""
        numbers = sorted(self.out, key=lambda number: (self.task_of(number), number))
        tasks = ((number, *self.out[number]) for number in numbers)
        return [task for task in tasks if task[1] % self._workers == worker]

    def busy(self) -> list[int]:
        return sorted({replica % self._workers for replica, _ in self.out.values()})
