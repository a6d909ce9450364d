"""Keeps the record of a loader: always on, in memory that does not grow, for a few microseconds a batch.

What is known of a batch is written into a row. Now and then (`tick`) rows are summed up and moved into a ring.
"""

from __future__ import annotations

import math
import os
import struct
import time
import weakref
from collections import Counter, deque
from collections.abc import Callable, Iterable, Sequence
from dataclasses import replace
from time import perf_counter

import numpy as np
import numpy.typing as npt

from headrace.core.process.memory import shared_out_memory
from headrace.telemetry.device_copies import DeviceCopies
from headrace.telemetry.live_reads import LiveReads
from headrace.telemetry.neighbours import Neighbours
from headrace.telemetry.recording import (
    BATCH,
    MAIN,
    MEMORY,
    EpochTimes,
    Event,
    LoadingPlace,
    Recording,
    Setting,
    Trap,
    stage_seconds,
    totals_of,
)
from headrace.telemetry.remote_reads import RemoteReads
from headrace.telemetry.stopwatch import queued_seconds
from headrace.telemetry.timings import NAN, BatchRow, BatchTimings, ShortTimings, complete

COLUMNS = len(BATCH.names or ())
HELD = 4096
"""Batches that are kept."""

PENDING = 4096
"""Rows that wait to be summed up, at most."""

ROW = struct.Struct(f"{COLUMNS}d")
"""A row: all its numbers as 64-bit floats. The order is that of `BATCH`, see `timings.BatchRow`."""

SHORT_ROW = struct.Struct(f"{BatchRow._fields.index('collated') + 1}d")
"""The beginning of a row, up to `collated`. Of a short batch that was made here, the rest is as in `BLANK`."""

BLANK = ROW.pack(0, 0, 0, NAN, NAN, *complete((NAN, NAN, NAN, NAN)), NAN, NAN, NAN)
"""A row before anything is written into it."""

TICK, LIVELY = 1.0, 0.2
"""Seconds between two looks at what does not belong to a batch; with listeners, who may want to draw."""

SHARE = 0.002
"""Share of the time that looking at memory may take."""

Listener = Callable[["Recorder", float], None]
"""Called now and then, before a batch is taken, with the recorder and the time."""


