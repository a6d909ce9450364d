"""Where a loader is in its epochs, and what a state that is loaded makes of that."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, NamedTuple

from torch.utils.data import DataLoader as TorchDataLoader

from headrace.core.errors import warn
from headrace.core.torch_internals import DatasetKind
from headrace.epoch.draws import changing, draws_nothing, generators, resumable
from headrace.epoch.fixed_length import EndlessBatches
from headrace.epoch.lengths import batches_of
from headrace.epoch.progress import MapProgress
from headrace.epoch.record import EpochRecord, Terms
from headrace.epoch.snapshot import (
    Snapshot,
    check_reach,
    checked,
    in_the_middle,
    next_epoch,
    part_for,
    parts_of,
    with_sampler,
)
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
    known: int | None = None
    """The number that datasets and samplers were told last: in a pass of this portion, or before a state was loaded."""
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

    @property
    def given(self) -> int | None:
        """The number that `set_epoch` gave since the last epoch began; None: it was not called."""
        if self.announced:
            return self.epoch
        return None

    @property
    def _resumed(self) -> Snapshot | None:
        """The state from which an epoch or a portion goes on whose number is given; None: an epoch begins."""
        resume = self.resume
        if resume is None or in_the_middle(resume):
            return resume
        if self.supply is not None and resume["portion"] and resume["next"] is None:
            return resume
        return None

    @property
    def is_set_ahead(self) -> bool:
        """Whether `set_epoch` gave the number of a later epoch than the one from which the loaded state goes on."""
        resumed = self._resumed
        if resumed is None or not self.announced:
            return False
        if self.supply is not None:
            # Within a portion, a number that it was given before its pass began is given again.
            return resumed["portion"] == 0 or resumed["next"] is not None
        return bool(self.epoch != resumed["epoch"])

    @property
    def following(self) -> int | None:
        """The number that `set_epoch` gave for the epoch behind that of the loaded state; None: none."""
        if self.is_set_ahead:
            return self.epoch
        resumed = self._resumed
        if resumed is None or self.supply is not None or self.known == resumed["epoch"]:
            return None
        return self.known

    @property
    def beginning(self) -> int:
        """Number of the epoch that begins now: that of the state, where one goes on that had begun."""
        resumed = self._resumed
        if resumed is None:
            return self.epoch
        return int(resumed["epoch"])

    @property
    def told(self) -> int | None:
        """The number that datasets and samplers know in it, where nobody but `set_epoch` tells them; None: none."""
        resumed = self._resumed
        if resumed is not None and resumed["told"] is not None:
            return int(resumed["told"])
        if self.announced or (resumed is not None and self.known is not None):
            return self.beginning
        return self.known

    @property
    def announces(self) -> bool:
        """Whether they are told it when it begins."""
        return self.announced or (self.resume is not None and self.told is not None)

    def surprise(self) -> str | None:
        """Returns what a script may not expect of the number that it gave `set_epoch` behind a state; None: nothing."""
        resume = self.resume
        if resume is None or not self.announced or self.supply is not None:
            return None

        begun = resume["epoch"]
        if self.is_set_ahead:
            return (
                f"set_epoch({self.epoch}) was called, but the loaded state is in the middle of epoch {begun}: the rest "
                f"of epoch {begun} comes first. For it, call set_epoch({begun}); to begin epoch {self.epoch} now, do "
                f"not load the state."
            )
        if self.epoch < begun and not in_the_middle(resume):
            return (
                f"set_epoch({self.epoch}) was called, but the loaded state is past the end of epoch {begun - 1}: "
                f"epoch {self.epoch} comes once more, all of it. To go on, call set_epoch({begun})."
            )
        return None

    def begin_epoch(self) -> None:
        """Counts the epoch that begins now. What `set_epoch` gave in the middle of it is for the next one."""
        # A pass that begins within a portion goes on with the number of the one before.
        self.known = self.told if self.supply is not None else None
        self.loaded = None
        if not self.is_set_ahead:
            self.epoch = self.beginning + 1
            self.announced = False
        self.resume = None

    def go_to(self, state: Snapshot | None, sampler: object) -> None:
        """Goes on behind `state` with the next epoch; None: with an epoch from its beginning. sampler: of indices."""
        # A number that was given before is known to datasets and samplers; that of the state counts.
        self.known = self.given
        self.announced = False
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
        if state["next"] is not None:
            self.epoch = state["next"]
            self.announced = True
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
                return with_sampler(self.loaded.state, sampler.state_at(self.loaded.reached), self.given)
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
        warn(
            f"This state is another rank's: rank {terms.world.rank} leaves out as many batches of its stream. If "
            "random numbers decide on the order of the stream, samples get lost or come twice: give the loader a "
            "seed=, or load a state of each rank."
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
