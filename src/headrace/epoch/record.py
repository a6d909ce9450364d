"""The record of one epoch: its terms and its progress. It outlives the iterator and becomes the loader's state."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, NamedTuple, Protocol

from headrace.core.missing_state import MissingState, no_state, why_missing
from headrace.core.world import World
from headrace.epoch.generators import OrderStates, encoded
from headrace.epoch.progress import Delivery, MapProgress, StreamProgress
from headrace.epoch.snapshot import FORMAT, VERSION, Snapshot, sealed


class RecordedLoader(Protocol):
    """The loader of a record: what it tells when a state is taken."""

    def random_state(self) -> OrderStates | None:
        """Returns the states of the generators that the next order would be drawn from; None: it is not drawn."""

    def dataset_state(self) -> Any:
        """Returns the state of the dataset that batches are made from here; None: it has none, or workers have it."""


class Terms(NamedTuple):
    """The terms of one epoch, as the loader sets them."""

    loader: str
    """What tells the loader from the others of the script, on all ranks."""
    epoch: int
    announce: bool
    """Whether datasets and samplers are told a number when the epoch begins."""
    told: int | None
    """The number that they were told; None: none. Without a seed it may be that of an earlier epoch."""
    seed: int | None
    world: World
    deal: bool
    """Whether an iterable dataset is dealt out over ranks and replicas."""
    in_order: bool
    fingerprint: Mapping[str, Any]
    """What a saved state must agree with."""
    resume: Snapshot | None
    """The state from which the epoch goes on."""
    draws: str | None = None
    """What the interrupted run draws at the beginning of each epoch, as in `EpochRecord.draws`; None: as torch does."""
    counts_epochs: bool = True
    """Whether random numbers follow the loader's number of the epoch; False: that of the sampler."""

    @property
    def global_batch(self) -> int:
        """Samples in a batch of all ranks of a dealt-out stream."""
        return int(self.fingerprint["batch_size"] or 1) * self.world.size


class Draws(NamedTuple):
    """What is drawn from generators when epochs begin.

    `i` for the sampler's `__iter__`, `s` for the base seed, `p` for the seed that the ranks' data pipes share.
    """

    now: str
    """For this epoch."""
    later: str
    """For each of those after it."""

    def without_base_seed(self, seed: int | None) -> Draws:
        """Returns what is drawn if the loader has this `seed`: then the base seed is not drawn."""
        if seed is None:
            return self
        return Draws(self.now.replace("s", ""), self.later.replace("s", ""))


