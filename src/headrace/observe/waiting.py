"""How long a training loop waits for its loader, measured the same way for torch's loader and for ours."""

from __future__ import annotations

import copy
import math
import time
import weakref
from collections.abc import Callable
from dataclasses import asdict, dataclass, field
from typing import Any

from headrace.observe.digest import extend_digest
from headrace.observe.recorder import Recorder
from headrace.observe.recording import BATCH, MAIN
from headrace.observe.sizes import batch_bytes, batch_length

Clock = Callable[[], float]


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
    """For each epoch, the time from `iter(loader)` to the first batch."""
    bad_samples: int = 0
    """Samples that were skipped or replaced."""
    restarts: int = 0
    """Workers that died or hung, and were replaced."""
    digest: int | None = None
    """CRC-32 over a sample of every batch, if asked for by setting it to 0."""

    @property
    def samples_per_second(self) -> float:
        """Samples delivered per second of the loop, the training itself included."""
        return self.samples / self.looped if self.looped else 0.0

    def as_dict(self) -> dict[str, Any]:
        """Returns the record as JSON knows it."""
        return {**asdict(self), "samples_per_second": self.samples_per_second}


class TimeIsUp(SystemExit):
    """Ends a script whose time to be measured is over."""


class EpochWatch:
    """Measures one epoch of an iterator that it does not keep alive."""

    def __init__(
        self,
        record: LoaderRecord,
        began: float,
        clock: Clock = time.perf_counter,
        recorder: Recorder | None = None,
        deadline: float = math.inf,
    ) -> None:
        """`recorder`: where to note the batches of a loader that does not do so itself, with its epoch begun.

        Whoever asks for a batch behind `deadline` gets `TimeIsUp`.
        """
        self._deadline = deadline
        self._record = record
        self._recorder = recorder
        self._number = 0
        self._began = began
        self._last = began
        self._clock = clock
        self._first = True
        record.epochs += 1
        self._spent(began)

    def attach(self, iterator: Any) -> None:
        """Times every `next(iterator)` from here on. `iterator` is torch's kind, with a `_next_data`."""
        original = type(iterator)._next_data
        itself = weakref.ref(iterator)  # a bound method here would be a cycle, and workers would outlive the loop

        def timed_next_data() -> Any:
            asked = self._clock()
            if asked > self._deadline:
                raise TimeIsUp(0)
            try:
                batch = original(itself())
            except BaseException as end:
                self._spent(asked)
                if self._recorder is not None and isinstance(end, StopIteration):
                    self._recorder.end_epoch(self._recorder.epoch, self._number)
                raise
            self._delivered(asked, batch)
            return batch

        iterator._next_data = timed_next_data

    def _delivered(self, asked: float, batch: Any) -> None:
        self._spent(asked)
        self._record.batches += 1
        samples = batch_length(batch)
        self._record.samples += samples
        if self._recorder is not None:
            self._note(self._recorder, asked, samples, batch)
        if self._record.digest is not None:
            self._record.digest = extend_digest(self._record.digest, batch)
        if self._first:
            self._first = False
            self._record.first_batches.append(self._last - self._began)

    def _note(self, recorder: Recorder, asked: float, samples: int, batch: Any) -> None:
        row = dict.fromkeys(BATCH.names or (), math.nan)
        row |= {"epoch": recorder.epoch, "number": self._number, "worker": MAIN, "samples": samples}
        row |= {"bytes": batch_bytes(batch), "asked": asked, "delivered": self._last}
        self._number += 1
        recorder.rows.extend(row.values())
        if self._last >= recorder.due:
            recorder.tick(self._last)

    def _spent(self, since: float) -> None:
        now = self._clock()
        self._record.waited += now - since
        self._record.looped += now - self._last
        self._last = now


class Replay:
    """Gives the first batch of an iterator again and again: a loader that costs nothing.

    The record has what comes behind the first batch. Batches are copies of the first one, as a training loop may change
    what it gets; the copying is not counted.
    """

    def __init__(self, iterator: Any, batches: int, record: LoaderRecord, deadline: float) -> None:
        self._iterator = iterator
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
