"""What a loader keeps from one epoch to the next."""

from __future__ import annotations

import warnings
from dataclasses import dataclass, field
from typing import Any, NamedTuple

from torch.utils.data import DataLoader as TorchDataLoader

from headrace.core.lengths import known_length
from headrace.core.missing_state import MissingState, state_of
from headrace.core.protocols import is_stateful, says_yes
from headrace.core.randomness.unseeded import Seeding
from headrace.core.torch_internals import DatasetKind
from headrace.core.world import Shard, World, current_world, distributed_world
from headrace.epoch.draws import (
    changing,
    draws_nothing,
    names_of_samplers,
    pattern_of_draws,
    random_state,
    resumable,
    state_of_changed,
)
from headrace.epoch.fixed_length import EndlessBatches
from headrace.epoch.generators import OrderStates
from headrace.epoch.progress import MapProgress
from headrace.epoch.record import EpochRecord, Terms, blank
from headrace.epoch.slow_samples import SlowSamples
from headrace.epoch.snapshot import Snapshot, checked, next_epoch, part_for, parts_of, with_sampler
from headrace.epoch.spec import LoaderSpec, Shared
from headrace.faults.counts import FaultCounter
from headrace.faults.policy import Policy
from headrace.faults.replacements import Replacements, replacements_of
from headrace.loader.options import Options
from headrace.loader.read_ahead import RemoteReading
from headrace.loader.reporting import Telling
from headrace.samplers.sampler import ElasticSampler
from headrace.shared_memory.arena import Arena
from headrace.shared_memory.leases import LocalMemory
from headrace.telemetry.recorder import Recorder
from headrace.workers.auto.tuner import Tuner
from headrace.workers.processes.start import ForkServers
from headrace.workers.protocol import Backend
from headrace.workers.remote.placement import Placement


class Loaded(NamedTuple):
    """A state that was loaded, and is not taken up yet."""

    state: Snapshot
    reached: Any
    """A checkpoint of the sampler: where the state's last batch was."""
    changes: int
    """How often the order had been changed."""


