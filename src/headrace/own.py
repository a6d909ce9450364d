"""What a loader keeps besides torch's attributes."""

from __future__ import annotations

from dataclasses import dataclass, field

from headrace.engine.portion import Supply
from headrace.engine.starting import ZygoteKeeper
from headrace.engine.tuning import Tuner
from headrace.faults.ledger import Ledger
from headrace.observe.recorder import Recorder
from headrace.state.record import EpochRecord
from headrace.state.snapshot import Snapshot
from headrace.transport.arena import Arena
from headrace.transport.leases import LocalMemory


@dataclass
class Seeding:
    """What is known of the random numbers that a data set draws. Shared by a loader and its iterators."""

    tries_without: bool = True
    """Whether batches are made without seeds first: nobody has seen the data set draw."""


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
    """Whether the data set was searched for what grows in workers."""
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

    def without_resources(self) -> Own:
        """Returns what another process can have of it, too."""
        tuner = None if self.tuner is None else self.tuner.anew()
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