@dataclass
class EpochRecord:
    """What was delivered of an epoch, and how its order came about."""

    terms: Terms
    progress: MapProgress | StreamProgress
    random: OrderStates | None
    """States of the generators from which the order was drawn; None where it is not drawn from them."""
    draws: Draws
    replicas: int
    first: int
    """Position of the first sample of a dealt-out stream that the epoch began with."""
    elastic: bool
    """Whether ranks of another world size can go on from here (a stream must also be dealt out in order)."""
    keeps_datasets: bool = False
    """Whether the next epoch goes on with the same copies of the dataset, so that what they count goes on."""
    samples_before: int = 0
    """Samples that were delivered before this run of the epoch began, of an iterable dataset."""
    sampler_state: Callable[[Any], Any] = lambda noted: noted
    """Makes a sampler's state of what `progress.sampler` notes."""
    others_go_on: Callable[[Any], bool] = lambda noted: False
    """Tells whether other ranks have one batch more, of what `progress.sampler` notes behind the last one."""
    is_last: Callable[[Any], bool] = lambda noted: False
    """Tells whether the batch is the last one of all ranks, of what `progress.sampler` notes behind it."""
    finished: bool = False
    """Whether the loop has seen the end of the epoch."""
    complete_at: int = -1
    """How many batches the epoch has, as soon as that is certain: behind the last one it is over."""
    handed_out: Delivery | None = field(default=None, repr=False)
    """The batch that the user got last, as long as it is not counted.

    An exception out of a signal handler can come between any two lines. So an iterator leaves the delivery here by its
    very last assignment before it returns the batch, and it is counted later, by `settle`.
    """

    @property
    def is_over(self) -> bool:
        """Whether the loop got the last batch, and all other ranks have theirs, as far as that is certain."""
        if self.finished or not isinstance(self.progress, MapProgress):
            return self.finished
        if self.progress.batches == self.complete_at:
            return not self.is_short
        return self.progress.batches > 0 and self.is_last(self.progress.sampler)

    @property
    def is_short(self) -> bool:
        """Whether other ranks have one batch more if this one has none left: with it, their epoch is over."""
        return isinstance(self.progress, MapProgress) and self.others_go_on(self.progress.sampler)

    def settle(self) -> None:
        """Counts the batch that the user got last. May be interrupted, and called again."""
        delivery = self.handed_out
        if delivery is None:
            return

        # Only when it is counted is it forgotten. A signal in between has it counted twice, which changes nothing; the
        # other way round, the batch would come again after a resume.
        if isinstance(self.progress, MapProgress):
            self.progress.deliver(delivery)
        else:
            self.progress.deliver(delivery, self.replicas)

        self.handed_out = None

    def snapshot(self, loader: RecordedLoader, *, portion: int = 0, following: int | None = None) -> Snapshot:
        """Returns the state after the batch that was delivered last.

        portion: batches of the portion delivered. following: number of the next epoch, if it was set in this one.
        Behind the last batch of an epoch it is the state at the beginning of the next one. Raises `StateError` if the
        state of a dataset or of the sampler could not be taken there.
        """
        self.settle()
        terms = self.terms
        progress = self.progress
        finished = self.is_over
        if not finished or self.keeps_datasets:
            self._check_that_none_is_missing()
        if finished:
            random = loader.random_state()
        else:
            random = self.random

        common = {
            "format": FORMAT,
            "version": VERSION,
            **terms.fingerprint,
            "epoch": terms.epoch,
            "finished": finished,
            "told": terms.told,
            "next": following,
            "rank": terms.world.rank,
            "world_size": terms.world.size,
            "batches": progress.batches,
            "random": encoded(random),
            "portion": portion,
            "draws": self.draws.now,
            "later_draws": self.draws.later,
            "datasets": self.datasets(loader) if finished or not progress.batches else None,
        }
        if isinstance(progress, MapProgress):
            return sealed({**common, **self._of_map(progress, loader)})
        return sealed({**common, **self._of_stream(progress, loader)})

    def _check_that_none_is_missing(self) -> None:
        if isinstance(self.progress.sampler, MissingState):
            raise no_state("sampler", self.progress.sampler.why)

        is_map = isinstance(self.progress, MapProgress)
        for replica, state in self.progress.replicas.items():
            why = why_missing(state, is_map=is_map)
            if why and self.replicas:
                why += f" (worker {replica})"
            if why:
                raise no_state("dataset", why)

    def _of_map(self, progress: MapProgress, loader: RecordedLoader) -> Snapshot:
        replicas = None
        if progress.batches or progress.beyond:
            states = self._with_those_not_begun(progress.replicas, loader.dataset_state)
            if states:
                replicas = {"count": self.replicas, "next": 0, "first": 0, "states": _pairs(states)}

        return {
            "elastic": self.elastic,
            "samples": progress.samples,
            "sampler": None if progress.sampler is None else self.sampler_state(progress.sampler),
            "beyond": sorted(progress.beyond),
            "deferred": progress.deferral.moved_from(progress.batches) if progress.deferral else [],
            "replicas": replicas,
            "stream": None,
        }

    def _of_stream(self, progress: StreamProgress, loader: RecordedLoader) -> Snapshot:
        terms = self.terms
        elastic = terms.in_order and self.elastic and all(state["dealt"] for state in progress.replicas.values())
        states = self._with_those_not_begun(progress.replicas, lambda: self._stream_state(loader))
        replicas = {
            "count": self.replicas,
            "next": progress.next_replica,
            "first": self.first,
            "states": _pairs(states),
        }
        if elastic:
            begun = self.first
        else:
            begun = self.samples_before

        return {
            "elastic": elastic,
            "samples": begun + (progress.batches - progress.begun) * terms.global_batch,
            "sampler": None,
            "beyond": [],
            "deferred": [],
            "replicas": None if elastic else replicas,
            "stream": progress.latest if elastic else None,
        }

    def _stream_state(self, loader: RecordedLoader) -> Any:
        """Returns the state of a replica that has not begun; None if the dataset has no state."""
        dataset_state = loader.dataset_state()
        if dataset_state is None:
            return None
        return at_beginning(dataset_state, dealt=self.terms.deal)

    def _with_those_not_begun(self, states: Mapping[int, Any], state_of_others: Callable[[], Any]) -> dict[int, Any]:
        """Returns the states of all replicas: one that has made no batch yet is as the loader's own dataset is."""
        complete = dict(states)
        not_begun = [replica for replica in range(max(self.replicas, 1)) if replica not in complete]
        if not_begun:
            state = state_of_others()
        else:
            state = None

        if state is not None:
            complete |= dict.fromkeys(not_begun, state)
        return complete

    def datasets(self, loader: RecordedLoader) -> list[list[Any]] | None:
        """Returns the states with which copies of the dataset begin the next epoch, as pairs of replica and state.

        None: the dataset has no state.
        """
        if not self.keeps_datasets or not self.progress.replicas:
            dataset_state = loader.dataset_state()
            if dataset_state is None:
                return None
            return [[0, dataset_state]]

        if isinstance(self.progress, MapProgress):
            states = self.progress.replicas
            return _pairs({one: states[one] for one in states if type(states[one]) is not MissingState}) or None

        kept = {replica: state["dataset"] for replica, state in self.progress.replicas.items() if state is not None}
        return _pairs({replica: state for replica, state in kept.items() if state is not None}) or None


def at_beginning(dataset_state: object, *, dealt: bool) -> dict[str, Any]:
    """Returns the state of a replica of an iterable dataset that begins an epoch with a dataset in this state."""
    return {"items": 0, "dataset": dataset_state, "iterator": None, "batches": 0, "ended": False, "dealt": dealt}


def dealt_out(states: Sequence[tuple[int, Any]], replicas: int) -> dict[int, Any]:
    """Returns a state for each of so many replicas from pairs of replica and state: its own, or in turn one of the
    others."""
    given = dict(states)
    known = [given[number] for number in sorted(given)]
    return {replica: given.get(replica, known[replica % len(known)]) for replica in range(replicas)}


def _pairs(states: Mapping[int, Any]) -> list[list[Any]]:
    """Returns a mapping as JSON knows it: pairs, in the order of the numbers."""
    return [[number, states[number]] for number in sorted(states)]


def blank(terms: Terms, loader: RecordedLoader, draws: Draws, *, elastic: bool, sampler: object = None) -> Snapshot:
    """Returns the state of a loader before its first epoch.

    draws: what its epochs will draw. sampler: the state of one whose order was changed; None: nothing was.
    """
    progress = MapProgress(sampler=sampler)
    record = EpochRecord(terms, progress, loader.random_state(), draws.without_base_seed(terms.seed), 0, 0, elastic)
    return record.snapshot(loader)
