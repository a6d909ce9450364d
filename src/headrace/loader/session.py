"""What a loader keeps besides torch's attributes."""

from __future__ import annotations

import functools
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Literal, NamedTuple

from headrace.batches.fetch_map import is_stateful
from headrace.core.torch_internals import DatasetKind
from headrace.core.world import World
from headrace.epoch.draws import random_state
from headrace.epoch.fixed_length import Supply
from headrace.epoch.generators import OrderStates
from headrace.epoch.record import EpochRecord
from headrace.epoch.snapshot import Snapshot
from headrace.faults.counts import Faults, Ledger
from headrace.faults.policy import OnError, Policy
from headrace.faults.replacements import Spares, spares_of
from headrace.loader.options import Backend
from headrace.loader.rank_check import name_here
from headrace.loader.reporting import OnStats, Telling
from headrace.shared_memory.arena import Arena
from headrace.shared_memory.leases import LocalMemory
from headrace.telemetry.labels import label_for
from headrace.telemetry.recorder import Recorder
from headrace.workers.auto.tuner import Tuner
from headrace.workers.processes.start import ZygoteKeeper


@dataclass
class Seeding:
    """What is known of the random numbers that a dataset draws. Shared by a loader and its iterators."""

    tries_without: bool = True
    """Whether batches are made without seeds first: nobody has seen the dataset draw."""


class BeforeEpoch(NamedTuple):
    """What beginning an epoch changes; see `Own`."""

    epoch: int
    announced: bool
    resume: Snapshot | None
    draws: str | None
    record: EpochRecord | None


@dataclass
class Own:
    """What a loader keeps besides torch's attributes; under one name, so that subclasses have theirs."""

    name: str = ""
    """What tells this loader from the others of the script, on all ranks."""
    epoch: int = 0
    """Number of the next epoch."""
    alone: bool = False
    """Whether the order is the loader's own and not dealt out over ranks."""
    announced: bool = False
    """Whether `set_epoch` was called since the last epoch began."""
    looked_at: bool = False
    """Whether the dataset was searched for what grows in workers."""
    resume: Snapshot | None = None
    """The state from which the next epoch goes on."""
    draws: str | None = None
    """What the run whose state was loaded draws at the beginning of each epoch; None: what torch draws."""
    record: EpochRecord | None = None
    """Of the epoch that was begun last."""
    supply: Supply | None = None
    memory: LocalMemory | None = None
    arena: Arena | None = None
    zygotes: ZygoteKeeper = field(default_factory=ZygoteKeeper)
    ledger: Ledger | None = None
    label: str = ""
    """Where the script makes the loader."""
    is_rebuild: bool = False
    """Whether a framework built the loader anew from one of the script's."""
    recorder: Recorder | None = None
    seeding: Seeding = field(default_factory=Seeding)
    tuner: Tuner | None = None
    """What decides on the number of workers or of batches ahead."""

    def before_epoch(self) -> BeforeEpoch:
        """Returns what `go_back` needs if the epoch that is about to begin does not begin after all."""
        return BeforeEpoch(self.epoch, self.announced, self.resume, self.draws, self.record)

    def go_back(self, before: BeforeEpoch) -> None:
        """Makes it as if the epoch had not begun."""
        self.epoch, self.announced, self.resume, self.draws, self.record = before

    def without_resources(self) -> Own:
        """Returns what another process can have of it, too."""
        if self.tuner is None:
            tuner = None
        else:
            tuner = self.tuner.anew()

        return Own(
            self.name,
            self.epoch,
            self.alone,
            self.announced,
            self.looked_at,
            self.resume,
            draws=self.draws,
            label=self.label,
            is_rebuild=self.is_rebuild,
            tuner=tuner,
        )


class ForEngines:
    """What engines ask a loader for, besides torch's attributes."""

    dataset: Any
    num_workers: int
    _dataset_kind: int
    _index_sampler: Any

    # What holds for a loader of a subclass that never calls the constructor below: torch's loader, nothing more.
    seed: int | None = None
    shard: Literal["auto"] | None = None
    backend: Backend = "process"
    batches_per_epoch: int | None = None
    original_errors: bool = False
    on_error: OnError = "raise"
    max_errors: float | None = None
    quarantine: Path | None = None
    exclude: Any = None
    sample_timeout: float | None = None
    memory_budget: int | None = None
    on_stats: OnStats | None = None
    snapshot_every_n_steps: int | None = 1

    @functools.cached_property
    def _own(self) -> Own:
        """What the loader keeps besides torch's attributes, of a subclass that never called the constructor."""
        return self._begin_own(vars(self).get("dataset"))

    def _keep(self, **options: Any) -> None:
        """Keeps options as attributes of their names, where frameworks look for them that build a loader anew."""
        vars(self).update(options)

    def _begin_own(self, dataset: Any) -> Own:
        label = label_for(self, dataset)
        return Own(name=name_here(), label=label.text, is_rebuild=label.is_rebuild)

    @property
    def faults(self) -> Faults:
        """What this loader survived so far: bad samples by what became of them, and workers that were replaced."""
        return self.loss_ledger.faults()

    @property
    def recorder(self) -> Recorder:
        """Where batches leave their times. For engines."""
        if self._own.recorder is None:
            self._own.recorder = Recorder(self._own.label, is_rebuild=self._own.is_rebuild)
            self._own.recorder.counts = self.loss_ledger.counts
            if self.on_stats is not None:
                self._own.recorder.listeners.append(Telling(self.on_stats))

        return self._own.recorder

    @property
    def seeding(self) -> Seeding:
        """What is known of the random numbers that the dataset draws. For engines."""
        return self._own.seeding

    @property
    def loss_ledger(self) -> Ledger:
        """Where losses are counted and written down. For engines."""
        if self._own.ledger is None:
            self._own.ledger = Ledger(self.max_errors, self.quarantine)
        return self._own.ledger

    def sample_policy(self, world: World) -> Policy | None:
        """Returns what becomes of bad samples; None: they raise. For engines."""
        if self.on_error == "raise" and self.quarantine is None:
            return None

        spares = Spares()
        if self._dataset_kind == DatasetKind.Map:
            spares = spares_of(self._index_sampler, self.dataset, self.exclude)
        return Policy(self.on_error, self.seed, world.rank, spares)

    def random_state(self) -> OrderStates | None:
        """Returns the states of the generators that the next order would be drawn from. For the record of an epoch."""
        return random_state(self)

    def dataset_state(self) -> Any:
        """Returns the state of the dataset that batches are made from here; None: it has none, or workers have copies.

        Copies in new workers are as the loader's own dataset is: a resumed run makes them in the same way. That one
        cannot be asked for its state, since it may have none before it is iterated. For the record of an epoch.
        """
        if self.num_workers > 0 or self._own.tuner is not None:
            return None
        if not is_stateful(self.dataset):
            return None

        try:
            return self.dataset.state_dict()
        except Exception:  # noqa: BLE001 - before it is iterated it may have no state yet, and say so in any way
            return None
