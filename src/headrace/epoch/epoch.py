"""One epoch: which index comes next, what was delivered, and what the state is.

Knows no process, no thread and no iterator of torch's. An iterator hands it to an executor, which takes indices from it
and tells it of each batch that leaves; the iterator then says that the loop has got the batch.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from headrace.core.missing_state import MissingState, why_missing
from headrace.core.protocols import is_stateful, may_have_states
from headrace.core.randomness.counter_based import stream_key
from headrace.core.randomness.rng import GlobalStates
from headrace.core.text.log_once import warn_once
from headrace.epoch.deferral import Deferral
from headrace.epoch.indices import Indices, MapIndices
from headrace.epoch.progress import Delivery, Draw, MapProgress
from headrace.epoch.record import EpochRecord, Terms, at_beginning, dealt_out
from headrace.epoch.slow_samples import SlowSamples
from headrace.epoch.spec import LoaderSpec, Seeds, Shared
from headrace.epoch.start import EpochStart
from headrace.faults.bad_sample import BadSample
from headrace.samplers.live import LiveSampler

TRANSFORM = 4
"""Tells the streams of random numbers of transforms of whole batches from those of `core.randomness.rng`."""


class Epoch:
    """One epoch of a loader. Belongs to the thread that iterates."""

    take: Callable[[], tuple[int, Any]]
    """Returns the number of the sampler's next index (0 for streams), and the index.

    Raises `StopIteration` where there is none, and `NothingYetError` where there is none yet.
    """

    wait: Callable[[float | None], None]
    """Waits until there may be an index, after `NothingYetError`; at most so many seconds."""

    planned: int | None = None
    """Batches of the epoch, if somebody knows at once."""

    def __init__(
        self,
        spec: LoaderSpec,
        record: EpochRecord,
        indices: Indices,
        seeds: Seeds,
        states: Mapping[int, Any],
        shared: Shared,
    ) -> None:
        """states: where replicas go on, of an epoch that is resumed."""
        self.spec = spec
        self.record = record
        self.terms: Terms = record.terms
        self.is_map = spec.is_map
        self.policy = shared.policy
        self.fault_counter = shared.fault_counter
        self.seeding = shared.seeding
        self.slow_samples = SlowSamples()
        if shared.slow_samples is not None:
            self.slow_samples = shared.slow_samples
        self.io_address = shared.io_address
        self.states = states
        self.behind_order: GlobalStates | None = None
        """The states of the global generators behind an order that was drawn again; None: it was not."""

        self.ends: dict[int, Any] = {}
        """States of replicas behind the ends of their streams."""

        self.untold = self._replicas_that_tell()
        """The replicas that have still to tell the state with which they begin."""

        self.is_live = isinstance(getattr(spec.index_sampler, "sampler", spec.index_sampler), LiveSampler)
        """Whether the sampler may have nothing yet."""

        self._indices = indices
        self.take = indices.take
        self.hears_batches = False
        """Whether somebody is told which batches leave."""
        if isinstance(indices, MapIndices):
            self.take = indices.quickest_take
            self.hears_batches = indices.hears_batches
        self.wait = indices.wait
        self._size_of = indices.size_of
        self.drawn: Mapping[int, Draw] = {}
        """See `MapProgress.drawn`."""
        if isinstance(record.progress, MapProgress):
            self.drawn = record.progress.drawn

        self._seeds = seeds

        self.deliveries = int(record.progress.batches)
        """Batches of the epoch that the loop has got."""

        self.leaving = 0
        """How many it had when the batch that is on its way set out."""

        self.pending: Delivery | None = None
        """The batch that is on its way."""

        self._positions: dict[int, int] = {}
        """Where batches begin in the order, by number, if somebody asks for that."""

        self.held = 0
        """Samples of the batch that is on its way, of a map-style dataset."""

    @property
    def progress(self) -> Any:
        """What was delivered: `MapProgress` or `StreamProgress`."""
        return self.record.progress

    # -- how it begins -------------------------------------------------------------------------------------------------

    def beginning(self) -> EpochStart:
        """Returns what replicas are told at the beginning of the epoch."""
        return EpochStart(
            base_seed=self._seeds.base,
            shared_seed=self._seeds.of_pipes,
            replicas=self.record.replicas,
            epoch=self._seeds.epoch,
            told=self.terms.told if self.terms.announce else None,
            first=self.record.first,
            states=self.states,
            killers=dict(self.fault_counter.killers),
            unseeded_first=self.seeding.tries_without,
            tell=bool(self.untold),
        )

    def carry_datasets(self, beginnings: Sequence[tuple[int, Any]], *, tell: bool) -> None:
        """Notes with which states the copies of a dataset begin the epoch, so that a state taken now holds them.

        beginnings: pairs of replica and state. tell: copies are new, so they are told; those that were kept know it.
        """
        states = dealt_out(beginnings, max(self.record.replicas, 1))
        if not self.is_map:
            states = {replica: at_beginning(state, dealt=self.terms.deal) for replica, state in states.items()}

        self.progress.replicas.update(states)
        if tell:
            self.states = states

    def _replicas_that_tell(self) -> set[int]:
        """Returns the replicas that are to tell the state with which they begin.

        What is drawn in `worker_init_fn` or when an iterator is made must come again after a resume, also for a replica
        that has delivered nothing yet. A dealt-out stream has no replicas of its own, and where nothing has a state,
        there is nothing to tell. A replica that goes on from a state is as that state says.
        """
        if self.terms.deal or not may_have_states(self.spec.dataset, is_map=self.is_map):
            return set()

        replicas = set(range(max(self.record.replicas, 1)))
        resume = self.terms.resume
        if resume is not None and resume["replicas"] is not None:
            return replicas - set(self.states)
        return replicas

    def note_beginnings(self, states: Mapping[int, Any]) -> None:
        """Notes the states with which replicas begin; None: a replica has none, or could not begin."""
        for replica, state in states.items():
            if replica in self.untold and state is not None:
                self.progress.replicas[replica] = state
        self.untold -= states.keys()

    @property
    def any_replica_will_do(self) -> bool:
        """True if batches are the same whichever replica makes them: nothing of a replica's own goes into them."""
        free = self.is_map and self.terms.seed is not None
        return free and self.record.replicas > 1 and not is_stateful(self.spec.dataset)

    @property
    def deferral(self) -> Deferral | None:
        """What notes that a batch that is late changes places with one that is ready; None: none does."""
        deferral: Deferral | None = self.progress.deferral if self.is_map else None
        if deferral is None or not deferral.allowed or not self.any_replica_will_do:
            return None
        return deferral

    @property
    def has_own_streams(self) -> bool:
        """Whether each of several replicas has a stream of its own."""
        return not self.is_map and not self.terms.deal and self.record.replicas > 1

    @property
    def next_replica(self) -> int:
        """The replica that makes the first batch from here on."""
        if not self.is_map:
            return int(self.progress.next_replica)
        if self.states:
            return int(self.progress.batches % max(self.record.replicas, 1))
        return 0

    # -- how batches leave ---------------------------------------------------------------------------------------------

    def leaves(self, number: int, replica: int, state: object, losses: Sequence[BadSample] = ()) -> None:
        """Notes that the batch of index `number` is on its way to the user. Raises `TooManyBadSamplesError`.

        It counts as delivered from the moment when the user gets it. state: of its replica, behind it. losses: what
        became of its bad samples.
        """
        if self.is_map:
            self.held = self._size_of(number)
        else:
            number = self.deliveries

        self.leaving = self.deliveries
        self.pending = (number, replica, state)
        if state is not None and (why := why_missing(state, is_map=self.is_map)):
            name = type(self.spec.dataset).__qualname__
            warn_once(f"{name}, state", f"{name} has no state now, so loader.state_dict() raises: {why}")
        if losses:
            if self.is_map:
                seen = self.seen + self.held
            else:
                seen = self._seen_of_stream({**self.progress.replicas, replica: state}, int(self.progress.batches) + 1)
            self.held -= sum(loss.action == "skip" for loss in losses)
            self.fault_counter.delivered(losses, seen)

    def states_behind(self, arrived: Mapping[int, Any]) -> dict[int, Any]:
        """Returns the states of replicas behind all that was delivered and behind what has `arrived` (by replica).

        A copy of a map-style dataset whose state is missing begins as it was made.
        """
        states = {**self.states, **self.progress.replicas, **arrived}
        return {replica: state for replica, state in states.items() if type(state) is not MissingState}

    def note_positions(self) -> None:
        """Has `key_of_transform` know where each batch lies in the order. Call it before the first index is taken."""
        if not self.is_map or self.terms.seed is None:
            return
        # Not a method: the epoch would hold itself, and outlive the loop.
        self.take = functools.partial(_take_noting, self.take, self._positions)

    def key_of_transform(self) -> int | None:
        """Returns the key of the random numbers that a transform of the whole batch draws that is on its way.

        It depends on seed, epoch, and on the position of the batch's first sample; None: no seed was given.
        """
        if self.terms.seed is None or self.pending is None:
            return None

        position = self.deliveries * self.terms.world.size + self.terms.world.rank
        if self.is_map:
            number = self.pending[0]
            position = self._positions.get(number, position)
            # The same batch may be asked for again, after a signal. Those that were delivered come no more.
            while self._positions and (earliest := next(iter(self._positions))) < self.progress.batches:
                del self._positions[earliest]
        return stream_key(self.terms.seed, self._seeds.epoch, TRANSFORM, position)

    @property
    def keeps_states(self) -> bool:
        """Whether replicas have states at all."""
        return bool(self.progress.replicas or self.states) or not self.is_map or is_stateful(self.spec.dataset)

    @property
    def seen(self) -> int:
        """How many samples of this epoch were delivered, the bad ones too."""
        if self.is_map:
            return int(self.progress.samples)
        return self._seen_of_stream(self.progress.replicas, int(self.progress.batches))

    def _seen_of_stream(self, states: Mapping[int, Any], batches: int) -> int:
        """Returns how many samples so many batches had; of packs, the documents that `states` of replicas tell of."""
        documents = sum(state.get("documents", 0) for state in states.values() if isinstance(state, dict))
        return documents or batches * int(self.terms.fingerprint["batch_size"] or 1)

    def is_at_end(self) -> bool:
        """Tells whether the sampler has nothing left; False for streams, of which only they themselves know."""
        return self._indices.is_at_end()

    def finish(self) -> None:
        """The epoch has come to its end: the loop was told so."""
        if not self.is_map:
            self.progress.end(self.ends)
        self.record.finished = True


def _take_noting(take: Callable[[], tuple[int, Any]], positions: dict[int, int]) -> tuple[int, Any]:
    """Takes an index, and notes the position of its first sample."""
    number, index = take()
    positions[number] = int(index.positions[0]) if len(index.positions) else 0
    return number, index
