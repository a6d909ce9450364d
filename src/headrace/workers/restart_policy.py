"""What becomes of the work of a worker that died: pure bookkeeping, without processes or clocks.

A worker dies of chance (the OOM killer chose it, somebody killed it) or of its work. So its work is done again, by
another one; but a sample at which workers die again and again is found out and isolated, and where no sample is to
blame, a budget ends the loop:

- the worker was at one sample: that sample is suspected, and isolated after `DEATHS` (of hanging: `HANGS`);
- it was loading a whole batch at once: the batch is done again carefully, sample by sample;
- it was collating or sending: there is nobody to isolate, and after `DEATHS` it is given up;
- it had not begun: it is given up after `DEATHS` like that, one after the other;
- whatever it was: after `IN_A_ROW` deaths without a single result of this worker it is given up.
"""

from __future__ import annotations

from collections import Counter
from typing import Literal, NamedTuple

from headrace.core.process.activity import IDLE, LOAD, START, TOGETHER, UNBORN

DEATHS = 3
HANGS = 2
IN_A_ROW = 10


class Sighting(NamedTuple):
    """What a worker was last seen doing."""

    worker: int
    task: int
    stage: int
    place: int
    spare: int
    hung: bool

    @property
    def at_work(self) -> bool:
        """Whether it was making a batch."""
        return self.stage not in (UNBORN, START, IDLE)


RestartDecision = Literal["again", "carefully", "isolate", "give up"]


class RestartPolicy:
    """The deaths of one team."""

    def __init__(self) -> None:
        self._suspected: Counter[tuple[int, int, int, int, bool]] = Counter()
        self._in_a_row: Counter[int] = Counter()
        self._starts: Counter[int] = Counter()

    def made_progress(self, worker: int) -> None:
        """Notes that a worker has sent a result."""
        if self._in_a_row:
            self._in_a_row.pop(worker, None)
            self._starts.pop(worker, None)

    def begin_epoch(self) -> None:
        """Forgets tasks, whose numbers begin anew."""
        self._suspected.clear()

    def judge(self, seen: Sighting) -> RestartDecision:
        """Counts a death, and says what becomes of the work."""
        self._in_a_row[seen.worker] += 1
        in_a_row = self._in_a_row[seen.worker]
        if seen.hung:
            limit = HANGS
        else:
            limit = DEATHS

        starting = seen.stage in (UNBORN, START)
        starts = self._starts[seen.worker] = self._starts[seen.worker] + 1 if starting else 0
        if not seen.at_work:
            if in_a_row >= IN_A_ROW or starts >= limit:
                return "give up"
            return "again"

        suspect = seen.task, seen.stage, seen.place, seen.spare, seen.hung
        self._suspected[suspect] += 1
        deaths = self._suspected[suspect]
        if seen.stage == LOAD and seen.place != TOGETHER:
            if deaths < limit:
                if in_a_row < IN_A_ROW:
                    return "again"
                return "give up"

            self._in_a_row[seen.worker] = 0
            return "isolate"

        if deaths >= limit or in_a_row >= IN_A_ROW:
            return "give up"
        if seen.stage == LOAD:
            return "carefully"
        return "again"