class Recorder:
    """One loader's record. Not thread-safe: it belongs to the thread that iterates."""

    def __init__(self, label: str, *, is_rebuild: bool = False) -> None:
        """`is_rebuild`: takes the label over from a loader that was never iterated, and that this one replaces."""
        replaced: Recorder | None = _LIVING.get(label)
        if is_rebuild and replaced is not None and replaced.epoch < 0:
            del _LIVING[label]
            replaced.label = _own_name(f"{label} (built anew)")
            _LIVING[replaced.label] = replaced

        self.label: str = _own_name(label)
        """As given; of several living ones that were given the same, the second is "... #2"."""
        _LIVING[self.label] = self
        self.setting = Setting()
        self.hosts: dict[int, str] = {}
        """The other machines on which workers run, by the workers' numbers."""
        # Neither these rows were summed up yet, of which so many are written, nor those of `_blocks`.
        self._pending = bytearray(BLANK * PENDING)
        self._written = 0
        self._blocks: list[npt.NDArray[np.float64]] = []
        self.due = 0.0
        """When `tick` is to be called next."""
        self.epoch: int = -1
        self.listeners: list[Listener] = []
        self.counts: Callable[[], tuple[int, int]] = lambda: (0, 0)
        """Returns the bad samples and the replaced workers so far."""
        self.remote: Callable[[], RemoteReads | None] = lambda: None
        self.live: Callable[[], LiveReads | None] = lambda: None
        """Returns what was read from object stores and servers so far; None: nothing was."""
        self.copies: Callable[[], DeviceCopies | None] = lambda: None
        """Returns what was copied to a device so far; None: batches stay on this machine."""
        self.first_seen = math.nan
        self._ring = np.zeros((HELD, COLUMNS))
        self._held = self._next = 0
        self._totals: dict[str, float] = {}
        # The row before those that are summed up next: its step of training ends with the first of them.
        self._last = np.zeros(0, BATCH)
        self._epochs: deque[EpochTimes] = deque(maxlen=512)
        self._events: deque[Event] = deque(maxlen=512)
        self._memory: deque[tuple[float, int, int]] = deque(maxlen=1024)
        self._memory_due = 0.0
        self._neighbours = Neighbours()
        self._seen: Counter[tuple[str, str]] = Counter()
        self._spent = _spent()

    # -- what iterators tell -------------------------------------------------------------------------------------------

    def add(self, epoch: int, number: int, samples: int, asked: float, timings: BatchTimings | ShortTimings) -> None:
        """Notes that a batch is delivered now: all of its row, or nothing if a signal handler raises meanwhile.

        epoch, number: of the batch. asked: when the loop asked for it. Call `tick`, too, when it is `due`.
        """
        written = self._written
        if written == PENDING:
            self._sum_up()
            written = 0

        # One call writes all of a row. An object for each batch would be kept for a while, and written later: more
        # work, and memory that pushes what the loop needs out of the cache.
        if not isinstance(timings, BatchTimings):
            nbytes, begun, loaded, collated = timings
            SHORT_ROW.pack_into(
                self._pending, written * ROW.size, epoch, number, samples, asked, perf_counter(), MAIN, nbytes, NAN,
                begun, loaded, collated,
            )  # fmt: skip
        else:
            ROW.pack_into(
                self._pending,
                written * ROW.size,
                epoch,
                number,
                samples,
                asked,
                perf_counter(),
                *timings,
                NAN,
                NAN,
                NAN,
            )

        self._written = written + 1

    def add_rows(self, rows: npt.NDArray[np.float64]) -> None:
        """Notes batches that were delivered: rows of `BATCH` as float64 [n, columns]. Keeps the array."""
        self._blocks.append(rows)

    def begin_epoch(self, began: float, setting: Setting, *, fresh: bool) -> None:
        """An epoch begins, for which workers were started (`fresh`) or kept."""
        self.epoch += 1
        if math.isnan(self.first_seen):
            self.first_seen = began

        self.setting = replace(setting, traps=self.setting.traps)
        self._epochs.append(EpochTimes(self.epoch, began, workers=setting.num_workers, fresh=fresh))
        # The epoch before was left in the middle, so nobody has told its listeners that it is over.
        if self.listeners and len(self._epochs) > 1 and math.isnan(self._epochs[-2].ended):
            self.tick(began, last=True)

        self._neighbours.begin()
        soon = began + self._pace
        # Not at the first batch, for which one waits.
        if self.epoch == 0:
            self.due = soon
        else:
            self.due = min(self.due, soon)

    def prepared(self) -> None:
        """The epoch is set up: what the main process does from now on, it does for batches."""
        if not self._has_rows:
            self._spent = _spent()

    def adjust(self, num_workers: int, prefetch_factor: int) -> None:
        """The number of workers changes in the middle of an epoch."""
        self.setting = replace(self.setting, num_workers=num_workers, prefetch_factor=prefetch_factor)

    def note_start(self, *, fork_server: bool) -> None:
        """Notes how workers were started; see `Setting`."""
        self.setting = replace(self.setting, fork_server=fork_server)

    def note_dispatch(self, *, shares: bool, could_share: bool, adapts: bool, spare_memory: int) -> None:
        """Notes how the tasks of this epoch are given out; see `Setting`."""
        self.setting = replace(
            self.setting, shares=shares, could_share=could_share, adapts=adapts, spare_memory=spare_memory
        )

    def end_epoch(self, number: int, batches: int, asked: float = math.inf) -> None:
        """An epoch has come to its end: the loop found out when it `asked` for a further batch, if it did."""
        now = time.perf_counter()
        self._totals["ending"] = self._totals.get("ending", 0.0) + max(now - asked, 0.0)
        # It is among the latest, and hundreds may be kept.
        for at in range(-1, -len(self._epochs) - 1, -1):
            epoch = self._epochs[at]
            if epoch.epoch == number:
                self._epochs[at] = replace(epoch, ended=now, batches=batches)
                break

        self._neighbours.look()
        if self.listeners:
            self.tick(now, last=True)

    def happened(self, kind: str, text: str, worker: int | None = None) -> None:
        """Something happened just now; see `Event`."""
        self._events.append(Event(time.perf_counter(), kind, text, worker))

    def placed(self, worker: int, host: str) -> None:
        """A worker was started on another machine."""
        self.hosts[worker] = host
        self.happened("placed", f"worker {worker} runs on {host}", worker)

    def trapped(self, trap: Trap) -> None:
        """A trap was found; the second time it is not noted."""
        if trap not in self.setting.traps:
            self.setting = replace(self.setting, traps=(*self.setting.traps, trap))

    def saw(self, places: Iterable[tuple[str, str, int]]) -> None:
        """A worker was seen so many times in these places; see `LoadingPlace`."""
        for kind, where, count in places:
            self._seen[kind, where] += count

    def tick(self, now: float, *, last: bool = False) -> None:
        """Sums up what has come, looks at the memory and at other processes, and calls the listeners."""
        self.due = now + self._pace
        self._sum_up()
        if now >= self._memory_due:
            began = time.perf_counter()
            main, workers = shared_out_memory(os.getpid())
            self._memory.append((now, main, workers))
            self._memory_due = now + max((time.perf_counter() - began) / SHARE, 1.0)

        # Listeners that report now and then compare this time with when they are due: at the end of an epoch they are.
        self._neighbours.look()
        if last:
            now = math.inf

        for listener in tuple(self.listeners):
            listener(self, now)

    @property
    def _pace(self) -> float:
        if self.listeners:
            return LIVELY
        return TICK

    # -- what others ask -----------------------------------------------------------------------------------------------

    @property
    def latest(self) -> npt.NDArray[np.void]:
        """`BATCH` [n]: the latest batches, in the order of their delivery."""
        return self._latest(HELD)

    def _latest(self, most: int) -> npt.NDArray[np.void]:
        self._sum_up()
        start = self._next - min(self._held, most)
        return _structured(self._ring[np.arange(start, self._next) % HELD])

    def recording(self, most: int = HELD) -> Recording:
        """Returns all that is known by now, with so many batches at most, the latest ones."""
        batches = self._latest(most)
        bad, restarts = self.counts()
        return Recording(
            label=self.label,
            setting=self.setting,
            batches=batches,
            epochs=tuple(self._epochs_with_first(batches)),
            memory=np.array(list(self._memory), MEMORY),
            events=tuple(self._events),
            places=self.places(),
            totals=self._totals | self._neighbours.totals(),
            first_seen=self.first_seen,
            bad_samples=bad,
            restarts=restarts,
            remote=self.remote(),
            live=self.live(),
            copies=self.copies(),
            hosts=dict(self.hosts),
        )

    def places(self, most: int = 12) -> tuple[LoadingPlace, ...]:
        """Returns where loading spends its time, by the share of the times that workers were seen there."""
        total = sum(self._seen.values())
        return tuple(LoadingPlace(kind, where, count / total) for (kind, where), count in self._seen.most_common(most))

    @property
    def _has_rows(self) -> bool:
        return bool(self._written or self._blocks)

    def _sum_up(self) -> None:
        if not self._has_rows:
            return

        written = np.frombuffer(self._pending, np.float64, self._written * COLUMNS).reshape(-1, COLUMNS)
        fresh = np.concatenate([written, *self._blocks])
        self._pending[: self._written * ROW.size] = BLANK * self._written
        self._written = 0
        self._blocks.clear()
        self._share_out(fresh)

        # The row that was summed up last stands in front (`known` is 1, or 0 at the beginning): the training behind it
        # was not known then, and is counted now.
        known = len(self._last)
        rows = _structured(fresh, behind=self._last)
        self._last = rows[-1:].copy()
        stages = stage_seconds(rows)
        of_fresh = {name: values[known:] for name, values in stages.items()}
        for name, value in totals_of(rows[known:], of_fresh).items():
            self._totals[name] = self._totals.get(name, 0.0) + value

        self._totals["loop"] += float(stages["loop"][:known].sum())
        self._note_first(rows[known:])

        # More rows than the ring holds: only the latest go in, or places would be written twice in no certain order.
        places = np.arange(self._next, self._next + len(fresh)) % HELD
        self._ring[places[-HELD:]] = fresh[-HELD:]
        self._next += len(fresh)
        self._held = min(self._held + len(fresh), HELD)

    def _share_out(self, fresh: npt.NDArray[np.float64]) -> None:
        """Gives each batch its share of the CPU time of the main process; what made batches there is not the loop's."""
        names = BATCH.names or ()
        before = self._spent
        self._spent = _spent()
        cpu, main_cpu, queued = np.subtract(self._spent, before).tolist()

        # Short batches are not asked for their CPU time. They keep a core busy for as long as they take.
        made_here = fresh[fresh[:, names.index("worker")] == MAIN]
        spans = made_here[:, names.index("collated")] - made_here[:, names.index("begun")]
        spent = made_here[:, names.index("cpu")]
        making = float(np.nansum(np.where(np.isnan(spent), spans, spent)))
        queued -= float(np.nansum(made_here[:, names.index("queued")]))

        fresh[:, names.index("loop_cpu")] = max(cpu - making, 0.0) / len(fresh)
        fresh[:, names.index("main_cpu")] = max(main_cpu - making, 0.0) / len(fresh)
        fresh[:, names.index("loop_queued")] = max(queued, 0.0) / len(fresh)

    def _note_first(self, rows: npt.NDArray[np.void]) -> None:
        """Notes of epochs that have none yet when their first batch came, and how long they took to open."""
        for at, epoch in enumerate(self._epochs):
            if not math.isnan(epoch.first):
                continue

            rows_of_epoch = rows[rows["epoch"] == epoch.epoch]
            if len(rows_of_epoch):
                self._epochs[at] = replace(epoch, first=float(rows_of_epoch["delivered"][0]))
                opening = max(float(rows_of_epoch["asked"][0]) - epoch.began, 0.0)
                self._totals["opening"] = self._totals.get("opening", 0.0) + opening

    def _epochs_with_first(self, batches: npt.NDArray[np.void]) -> Sequence[EpochTimes]:
        """Returns the epochs; that of one that was left, or is going on, has the batches that are known of it."""
        done = []
        for epoch in self._epochs:
            own = batches["number"][batches["epoch"] == epoch.epoch]
            if len(own):
                known = int(own.max()) + 1
            else:
                known = 0
            done.append(replace(epoch, batches=max(epoch.batches, known)))

        return done


_LIVING: weakref.WeakValueDictionary[str, Recorder] = weakref.WeakValueDictionary()
"""By their labels."""


def _own_name(label: str) -> str:
    name = label
    number = 1
    while name in _LIVING:
        number += 1
        name = f"{label} #{number}"

    return name


def _structured(rows: npt.NDArray[np.float64], behind: npt.NDArray[np.void] | None = None) -> npt.NDArray[np.void]:
    """Returns float64 [n, columns] as `BATCH` [n], behind other rows of that kind."""
    if behind is None:
        known = 0
    else:
        known = len(behind)

    structured = np.empty(known + len(rows), BATCH)
    if behind is not None:
        structured[:known] = behind

    for column, name in enumerate(BATCH.names or ()):
        structured[name][known:] = rows[:, column]

    return structured


def _spent() -> tuple[float, float, float]:
    """Returns the CPU time of this process, that of the calling thread, and how long that had no core; in seconds."""
    return time.process_time(), time.thread_time(), queued_seconds()
