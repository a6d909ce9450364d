"""What a loader keeps from one epoch to the next."""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from typing import Any

from torch.utils.data import DataLoader as TorchDataLoader

from headrace.core.randomness.unseeded import Seeding
from headrace.epoch.record import Terms
from headrace.epoch.slow_samples import SlowSamples
from headrace.epoch.snapshot import Snapshot
from headrace.epoch.spec import LoaderSpec, Shared
from headrace.faults.counts import FaultCounter
from headrace.loader.options import Options
from headrace.loader.origin import LoaderOrigin, state_before_any_epoch
from headrace.loader.position import Position
from headrace.loader.reporting import Telling
from headrace.loader.resources import Resources
from headrace.loader.terms import spec_of, terms_of, warn_of_whole_ranks
from headrace.telemetry.recorder import Recorder
from headrace.workers.auto.tuner import Tuner
from headrace.workers.protocol import Backend


@dataclass
class LoaderSession:
    """What a loader keeps besides torch's attributes; under one name, so that subclasses have theirs."""

    options: Options = field(default_factory=Options)
    """What the loader was asked for. Never changed by what is found out."""
    name: str = ""
    """What tells this loader from the others of the script, on all ranks."""
    label: str = ""
    """Where the script makes the loader."""
    is_rebuild: bool = False
    """Whether a framework built the loader anew from one of the script's."""

    position: Position = field(default_factory=Position)

    alone: bool = False
    """Whether the order is the loader's own and not dealt out over ranks."""
    looked_at: bool = False
    """Whether the dataset was searched for what grows in workers."""
    backend: Backend | None = None
    """Where `backend="auto"` has chosen to make batches; None: it has not chosen yet."""
    seeding: Seeding = field(default_factory=Seeding)
    slow_samples: SlowSamples = field(default_factory=SlowSamples)
    """What is known of the time that samples take."""
    tuner: Tuner | None = None
    """What decides on the number of workers or of batches ahead."""

    resources: Resources = field(default_factory=Resources)
    _recorder: Recorder | None = None
    _fault_counter: FaultCounter | None = None

    def without_resources(self) -> LoaderSession:
        """Returns what another process can have of it, too."""
        return replace(
            self,
            position=replace(self.position, record=None, supply=None),
            seeding=Seeding(),
            slow_samples=SlowSamples(),
            tuner=None if self.tuner is None else self.tuner.anew(),
            resources=Resources(),
            _recorder=None,
            _fault_counter=None,
        )

    @property
    def recorder(self) -> Recorder:
        """Where batches leave their times."""
        if self._recorder is None:
            self._recorder = Recorder(self.label, is_rebuild=self.is_rebuild)
            self._recorder.counts = self.fault_counter.counts
            if self.options.on_stats is not None:
                self._recorder.listeners.append(Telling(self.options.on_stats))
        return self._recorder

    @property
    def fault_counter(self) -> FaultCounter:
        """Where losses are counted and written down."""
        if self._fault_counter is None:
            self._fault_counter = FaultCounter(self.options.on_error, self.options.log)
        return self._fault_counter

    def shared(self, spec: LoaderSpec, terms: Terms) -> Shared:
        """Returns what the epoch that begins now shares with those before and after it."""
        ahead = None
        address = None
        remote = self.resources.remote
        if remote is not None:
            address = remote.address
            ahead = remote.begin(spec, terms.epoch)

        policy = self.options.policy(spec, terms.world.rank)
        return Shared(policy, self.fault_counter, self.seeding, ahead, address, self.slow_samples)

    def spec(self, loader: TorchDataLoader[Any]) -> LoaderSpec:
        """Returns the arguments of the loader as they are now."""
        prefetch_factor = loader.prefetch_factor
        if self.tuner is not None:
            prefetch_factor = self.tuner.now.prefetch
        return spec_of(loader, self.options, prefetch_factor)

    def state(self, loader: TorchDataLoader[Any], *, workers: bool) -> Snapshot:
        """Returns the state behind the batch that was delivered last. workers: whether copies of the dataset are."""
        position = self.position
        if position.loaded is not None:
            return position.loaded.state
        if position.resume is not None:
            return position.resume

        origin = self.origin(self.spec(loader))
        if position.record is None:
            terms = self.terms(loader, None)
            return state_before_any_epoch(loader, terms, origin, workers=workers, shards=bool(self.options.shard))

        delivered = 0
        if position.supply is not None and position.supply.delivered != self.options.batches_per_epoch:
            delivered = position.supply.delivered
        return position.record.snapshot(origin, portion=delivered, following=position.given)

    def origin(self, spec: LoaderSpec) -> LoaderOrigin:
        """Returns what a record asks when a state is taken."""
        return LoaderOrigin(spec, has_workers=spec.num_workers > 0 or self.tuner is not None)

    def next_terms(self, loader: TorchDataLoader[Any]) -> Terms:
        """Returns the terms of the epoch that begins now, and counts it."""
        terms = self.terms(loader, self.position.resume)
        if self.alone and terms.world.size > 1:
            warn_of_whole_ranks(terms.world)
            self.alone = False

        self.position.begin_epoch()
        return terms

    def terms(self, loader: TorchDataLoader[Any], resume: Snapshot | None) -> Terms:
        """Returns the terms of the next epoch, which goes on from `resume`."""
        return terms_of(loader, self.name, self.options, self.position, resume)
