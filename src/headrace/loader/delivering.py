"""How a batch is handed to the loop: counted exactly when the loop has it, recorded, compared with other ranks."""

from __future__ import annotations

import time
from abc import abstractmethod
from collections.abc import Sequence
from typing import Any

from headrace.core.signal_handlers import is_of_signal_handler
from headrace.core.torch_internals import TorchIterator, profiler_enabled
from headrace.epoch.lengths import warn_if_short
from headrace.epoch.progress import Delivery, StreamProgress
from headrace.epoch.record import EpochRecord, Terms
from headrace.faults.bad_sample import BadSample
from headrace.faults.counts import Ledger
from headrace.loader.rank_check import RankWatch
from headrace.telemetry.batch_size import batch_length
from headrace.telemetry.recorder import PENDING, Recorder
from headrace.telemetry.timings import UNKNOWN, UNKNOWN_JOURNEY, Journey


class DeliveringIterator(TorchIterator):
    """The end of an iterator at which the loop takes batches. What begins epochs (`EpochIterator`) sets all of it."""

    record: EpochRecord
    """What was delivered; the loader keeps it."""

    _terms: Terms
    _is_map: bool
    _recorder: Recorder
    _ledger: Ledger
    _ranks: RankWatch | None
    _number_of_epoch: int
    _ends: dict[int, Any]
    """States of lanes behind the ends of their streams."""

    _planned: int | None
    """Batches of the epoch, if somebody knows."""

    _deliveries: int
    """Batches of the epoch that the loop has got."""

    _leaving: int
    """How many it had when the batch that is on its way set out."""

    _pending: Delivery | None
    """The batch that is on its way."""

    _ready: tuple[Any] | None
    """A batch that was made and that the loop has not got yet."""

    _sizes: dict[int, int]
    _sized: int

    _held: int = 0
    """Samples of the batch that is delivered now, of a map-style dataset."""

    _journey: Journey = UNKNOWN_JOURNEY
    """How the batch that is delivered now came here: an engine's `_next_data` leaves it."""

    @abstractmethod
    def is_at_end(self) -> bool:
        """Tells whether nothing is left of the epoch. May wait for the first batch of an iterable dataset."""

    @abstractmethod
    def _next_data(self) -> Any:
        """Returns the next batch, for which `leaves` was called. Raises `StopIteration` at the end of the epoch."""

    @property
    def _progress(self) -> Any:
        return self.record.progress

    def leaves(self, number: int, lane: int, state: Any, losses: Sequence[BadSample] = ()) -> None:
        """Notes that the batch of index `number` is on its way to the user. Raises `TooManyBadSamplesError`.

        It counts as delivered from the moment when the user gets it, see `__next__`.
        """
        if self._is_map:
            if number != self._sized:  # the same again, if the delivery before was interrupted
                self._sizes.pop(self._sized, None)
                self._sized = number
            self._held = self._sizes.get(number, 0)
        else:
            number = self._deliveries

        self._leaving = self._deliveries
        self._pending = (number, lane, state)
        if losses:
            seen = self._seen + self._held
            self._held -= sum(loss.action == "skip" for loss in losses)
            self._ledger.delivered(losses, seen)

    @property
    def _seen(self) -> int:
        """How many samples of this epoch were delivered, the bad ones too."""
        if self._is_map:
            return int(self._progress.samples)
        return int(self._progress.batches) * int(self._terms.fingerprint["batch_size"] or 1)

    @property
    def _counts_samples(self) -> bool:
        """Whether torch's `__next__` compares the number of batches with a length that a stream has promised."""
        return not self._is_map and self._IterableDataset_len_called is not None

    def __next__(self) -> Any:
        self.record.settle()
        asked = time.perf_counter()
        recorder = self._recorder
        if asked >= recorder.due or len(recorder.rows) >= PENDING:
            recorder.tick(asked)  # now, as long as no batch is taken that a listener's exception would lose

        if self._ready is None:
            self._pending = None
            self._ready = (self._produce(asked),)
            if self._leaving + 1 == self._planned:
                self._look_for_the_end()

        (batch,) = self._ready
        self._note(asked, batch)
        self._deliveries = self._leaving + 1
        if self._ranks is not None:
            self._ranks.delivers(self._deliveries)

        # An exception out of a signal handler may come between any two lines above: then this batch was not delivered,
        # and comes again. It cannot come from here on: Python runs handlers at calls and jumps only.
        self.record.handed_out = self._pending
        self._ready = None
        return batch

    def _look_for_the_end(self) -> None:
        """Finds out, with the last batch in hand, whether the sampler has come to its end: then the epoch is over."""
        if self.is_at_end():
            self.record.complete_at = self._leaving + 1

    def _produce(self, asked: float) -> Any:
        """Returns the next batch; raises what takes its place, and `StopIteration` at the end of the epoch."""
        try:
            if self._sampler_iter is None or self._counts_samples or profiler_enabled():
                return super().__next__()
            batch = self._next_data()  # as torch's `__next__`, without a range that no profiler records
            self._num_yielded += 1
            return batch
        except StopIteration:
            if not self.record.finished:
                self._finish()
                self._look_back(asked)
            raise
        except Exception as error:
            if self._pending is not None and not is_of_signal_handler(error):
                self._deliveries = self._leaving + 1
                self.record.handed_out = self._pending  # an error takes the place of its batch
            raise

    def _finish(self) -> None:
        """The epoch has come to its end."""
        if isinstance(self._progress, StreamProgress):
            self._progress.end(self._ends)
        self.record.finished = True

    def _note(self, asked: float, batch: Any) -> None:
        """Notes in the loader's record that a batch is delivered now: a whole row at once, whatever interrupts."""
        if self._is_map:
            samples = self._held
        else:
            samples = batch_length(batch)

        now = time.perf_counter()
        row = (self._number_of_epoch, self._deliveries, samples, asked, now, *self._journey, *UNKNOWN)
        self._recorder.rows.extend(row)

    def _look_back(self, asked: float) -> None:
        """Looks back at an epoch that came to its end, after the loop `asked` for a further batch."""
        batches = int(self._progress.batches)
        if self._counts_samples:
            self._compare_with_length(batches)

        self._ledger.end_epoch(self._seen)
        if self._ranks is not None:
            self._ranks.ends(batches)

        self._recorder.end_epoch(self._number_of_epoch, batches, asked)

    def _compare_with_length(self, batches: int) -> None:
        """Warns if an iterable dataset was shorter than the length that was asked for; torch warns if it is longer.

        Each of several workers may drop a batch that is not full.
        """
        length = int(self._IterableDataset_len_called or 0)
        if self._terms.deal:
            share = self._terms.global_batch
        else:
            share = int(self._terms.fingerprint["batch_size"] or 1)

        if self._drop_last:
            promised = length // share
        else:
            promised = -(-length // share)

        if self._drop_last and not self._terms.deal:
            dropped = self._num_workers
        else:
            dropped = 0

        warn_if_short(self._dataset, promised - dropped, batches, length)
