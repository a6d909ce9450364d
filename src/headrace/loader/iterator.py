"""The iterator that a training loop holds: an epoch, and an executor that makes its batches."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from time import perf_counter
from typing import Any

import torch
from torch.utils.data import DataLoader as TorchDataLoader

from headrace.core.errors import UsageError
from headrace.core.process.signal_handlers import is_of_signal_handler
from headrace.core.randomness.counter_based import stream_key
from headrace.core.randomness.rng import global_states_kept
from headrace.core.torch_internals import TorchIterator, TorchProcessIterator, profiler_enabled
from headrace.device.pinning import pin
from headrace.epoch.draws import announce, changing, pattern_of_draws, pattern_of_reset, random_state
from headrace.epoch.epoch import Epoch
from headrace.epoch.generators import OrderStates
from headrace.epoch.indices import begin_indices
from headrace.epoch.opening import Opening
from headrace.epoch.progress import MapProgress
from headrace.epoch.record import Draws, EpochRecord, Terms
from headrace.epoch.spec import LoaderSpec
from headrace.epoch.start import SEED_BITS
from headrace.loader.epoch_observer import EpochObserver
from headrace.loader.session import LoaderSession
from headrace.samplers.sampler import ElasticSampler
from headrace.shared_memory.plain_batches import UnopenedBatch
from headrace.telemetry.batch_size import batch_length
from headrace.telemetry.recorder import Recorder
from headrace.telemetry.timings import BatchTimings, ShortTimings, complete
from headrace.workers.protocol import BatchResult, Executor


class LoaderIterator(TorchIterator):
    """One epoch after the other of a loader.

    torch's iterator is the base class because users test for it, and because it draws an epoch's order and seeds as
    torch does. What it shows besides (`_sampler_iter`, `_num_yielded`, ...) is what users of torch's iterator know.
    """

    epoch: Epoch
    """The epoch that runs."""

    _timings: BatchTimings | ShortTimings
    """How the batch came to be that is delivered next."""

    def __init__(self, loader: TorchDataLoader[Any], session: LoaderSession, executor: Executor) -> None:
        """loader: whose attributes say how batches are made. session: what it keeps from one epoch to the next."""
        self._session = session
        self._recorder: Recorder = session.recorder
        self.executor = executor
        began = perf_counter()
        spec = session.spec(loader)
        terms = session.next_terms(loader)
        announce(spec.index_sampler, terms)
        workers = executor.replicas > 0
        with global_states_kept() if terms.resume else contextlib.nullcontext():
            before = random_state(spec)
            with own_base_seed(loader, terms):
                TorchIterator.__init__(self, loader)
                if workers:
                    seed_of_pipes = self._shared_seed
                    TorchIterator._reset(self, loader)  # torch begins an epoch two times with workers
                    self._shared_seed = seed_of_pipes  # torch draws a second one, and its workers use the first

            self._num_workers = executor.replicas
            self._sampler_iter = begin_indices(spec, self._sampler_iter)

        persistent = workers and spec.persistent_workers
        draws = pattern_of_draws(spec.dataset, workers=workers, persistent=persistent)
        self._begin(loader, self._opening(spec, terms), draws, before, None, began, fresh=True)

    def _reset(self, loader: TorchDataLoader[Any], first_iter: bool = False) -> None:
        """Begins a further epoch with the same workers. torch's `__iter__` calls it, with persistent workers."""
        began = perf_counter()
        record = self.record
        record.settle()
        kept = None
        if record.finished and record.keeps_datasets:
            kept = record

        spec = self._session.spec(loader)
        terms = self._session.next_terms(loader)
        announce(spec.index_sampler, terms)
        before = random_state(spec)
        with own_base_seed(loader, terms):
            TorchIterator._reset(self, loader)

        self._sampler_iter = begin_indices(spec, self._sampler_iter)
        draws = pattern_of_reset(spec.dataset)
        self._begin(loader, self._opening(spec, terms), draws, before, kept, began, fresh=False)

    def _begin(
        self,
        loader: TorchDataLoader[Any],
        opening: Opening,
        draws: Draws,
        before: OrderStates | None,
        kept: EpochRecord | None,
        began: float,
        *,
        fresh: bool,
    ) -> None:
        """Begins an epoch for which torch's iterator has drawn `draws`, from generators in the states `before`.

        kept: the record of the epoch before, whose copies of the dataset go on. began: when the loop asked for it.
        """
        session = self._session
        spec = opening.spec
        terms = opening.terms
        self.epoch = opening.epoch(
            session.origin(spec),
            draws,
            before,
            kept,
            replicas=self._num_workers,
            shared=session.shared(spec, terms),
        )
        self._sampler_iter = opening.indices
        self._base_seed = opening.base_seed
        self._shared_seed = opening.shared_seed
        self._changing = changing(spec.index_sampler)
        self._changes = 0 if self._changing is None else self._changing.changes
        self._ready: tuple[Any] | None = None
        self._result: BatchResult | None = None
        self._observer = EpochObserver(session, self.epoch, self._IterableDataset_len_called)
        self._observer.begin(self.epoch, self.executor, loader, began, fresh=fresh)
        # Whether nothing is done with a batch but to hand it on.
        self._feed = session.resources.feed
        if self._feed is not None:
            self._pin_memory = False  # its batches lie in page-locked memory, and go on
            if self._feed.transforms:
                self.epoch.note_positions()
        self._is_plain = spec.is_map and self._observer.streams is None
        self._is_plain &= not self._pin_memory and self._feed is None
        self._is_plain &= self._sampler_iter is not None
        self.executor.start(self.epoch)
        self._recorder.prepared()

    def _behind_changes(self, sampler: ElasticSampler) -> tuple[Epoch, EpochRecord]:
        """Returns the epoch: if its order was changed, another one that begins behind the batch that the loop got last.

        What was drawn ahead is dropped, so that a change begins with the same batch for any number of workers.
        """
        record = self.record
        if sampler.changes == self._changes or record.is_over:
            return self.epoch, record

        session = self._session
        spec = self.epoch.spec
        terms = record.terms
        if not terms.in_order or spec.defers:
            raise UsageError.about(
                "the order cannot change within an epoch whose batches may come out of order",
                place="MixtureSampler.set_weights",
                found="in_order=False" if not terms.in_order else "stragglers='defer'",
                expected="a loader with in_order=True and stragglers='wait', or a call between two epochs",
                fix="change the weights when the epoch is over, or let the loader keep the order",
            )

        origin = session.origin(spec)
        # Generators stay as they are. Workers draw other random numbers behind these batches than for them.
        resume = {**record.snapshot(origin), "random": None}
        self._base_seed = stream_key(int(self._base_seed), resume["batches"]) & SEED_BITS
        opening = self._opening(spec, terms._replace(resume=resume, draws=None))
        shared = session.shared(spec, terms)
        self.epoch = opening.epoch(origin, record.draws, record.random, None, replicas=self._num_workers, shared=shared)
        self.epoch.record.terms = terms
        if session.position.record is record:
            session.position.record = self.epoch.record
        self._sampler_iter = opening.indices
        self._ready = None
        self._result = None
        self.executor.start(self.epoch)
        self._changes = sampler.changes
        return self.epoch, self.record

    def _opening(self, spec: LoaderSpec, terms: Terms) -> Opening:
        """Returns the beginning of an epoch, with what torch's iterator has drawn for it."""
        return Opening(
            spec,
            terms,
            indices=self._sampler_iter,
            base_seed=int(self._base_seed),
            shared_seed=self._shared_seed,
            group=self._pg,
        )

    @property
    def record(self) -> EpochRecord:
        """What was delivered of the epoch."""
        return self.epoch.record

    def is_at_end(self) -> bool:
        """Tells whether nothing is left of the epoch. May wait for the first batch of an iterable dataset."""
        return self.executor.is_at_end()

    def __next__(self) -> Any:
        epoch = self.epoch
        recorder = self._recorder
        record = epoch.record
        if record.handed_out is not None:
            record.settle()
        if self._changing is not None:
            epoch, record = self._behind_changes(self._changing)

        asked = perf_counter()
        if asked >= recorder.due:
            recorder.tick(asked)  # now, as long as no batch is taken that a listener's exception would lose

        if self._ready is None:
            if self._result is None:
                epoch.pending = None
            try:
                if self._is_plain and "_next_data" not in self.__dict__ and not profiler_enabled():
                    # As below, with nothing in between: each small batch pays for every call. Whoever wants to see all
                    # batches has put a function of his own in the place of `_next_data`.
                    self._result = self._result or self.executor.next_result()
                    batch, self._timings = self._result
                    self._num_yielded += 1
                else:
                    batch = self._produce()
            except StopIteration:
                self._end(asked)
                raise
            except Exception as error:
                self._fail(error)
                raise

            self._ready = (batch,)
            self._result = None
            if epoch.leaving + 1 == epoch.planned and self.executor.is_at_end():
                record.complete_at = epoch.leaving + 1

        (batch,) = self._ready
        samples = epoch.held if epoch.is_map else batch_length(batch)

        observer = self._observer
        recorder.add(observer.number, epoch.deliveries, samples, asked, self._timings)
        epoch.deliveries = epoch.leaving + 1
        if observer.ranks is not None:
            observer.ranks.delivers(epoch.deliveries)

        pending = epoch.pending
        progress = record.progress

        # An exception out of a signal handler may come between any two lines above: then this batch was not delivered,
        # and comes again. It cannot come from the assignments on: Python runs handlers at calls and jumps only.
        if isinstance(progress, MapProgress) and progress.is_next(pending):
            # As nearly always. It is counted as `MapProgress.deliver` does it, so that nobody has to settle.
            number, samples, _ = progress.reached
            more, sampler = progress.drawn[number]
            progress.reached = (number + 1, samples + more, sampler)
            del progress.drawn[number]
            self._ready = None
            return batch

        record.handed_out = pending
        self._ready = None
        return batch

    def _produce(self) -> Any:
        """Returns the next batch; raises what takes its place, and `StopIteration` at the end of the epoch."""
        if self._sampler_iter is None or self._observer.counts_samples or profiler_enabled():
            return super().__next__()
        batch = self._next_data()  # as torch's `__next__`, without a range that no profiler records
        self._num_yielded += 1
        return batch

    def _end(self, asked: float) -> None:
        """The epoch has come to its end, for a loop that `asked` for a further batch."""
        if not self.record.finished:
            self.epoch.finish()
            self._observer.end(self.epoch, asked, workers=self._num_workers)

    def _fail(self, error: Exception) -> None:
        """An exception takes the place of its batch, unless it is that of a signal handler."""
        epoch = self.epoch
        if epoch.pending is not None and not is_of_signal_handler(error):
            epoch.deliveries = epoch.leaving + 1
            epoch.record.handed_out = epoch.pending
            self._result = None

    def _next_data(self) -> Any:
        """Returns the next batch as the user gets it. torch's `__next__` calls this, too.

        What the executor gave is kept until the batch is ready: a signal handler may raise in between.
        """
        if self._result is None:
            self._result = self.executor.next_result()

        batch, timings = self._result
        if self._observer.streams is not None:
            if isinstance(batch, UnopenedBatch):
                batch = batch.opened()
            self._observer.compare_streams(self.epoch.spec.dataset, complete(timings).worker, batch)
        if self._feed is not None:
            began = perf_counter()
            transfer = self._feed.begin(batch)
            self._result = transfer, timings
            key = None
            if self._feed.transforms:
                key = self.epoch.key_of_transform()
            batch = self._feed.finish(transfer, key)
            if self._observer.streams is None:  # which compares batches that lie here
                self.executor.prepare(self._feed.ahead, self._feed.begin_early)
            timings = complete(timings)._replace(pinned=perf_counter() - began)
        elif self._pin_memory:
            began = perf_counter()
            batch = pin(batch, self._pin_memory_device, self._session.resources.host.lock)
            timings = complete(timings)._replace(pinned=perf_counter() - began)

        self._timings = timings
        return batch


