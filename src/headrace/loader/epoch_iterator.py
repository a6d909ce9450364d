"""What all engines share: the index of the next batch, and the record of what was delivered."""

from __future__ import annotations

import contextlib
import time
from collections.abc import Iterator, Mapping, Sized
from itertools import chain, islice
from operator import methodcaller
from typing import Any

import torch

from headrace.batches.fetch_map import Positioned, is_stateful, may_have_states
from headrace.batches.whole_batches import makes_batches
from headrace.core.counter import stream_key
from headrace.core.rng import GlobalStates, global_states, global_states_kept
from headrace.core.torch_internals import DatasetKind, TorchIterator, draw_shared_seed
from headrace.epoch.draws import (
    announce,
    checkpoints_of,
    dealing_of,
    drawing_from,
    own_base_seed,
    pattern_of_draws,
    pattern_of_reset,
    position_in,
    random_state,
    resumable,
    set_random_state,
)
from headrace.epoch.generators import OrderStates, decoded
from headrace.epoch.lengths import batches_of, samples_of
from headrace.epoch.progress import Delivery, MapProgress, StreamProgress
from headrace.epoch.record import Draws, EpochRecord, at_beginning, dealt_out
from headrace.loader.delivering import DeliveringIterator
from headrace.loader.rank_check import rank_watch
from headrace.loader.setting import Backend, setting_of
from headrace.samplers.key_arrays import key_arrays
from headrace.samplers.sampler import PositionalSampler
from headrace.telemetry.dataset_traps import hazards
from headrace.workers.replica import Begin, Cargo

SEED_BITS = (1 << 62) - 1


