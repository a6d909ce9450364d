"""How long a training loop waits for its loader, measured the same way for torch's loader and for ours.

headrace's loader keeps a record of itself (`telemetry/recorder.py`). `EpochWatch` keeps the same record for torch's own
loader, at the price of about a microsecond for each batch.
"""

from __future__ import annotations

import copy
import math
import time
import weakref
from collections.abc import Callable, Iterator
from dataclasses import asdict, dataclass, field
from itertools import chain
from typing import Any

import numpy as np
import torch
from torch import Tensor

from headrace.observe.stats import stats_of, wait_share
from headrace.telemetry.batch_size import batch_bytes, batch_length
from headrace.telemetry.digest import extend_digest
from headrace.telemetry.recorder import Recorder
from headrace.telemetry.recording import BATCH, MAIN

Clock = Callable[[], float]

LOOK = 0.2
"""Seconds after which the batches that were noted are handed to the recorder."""

CALIBRATIONS, CALLS = 5, 2000
"""Rounds and calls of each in which the cost of measuring is found out."""


@dataclass
class LoaderRecord:
    """What one loader did. Times are in seconds."""

    label: str
    kind: str
    num_workers: int
    epochs: int = 0
    batches: int = 0
    samples: int = 0
    waited: float = 0.0
    """Time that the script spent in `iter(loader)` and `next(iterator)`."""
    looped: float = 0.0
    """Time from each `iter(loader)` to the last batch that was asked for."""
    first_batches: list[float] = field(default_factory=list)
    """For each of the latest epochs, the time from `iter(loader)` to the first batch."""
    bad_samples: int = 0
    """Samples that were skipped or replaced."""
    restarts: int = 0
    """Workers that died or hung, and were replaced."""
    digest: int | None = None
    """CRC-32 over a sample of every batch, if asked for by setting it to 0."""

    @property
    def samples_per_second(self) -> float:
        """Samples delivered per second of the loop, the training itself included."""
        if self.looped:
            return self.samples / self.looped
        return 0.0

    def take_over(self, recorder: Recorder) -> None:
        """Takes the figures from the loader's recorder."""
        recording = recorder.recording()
        stats = stats_of(recording)
        self.label = recording.label
        self.num_workers = recording.setting.num_workers
        self.epochs = stats.epochs
        self.batches = stats.batches
        self.samples = stats.samples
        self.waited = stats.waited
        self.looped = stats.looped
        # An epoch that was left before its first batch has none: NaN.
        firsts = np.array([epoch.first - epoch.began for epoch in recording.epochs])
        self.first_batches = firsts[~np.isnan(firsts)].tolist()
        self.bad_samples = stats.bad_samples
        self.restarts = stats.restarts

    def as_dict(self) -> dict[str, Any]:
        """Returns the record as JSON knows it."""
        share = wait_share(self.waited, self.looped)
        return {**asdict(self), "samples_per_second": self.samples_per_second, "wait_share": share}


class TimeIsUp(SystemExit):
    """Ends a script whose time to be measured is over."""


class EpochWatch:
    """Notes for a recorder when each batch of one epoch of torch's own loader was asked for, and when it came.

    The recorder's epoch has begun. The watch does not keep the iterator alive.
    """

    def __init__(self, recorder: Recorder, clock: Clock = time.perf_counter) -> None:
        self._recorder = recorder
        self._epoch = recorder.epoch
        self._clock = clock
        self._handed_over = 0
        # Of each batch: when it was asked for, when it was delivered, and its samples.
        self._noted: list[tuple[float, float, int]] = []
        self._bytes = 0

    def attach(self, iterator: Any) -> None:
        """Times every `next(iterator)` from here on. `iterator` is torch's kind, with a `_next_data`.

        A listener of the recorder may raise; then no batch has been taken from the iterator.
        """
        # A bound method would hold the iterator, which holds the function below: a cycle. The iterator's workers would
        # then live on behind the loop until the garbage collector comes by.
        original = type(iterator)._next_data
        itself = weakref.ref(iterator)
        clock = self._clock
        note = self._noted.append
        due = -math.inf

        def timed_next_data() -> Any:
            nonlocal due
            asked = clock()
            is_due = asked >= due
            if is_due:
                due = asked + LOOK
                self._hand_over(asked)

            try:
                batch = original(itself())
            except StopIteration:
                self._ends(asked)
                raise

            # `batch_length` would tell the same of a tensor, and take half a microsecond more.
            delivered = clock()
            if type(batch) is Tensor and (shape := batch.shape):
                note((asked, delivered, shape[0]))
            else:
                note((asked, delivered, batch_length(batch)))

            if is_due:
                self._bytes = batch_bytes(batch)
            return batch

        iterator._next_data = timed_next_data

    def _ends(self, asked: float) -> None:
        self.flush()
        self._recorder.end_epoch(self._epoch, self._handed_over, asked)

    def _hand_over(self, now: float) -> None:
        self.flush()
        if now >= self._recorder.due:
            self._recorder.tick(now)

    def flush(self) -> None:
        """Hands the batches that were noted over to the recorder, as rows of `BATCH`."""
        count = len(self._noted)
        if not count:
            return

        noted = np.fromiter(chain.from_iterable(self._noted), np.float64, 3 * count).reshape(count, 3)
        self._noted.clear()
        names = BATCH.names or ()
        rows = np.full((count, len(names)), math.nan)
        numbers = np.arange(self._handed_over, self._handed_over + count)
        known = {
            "epoch": self._epoch,
            "number": numbers,
            "samples": noted[:, 2],
            "asked": noted[:, 0],
            "delivered": noted[:, 1],
            "worker": MAIN,
            "bytes": self._bytes,
        }
        for name, values in known.items():
            rows[:, names.index(name)] = values

        self._recorder.add_rows(rows)
        self._handed_over += count


