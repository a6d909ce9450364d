"""Replicas: the workers as datasets see them.

Every batch is made by a *replica*: one copy of the dataset with its number, seeds and place among all workers. Usually
worker k hosts replica k and nothing else. After a resume with another number of workers, the replicas of the
interrupted run are spread over the workers that are there now, so that a dataset which depends on its worker number
goes on exactly. Without workers there is one replica that no dataset sees as a worker.

A replica knows nothing of processes, threads or pipes; the engines host it.
"""

from __future__ import annotations

import contextlib
import functools
from collections.abc import Callable, Iterator, Sequence
from typing import Any, Literal, NamedTuple

from headrace.batches.bad_samples_map import GuardedFetcher
from headrace.batches.fetch_map import BatchFetcher, MapFetcher
from headrace.batches.fetch_stream import Deal, IterableFetcher
from headrace.batches.partial_loading import PartialLoading
from headrace.batches.stream_source import StreamSource
from headrace.core.copies import shallow_copy
from headrace.core.missing_state import MissingState, why_missing
from headrace.core.process.activity import IDLE, STAGE, START, Activity
from headrace.core.process.signal_handlers import is_of_signal_handler
from headrace.core.protocols import tell_epoch
from headrace.core.randomness.counter_based import stream_key
from headrace.core.randomness.own_generators import OwnGenerators
from headrace.core.randomness.resumed_generators import ResumedGenerators
from headrace.core.randomness.rng import SampleStreams, begin_stream, global_states_kept
from headrace.core.randomness.unseeded import Unseeded
from headrace.core.sharding import WorkerContext, enter_place, place_kept
from headrace.core.torch_internals import (
    IterDataPipe,
    MapDataPipe,
    WorkerInfo,
    deep_copy,
    make_worker_info,
    reseed_datapipe,
    seed_worker,
    set_thread_worker_info,
    set_worker_info,
    worker_info_kept,
)
from headrace.epoch.start import EpochStart
from headrace.faults.bad_sample import BadSample
from headrace.faults.handler import FaultHandler
from headrace.workers.worker_spec import WorkerSpec

Kind = Literal["inline", "thread", "process"]

Report = Callable[[int, int, int], None]
"""Called with (replica, samples replayed, samples to replay) while a stream is run through again."""


class Made(NamedTuple):
    """What a replica made for a task: the batch, the replica's state after it, and what became of bad samples."""

    batch: Any
    state: Any
    losses: Sequence[BadSample] = ()


class Note(NamedTuple):
    """Where a worker notes what it does. `watched`: whether others look at it while samples are being made."""

    activity: Activity
    watched: bool