class WorkersIterator(LoaderIterator):
    """The same with workers, under the names that users of torch's iterator know."""

    @property
    def _workers(self) -> list[Any]:
        """The worker processes or threads."""
        return self.executor.workers

    def _shutdown_workers(self) -> None:
        """Ends the workers. May be called several times."""
        executor = vars(self).get("executor")  # missing if the constructor did not come so far
        if executor is not None:
            executor.close()


class ProcessesIterator(WorkersIterator, TorchProcessIterator):
    """The same with worker processes. torch's own iterator is a base for `isinstance` only: nothing of it runs."""

    @property
    def _workers(self) -> list[Any]:  # type: ignore[override]  # torch sets it
        """The worker processes."""
        return self.executor.workers

    def __del__(self) -> None:
        """Does nothing, in the place of torch's: the executor ends its workers when it is dropped.

        When Python exits, this may run after the globals of this module were set to None.
        """


@contextlib.contextmanager
def own_base_seed(loader: TorchDataLoader[Any], terms: Terms) -> Iterator[None]:
    """Keeps torch's iterator from advancing the global generator where `seed=` supplies the base seed."""
    if terms.seed is None:
        yield
        return

    generator = loader.generator
    loader.generator = torch.Generator()
    try:
        yield
    finally:
        loader.generator = generator