def cost_of_watching() -> float:
    """Returns the seconds that an `EpochWatch` takes for a batch, measured here and now in a few milliseconds."""

    class Idle:
        def _next_data(self) -> Any:
            return batch

    batch = torch.zeros(1)
    recorder = Recorder("the cost of measuring")
    bare = Idle()
    watched = Idle()
    watch = EpochWatch(recorder)
    watch.attach(watched)
    # The quickest of several rounds: whatever else happens on the machine only adds to a round.
    seconds = []
    for iterator in (bare, watched):
        seconds.append(min(_timed(iterator._next_data) for _ in range(CALIBRATIONS)))

    return max(seconds[1] - seconds[0], 0.0)


def _timed(call: Callable[[], object]) -> float:
    began = time.perf_counter()
    for _ in range(CALLS):
        call()
    return (time.perf_counter() - began) / CALLS


class Digest:
    """Computes the checksum of the batches of an iterator of torch's kind, as they are delivered."""

    def __init__(self, record: LoaderRecord) -> None:
        self._record = record

    def attach(self, iterator: Any) -> None:
        """Looks at every batch that the iterator delivers from here on, once."""
        inner = vars(iterator).get("_next_data")
        # With persistent workers, an epoch may have the iterator of the one before.
        if not isinstance(inner, _DigestedNext):
            iterator._next_data = _DigestedNext(iterator, inner, self._record)


class _DigestedNext:
    """An iterator's `_next_data` that computes the checksum of what it returns."""

    def __init__(self, iterator: Any, inner: Callable[[], Any] | None, record: LoaderRecord) -> None:
        """inner: what took the place of the iterator's own method before, if anything did."""
        # A weak reference, as in `EpochWatch.attach`.
        self._iterator = weakref.ref(iterator)
        self._original = type(iterator)._next_data
        self._inner = inner
        self._record = record

    def __call__(self) -> Any:
        if self._inner is None:
            batch = self._original(self._iterator())
        else:
            batch = self._inner()

        self._record.digest = extend_digest(self._record.digest or 0, batch)
        return batch


class Replay:
    """Gives the first batch of an iterator again and again: a loader that costs nothing.

    The record has what comes behind the first batch. Batches are copies of the first one, as a training loop may change
    what it gets; the copying is not counted.
    """

    def __init__(self, iterator: Iterator[Any], batches: int, record: LoaderRecord, deadline: float) -> None:
        self._iterator: Iterator[Any] | None = iterator
        self._left = batches
        self._record = record
        self._deadline = deadline
        self._kept: Any = None
        self._last = 0.0
        record.epochs += 1

    def __iter__(self) -> Replay:
        return self

    def __len__(self) -> int:
        return self._left

    def __next__(self) -> Any:
        now = time.perf_counter()
        if now > self._deadline:
            raise TimeIsUp(0)

        if self._iterator is not None:
            self._kept = next(self._iterator)
            self._iterator = None  # its workers end
        else:
            self._record.looped += now - self._last
            self._record.batches += 1
            self._record.samples += batch_length(self._kept)

        if self._left <= 0:
            raise StopIteration

        self._left -= 1
        batch = copy.deepcopy(self._kept)
        self._last = time.perf_counter()
        return batch