class Replica:
    """One worker as datasets see it."""

    def __init__(
        self,
        worker_spec: WorkerSpec,
        number: int,
        kind: Kind,
        collate: Callable[[Any], Any],
        dataset: object,
        note: Note,
    ) -> None:
        self._worker_spec = worker_spec
        self._note = note
        self._number = number
        self._kind = kind
        self._collate = collate
        self._dataset = dataset
        self._fetcher: BatchFetcher | None = None
        self._info: WorkerInfo | None = None
        self._streams: SampleStreams | None = None
        self._unseeded: Unseeded | None = None
        self._own = OwnGenerators()
        self._place = WorkerContext(worker_spec.world)
        self._told: Any = None  # the state that the epoch began with
        self.drew_from_own = False
        """Whether the last batch drew from a generator that the dataset holds."""
        self.partial: PartialLoading | None = None
        """What was noticed of the samples of the last batch; None: they are not timed."""

    def start(self, begin: EpochStart) -> None:
        """Sets up what lasts longer than an epoch: number, seeds, and the user's `worker_init_fn`."""
        self._dataset = reseed_datapipe(self._dataset, begin.shared_seed)
        if self._kind == "process":
            seed_worker(begin.base_seed, self._number)
        if begin.replicas == 0:
            return

        self._place = WorkerContext(self._worker_spec.world, self._number, begin.replicas)
        seed = begin.base_seed + self._number
        self._info = make_worker_info(
            self._number,
            begin.replicas,
            seed,
            self._dataset,
            watched=self._worker_spec.deal,
            thread=self._kind == "thread",
        )
        begin_stream(stream_key(begin.base_seed, self._number))
        self.enter()
        if self._worker_spec.worker_init_fn is not None:
            self._worker_spec.worker_init_fn(self._number)

    def enter(self) -> None:
        """Makes this the running replica of the calling thread."""
        if self._info is None:  # without workers; around it may be a worker of another loader
            if not self._worker_spec.is_map:
                enter_place(self._place)
            return

        enter_place(self._place)
        if self._kind == "thread":
            set_thread_worker_info(self._info)
        else:
            set_worker_info(self._info)

    def begin(self, begin: EpochStart, report: Report, generators: ResumedGenerators) -> None:
        """Begins an epoch. Raises what the dataset's `__iter__` raises."""
        worker_spec = self._worker_spec
        state = begin.states.get(self._number)
        self._told = state
        self._fetcher = None
        dataset = self._dataset = reseed_datapipe(self._dataset, begin.shared_seed)
        if begin.told is not None:
            tell_epoch(dataset, begin.told)

        streams = self._streams = None
        words: tuple[int, ...] = ()
        if worker_spec.seed is not None:
            words = (worker_spec.seed, begin.epoch)
            if not worker_spec.deal and not worker_spec.is_map:
                words += self._words()
            self._own = OwnGenerators(dataset, worker_spec.collate_fn)
            seeds_globals = self._kind != "thread"  # other threads would draw from them, too
            streams = self._streams = SampleStreams(
                *words, seed_globals=seeds_globals, watch=begin.watch, own=self._own
            )

        if worker_spec.is_map:
            if state is not None:
                with generators.loading():
                    dataset.load_state_dict(state)

            if streams is not None and begin.unseeded_first and self._unseeded is None:
                self._unseeded = Unseeded(self._own, here=self._kind == "inline", shared=self._kind == "thread")
            plain = MapFetcher(
                dataset, worker_spec.batched, self._collate, streams, self._note.activity,
                watched=self._note.watched, unseeded=self._unseeded,
            )  # fmt: skip
            if worker_spec.times_samples:
                self.partial = PartialLoading(self._note.activity)
                plain.share(self.partial)
            handler = self._handler(begin)
            if handler is None:
                self._fetcher = plain
            else:
                self._fetcher = GuardedFetcher(plain, worker_spec.batched, handler)
            return

        place = self._place
        place.claimed = place.counted = False
        if streams is None:
            place.on_claim = None
        else:
            place.on_claim = functools.partial(streams.split, *words, *self._words())

        if worker_spec.deal and (not state or state["dealt"]):
            deal = Deal(place, begin.first)
        else:
            deal = None

        source = StreamSource(dataset, streams, state, self._note.activity, generators)
        fetcher = IterableFetcher(
            source, worker_spec.batched, self._collate, worker_spec.drop_last, deal, state,
            handler=self._handler(begin), activity=self._note.activity,
        )  # fmt: skip
        fetcher.replay(functools.partial(report, self._number))
        self._fetcher = fetcher
        if streams is not None:
            streams.pause()

    def _handler(self, begin: EpochStart) -> FaultHandler | None:
        if self._worker_spec.policy is None:
            return None

        if begin.replicas:
            worker = self._number
        else:
            worker = None

        return FaultHandler(
            self._worker_spec.policy, self._dataset, begin.epoch, worker, begin.killers, begin.base_seed
        )

    def _words(self) -> tuple[int, ...]:
        """Names the random streams of a worker whose stream is its own."""
        place = self._place
        return (*place.world, place.worker, place.workers)

    def fetch(self, index: object) -> Any:
        """Returns the next batch; raises what the dataset raises, and `StopIteration` at the end of a stream."""
        if self._fetcher is None:
            raise RuntimeError("this worker could not begin the epoch; its first result says why")
        if not self._own or self._kind == "process":
            return self._fetcher.fetch(index)

        before = self._own.states()
        with self._own.kept():  # the program may have them, too
            try:
                return self._fetcher.fetch(index)
            finally:
                self.drew_from_own = self._own.states() != before

    def plain_fetch(self) -> Callable[[Any], Any] | None:
        """Returns what makes the batches of a map-style dataset without a state, where bad samples raise; or None."""
        if isinstance(self._fetcher, MapFetcher) and not self._fetcher.has_state:
            return self._fetcher.plain_fetch()
        return None

    def losses(self) -> Sequence[BadSample]:
        """Returns what became of the bad samples of the last batch."""
        if self._fetcher is not None:
            return self._fetcher.losses()
        return ()

    @property
    def tries_unseeded(self) -> bool:
        """Whether batches are made without seeds first, so that nobody has to look after the global generators."""
        return isinstance(self._fetcher, (MapFetcher, GuardedFetcher)) and self._fetcher.tries_unseeded

    @property
    def unseeded(self) -> Unseeded | None:
        """What was noticed of batches that were made without seeds; None: none is."""
        return self._unseeded

    def drew(self) -> bool:
        """Returns whether the global random generators were drawn from, in an epoch that began with `watch`."""
        if self._streams is None:
            return False
        self._streams.pause()
        return self._streams.drawn

    def stop_watching(self) -> None:
        """Ends what `watch` began."""
        if self._streams is not None:
            self._streams.stop_watching()

    def state(self) -> Any:
        """Returns what this replica needs to go on elsewhere after its last batch; None if nothing."""
        if self._fetcher is not None:
            return self._fetcher.state()
        return None

    def state_without(self, missing: MissingState) -> Any:
        """Returns the same without the state of the dataset, for which `missing` stands until the epoch ends."""
        if self._fetcher is not None:
            self._fetcher.give_up_state(missing)
        return self.state()

    def state_at_beginning(self) -> Any:
        """Returns what this replica needs to begin elsewhere as it began here; None if nothing, or if nobody knows.

        Call it before the first batch. A map-style dataset, and the generator of one that is iterable, have run no
        line since they were told a state. So they are as that state says, also if they take it over later.
        """
        if self._fetcher is None:
            return None
        if self._told is not None and not (isinstance(self._fetcher, IterableFetcher) and self._fetcher.has_begun):
            return self._told

        state = self._fetcher.state()
        if why_missing(state, is_map=self._worker_spec.is_map):
            return None  # before the first sample there may be no state yet
        return state


