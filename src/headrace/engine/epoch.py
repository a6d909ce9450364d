"""What all engines share: the index of the next batch, and the record of what was delivered."""

from __future__ import annotations

import contextlib
import time
import warnings
from collections.abc import Iterator, Mapping, Sequence, Sized
from itertools import chain, islice
from typing import Any

import torch

from headrace.core.counter import stream_key
from headrace.core.streams import global_states_kept, set_global_states
from headrace.core.torch_internals import DatasetKind, TorchIterator, profiler_enabled
from headrace.core.world import World, common_store
from headrace.engine.drawing import generators, own_base_seed, random_state, resumable
from headrace.engine.journey import UNKNOWN, Journey
from headrace.engine.lane import Begin, Cargo
from headrace.engine.ranks import RankWatch
from headrace.engine.setting import Backend, setting_of
from headrace.faults.record import BadSample
from headrace.fetch.fetcher import Positioned, is_stateful
from headrace.fetch.whole import makes_batches
from headrace.observe.hazards import hazards
from headrace.observe.recorder import PENDING
from headrace.observe.sizes import batch_length
from headrace.order.key_arrays import key_arrays
from headrace.state.progress import Draw, MapProgress, StreamProgress
from headrace.state.record import EpochRecord, Terms

SEED_BITS = (1 << 62) - 1


