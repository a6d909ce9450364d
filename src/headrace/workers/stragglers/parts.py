"""Batches that several workers make together, so that one slow sample holds up neither them nor the loop.

Which worker makes a sample changes nothing, since its random numbers follow from its place in the epoch. So a batch may
be cut into parts. Three things are done with that:

- the first batch of an epoch is cut over all workers, and is there so many times sooner;
- a worker that has nothing to do, while the loop waits for a batch, takes over what the worker of that batch has not
  begun: tasks that lie behind it, or the samples behind the one that it is at;
- samples that are known to be slow are begun before the batches that they belong to.

Parts that were made twice do no harm. Where parts cannot be joined, or one of them raises, one worker makes the whole
batch.

Pure: no process, file or clock.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any, NamedTuple

from headrace.batches.index import Positioned, can_be_cut, part_of
from headrace.core.process.activity import COLLATE, LOAD
from headrace.core.stragglers import WORTH_SHARING
from headrace.workers.carrier import Carrier, PartAnswer, Watched
from headrace.workers.stragglers.early import DrawnAhead
from headrace.workers.stragglers.lateness import Lateness
from headrace.workers.tasks import FIRST_PART, Tasks

PAUSES = (2e-3, 0.1)
"""Seconds until idle workers are given something to do after all: the first time, and at most."""

STUCK = 16e-3
"""Pause from which on idle workers help with quick batches, too: a worker that makes such a one is held up."""

MadeParts = list[tuple[Sequence[int], Any]]
"""Parts of a batch that are made: which of its rows, and the answer that has them."""

Join = Callable[[MadeParts, int], Any]
"""Returns the answer that a whole batch of so many rows would be; None: its parts cannot be joined."""


class Given(NamedTuple):
    """A part that a worker was given: samples of a batch, in the order of the part's index."""

    task: int
    all_rows: Sequence[int]
    rows: Sequence[int]
    """Those of them that are expected of it; others make the rest."""
    weight: int = 1
    """As how many tasks it counts."""
    is_early: bool = False
    """Whether it is a slow sample that was begun before its batch."""


@dataclass
class Cut:
    """A batch of which parts were given out."""

    index: Positioned
    missing: set[int]
    """Rows that nobody has made yet."""
    parts: MadeParts = field(default_factory=list)
    out: set[int] = field(default_factory=set)
    """Numbers of the parts that are being made."""

    @property
    def nbytes(self) -> int:
        """Bytes of the parts that are made."""
        return sum(answer.nbytes for _, answer in self.parts)


def _uncut(index: Positioned) -> Cut:
    return Cut(index, set(range(len(index.index))))


