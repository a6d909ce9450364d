"""Lanes: the workers as datasets see them.

Every batch is made by a *lane*: one copy of the dataset with its number, seeds and place among all workers. Usually
worker k hosts lane k and nothing else. After a resume with another number of workers, the lanes of the interrupted run
are spread over the workers that are there now, so that a dataset which depends on its worker number goes on exactly.
Without workers there is one lane that no dataset sees as a worker.

A lane knows nothing of processes, threads or pipes; the engines host it.
"""

from __future__ import annotations

import contextlib
import copy
import functools
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Literal, NamedTuple

from headrace.batches.bad_samples_map import GuardedFetcher
from headrace.batches.fetch_map import Fetcher, MapFetcher
from headrace.batches.fetch_stream import Deal, IterableFetcher, Source
from headrace.core.activity import IDLE, STAGE, START, Mark
from headrace.core.counter import stream_key
from headrace.core.resumed_generators import ResumedGenerators
from headrace.core.rng import SampleStreams, begin_stream, global_states_kept
from headrace.core.sharding import Place, enter_place, place_kept
from headrace.core.signal_handlers import is_of_signal_handler
from headrace.core.torch_internals import (
    DatasetKind,
    IterDataPipe,
    MapDataPipe,
    WorkerInfo,
    make_worker_info,
    reseed_datapipe,
    seed_worker,
    set_thread_worker_info,
    set_worker_info,
    worker_info_kept,
)
from headrace.core.unseeded import Unseeded
from headrace.core.world import World
from headrace.faults.bad_sample import BadSample
from headrace.faults.handler import Guard
from headrace.faults.policy import Policy

Kind = Literal["inline", "thread", "process"]

Report = Callable[[int, int, int], None]
"""Called with (lane, samples replayed, samples to replay) while a stream is run through again."""


@dataclass(frozen=True)
class Cargo:
    """What all lanes of an iterator work with. It must be picklable under spawn and forkserver."""

    dataset: Any
    dataset_kind: int
    auto_collation: bool
    collate_fn: Callable[[Any], Any]
    drop_last: bool
    worker_init_fn: Callable[[int], None] | None
    world: World
    seed: int | None
    """Of the random streams; None: random numbers are torch's."""
    deal: bool
    """Whether an iterable dataset is dealt out over ranks and lanes."""
    policy: Policy | None = None
    """What becomes of bad samples; None: they raise."""


class Begin(NamedTuple):
    """The beginning of an epoch. `shared_seed` is for data pipes."""

    base_seed: int
    shared_seed: int | None
    lanes: int
    """How many there are in all; 0: no workers."""
    epoch: int
    announce: bool
    """Whether the dataset's `set_epoch` is called."""
    first: int
    """Position of the first sample of a dealt-out stream that was not delivered before."""
    states: Mapping[int, Any]
    """Where lanes go on."""
    killers: Mapping[str, str]
    """Samples that killed workers: the `repr` of their keys, and what is known of it."""
    seed_globals: bool = True
    """Whether the global random generators are seeded for each sample, too (with a seed)."""
    watch: bool = False
    """Whether to find out if they are drawn from."""
    unseeded_first: bool = False
    """Whether batches are made without seeds first, because the dataset is not known to draw random numbers."""
    tell: bool = False
    """Whether workers tell the states with which their lanes begin."""


class Made(NamedTuple):
    """What a lane made for a task: the batch, the lane's state after it, and what became of bad samples."""

    batch: Any
    state: Any
    losses: Sequence[BadSample] = ()


class Note(NamedTuple):
    """Where a worker notes what it does. `watched`: whether others look at it while samples are being made."""

    mark: Mark
    watched: bool