class EpochIterator(TorchIterator):
    """One epoch after the other of a loader. Engines subclass it and define `_next_data`."""

    _terms: Terms
    record: EpochRecord
    """What was delivered; the loader keeps it."""

    backend: Backend
    """Where batches are made: "inline", "thread" or "process"."""

    _held: int = 0
    """Samples of the batch that is delivered now, of a map-style data set."""

    _journey: Journey = ()
    """How the batch that is delivered now came here: an engine's `_next_data` leaves it."""

    def _open(self, loader: Any, *, workers: int) -> None:
        """Does what torch's constructor does, and begins the first epoch.

        With workers the sampler's `__iter__` is called two times, as in torch's iterator.
        """
        began = time.perf_counter()
        self._recorder = loader.recorder
        terms = self._terms = loader.next_terms()
        self._ledger, self._policy = loader.loss_ledger, loader.sample_policy(terms.world)
        _announce(loader._index_sampler, terms)
        with global_states_kept() if terms.resume else contextlib.nullcontext():
            before = random_state(loader)
            with own_base_seed(loader, terms):
                TorchIterator.__init__(self, loader)
            self._num_workers = workers
            self._sampler_iter = self._indices(None if workers else self._sampler_iter)
        self._start_epoch(loader, "isi" if workers else "is", before)
        self._begin_record(loader, began, fresh=True)

    def _reopen(self, loader: Any) -> None:
        """Begins a further epoch with the same workers."""
        began = time.perf_counter()
        terms = self._terms = loader.next_terms()
        _announce(loader._index_sampler, terms)
        before = random_state(loader)
        with own_base_seed(loader, terms):
            TorchIterator._reset(self, loader)
        self._sampler_iter = self._indices(self._sampler_iter)
        self._start_epoch(loader, "i", before)
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

    def _start_epoch(self, loader: Any, draws: str, random: Any) -> None:
        terms = self._terms
        self._is_map = self._dataset_kind == DatasetKind.Map
        self._states: Mapping[int, Any] = {}
        if terms.seed is not None:
            draws = draws.replace("s", "")
            self._base_seed = stream_key(terms.seed, terms.epoch, terms.world.rank) & SEED_BITS
        start = self._start_map if self._is_map else self._start_stream
        self.record = start(loader, draws, random)
        self._ledger.begin_epoch(_samples_of(loader) if self._is_map else None)
        self._ranks = self._rank_watch(loader)
        if self._ranks is not None:
            self._ranks.begin(_batches_of(loader) if self._is_map else None)

    def _rank_watch(self, loader: Any) -> RankWatch | None:
        """Returns what compares this epoch with those of the other ranks; None where they need not be in step."""
        world, uneven = self._terms.world, getattr(resumable(self._index_sampler), "uneven", "pad")
        on_purpose = uneven == "keep" or loader.batches_per_epoch is not None
        store = None if on_purpose or world.size == 1 else common_store()
        if store is None:
            return None
        strict = loader.shard is not None and self._is_map
        return RankWatch(store, f"{self._terms.loader}/{self._terms.epoch}", world, strict=strict)

    # -- map-style data ----------------------------------------------------------------------------------------------

    def _start_map(self, loader: Any, draws: str, random: Any) -> EpochRecord:
        terms, resume = self._terms, self._terms.resume
        sampler = self._sampler = resumable(self._index_sampler)
        self._sampler_rank, self._sampler_ranks = _dealing_of(self._index_sampler, terms.world)
        self._drawn = self._samples = self._offset = self._held = 0
        self._sizes: dict[int, int] = {}  # samples of the batches that are out
        progress = MapProgress()
        lanes = self._num_workers
        if resume is not None:
            progress = MapProgress(resume["batches"], resume["samples"], resume["sampler"], resume["beyond"])
            self._drawn, self._offset = resume["batches"], resume["samples"] * self._sampler_ranks
            if sampler is not None and resume["sampler"] is not None:
                sampler.load_state_dict(resume["sampler"])
                self._sampler_iter = self._indices()
                self._offset = _position_in(resume["sampler"], self._offset)
            elif resume["random"] is not None:
                random, draws = resume["random"], resume["draws"] or draws
                self._redraw(loader, random, draws, resume["batches"])
            else:
                self._sampler_iter = islice(self._sampler_iter, resume["batches"], None)
            if resume["lanes"] is not None:
                lanes, self._states = resume["lanes"]["count"], dict(resume["lanes"]["states"])
                progress.lanes.update(self._states)
        elastic = getattr(sampler, "elastic", False)
        return EpochRecord(terms, progress, random, draws, lanes, 0, elastic)

    def _redraw(self, loader: Any, random: Any, draws: str, batches: int) -> None:
        """Draws the order again that was drawn when the epoch began, up to where it goes on."""
        with global_states_kept():
            set_global_states(random["global"])
            for generator, state in zip(generators(loader), random["own"], strict=True):
                generator.set_state(state)
            for draw in draws:
                if draw == "i":
                    self._sampler_iter = self._indices()
                else:
                    self._base_seed = torch.empty((), dtype=torch.int64).random_(generator=loader.generator).item()
            rest = islice(self._sampler_iter, batches, None)
            self._sampler_iter = chain(list(islice(rest, 1)), rest)  # a sampler may draw only when it is first asked
        if batches:
            self._base_seed = stream_key(int(self._base_seed), batches) & SEED_BITS

    def _indices(self, begun: Iterator[Any] | None = None) -> Iterator[Any]:
        """Begins an iteration over the index sampler, or goes on with one that torch began.

        In arrays instead for a data set that fetches whole batches, where that gives the same keys.
        """
        arrays = key_arrays(self._index_sampler) if makes_batches(self._dataset, self._collate_fn) else None
        if arrays is not None:
            return arrays
        return iter(self._index_sampler) if begun is None else begun

    def take(self) -> tuple[int, Any]:
        """Returns the number of the sampler's next index, and the index as lanes want it.

        Raises `StopIteration` at the end.
        """
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
                count = len(index) if self._auto_collation and isinstance(index, Sized) else 1
            self._samples += count
            state = self._sampler.state_dict() if self._sampler is not None else None
            if self._progress.draw(number, Draw(count, state)):
                self._sizes[number] = count
                return number, index

    def _positioned(self, index: Any) -> Positioned:
        if self._auto_collation and not isinstance(index, Sized):
            index = list(index)
        count = len(index) if self._auto_collation else 1
        first = self._offset + self._samples * self._sampler_ranks + self._sampler_rank
        positions = range(first, first + count * self._sampler_ranks, self._sampler_ranks)
        return Positioned(index, getattr(index, "positions", positions))

    @property
    def _progress(self) -> Any:
        return self.record.progress

    # -- iterable data -----------------------------------------------------------------------------------------------

    def _start_stream(self, loader: Any, draws: str, random: Any) -> EpochRecord:
        terms, resume = self._terms, self._terms.resume
        lanes, first = self._num_workers, 0
        progress = StreamProgress({})
        if resume is not None and resume["elastic"]:
            first, stream = resume["samples"], resume["stream"]
            if stream is not None:
                self._states = {lane: {**stream, "batches": 0} for lane in range(max(lanes, 1))}
            progress = StreamProgress({}, resume["batches"], 0, stream)
        elif resume is not None and resume["lanes"] is not None:  # which only a state before the first epoch lacks
            held = resume["lanes"]
            lanes, first, self._states = held["count"], held["first"], dict(held["states"])
            progress = StreamProgress(self._states, resume["batches"], held["next"])
        return EpochRecord(terms, progress, random, draws, lanes, first, terms.deal)

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
            return int(self._progress.batches % max(self.record.lanes, 1)) if self._states else 0
        return int(self._progress.next_lane)

    def delivered(self, number: int, lane: int, state: Any, losses: Sequence[BadSample] = ()) -> None:
        """Records that the batch of index `number` goes to the user now. Raises `TooManyBadSamplesError`."""
        if self._is_map:
            self._progress.deliver(number, lane, state)
            self._held = self._sizes.pop(number)
        else:
            self._progress.deliver(lane, self.record.lanes, state)
        self._deliveries += 1
        if losses:
            self._held -= sum(loss.action == "skip" for loss in losses)
            self._ledger.delivered(losses, self._seen)

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

    def _make_next(self) -> Any:
        return self._next_data()

    def __next__(self) -> Any:
        asked, recorder = time.perf_counter(), self._recorder
        if asked >= recorder.due or len(recorder.rows) >= PENDING:
            recorder.tick(asked)  # now, as long as no batch is taken that a listener's exception would lose
        try:
            if self._sampler_iter is None or self._counts_samples or profiler_enabled():
                batch = super().__next__()
            else:
                batch = self._make_next()  # as torch's `__next__`, without a range that no profiler records
                self._num_yielded += 1
        except StopIteration:
            if not self.record.finished:
                self.record.finished = True
                self._look_back(asked)
            raise
        self._note(asked, batch)
        if self._ranks is not None:
            self._ranks.delivers(int(self._progress.batches))
        return batch

    def _note(self, asked: float, batch: Any) -> None:
        """Notes in the loader's record that a batch is delivered now."""
        samples = self._held if self._is_map else batch_length(batch)
        now = time.perf_counter()
        rows = self._recorder.rows
        rows.extend((self._number_of_epoch, self._deliveries - 1, samples, asked, now))
        rows.extend(self._journey)
        rows.extend(UNKNOWN)

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
        """Warns if an iterable data set was shorter than the length that was asked for; torch warns if it is longer.

        Each of several workers may drop a batch that is not full.
        """
        length = int(self._IterableDataset_len_called or 0)
        share = self._terms.global_batch if self._terms.deal else int(self._terms.fingerprint["batch_size"] or 1)
        promised = length // share if self._drop_last else -(-length // share)
        dropped = self._num_workers if self._drop_last and not self._terms.deal else 0
        if batches >= promised - dropped:
            return
        warnings.warn(
            f"len() of {type(self._dataset).__name__} is {length}, which makes {promised} batches, but the epoch had "
            f"{batches}. Progress bars, schedulers and other ranks may rely on the length: correct __len__.",
            stacklevel=4,
        )


def _batches_of(loader: Any) -> int | None:
    """Returns how many batches an epoch of a map-style data set has; None if nobody says."""
    sampler = loader._index_sampler
    return len(sampler) if isinstance(sampler, Sized) else None


def _samples_of(loader: Any) -> int | None:
    """Returns how many samples an epoch of a map-style data set has; None if nobody says."""
    for counted in (loader.sampler if loader.batch_sampler is not None else None, loader.dataset):
        if isinstance(counted, Sized):
            return len(counted)
    return None


def _announce(index_sampler: Any, terms: Terms) -> None:
    """Tells samplers the number of the epoch, where the loader is asked to."""
    for sampler in (index_sampler, getattr(index_sampler, "sampler", None)):
        if terms.announce and callable(set_epoch := getattr(sampler, "set_epoch", None)):
            set_epoch(terms.epoch)


def _dealing_of(index_sampler: Any, world: World) -> World:
    """Returns the world over which a sampler deals out its positions; for a foreign one, the world around."""
    return getattr(resumable(index_sampler), "world", world)


def _position_in(state: Any, otherwise: int) -> int:
    return int(state.get("position", otherwise)) if isinstance(state, dict) else otherwise