class Parts:
    """The batches of an epoch that several workers make. A dispatcher has one, and asks it before it acts."""

    def __init__(
        self,
        tasks: Tasks[Any],
        ahead: DrawnAhead,
        lateness: Lateness,
        workers: Watched,
        join: Join,
        *,
        draws_early: bool,
        batch_size: int,
    ) -> None:
        """draws_early: whether slow samples may be begun before their batches, which are drawn early for that."""
        self.ahead = ahead
        self.pause = PAUSES[0]
        """Seconds after which to look again whether idle workers can help."""
        self._tasks = tasks
        self._window = tasks.window
        self._samples = ahead.samples
        self._lateness = lateness
        self._workers = workers
        self._join = join
        self._begins_early = draws_early and bool(ahead.samples)
        self._batch_size = batch_size
        self._horizon = 0
        self._early = 0  # slow samples that are being made before their batches
        self._given: dict[int, Given] = {}
        self._cuts: dict[int, Cut] = {}
        self._whole: set[int] = set()  # tasks that one worker makes, since their parts could not be joined
        self._next_part = FIRST_PART
        self._most_rows = 1

    # -- what is given out ---------------------------------------------------------------------------------------------

    def give(self, task: int, replica: int, index: Any, carrier: Carrier) -> None:
        """Gives a batch to the worker of a replica, or what is left of it if parts of it were given out before."""
        cut = self._cuts.get(task)
        if can_be_cut(index):
            self._most_rows = max(self._most_rows, len(index.index))
            if task == 0 and task not in self._whole:
                cut = self._cut_first(index, replica, carrier)
        if cut is None:
            self._tasks.give(task, replica, index, carrier)
            return

        rows = sorted(cut.missing - self._rows_out(cut))
        cut.out.add(task)
        self._given[task] = Given(task, rows, rows)
        self._tasks.give(task, replica, part_of(index, rows), carrier)

    def _cut_first(self, index: Any, replica: int, carrier: Carrier) -> Cut | None:
        """Gives all replicas but one a part of the first batch."""
        others = [other for other in range(self._window.open_replicas) if other != replica]
        cut = self._cuts.get(0) or _uncut(index)  # slow samples of it may have been begun
        rows = sorted(cut.missing - self._rows_out(cut))
        is_quick = 0 < self._samples.usual * len(rows) < 2 * WORTH_SHARING
        if len(rows) < 2 or not others or is_quick:
            return self._cuts.get(0)

        self._cuts[0] = cut
        size = math.ceil(len(rows) / (len(others) + 1))
        for place, other in enumerate(others, 1):
            part = rows[place * size : (place + 1) * size]
            if part:
                self._give_part(Given(0, part, part), other, carrier)
        return cut

    def _give_part(self, given: Given, replica: int, carrier: Carrier) -> None:
        number = self._next_part
        self._next_part += 1
        cut = self._cuts[given.task]
        cut.out.add(number)
        self._given[number] = given
        self._early += given.is_early
        self._tasks.batch_of[number] = given.task
        self._window.begin_part(replica, given.weight)
        self._tasks.give(number, replica, part_of(cut.index, given.rows), carrier)

    def _give_rows(self, task: int, rows: Sequence[int], carrier: Carrier) -> None:
        """Gives rows of a batch to whoever has the least to do."""
        self._give_part(Given(task, rows, rows), self._window.least_busy() or 0, carrier)

    # -- what comes back -----------------------------------------------------------------------------------------------

    def file(self, number: int, answer: PartAnswer, carrier: Carrier) -> bool:
        """Files the answer to a part, or to what nobody needs any more. False: it is that to a whole batch."""
        self.pause = PAUSES[0]
        if number not in self._tasks.out:
            return True  # another worker was quicker
        if answer.status == "batch":
            self._note(number, answer)

        given = self._given.get(number)
        if given is None and answer.rows < 0:
            return False
        if given is None:
            given = self._cut(number)  # it was told to stop at a task of that number in another epoch
        self._file_part(number, given, answer, carrier)
        return True

    def _cut(self, task: int) -> Given:
        """Begins to cut a task that a worker has got as a whole."""
        index = self._tasks.out[task][1]
        rows = range(len(index.index))
        self._cuts[task] = Cut(index, set(rows), out={task})
        given = self._given[task] = Given(task, rows, rows)
        return given

    def _note(self, number: int, answer: PartAnswer) -> None:
        """Notes how long samples took."""
        index = self._tasks.out[number][1]
        if not can_be_cut(index):
            return
        keys = index.index
        if answer.rows >= 0:
            keys = keys[: answer.rows]
        if self._is_early(number):
            self._samples.note_alone(keys[0], answer.seconds)
        else:
            self._samples.note(keys, answer.seconds, answer.slow)

    def _is_early(self, number: int) -> bool:
        given = self._given.get(number)
        return given is not None and given.is_early

    def _file_part(self, number: int, given: Given, answer: PartAnswer, carrier: Carrier) -> None:
        task = given.task
        cut = self._cuts[task]
        self._end_part(number, cut)
        if task in self._whole:
            del self._cuts[task]
            self._window.arrive_joined(task, answer)
            return
        if answer.status != "batch":
            self._make_whole(task, carrier)
            return

        rows = given.all_rows if answer.rows < 0 else given.all_rows[: answer.rows]
        cut.parts.append((rows, answer))
        cut.missing.difference_update(rows)
        if cut.missing:
            # Rows that nobody makes: it has stopped before the place where others begin.
            lost = sorted(cut.missing - self._rows_out(cut))
            if lost and task < self._window.next_task:
                self._give_rows(task, lost, carrier)
            return

        for other in list(cut.out):
            self._drop(other, cut, carrier)
        self._join_parts(task, cut, carrier)

    def _rows_out(self, cut: Cut) -> set[int]:
        """Returns the rows of a batch that are being made."""
        return {row for number in cut.out for row in self._given[number].rows}

    def _end_part(self, number: int, cut: Cut) -> None:
        replica, _ = self._tasks.out.pop(number)
        self._tasks.batch_of.pop(number, None)
        given = self._given.pop(number)
        self._early -= given.is_early
        self._window.end_part(replica, given.weight)
        cut.out.discard(number)

    def _drop(self, number: int, cut: Cut, carrier: Carrier) -> None:
        """Forgets a part that nobody needs any more; its worker may still send it."""
        worker = self._tasks.worker_of(number)
        self._end_part(number, cut)
        if not carrier.withdraw(worker, number):
            self._workers.recall(worker, number)

    def _join_parts(self, task: int, cut: Cut, carrier: Carrier) -> None:
        joined = self._join(cut.parts, len(cut.index.index))
        if joined is None:
            self._samples.splits = False
            self._make_whole(task, carrier)
            return

        del self._cuts[task]
        self._window.arrive_joined(task, joined)

    def _make_whole(self, task: int, carrier: Carrier) -> None:
        """Has one worker make a batch whose parts cannot be joined."""
        cut = self._cuts.pop(task)
        for number in list(cut.out):
            self._drop(number, cut, carrier)

        self._whole.add(task)
        if task < self._window.next_task:
            # Under a new number: a worker may have been told to stop in the middle of the task.
            self._cuts[task] = _uncut(cut.index)
            self._give_rows(task, range(len(cut.index.index)), carrier)

    # -- workers that have nothing to do -------------------------------------------------------------------------------

    def help(self, carrier: Carrier) -> None:
        """Has workers that have nothing to do help with the oldest batches, while the loop may wait for one."""
        if not (self._is_worth(self._most_rows) and self._window.is_late and self._samples.splits):
            return
        idle = self._window.idle()
        if not idle:
            return

        for number in self._tasks.in_turn():
            index = self._tasks.out[number][1]
            if not can_be_cut(index) or self._is_early(number):
                continue
            task, stage, place = self._workers.doing(self._tasks.worker_of(number))
            if task != number and stage in (LOAD, COLLATE):
                self._take_over(number, idle.pop(), carrier)
            elif task == number and stage == LOAD:
                self._share_rest(number, place, idle, carrier)
            if not idle:
                return

    def help_after_a_while(self, carrier: Carrier) -> None:
        """Does so again where nothing has come for `pause` seconds. The pause grows."""
        self.pause = min(2 * self.pause, PAUSES[1])
        self.help(carrier)

    def _is_worth(self, samples: int) -> bool:
        """Tells whether it is worth the messages that an idle worker makes so many samples of another one."""
        return self._samples.usual * samples >= WORTH_SHARING or self.pause >= STUCK

    def _take_over(self, number: int, replica: int, carrier: Carrier) -> None:
        """Gives a task, which lies behind another one at its worker, to a replica."""
        before, index = self._tasks.out[number]
        worker = self._tasks.worker_of(number)
        if not carrier.withdraw(worker, number):
            self._workers.recall(worker, number)

        given = self._given.get(number)
        if given is None:
            self._window.move(number, replica)
        else:
            self._window.end_part(before, given.weight)
            self._window.begin_part(replica, given.weight)
        self._tasks.give(number, replica, index, carrier)

    def _share_rest(self, number: int, place: int, idle: list[int], carrier: Carrier) -> None:
        """Gives the samples behind the one that a worker is at to replicas that are idle."""
        index = self._tasks.out[number][1]
        given = self._given.get(number)
        task = self._tasks.task_of(number)
        rows = range(len(index.index)) if given is None else given.rows
        rest = rows[place + 1 :]
        if place < 0 or task in self._whole or not rest or not self._is_worth(len(rest)):
            return

        if given is None:
            given = self._cut(task)
        self._given[number] = given._replace(rows=rows[: place + 1])
        self._workers.stop_at(self._tasks.worker_of(number), number, place + 1)
        shares = min(len(idle), max(int(len(rest) * self._samples.usual / WORTH_SHARING), 1), len(rest))
        size = math.ceil(len(rest) / shares)
        for start in range(0, len(rest), size):
            part = rest[start : start + size]
            self._give_part(Given(task, part, part), idle.pop(), carrier)

    # -- samples that are known to be slow -----------------------------------------------------------------------------

    def begin_early(self, carrier: Carrier) -> None:
        """Begins slow samples of the batches that come next, in as many workers as there is such work."""
        window = self._window
        # Not before the first batch, which would wait for them.
        if not self._begins_early or not window.next_task or not self._samples.splits:
            return

        replicas = window.open_replicas
        self._horizon = self._horizon or self.ahead.far_enough(self._batch_size, replicas, window.limit)
        self.ahead.draw(self._horizon, window.next_task)
        most = min(replicas - 1, math.ceil(self._samples.share * replicas))
        while (slow := self.ahead.next_slow(window.next_task)) is not None:
            replica = window.least_busy()
            if replica is None or self._early >= most or self._early_bytes() >= self._lateness.spare_bytes:
                return
            task, row = slow
            if task not in self._whole:
                if window.making(replica) >= window.ahead:
                    return
                if task not in self._cuts:
                    self._cuts[task] = _uncut(self.ahead.index_of(task, window.next_task))
                # Its worker gets nothing else meanwhile: that would be late.
                self._give_part(Given(task, [row], [row], window.ahead, True), replica, carrier)
            self.ahead.pass_slow()

    def _early_bytes(self) -> int:
        """Returns the bytes of slow samples that are made, and whose batches are not given out yet."""
        return sum(cut.nbytes for task, cut in self._cuts.items() if task >= self._window.next_task)