class Lane:
    """One worker as datasets see it."""

    def __init__(
        self, cargo: Cargo, number: int, kind: Kind, collate: Callable[[Any], Any], dataset: Any, note: Note
    ) -> None:
        self._cargo = cargo
        self._note = note
        self._number = number
        self._kind = kind
        self._collate = collate
        self._dataset = dataset
        self._fetcher: Fetcher | None = None
        self._info: WorkerInfo | None = None
        self._streams: SampleStreams | None = None
        self._unseeded: Unseeded | None = None
        self._place = Place(cargo.world)
        self._told: Any = None  # the state that the epoch began with

    def start(self, begin: Begin) -> None:
        """Sets up what lasts longer than an epoch: number, seeds, and the user's `worker_init_fn`."""
        self._dataset = reseed_datapipe(self._dataset, begin.shared_seed)
        if self._kind == "process":
            seed_worker(begin.base_seed, self._number)
        if begin.lanes == 0:
            return

        self._place = Place(self._cargo.world, self._number, begin.lanes)
        seed = begin.base_seed + self._number
        self._info = make_worker_info(
            self._number, begin.lanes, seed, self._dataset, watched=self._cargo.deal, thread=self._kind == "thread"
        )
        begin_stream(stream_key(begin.base_seed, self._number))
        self.enter()
        if self._cargo.worker_init_fn is not None:
            self._cargo.worker_init_fn(self._number)

    def enter(self) -> None:
        """Makes this the running lane of the calling thread."""
        if self._info is None:  # without workers; around it may be a worker of another loader
            if self._cargo.dataset_kind == DatasetKind.Iterable:
                enter_place(self._place)
            return

        enter_place(self._place)
        if self._kind == "thread":
            set_thread_worker_info(self._info)
        else:
            set_worker_info(self._info)

    def begin(self, begin: Begin, report: Report, generators: ResumedGenerators) -> None:
        """Begins an epoch. Raises what the dataset's `__iter__` raises."""
        cargo = self._cargo
        state = begin.states.get(self._number)
        self._told = state
        self._fetcher = None
        dataset = self._dataset = reseed_datapipe(self._dataset, begin.shared_seed)
        if begin.announce and hasattr(dataset, "set_epoch"):
            dataset.set_epoch(begin.epoch)

        streams = self._streams = None
        words: tuple[int, ...] = ()
        if cargo.seed is not None:
            words = (cargo.seed, begin.epoch)
            if not cargo.deal and cargo.dataset_kind != DatasetKind.Map:
                words += self._words()
            streams = self._streams = SampleStreams(*words, seed_globals=begin.seed_globals, watch=begin.watch)

        if cargo.dataset_kind == DatasetKind.Map:
            if state is not None:
                with generators.loading():
                    dataset.load_state_dict(state)

            if begin.unseeded_first and self._unseeded is None:
                self._unseeded = Unseeded(here=self._kind == "inline", shared=self._kind == "thread")
            plain = MapFetcher(
                dataset, cargo.auto_collation, self._collate, streams, self._note.mark,
                watched=self._note.watched, unseeded=self._unseeded,
            )  # fmt: skip
            guard = self._guard(begin)
            if guard is None:
                self._fetcher = plain
            else:
                self._fetcher = GuardedFetcher(plain, cargo.auto_collation, guard)
            return

        place = self._place
        place.claimed = place.counted = False
        if streams is None:
            place.on_claim = None
        else:
            place.on_claim = functools.partial(streams.split, *words, *self._words())

        if cargo.deal and (not state or state["dealt"]):
            deal = Deal(place, begin.first)
        else:
            deal = None

        source = Source(dataset, streams, state, self._note.mark, generators)
        fetcher = IterableFetcher(
            source, cargo.auto_collation, self._collate, cargo.drop_last, deal, state,
            guard=self._guard(begin), mark=self._note.mark,
        )  # fmt: skip
        fetcher.replay(functools.partial(report, self._number))
        self._fetcher = fetcher
        if streams is not None:
            streams.pause()

    def _guard(self, begin: Begin) -> Guard | None:
        if self._cargo.policy is None:
            return None

        if begin.lanes:
            worker = self._number
        else:
            worker = None

        return Guard(self._cargo.policy, self._dataset, begin.epoch, worker, begin.killers, begin.base_seed)

    def _words(self) -> tuple[int, ...]:
        """Names the random streams of a worker whose stream is its own."""
        place = self._place
        return (*place.world, place.worker, place.workers)

    def fetch(self, index: Any) -> Any:
        """Returns the next batch; raises what the dataset raises, and `StopIteration` at the end of a stream."""
        if self._fetcher is None:
            raise RuntimeError("this worker could not begin the epoch; its first result says why")
        return self._fetcher.fetch(index)

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

    def stop_watching(self, *, seed_globals: bool) -> None:
        """Ends what `watch` began. `seed_globals`: whether the global generators are seeded from here on."""
        if self._streams is not None:
            self._streams.stop_watching(seed_globals=seed_globals)
        if not seed_globals and isinstance(self._fetcher, (MapFetcher, GuardedFetcher)):
            self._unseeded = Unseeded(shared=True)
            self._fetcher.try_unseeded(self._unseeded)

    def state(self) -> Any:
        """Returns what this lane needs to go on elsewhere after its last batch; None if nothing."""
        if self._fetcher is not None:
            return self._fetcher.state()
        return None

    def state_at_beginning(self) -> Any:
        """Returns what this lane needs to begin elsewhere as it began here; None if nothing, or if nobody knows.

        Call it before the first batch. A map-style dataset, and the generator of one that is iterable, have run no
        line since they were told a state. So they are as that state says, also if they take it over later.
        """
        if self._fetcher is None:
            return None
        if self._told is not None and not (isinstance(self._fetcher, IterableFetcher) and self._fetcher.has_begun):
            return self._told

        try:
            return self._fetcher.state()
        except Exception:  # noqa: BLE001 - before the first sample there may be no state yet, said in any way
            return None


