"""Batches made in the calling thread, and the reference for every faster way: what this delivers, they deliver.

index = next(sampler) -> samples = dataset[...] -> batch = collate(samples)
"""

from __future__ import annotations

import contextlib
import functools
from collections.abc import Callable, Sequence
from dataclasses import replace
from time import perf_counter
from typing import Any, Literal

from headrace.batches.collate import SlotCollate
from headrace.batches.whole_batches import draws_numbers, makes_batches
from headrace.core.batch_memory import BatchMemory
from headrace.core.process.activity import COLLATED_FROM, TASK, private_activity
from headrace.core.process.signal_handlers import is_of_signal_handler
from headrace.core.randomness.resumed_generators import ResumedGenerators
from headrace.core.spans import NothingYetError
from headrace.core.torch_internals import (
    IterDataPipe,
    MapDataPipe,
    apply_sharding,
    distributed_settings,
    torch_default_collate,
)
from headrace.epoch.epoch import Epoch
from headrace.faults.bad_sample import BadSample
from headrace.telemetry.batch_size import batch_bytes
from headrace.telemetry.replay_bar import ReplayBar
from headrace.telemetry.stopwatch import LONG, Stopwatch
from headrace.telemetry.timings import BatchTimings, ShortTimings, timings_here
from headrace.workers.protocol import BatchResult
from headrace.workers.replica import ReplicaHost, surroundings_kept
from headrace.workers.sample_timer import SampleTimer
from headrace.workers.worker_spec import WorkerSpec

LOOK = 5e-3
"""Seconds for which batches are taken to be as large as the last one that was looked at."""


_MadeHere = tuple[int, int, Any, Sequence[BadSample], Any, BatchTimings | ShortTimings]
"""A batch that was made and has not left yet: its number, its replica, the replica's state behind it, what became of
bad samples, the batch itself, and its timings."""