class BeforeEpoch(NamedTuple):
    """What beginning an epoch changes; see `LoaderSession`."""

    epoch: int
    announced: bool
    resume: Snapshot | None
    draws: str | None
    record: EpochRecord | None
    loaded: Loaded | None


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

    remote: RemoteReading | None = None
    """How data are read that lie elsewhere; None: they lie on this machine, or nobody has looked yet."""

    memory: LocalMemory | None = None
    arena: Arena | None = None
    fork_servers: ForkServers = field(default_factory=ForkServers)
    placement: Placement | None = None
    """What finds places for workers on other machines; None: no epoch has asked for any."""
    _recorder: Recorder | None = None
    _fault_counter: FaultCounter | None = None

    def before_epoch(self) -> BeforeEpoch:
        """Returns what `go_back` needs if the epoch that is about to begin does not begin after all."""
        return BeforeEpoch(self.epoch, self.announced, self.resume, self.draws, self.record, self.loaded)

    def go_back(self, before: BeforeEpoch) -> None:
        """Makes it as if the epoch had not begun."""
        self.epoch = before.epoch
        self.announced = before.announced
        self.resume = before.resume
        self.draws = before.draws
        self.record = before.record
        self.loaded = before.loaded

    def without_resources(self) -> LoaderSession:
        """Returns what another process can have of it, too."""
        tuner = None
        if self.tuner is not None:
            tuner = self.tuner.anew()

        return LoaderSession(
            options=self.options,
            name=self.name,
            label=self.label,
            is_rebuild=self.is_rebuild,
            epoch=self.epoch,
            announced=self.announced,
            resume=self.resume,
            loaded=self.loaded,
            draws=self.draws,
            alone=self.alone,
            looked_at=self.looked_at,
            backend=self.backend,
            tuner=tuner,
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
        if self.remote is not None:
            address = self.remote.address
            ahead = self.remote.begin(spec, terms.epoch)

        policy = self.sample_policy(spec, terms.world)
        return Shared(policy, self.fault_counter, self.seeding, ahead, address, self.slow_samples)

    def sample_policy(self, spec: LoaderSpec, world: World) -> Policy | None:
        """Returns what becomes of bad samples; None: they raise."""
        options = self.options
        if options.on_error.is_plain:
            return None

        replacements = Replacements()
        if spec.is_map:
            replacements = replacements_of(spec.index_sampler, spec.dataset, options.exclude)
        return Policy(options.on_error.action, options.seed, world.rank, replacements)

    def spec(self, loader: TorchDataLoader[Any]) -> LoaderSpec:
        """Returns the arguments of the loader as they are now."""
        sampler = None
        if loader.batch_sampler is not None and loader.sampler is not loader.batch_sampler:
            sampler = loader.sampler

        prefetch_factor = loader.prefetch_factor
        if self.tuner is not None:
            prefetch_factor = self.tuner.now.prefetch

        return LoaderSpec(
            dataset=loader.dataset,
            is_map=loader._dataset_kind == DatasetKind.Map,
            batched=loader._auto_collation,
            batch_size=loader.batch_size,
            drop_last=loader.drop_last,
            index_sampler=loader._index_sampler,
            sampler=sampler,
            collate_fn=loader.collate_fn,
            generator=loader.generator,
            worker_init_fn=loader.worker_init_fn,
            multiprocessing_context=loader.multiprocessing_context,
            num_workers=loader.num_workers,
            prefetch_factor=prefetch_factor,
            in_order=loader.in_order,
            persistent_workers=loader.persistent_workers,
            timeout=loader.timeout,
            seed=self.options.seed,
            sample_timeout=self.options.on_error.timeout,
            original_errors=self.options.on_error.original,
            defers=self.options.stragglers == "defer",
        )

    def part_of(self, state: Snapshot, spec: LoaderSpec, terms: Terms) -> Snapshot:
        """Returns this rank's part of a state. Raises `StateError` if it does not fit.

        Warns of another rank's state, as frameworks give it to all, where the order of a stream may depend on the rank.
        """
        checked(state, terms.fingerprint)
        in_step = not spec.is_map or draws_nothing(spec.index_sampler)
        part = part_for(state, terms.world, in_step=in_step)
        is_mine = any(one["rank"] == terms.world.rank for one in parts_of(state))
        if not (is_mine or spec.is_map or part["elastic"] or self.options.seed is not None):
            warnings.warn(
                f"This state is another rank's: rank {terms.world.rank} leaves out as many batches of its stream. If "
                "random numbers decide on the order of the stream, samples get lost or come twice: give the loader a "
                "seed=, or load a state of each rank.",
                stacklevel=3,
            )
        return part

    def state(self, loader: TorchDataLoader[Any], *, workers: bool) -> Snapshot:
        """Returns the state behind the batch that was delivered last. workers: whether copies of the dataset are."""
        if self.loaded is not None:
            return self.loaded.state
        if self.resume is not None:
            return self.resume

        sampler = loader._index_sampler
        origin = self.origin(self.spec(loader))
        if self.record is None:
            elastic = says_yes(resumable(sampler), "elastic", otherwise=bool(self.options.shard))
            draws = pattern_of_draws(loader.dataset, workers=workers, persistent=loader.persistent_workers)
            changed = state_of_changed(sampler)
            return blank(self.terms(loader, None), origin, draws, elastic=elastic, sampler=changed)

        delivered = 0
        if self.supply is not None and self.supply.delivered != self.options.batches_per_epoch:
            delivered = self.supply.delivered
        return self.record.snapshot(origin, portion=delivered)

    def origin(self, spec: LoaderSpec) -> LoaderOrigin:
        """Returns what a record asks when a state is taken."""
        return LoaderOrigin(spec, has_workers=spec.num_workers > 0 or self.tuner is not None)

    def next_terms(self, loader: TorchDataLoader[Any]) -> Terms:
        """Returns the terms of the epoch that begins now, and counts it."""
        self.loaded = None
        terms = self.terms(loader, self.resume)
        if self.alone and terms.world.size > 1:
            warnings.warn(
                f"seed= without shard='auto': each of the {terms.world.size} ranks loads all samples in one order. "
                "Add shard='auto', or give a sampler of headrace.samplers.",
                stacklevel=2,
            )
            self.alone = False

        self.resume = None
        self.epoch += 1
        self.announced = False
        return terms

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

    def terms(self, loader: TorchDataLoader[Any], resume: Snapshot | None) -> Terms:
        """Returns the terms of the next epoch, which goes on from `resume`."""
        is_stream = loader._dataset_kind == DatasetKind.Iterable
        seed = self.options.seed
        return Terms(
            loader=self.name,
            epoch=self.epoch,
            announce=self.announced or seed is not None,
            seed=seed,
            world=self.world(is_stream=is_stream),
            deal=is_stream and bool(self.options.shard),
            in_order=loader.in_order,
            fingerprint=self._fingerprint(loader),
            resume=resume,
            draws=self.draws,
        )

    def world(self, *, is_stream: bool) -> World:
        """Returns which of how many parts of the data this process gets."""
        options = self.options
        if isinstance(options.shard, Shard):
            return World(options.shard.rank, options.shard.world)
        if options.seed is not None or is_stream:
            return current_world()
        return distributed_world()

    def _fingerprint(self, loader: TorchDataLoader[Any]) -> dict[str, Any]:
        """Returns what a saved state must agree with."""
        dataset = type(loader.dataset)
        length = None
        samplers: list[str] = []
        if loader._dataset_kind == DatasetKind.Map:
            length = known_length(loader.dataset)
            samplers = names_of_samplers(loader._index_sampler)

        return {
            "dataset": f"{dataset.__module__}.{dataset.__qualname__}",
            "length": length,
            "seed": self.options.seed,
            "batch_size": loader.batch_size,
            "samplers": samplers,
        }


def behind_epoch(state: Snapshot, sampler: object) -> Snapshot:
    """Returns the state at the beginning of the epoch after a finished one. The sampler gets there, too."""
    if state["sampler"] is not None and isinstance(sampler, ElasticSampler):
        sampler.load_state_dict(state["sampler"])  # what lasts longer than an epoch, such as changed weights
        sampler.set_epoch(sampler.epoch)
    return next_epoch(state)


class LoaderOrigin:
    """What a record asks of its loader when a state is taken; see `epoch.record.RecordedLoader`."""

    def __init__(self, spec: LoaderSpec, *, has_workers: bool) -> None:
        """has_workers: whether workers have copies of the dataset."""
        self._spec = spec
        self._has_workers = has_workers

    def random_state(self) -> OrderStates | None:
        return random_state(self._spec)

    def dataset_state(self) -> Any:
        """See `RecordedLoader.dataset_state`.

        Copies in new workers are as the loader's own dataset is: a resumed run makes them in the same way. That one
        cannot be asked for its state, since it may have none before it is iterated.
        """
        dataset = self._spec.dataset
        if self._has_workers or not is_stateful(dataset):
            return None

        state = state_of(dataset)
        if type(state) is MissingState:  # before it is iterated it may have no state yet
            return None
        return state
