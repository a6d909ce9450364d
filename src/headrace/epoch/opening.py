"""How an epoch begins: what it draws, or draws again after a resume, and from where it goes on."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import chain, islice
from typing import Any, NamedTuple
from zlib import crc32

import torch

from headrace.core.hugging_face_streams import is_hugging_face_stream, take_up_order
from headrace.core.protocols import says_yes
from headrace.core.randomness.counter_based import stream_key
from headrace.core.randomness.rng import GlobalStates, global_states
from headrace.core.torch_internals import draw_shared_seed
from headrace.epoch.deferral import Deferral, Moved
from headrace.epoch.draws import (
    changing,
    checkpoint_of,
    dealing_of,
    drawing_from,
    position_in,
    resumable,
    set_random_state,
    state_maker_of,
)
from headrace.epoch.epoch import Epoch
from headrace.epoch.generators import OrderStates, decoded
from headrace.epoch.indices import Indices, MapIndices, StreamIndices, begin_indices
from headrace.epoch.lengths import batches_of
from headrace.epoch.look_ahead import LookAhead, ReadsAhead
from headrace.epoch.progress import MapProgress, StreamProgress
from headrace.epoch.record import Draws, EpochRecord, RecordedLoader, Terms
from headrace.epoch.snapshot import Snapshot
from headrace.epoch.spec import LoaderSpec, Seeds, Shared
from headrace.epoch.start import SEED_BITS
from headrace.samplers.live import LiveBatches
from headrace.samplers.sampler import ElasticSampler


class MapStart(NamedTuple):
    """Where an epoch of a map-style dataset begins."""

    progress: MapProgress
    offset: int
    """Positions of the order, over all ranks, that lie before it."""
    moved: Sequence[Moved]
    """Batches that were deferred behind it."""
    draws: Draws
    random: OrderStates | None
    replicas: int


class Opening:
    """The beginning of one epoch. It holds what torch's iterator drew, until it is known what holds."""

    def __init__(
        self, spec: LoaderSpec, terms: Terms, *, indices: Any, base_seed: int, shared_seed: int | None, group: object
    ) -> None:
        """Args:

        indices: the iteration over the index sampler that torch's iterator began.
        base_seed, shared_seed: what it drew.
        group: the process group over which ranks share the seed of data pipes.
        """
        self.spec = spec
        self.terms = terms
        self.indices = indices
        self.base_seed = base_seed
        self.shared_seed = shared_seed
        self._behind_order: GlobalStates | None = None
        self._group = group
        self._states: dict[int, Any] = {}

    def epoch(
        self,
        loader: RecordedLoader,
        draws: Draws,
        random: OrderStates | None,
        kept: EpochRecord | None,
        *,
        replicas: int,
        shared: Shared,
    ) -> Epoch:
        """Returns the epoch.

        draws: what torch's iterator has drawn for it, from generators in the states `random`. kept: the record of the
        epoch before, whose copies of the dataset go on. replicas: of the executor.
        """
        spec = self.spec
        terms = self.terms
        if terms.draws is not None:
            # The interrupted run may have drawn more or less than this one, with other workers: the epochs after the
            # resumed one draw as that run would have, so that they have its orders.
            if terms.resume is None and random is not None:
                set_random_state(spec, random)
                self._draw(terms.draws)
            draws = Draws(terms.draws, terms.draws)

        if terms.seed is not None:
            draws = draws.without_base_seed(terms.seed)
            self.base_seed = stream_key(terms.seed, terms.epoch, terms.world.rank) & SEED_BITS

        if spec.is_map:
            record, indices = self._map(draws, random, replicas, shared.ahead)
        else:
            record, indices = self._stream(draws, random, replicas)

        record.keeps_datasets = replicas == 0 or spec.persistent_workers
        seeds = Seeds(self.base_seed, self.shared_seed, self._number_for_samples())
        epoch = Epoch(spec, record, indices, seeds, self._states, shared)
        epoch.behind_order = self._behind_order
        self._carry_datasets(epoch, loader, kept)
        if spec.is_map:
            epoch.planned = batches_of(spec)
        return epoch

    def _number_for_samples(self) -> int:
        """Returns the number of the epoch that samples are seeded with: the one that decides on their order."""
        sampler = resumable(self.spec.index_sampler)
        follows_sampler = self.terms.seed is not None and not self.terms.counts_epochs
        if follows_sampler and isinstance(sampler, ElasticSampler):
            return sampler.epoch
        return self.terms.epoch

    def _carry_datasets(self, epoch: Epoch, loader: RecordedLoader, kept: EpochRecord | None) -> None:
        """Has copies of the dataset go on with the states of a resumed run, or knows those of copies that are kept."""
        resume = self.terms.resume
        told = None
        # Within an epoch, each replica's state is with its progress; only a state at a beginning has them here.
        if resume is not None and resume["replicas"] is None and resume["stream"] is None:
            told = resume["datasets"]

        beginnings = told
        if told is None and kept is not None:
            beginnings = kept.datasets(loader)
        if beginnings:
            epoch.carry_datasets(beginnings, tell=told is not None)

    # -- map-style datasets --------------------------------------------------------------------------------------------

    def _map(
        self, draws: Draws, random: OrderStates | None, replicas: int, ahead: ReadsAhead | None
    ) -> tuple[EpochRecord, Indices]:
        spec = self.spec
        sampler = resumable(spec.index_sampler)
        start = MapStart(MapProgress(), 0, (), draws, random, replicas)
        if self.terms.resume is not None:
            start = self._resumed(self.terms.resume, start)

        progress = start.progress
        if start.moved or spec.defers:
            progress.deferral = Deferral(start.moved, allowed=spec.defers, batched=spec.batched)

        indices = self._map_indices(progress, start.offset, ahead)
        # A state that is taken before the first batch holds what was changed before it, too.
        if changing(spec.index_sampler) is not None:
            progress.reached = (progress.batches, progress.samples, sampler.upcoming())

        record = EpochRecord(
            self.terms,
            progress,
            start.random,
            start.draws,
            start.replicas,
            first=0,
            elastic=says_yes(sampler, "elastic"),
            sampler_state=state_maker_of(sampler),
        )
        if isinstance(sampler, ElasticSampler):
            record.others_go_on = sampler.others_go_on
            record.is_last = sampler.is_last
        return record, indices

    def _resumed(self, resume: Snapshot, start: MapStart) -> MapStart:
        """Goes to the first index behind what was delivered, and returns where an epoch begins that goes on there."""
        dealing = dealing_of(self.spec.index_sampler, self.terms.world)
        draws = start.draws
        random = start.random
        replicas = start.replicas
        drawn_from = decoded(resume["random"])
        if drawn_from is not None:
            random = drawn_from
            draws = Draws(resume["draws"] or draws.now, draws.later)

        self._go_to_first_index(resume, drawn_from, draws)
        offset = resume["samples"] * dealing.size
        if resumable(self.spec.index_sampler) is not None:
            offset = position_in(resume["sampler"], offset)

        # The dataset has a state of its own in each worker: as many replicas go on as there were, whatever workers
        # there are now.
        progress = MapProgress(resume["batches"], resume["samples"], resume["sampler"], resume["beyond"])
        if resume["replicas"] is not None:
            replicas = resume["replicas"]["count"]
            self._states = dict(resume["replicas"]["states"])
            progress.replicas.update(self._states)
        return MapStart(progress, offset, resume["deferred"], draws, random, replicas)

    def _map_indices(self, progress: MapProgress, offset: int, ahead: ReadsAhead | None) -> MapIndices:
        """Returns the indices from `offset` on. ahead: what is shown them before they are asked for."""
        spec = self.spec
        terms = self.terms
        checkpoint = checkpoint_of(resumable(spec.index_sampler))
        if ahead is not None:
            looking = LookAhead(self.indices, checkpoint, ahead, progress.batches)
            self.indices = looking
            if checkpoint is not None:
                checkpoint = looking.state

        indices = MapIndices(
            self.indices,
            progress,
            batched=spec.batched,
            seeded=terms.seed is not None,
            checkpoint=checkpoint,
            dealing=dealing_of(spec.index_sampler, terms.world),
            offset=offset,
        )
        indices.listener = ahead
        if isinstance(self.indices, LiveBatches):
            indices.listener = self.indices.listen(progress.batches)
        return indices

    def _go_to_first_index(self, resume: Snapshot, drawn_from: OrderStates | None, draws: Draws) -> None:
        """Leaves out the indices that were delivered.

        There are three ways, the best one first: the sampler's own state; its order drawn again from the generators of
        then; its order read again, and what was delivered left out.
        """
        sampler = resumable(self.spec.index_sampler)
        if sampler is not None and resume["sampler"] is not None:
            if drawn_from is not None:
                self._redraw(drawn_from, draws.now.replace("i", ""), resume["batches"])
            sampler.load_state_dict(resume["sampler"])
            self.indices = begin_indices(self.spec)
        elif drawn_from is not None:
            self._redraw(drawn_from, draws.now, resume["batches"])
        elif resume["batches"]:
            self.indices = islice(self.indices, resume["batches"], None)

    # -- iterable datasets ---------------------------------------------------------------------------------------------

    def _stream(self, draws: Draws, random: OrderStates | None, replicas: int) -> tuple[EpochRecord, Indices]:
        terms = self.terms
        resume = terms.resume
        first = 0
        samples_before = 0
        progress = StreamProgress({})
        # A stream that is dealt out in order has one position for all ranks, so any number of ranks and workers can
        # take it up. Any other goes on replica by replica.
        if resume is not None and resume["elastic"]:
            first = resume["samples"]
            stream = resume["stream"]
            if stream is not None:
                self._states = {replica: {**stream, "batches": 0} for replica in range(max(replicas, 1))}
            progress = StreamProgress({}, resume["batches"], 0, stream)
        elif resume is not None and resume["replicas"] is not None:  # which a state before the first batch lacks
            saved = resume["replicas"]
            samples_before = resume["samples"]
            replicas = saved["count"]
            first = saved["first"]
            self._states = dict(saved["states"])
            progress = StreamProgress(self._states, resume["batches"], saved["next"])

        # A state counts only in its epoch, and what is read again comes in the order of its epoch.
        for state in self._states.values():
            if "order" in state and is_hugging_face_stream(self.spec.dataset):
                take_up_order(self.spec.dataset, state)

        if terms.seed is not None:
            draws = Draws("", "")  # neither an order nor a base seed is drawn
        elif resume is not None and resume["random"] is not None:
            random = decoded(resume["random"])
            draws = Draws(resume["draws"] or draws.now, draws.later)
            self._redraw_stream(random, draws.now, resume["batches"])

        record = EpochRecord(terms, progress, random, draws, replicas, first, terms.deal, samples_before=samples_before)
        return record, StreamIndices(self.indices)

    def _redraw_stream(self, random: OrderStates | None, draws: str, batches: int) -> None:
        """Draws again what was drawn when the epoch began.

        Replicas that read samples again begin with the same seeds: they may have drawn the order of their samples.
        """
        replays = any(state["dataset"] is None and state["iterator"] is None for state in self._states.values())
        if random is not None:
            self._redraw(random, draws, batches, renew=not replays)

    # -- drawing -------------------------------------------------------------------------------------------------------

    def _redraw(self, random: OrderStates, draws: str, batches: int, *, renew: bool = True) -> None:
        """Draws again what was drawn when the epoch began: seeds, and an order up to where it goes on.

        With `renew`, workers draw other random numbers behind these batches than for them.
        """
        with drawing_from(self.spec, random) as redrawing:
            if "s" not in draws and self.terms.seed is None:
                self.base_seed = self._seed_of_new_workers()
            self._draw(draws)
            if not batches:
                redrawing.has_drawn_before_the_first_batch()
            if self.spec.is_map and "i" in draws:
                rest = islice(self.indices, batches, None)
                self.indices = chain(list(islice(rest, 1)), rest)  # some samplers draw when they are first asked
            self._behind_order = global_states()

        if renew and batches:
            self.base_seed = stream_key(int(self.base_seed), batches) & SEED_BITS

    def _seed_of_new_workers(self) -> int:
        """Returns a base seed for an epoch of which the interrupted run drew none, since its workers lived on.

        Not from the user's generator: a script that seeds it at its beginning would get that of the first epoch.
        """
        generator = self.spec.generator or torch.default_generator
        return stream_key(crc32(generator.get_state().numpy().tobytes()), self.terms.epoch) & SEED_BITS

    def _draw(self, draws: str) -> None:
        """Draws what an epoch draws at its beginning, see `Draws`."""
        generator = self.spec.generator
        shared = []
        for draw in draws:
            if draw == "i":
                self.indices = begin_indices(self.spec)
            elif draw == "s":
                self.base_seed = int(torch.empty((), dtype=torch.int64).random_(generator=generator).item())
            else:
                shared.append(draw_shared_seed(generator, self._group))

        if shared:
            self.shared_seed = shared[0]  # torch draws a second one, and its workers use the first