class InlineExecutor:
    """Makes batches in the calling thread. Those collated by default lie in leased memory and belong to the user."""

    backend: Literal["inline"] = "inline"
    replicas = 0
    num_workers = 0
    scales = False

    def __init__(self, memory: BatchMemory, *, as_fresh: bool = False) -> None:
        """memory: where default collation writes. as_fresh: begins each epoch as if it had no replicas and no
        states."""
        self._memory = memory
        self._as_fresh = as_fresh
        self._nbytes = 0
        self._look_again = 0.0

    @property
    def workers(self) -> list[Any]:
        """None."""
        return []

    @property
    def is_here(self) -> bool:
        return True

    def start(self, epoch: Epoch, dataset: object = None) -> None:
        """See `Executor.start`. dataset: a copy to make the batches from, in the place of the loader's own."""
        spec = epoch.spec
        if spec.timeout != 0:
            raise AssertionError("_SingleProcessDataLoaderIter requires timeout == 0")
        if not self._as_fresh and isinstance(spec.dataset, (IterDataPipe, MapDataPipe)):
            apply_sharding(spec.dataset, *distributed_settings())

        self._epoch = epoch
        self._again: tuple[int, Any] | None = None  # the index whose batch is being made
        self._made: _MadeHere | None = None
        self._activity = private_activity()
        self._watch = Stopwatch(self._activity, here=True)
        self._timer = None
        if spec.sample_timeout is not None:
            self._timer = SampleTimer(spec.sample_timeout)

        collate: Callable[[Any], Any] = spec.collate_fn
        if collate is torch_default_collate:
            collate = SlotCollate(self._memory)

        worker_spec = WorkerSpec.of(epoch)
        if dataset is not None:
            worker_spec = replace(worker_spec, dataset=dataset)

        self._host = ReplicaHost(worker_spec, 0, 1, "inline", collate, self._activity, watched=self._timer is not None)
        replicas = epoch.record.replicas
        if self._as_fresh:
            replicas = 0

        self._turns = list(range(max(replicas, 1)))  # the replicas that have data; more than one only after a resume
        self._turn = 0
        if replicas:
            self._turn = epoch.next_replica % replicas

        draws = draws_numbers(spec.dataset) or not makes_batches(spec.dataset, spec.collate_fn)
        self._is_seeded = draws and epoch.terms.seed is not None
        self._take = epoch.take
        if epoch.is_live:
            # Not a method of this object: it would hold itself, and what it holds would outlive the loop.
            self._take = functools.partial(_take_or_wait, epoch)

        self._is_alone = epoch.is_map and replicas == 0  # then the replica touches nothing but generators
        self._begin()

    def _begin(self) -> None:
        epoch = self._epoch
        begin = epoch.beginning()
        if self._as_fresh:
            begin = begin._replace(replicas=0, states={})

        generators = self._resumed_generators()
        with self._surroundings(), ReplayBar(epoch.spec.dataset) as bar:
            for failure in self._host.begin(begin, bar.report, generators).values():
                raise failure

        self._fetch_plainly = None
        self._unseeded = None
        if self._is_alone and self._timer is None:
            if self._is_seeded and self._host.tries_unseeded(0):
                self._unseeded = self._host.unseeded(0)
            if not self._is_seeded or self._unseeded is not None:
                self._fetch_plainly = self._host.plain_fetch()
        if not epoch.is_map:  # of which the loader's own dataset is the only copy
            epoch.note_beginnings(self._host.states_at_beginning())

    def _surroundings(self) -> contextlib.AbstractContextManager[None]:
        """What is around the making of a batch: here it happens between the lines of the user's own program."""
        return surroundings_kept(random=self._epoch.terms.seed is not None)

    def _resumed_generators(self) -> ResumedGenerators:
        """Returns what becomes of the global generators while a state is loaded: they are the user's."""
        terms = self._epoch.terms
        if terms.resume is None or terms.seed is not None:
            return ResumedGenerators()
        return ResumedGenerators(self._epoch.behind_order, had_iterator=terms.resume["replicas"] is not None)

    def next_result(self) -> BatchResult:
        """See `Executor.next_result`.

        A signal handler may raise at any call. Until a batch is made, its index is kept; then the batch is. The
        assignments at the end happen together: Python runs signal handlers at calls and jumps only.
        """
        fetch = self._fetch_plainly
        if fetch is None or self._made is not None or self._watch.is_long:
            return self._next_of_any()

        # Batches are short, and there is one replica without a state. Each call and each object is seen in the rate of
        # small batches, so that few are left here. A batch that a signal handler interrupts is made anew from its
        # index.
        again = self._again
        if again is None:
            again = self._again = self._take()

        activity = self._activity
        activity[COLLATED_FROM] = 0
        begun = perf_counter()
        try:
            batch = fetch(again[1])
        except Exception as error:
            self._failed(again[0], 0, error)
            raise

        collated = perf_counter()
        if self._unseeded is not None:
            self._note_draws()
        if collated - begun > LONG:
            self._watch.is_long = True
        if collated > self._look_again:
            self._nbytes = batch_bytes(batch)
            self._look_again = collated + LOOK

        loaded = activity[COLLATED_FROM] * 1e-9 or collated
        timings = (self._nbytes, begun, loaded, collated)
        epoch = self._epoch
        if epoch.hears_batches:
            epoch.leaves(again[0], 0, None)
        else:  # the same without a call
            epoch.held = epoch.drawn[again[0]][0]
            epoch.leaving = epoch.deliveries
            epoch.pending = (again[0], 0, None)

        self._again = None
        return batch, timings

    def _next_of_any(self) -> BatchResult:
        if self._made is None:
            self._made = self._make_next()

        number, replica, state, losses, batch, timings = self._made
        self._epoch.leaves(number, replica, state, losses)
        self._again = None
        self._made = None
        self._turn += 1
        return batch, timings

    def _note_draws(self) -> None:
        """Notes whether samples draw random numbers: then they are seeded from here on, and generators looked after."""
        if self._unseeded is not None and self._unseeded.drew:
            self._epoch.seeding.tries_without = False
            self._fetch_plainly = None

    def _failed(self, number: int, replica: int, error: Exception) -> None:
        """Notes that an exception takes the place of a batch."""
        if isinstance(error, StopIteration):
            self._again = None
            self._epoch.ends[replica] = self._host.state(replica)
            return
        if is_of_signal_handler(error):
            return  # the batch is made anew when it is asked for again, as after Ctrl-C

        self._again = None
        self._turn += 1
        self._epoch.leaves(number, replica, self._host.state(replica), self._host.losses(replica))

    def _make_next(self) -> _MadeHere:
        while True:
            if self._again is None:
                self._again = self._take()

            number, index = self._again
            replica = self._turns[self._turn % len(self._turns)]
            self._watch.start()
            try:
                if self._fetch_plainly is not None:
                    batch = self._fetch_plainly(index)
                    state = None
                    losses: Sequence[BadSample] = ()
                    self._note_draws()
                else:
                    batch, state, losses = self._make(replica, index)
            except StopIteration as end:
                self._failed(number, replica, end)
                if self._epoch.is_map or len(self._turns) == 1:
                    raise

                self._turn %= len(self._turns)
                del self._turns[self._turn]
                continue
            except Exception as error:
                self._failed(number, replica, error)
                raise

            times = self._watch.made_here()
            collated = times[2]
            if collated > self._look_again:
                self._nbytes = batch_bytes(batch)
                self._look_again = collated + LOOK

            return number, replica, state, losses, batch, timings_here(times, self._nbytes)

    def _make(self, replica: int, index: object) -> Any:
        host = self._host
        if not self._is_alone or (self._is_seeded and not host.tries_unseeded(replica)):
            with self._surroundings():
                return self._fetch(replica, index)

        made = self._fetch(replica, index)
        if self._is_seeded and host.had_to_seed(replica):
            self._epoch.seeding.tries_without = False
        return made

    def _fetch(self, replica: int, index: object) -> Any:
        if self._timer is None:
            return self._host.fetch(replica, index)

        self._activity[TASK] += 1
        with self._timer.armed(self._activity):
            return self._host.fetch(replica, index)

    def prepare(self, count: int, begin: Callable[[Any], Any]) -> None:
        """Does nothing: no batch is there before it is asked for."""

    def is_at_end(self) -> bool:
        if self._epoch.is_map:
            return self._epoch.is_at_end()
        try:
            self._made = self._make_next()
        except StopIteration:
            return True
        return False

    def close(self) -> None:
        """Does nothing: there are no workers."""


def _take_or_wait(epoch: Epoch) -> tuple[int, Any]:
    """Returns the next index of a live source, and waits for it if it has to."""
    while True:
        try:
            return epoch.take()
        except NothingYetError:
            epoch.wait(None)