class LaneHost:
    """The lanes of one worker, of which there may be `workers`."""

    def __init__(
        self,
        cargo: Cargo,
        worker: int,
        workers: int,
        kind: Kind,
        collate: Callable[[Any], Any],
        mark: Mark,
        *,
        watched: bool,
    ) -> None:
        self._cargo = cargo
        self._mark = mark
        self._note = Note(mark, watched)
        self._worker = worker
        self._workers = workers
        self._kind = kind
        self._collate = collate
        self._lanes: dict[int, Lane] = {}
        self._running: int | None = None

    def begin(
        self, begin: Begin, report: Report, generators: ResumedGenerators | None = None
    ) -> dict[int, BaseException]:
        """Begins an epoch in every lane. Returns the exceptions of the lanes that could not.

        generators: what becomes of the user's global generators; None: they are the worker's own.
        """
        if generators is None:
            resumed = ResumedGenerators()
        else:
            resumed = generators

        failures: dict[int, BaseException] = {}
        self._mark[STAGE] = START
        numbers = range(self._worker, max(begin.lanes, 1), self._workers)
        fresh = [number for number in numbers if number not in self._lanes]
        for number, dataset in zip(fresh, self._copies(len(fresh)), strict=True):
            self._lanes[number] = Lane(self._cargo, number, self._kind, self._collate, dataset, self._note)

        for number in numbers:
            try:
                if number in fresh:
                    self._lanes[number].start(begin)
                self._run(number)
                self._lanes[number].begin(begin, report, resumed)
            except Exception as error:
                if is_of_signal_handler(error):
                    raise
                failures[number] = error  # the caller raises it in its own way
            except SystemExit as error:
                if self._kind != "thread":
                    raise
                failures[number] = error  # it must not end the thread, least of all the user's

        self._mark[STAGE] = IDLE
        return failures

    def _copies(self, count: int) -> list[Any]:
        """Returns a dataset for each lane: what one lane changes in it, the others must not see."""
        dataset = self._cargo.dataset
        if self._kind == "thread":
            is_pipe = isinstance(dataset, (IterDataPipe, MapDataPipe))
            if is_pipe:
                dataset = copy.deepcopy(dataset)
            else:
                dataset = copy.copy(dataset)

        return [dataset if number == 0 else copy.deepcopy(dataset) for number in range(count)]

    def states_at_beginning(self) -> dict[int, Any]:
        """Returns for each lane what `Lane.state_at_beginning` returns, before the first batch of an epoch."""
        return {number: lane.state_at_beginning() for number, lane in self._lanes.items()}

    def fetch(self, lane: int, index: Any) -> Made:
        """Returns the next batch of a lane; raises as `Lane.fetch`."""
        self._run(lane)
        running = self._lanes[lane]
        batch = running.fetch(index)
        return Made(batch, running.state(), running.losses())

    def state(self, lane: int) -> Any:
        """Returns the state of a lane after its last batch, also one that raised."""
        return self._lanes[lane].state()

    def losses(self, lane: int) -> Sequence[BadSample]:
        """Returns what became of the bad samples of a lane's last batch, also one that raised."""
        return self._lanes[lane].losses()

    def tries_unseeded(self, lane: int) -> bool:
        """Tells whether a lane makes batches without seeds first."""
        return self._lanes[lane].tries_unseeded

    def had_to_seed(self, lane: int) -> bool:
        """Tells whether a lane found out that its dataset draws random numbers."""
        unseeded = self._lanes[lane].unseeded
        return unseeded is not None and unseeded.drew

    @property
    def drew_unseeded(self) -> bool:
        """Whether any lane found out that its dataset draws random numbers."""
        return any(self.had_to_seed(lane) for lane in self._lanes)

    def is_suspicious(self, lane: int) -> bool:
        """Tells whether generators that threads share moved while a lane made its last batch."""
        unseeded = self._lanes[lane].unseeded
        return unseeded is not None and unseeded.suspicious

    def drew(self) -> bool:
        """Returns whether any lane drew from the global random generators."""
        return any(lane.drew() for lane in self._lanes.values())

    def stop_watching(self, *, seed_globals: bool) -> None:
        """Ends what `Begin.watch` began, before another thread takes over."""
        self._running = None
        for lane in self._lanes.values():
            lane.stop_watching(seed_globals=seed_globals)

    def _run(self, lane: int) -> None:
        if self._running != lane or self._kind != "process":  # other lanes may have run in this thread since
            self._lanes[lane].enter()
            self._running = lane


@contextlib.contextmanager
def surroundings_kept(*, random: bool) -> Iterator[None]:
    """Leaves the calling thread's place among the workers as it was; with `random` the global generators too."""
    with place_kept(), worker_info_kept(), global_states_kept() if random else contextlib.nullcontext():
        yield
