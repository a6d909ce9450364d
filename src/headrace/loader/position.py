"""Where a loader is in its epochs, and what a state that is loaded makes of that."""

from __future__ import annotations

import warnings
from dataclasses import dataclass
from typing import Any, NamedTuple

from torch.utils.data import DataLoader as TorchDataLoader

from headrace.core.torch_internals import DatasetKind
from headrace.epoch.draws import changing, draws_nothing, generators, resumable
from headrace.epoch.fixed_length import EndlessBatches
from headrace.epoch.lengths import batches_of
from headrace.epoch.progress import MapProgress
from headrace.epoch.record import EpochRecord, Terms
from headrace.epoch.snapshot import Snapshot, check_reach, checked, next_epoch, part_for, parts_of, with_sampler
from headrace.epoch.spec import LoaderSpec
from headrace.samplers.sampler import ElasticSampler


class Loaded(NamedTuple):
    """A state that was loaded, and is not taken up yet."""

    state: Snapshot
    reached: Any
    """A checkpoint of the sampler: where the state's last batch was."""
    changes: int
    """How often the order had been changed."""


@dataclass
class Position:
    """Where a loader is. A copy is what an epoch goes back to that does not begin after all."""

    epoch: int = 0
    """Number of the next epoch."""
    announced: bool = False
    """Whether `set_epoch` was called since the last epoch began."""
    resume: Snapshot | None = None
    """The state from which the next epoch goes on."""
    loaded: Loaded | None = None
    """That state as it was loaded, where the order may be changed before the epoch begins."""
    draws: str | None = None
    """What the run whose state was loaded draws at the beginning of each epoch; None: what torch draws."""
    record: EpochRecord | None = None
    """Of the epoch that was begun last."""
    supply: EndlessBatches | None = None
    """Passes over the data, for epochs of `batches_per_epoch`."""

    def begin_epoch(self) -> None:
        """Counts the epoch that begins now."""
        self.loaded = None
        self.resume = None
        self.epoch += 1
        self.announced = False

    def go_to(self, state: Snapshot | None, sampler: object) -> None:
        """Goes on behind `state` with the next epoch; None: with an epoch from its beginning. sampler: of indices."""
        self.record = None
        self.resume = None
        self.supply = None
        self.draws = None
        self.loaded = None
        if state is None:
            return

        if (changed := changing(sampler)) is not None and state["sampler"] is not None:
            changed.load_state_dict(state["sampler"])
            self.loaded = Loaded(state, changed.checkpoint(), changed.changes)
        if state["finished"]:
            state = behind_epoch(state, resumable(sampler))

        self.epoch = state["epoch"]
        self.resume = state
        self.draws = state["later_draws"] or None

    def adopt_changes(self, loader: TorchDataLoader[Any]) -> Snapshot | None:
        """Has changes of the order begin behind the last batch, so that they do not depend on what was drawn ahead.

        Returns the state to load in the place of the one that was loaded, where they begin behind that.
        """
        if loader._dataset_kind == DatasetKind.Iterable or (sampler := changing(loader._index_sampler)) is None:
            return None
        if self.loaded is not None:
            if sampler.changes != self.loaded.changes:
                return with_sampler(self.loaded.state, sampler.state_at(self.loaded.reached))
        elif self.record is not None and isinstance(self.record.progress, MapProgress):
            sampler.begin_change(self.record.progress.sampler)
        return None


def part_of(state: Snapshot, spec: LoaderSpec, terms: Terms) -> Snapshot:
    """Returns this rank's part of a state. Raises `StateError` if it does not fit.

    Warns of another rank's state, as frameworks give it to all, where the order of a stream may depend on the rank.
    """
    checked(state, terms.fingerprint)
    in_step = not spec.is_map or draws_nothing(spec.index_sampler)
    part = part_for(state, terms.world, in_step=in_step)
    is_mine = any(one["rank"] == terms.world.rank for one in parts_of(state))
    if not (is_mine or spec.is_map or part["elastic"] or terms.seed is not None):
        warnings.warn(
            f"This state is another rank's: rank {terms.world.rank} leaves out as many batches of its stream. If "
            "random numbers decide on the order of the stream, samples get lost or come twice: give the loader a "
            "seed=, or load a state of each rank.",
            stacklevel=3,
        )

    batches = None
    if spec.is_map:
        batches = batches_of(spec)
    check_reach(part, batches, resumable(spec.index_sampler), len(generators(spec)))
    return part


def behind_epoch(state: Snapshot, sampler: object) -> Snapshot:
    """Returns the state at the beginning of the epoch after a finished one. The sampler gets there, too."""
    if state["sampler"] is not None and isinstance(sampler, ElasticSampler):
        sampler.load_state_dict(state["sampler"])  # what lasts longer than an epoch, such as changed weights
        sampler.set_epoch(sampler.epoch)
    return next_epoch(state)