class ReplicaHost:
    """The replicas of one worker, of which there may be `workers`."""

    def __init__(
        self,
        worker_spec: WorkerSpec,
        worker: int,
        workers: int,
        kind: Kind,
        collate: Callable[[Any], Any],
        activity: Activity,
        *,
        watched: bool,
    ) -> None:
        self._worker_spec = worker_spec
        self._activity = activity
        self._note = Note(activity, watched)
        self._worker = worker
        self._workers = workers
        self._kind = kind
        self._collate = collate
        self._replicas: dict[int, Replica] = {}
        self._running: int | None = None

    def begin(
        self, begin: EpochStart, report: Report, generators: ResumedGenerators | None = None
    ) -> dict[int, BaseException]:
        """Begins an epoch in every replica. Returns the exceptions of the replicas that could not.

        generators: what becomes of the user's global generators; None: they are the worker's own.
        """
        if generators is None:
            resumed = ResumedGenerators()
        else:
            resumed = generators

        failures: dict[int, BaseException] = {}
        self._activity[STAGE] = START
        numbers = range(self._worker, max(begin.replicas, 1), self._workers)
        fresh = [number for number in numbers if number not in self._replicas]
        for number, dataset in zip(fresh, self._copies(len(fresh)), strict=True):
            self._replicas[number] = Replica(self._worker_spec, number, self._kind, self._collate, dataset, self._note)

        for number in numbers:
            try:
                if number in fresh:
                    self._replicas[number].start(begin)
                self._run(number)
                self._replicas[number].begin(begin, report, resumed)
            except Exception as error:
                if is_of_signal_handler(error):
                    raise
                failures[number] = error  # the caller raises it in its own way
            except SystemExit as error:
                if self._kind != "thread":
                    raise
                failures[number] = error  # it must not end the thread, least of all the user's

        self._activity[STAGE] = IDLE
        return failures

    def _copies(self, count: int) -> list[Any]:
        """Returns a dataset for each replica: what one replica changes in it, the others must not see."""
        dataset = self._worker_spec.dataset
        if self._kind == "thread":
            is_pipe = isinstance(dataset, (IterDataPipe, MapDataPipe))
            if is_pipe:
                dataset = deep_copy(dataset)
            else:
                dataset = shallow_copy(dataset)

        return [dataset if number == 0 else deep_copy(dataset) for number in range(count)]

    def states_at_beginning(self) -> dict[int, Any]:
        """Returns for each replica what `Replica.state_at_beginning` returns, before the first batch of an epoch."""
        return {number: replica.state_at_beginning() for number, replica in self._replicas.items()}

    def fetch(self, replica: int, index: object) -> Made:
        """Returns the next batch of a replica; raises as `Replica.fetch`."""
        self._run(replica)
        running = self._replicas[replica]
        batch = running.fetch(index)
        return Made(batch, running.state(), running.losses())

    def plain_fetch(self) -> Callable[[Any], Any] | None:
        """Returns what makes the batches of the only replica, if it has no state and no bad samples; None: it may have.

        A shorter way for batches that are made in the time of a few calls.
        """
        (only,) = self._replicas.values()
        return only.plain_fetch()

    def state(self, replica: int) -> Any:
        """Returns the state of a replica after its last batch, also one that raised."""
        return self._replicas[replica].state()

    def state_without(self, replica: int, missing: MissingState) -> Any:
        """Returns the same without what cannot be sent. See `Replica.state_without`."""
        return self._replicas[replica].state_without(missing)

    def losses(self, replica: int) -> Sequence[BadSample]:
        """Returns what became of the bad samples of a replica's last batch, also one that raised."""
        return self._replicas[replica].losses()

    def partial(self, replica: int) -> PartialLoading | None:
        """Returns what was noticed of the samples of a replica's last batch; None: they are not timed."""
        return self._replicas[replica].partial

    def tries_unseeded(self, replica: int) -> bool:
        """Tells whether a replica makes batches without seeds first."""
        return self._replicas[replica].tries_unseeded

    def unseeded(self, replica: int) -> Unseeded | None:
        """Returns what was noticed of a replica's batches that were made without seeds; None: none is."""
        return self._replicas[replica].unseeded

    def had_to_seed(self, replica: int) -> bool:
        """Tells whether a replica found out that its dataset draws random numbers."""
        unseeded = self.unseeded(replica)
        return unseeded is not None and unseeded.drew

    @property
    def drew_unseeded(self) -> bool:
        """Whether any replica found out that its dataset draws random numbers."""
        return any(self.had_to_seed(replica) for replica in self._replicas)

    def drew_from_own(self, replica: int) -> bool:
        """Tells whether a replica's last batch drew from a generator that its dataset holds."""
        return self._replicas[replica].drew_from_own

    def drew(self) -> bool:
        """Returns whether any replica drew from the global random generators."""
        return any(replica.drew() for replica in self._replicas.values())

    def stop_watching(self) -> None:
        """Ends what `EpochStart.watch` began."""
        for replica in self._replicas.values():
            replica.stop_watching()

    def _run(self, replica: int) -> None:
        if self._running != replica or self._kind != "process":  # other replicas may have run in this thread since
            self._replicas[replica].enter()
            self._running = replica


@contextlib.contextmanager
def surroundings_kept(*, random: bool) -> Iterator[None]:
    """Leaves the calling thread's place among the workers as it was; with `random` the global generators too."""
    with place_kept(), worker_info_kept(), global_states_kept() if random else contextlib.nullcontext():
        yield