class EpochIterator(DeliveringIterator):
    """One epoch after the other of a loader. Engines subclass it and define `_next_data`."""

    backend: Backend
    """Where batches are made: "inline", "thread" or "process"."""

    def _open(self, loader: Any, *, workers: int) -> None:
        """Does what torch's constructor does, and begins the first epoch.

        With workers the sampler's `__iter__` is called two times, as in torch's iterator.
        """
        began = time.perf_counter()
        self._recorder = loader.recorder
        terms = self._terms = loader.next_terms()
        self._ledger, self._policy = loader.loss_ledger, loader.sample_policy(terms.world)
        self._seeding = loader.seeding
        self._ahead: tuple[int, Any] | None = None
        announce(loader._index_sampler, terms)
        with global_states_kept() if terms.resume else contextlib.nullcontext():
            before = random_state(loader)
            with own_base_seed(loader, terms):
                TorchIterator.__init__(self, loader)
                if workers:
                    seed_of_pipes = self._shared_seed
                    TorchIterator._reset(self, loader)
                    self._shared_seed = seed_of_pipes  # torch draws a second one, and its workers use the first

            self._num_workers = workers
            self._sampler_iter = self._indices(self._sampler_iter)

        persistent = bool(workers) and loader.persistent_workers
        draws = pattern_of_draws(self._dataset, workers=bool(workers), persistent=persistent)
        self._start_epoch(loader, draws, before)
        self._begin_record(loader, began, fresh=True)

    def _reopen(self, loader: Any) -> None:
        """Begins a further epoch with the same workers."""
        began = time.perf_counter()
        self.record.settle()
        if self.record.finished and self.record.keeps_datasets:
            kept = self.record
        else:
            kept = None

        terms = self._terms = loader.next_terms()
        self._ahead = None
        announce(loader._index_sampler, terms)
        before = random_state(loader)
        with own_base_seed(loader, terms):
            TorchIterator._reset(self, loader)

        self._sampler_iter = self._indices(self._sampler_iter)
        self._start_epoch(loader, pattern_of_reset(self._dataset), before, kept)
        self._begin_record(loader, began, fresh=False)

    def _begin_record(self, loader: Any, began: float, *, fresh: bool) -> None:
        setting = setting_of(
            loader,
            backend=self.backend,
            workers=self.wanted_workers,
            free=self.any_lane_will_do,
            tuned=self.tunes_workers,
        )
        self._recorder.begin_epoch(began, setting, fresh=fresh)
        if self._recorder.epoch == 0:
            for trap in hazards(self._dataset, setting):
                self._recorder.trapped(trap)

        self._number_of_epoch = self._recorder.epoch
        self._deliveries = int(self._progress.batches)
        self._begun_at = self._deliveries

    def cargo(self, loader: Any) -> Cargo:
        """Returns what lanes work with."""
        return Cargo(
            dataset=self._dataset,
            dataset_kind=self._dataset_kind,
            auto_collation=self._auto_collation,
            collate_fn=self._collate_fn,
            drop_last=self._drop_last,
            worker_init_fn=loader.worker_init_fn,
            world=self._terms.world,
            seed=self._terms.seed,
            deal=self._terms.deal,
            policy=self._policy,
        )

    def _start_epoch(
        self, loader: Any, draws: Draws, random: OrderStates | None, kept: EpochRecord | None = None
    ) -> None:
        """Begins the record of an epoch. `kept`: that of the epoch before, whose copies of the dataset go on."""
        terms = self._terms
        self._is_map = self._dataset_kind == DatasetKind.Map
        self._states: Mapping[int, Any] = {}
        self._ends: dict[int, Any] = {}
        self._pending: Delivery | None = None
        self._leaving = 0
        self._ready: tuple[Any] | None = None
        self._behind_order: GlobalStates | None = None
        if terms.draws is not None:
            if terms.resume is None and random is not None:
                set_random_state(loader, random)
                self._draw(loader, terms.draws)
            draws = Draws(terms.draws, terms.draws)

        if terms.seed is not None:
            draws = draws.without_base_seed(terms.seed)
            self._base_seed = stream_key(terms.seed, terms.epoch, terms.world.rank) & SEED_BITS

        if self._is_map:
            start = self._start_map
        else:
            start = self._start_stream

        self.record = start(loader, draws, random)
        self.record.keeps_datasets = self._num_workers == 0 or loader.persistent_workers
        self._carry_datasets(loader, kept)
        self._untold = self._lanes_that_tell()
        if self._is_map:
            self._planned = batches_of(loader)
        else:
            self._planned = None

        self._ledger.begin_epoch(samples_of(loader) if self._is_map else None)
        uneven = getattr(resumable(self._index_sampler), "uneven", "pad")
        self._ranks = rank_watch(loader, terms, uneven=uneven, is_map=self._is_map)
        if self._ranks is not None:
            self._ranks.begin(self._planned)

    def _carry_datasets(self, loader: Any, kept: EpochRecord | None) -> None:
        """Notes with which states the copies of a dataset begin the epoch, so that a state taken now holds them.

        After a resume the copies are told so; copies that workers have kept know it.
        """
        resume = self._terms.resume
        is_beginning = resume is not None and resume["lanes"] is None and resume["stream"] is None
        if resume is not None and is_beginning:
            told = resume["datasets"]
        else:
            told = None

        beginnings = told
        if told is None and kept is not None:
            beginnings = kept.datasets(loader)
        if not beginnings:
            return

        states = dealt_out(beginnings, max(self.record.lanes, 1))
        if not self._is_map:
            states = {lane: at_beginning(state, dealt=self._terms.deal) for lane, state in states.items()}

        self._progress.lanes.update(states)
        if told is not None:
            self._states = states

    def _lanes_that_tell(self) -> set[int]:
        """Returns the lanes that are to tell the state with which they begin.

        What is drawn in `worker_init_fn` or when an iterator is made must come again after a resume, also for a lane
        that has delivered nothing yet. A dealt-out stream has no lanes of its own, and where nothing has a state, there
        is nothing to tell. A lane that goes on from a state is as that state says.
        """
        if self._terms.deal or not may_have_states(self._dataset, is_map=self._is_map):
            return set()

        resume = self._terms.resume
        lanes = set(range(max(self.record.lanes, 1)))
        if resume is not None and resume["lanes"] is not None:
            return lanes - set(self._states)
        return lanes

    def note_beginnings(self, states: Mapping[int, Any]) -> None:
        """Notes the states with which lanes begin; None: a lane has none, or could not begin."""
        for lane, state in states.items():
            if lane in self._untold and state is not None:
                self._progress.lanes[lane] = state
        self._untold -= states.keys()

    # -- map-style data ----------------------------------------------------------------------------------------------

    def _start_map(self, loader: Any, draws: Draws, random: OrderStates | None) -> EpochRecord:
        terms = self._terms
        resume = self._terms.resume
        sampler = resumable(self._index_sampler)
        self._checkpoint, state_at = checkpoints_of(sampler)
        self._sampler_rank, self._sampler_ranks = dealing_of(self._index_sampler, terms.world)
        self._drawn = self._samples = self._offset = self._held = 0
        self._sizes: dict[int, int] = {}  # samples of the batches that are out
        self._sized = -1  # the number of the batch that left last
        progress = MapProgress()
        lanes = self._num_workers
        if resume is not None:
            progress = MapProgress(resume["batches"], resume["samples"], resume["sampler"], resume["beyond"])
            self._drawn = resume["batches"]
            self._offset = resume["samples"] * self._sampler_ranks
            random_before = decoded(resume["random"])
            if sampler is not None and resume["sampler"] is not None:
                if random_before is not None:
                    random = random_before
                    draws = Draws(resume["draws"] or draws.now, draws.later)
                    self._redraw(loader, random, draws.now.replace("i", ""), resume["batches"])

                sampler.load_state_dict(resume["sampler"])
                self._sampler_iter = self._indices()
                self._offset = position_in(resume["sampler"], self._offset)
            elif random_before is not None:
                random = random_before
                draws = Draws(resume["draws"] or draws.now, draws.later)
                self._redraw(loader, random, draws.now, resume["batches"])
            else:
                self._sampler_iter = islice(self._sampler_iter, resume["batches"], None)

            if resume["lanes"] is not None:
                lanes = resume["lanes"]["count"]
                self._states = dict(resume["lanes"]["states"])
                progress.lanes.update(self._states)

        elastic = getattr(sampler, "elastic", False)
        return EpochRecord(terms, progress, random, draws, lanes, 0, elastic, sampler_state=state_at)

    def _redraw(self, loader: Any, random: OrderStates, draws: str, batches: int, *, renew: bool = True) -> None:
        """Draws again what was drawn when the epoch began: seeds, and an order up to where it goes on.

        With `renew`, workers draw other random numbers behind these batches than for them.
        """
        with drawing_from(loader, random) as redrawing:
            self._draw(loader, draws)
            if not batches:
                redrawing.has_drawn_before_the_first_batch()
            if self._is_map and "i" in draws:
                rest = islice(self._sampler_iter, batches, None)
                self._sampler_iter = chain(list(islice(rest, 1)), rest)  # some samplers draw when they are first asked
            self._behind_order = global_states()

        if renew and batches:
            self._base_seed = stream_key(int(self._base_seed), batches) & SEED_BITS

    def _draw(self, loader: Any, draws: str) -> None:
        """Draws what an epoch draws at its beginning, see `Draws`."""
        shared = []
        for draw in draws:
            if draw == "i":
                self._sampler_iter = self._indices()
            elif draw == "s":
                self._base_seed = torch.empty((), dtype=torch.int64).random_(generator=loader.generator).item()
            else:
                shared.append(draw_shared_seed(loader.generator, self._pg))

        if shared:
            self._shared_seed = shared[0]  # torch draws a second one, and its workers use the first

    def _indices(self, begun: Iterator[Any] | None = None) -> Iterator[Any]:
        """Begins an iteration over the index sampler, or goes on with one that torch began.

        In arrays instead for a dataset that fetches whole batches, where that gives the same keys. A sampler of
        headrace's gives arrays much sooner than single keys, so lists are made of those.
        """
        whole = makes_batches(self._dataset, self._collate_fn)
        if whole or isinstance(getattr(self._index_sampler, "sampler", None), PositionalSampler):
            arrays = key_arrays(self._index_sampler)
            if arrays is not None:
                if whole:
                    return arrays
                return map(methodcaller("tolist"), arrays)

        if begun is None:
            return iter(self._index_sampler)
        return begun

    def take(self) -> tuple[int, Any]:
        """Returns the number of the sampler's next index, and the index as lanes want it.

        Raises `StopIteration` at the end.
        """
        if self._ahead is not None:
            ahead = self._ahead
            self._ahead = None
            return ahead

        while True:
            index = self._next_index()  # type: ignore[no-untyped-call]
            if not self._is_map:
                return 0, index
            number = self._drawn
            self._drawn += 1
            if self._terms.seed is not None:
                index = self._positioned(index)
                count = len(index.positions)
            else:
                if self._auto_collation and isinstance(index, Sized):
                    count = len(index)
                else:
                    count = 1

            self._samples += count
            if self._checkpoint is None:
                state = None
            else:
                state = self._checkpoint()

            if self._progress.draw(number, (count, state)):
                self._sizes[number] = count
                return number, index

    def _positioned(self, index: Any) -> Positioned:
        is_list = type(index) is list  # as nearly always: it is asked for nothing more
        if self._auto_collation and not is_list and not isinstance(index, Sized):
            index = list(index)

        if self._auto_collation:
            count = len(index)
        else:
            count = 1

        first = self._offset + self._samples * self._sampler_ranks + self._sampler_rank
        positions = range(first, first + count * self._sampler_ranks, self._sampler_ranks)
        if is_list:
            return Positioned(index, positions)
        return Positioned(index, getattr(index, "positions", positions))

    # -- iterable data -----------------------------------------------------------------------------------------------

    def _start_stream(self, loader: Any, draws: Draws, random: OrderStates | None) -> EpochRecord:
        terms = self._terms
        resume = self._terms.resume
        lanes = self._num_workers
        first = 0
        before = 0
        progress = StreamProgress({})
        if resume is not None and resume["elastic"]:
            first = resume["samples"]
            stream = resume["stream"]
            if stream is not None:
                self._states = {lane: {**stream, "batches": 0} for lane in range(max(lanes, 1))}
            progress = StreamProgress({}, resume["batches"], 0, stream)
        elif resume is not None and resume["lanes"] is not None:  # which a state before the first batch lacks
            held = resume["lanes"]
            before = resume["samples"]
            lanes = held["count"]
            first = held["first"]
            self._states = dict(held["states"])
            progress = StreamProgress(self._states, resume["batches"], held["next"])

        if terms.seed is not None:
            draws = Draws("", "")  # neither an order nor a base seed is drawn
        elif resume is not None and resume["random"] is not None:
            random = decoded(resume["random"])
            draws = Draws(resume["draws"] or draws.now, draws.later)
            self._redraw_stream(loader, random, draws.now, resume["batches"])

        return EpochRecord(terms, progress, random, draws, lanes, first, terms.deal, samples_before=before)

    def _redraw_stream(self, loader: Any, random: OrderStates | None, draws: str, batches: int) -> None:
        """Draws again what was drawn when the epoch began.

        Lanes that read samples again begin with the same seeds: they may have drawn the order of their samples.
        """
        replays = any(state["dataset"] is None and state["iterator"] is None for state in self._states.values())
        if random is not None:
            self._redraw(loader, random, draws, batches, renew=not replays)

    # -- both --------------------------------------------------------------------------------------------------------

    def beginning(self) -> Begin:
        """Returns what lanes are told at the beginning of the epoch."""
        return Begin(
            base_seed=int(self._base_seed),
            shared_seed=self._shared_seed,
            lanes=self.record.lanes,
            epoch=self._terms.epoch,
            announce=self._terms.announce,
            first=self.record.first,
            states=self._states,
            killers=dict(self._ledger.killers),
            unseeded_first=self._seeding.tries_without,
            tell=bool(self._untold),
        )

    @property
    def wanted_workers(self) -> int:
        """How many workers there shall be."""
        return int(self._num_workers)

    @property
    def tunes_workers(self) -> bool:
        """Whether the number of workers changes by what is measured."""
        return False

    @property
    def any_lane_will_do(self) -> bool:
        """True if batches are the same whichever lane makes them: nothing of a lane's own goes into them."""
        free = self._is_map and self._terms.seed is not None
        return free and self.record.lanes > 1 and not is_stateful(self._dataset)

    @property
    def next_lane(self) -> int:
        """The lane that makes the first batch from here on."""
        if self._is_map:
            if self._states:
                return int(self._progress.batches % max(self.record.lanes, 1))
            return 0
        return int(self._progress.next_lane)

    def is_at_end(self) -> bool:
        """Tells whether nothing is left of the epoch. May wait for the first batch of an iterable dataset."""
        try:
            self._ahead = self.take()
        except StopIteration:
            return True
        return False
