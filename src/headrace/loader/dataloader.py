"""`headrace.DataLoader`: torch's loader with another engine, an order of its own on request, and a state."""

from __future__ import annotations

import operator
import os
import warnings
from collections.abc import Callable, Iterable
from typing import Any, Literal, TypeVar

from torch.utils.data import DataLoader as TorchDataLoader
from torch.utils.data import Dataset, Sampler

from headrace.batches.whole_batches import makes_batches
from headrace.core.lengths import known_length
from headrace.core.torch_internals import DatasetKind
from headrace.core.world import ALONE, current_world, distributed_world
from headrace.epoch.draws import generators, names_of_samplers, pattern_of_draws, resumable
from headrace.epoch.fixed_length import Portion, Supply
from headrace.epoch.lengths import batches_of
from headrace.epoch.record import Terms, blank
from headrace.epoch.snapshot import Snapshot, check_reach, checked, next_epoch, part_for
from headrace.faults.policy import OnError
from headrace.faults.quarantine import Excluded, checked_path
from headrace.loader.epoch_iterator import EpochIterator
from headrace.loader.options import Backend, automatic, check_arguments, check_samples, checked_exclude, is_map
from headrace.loader.reporting import Observed, OnStats
from headrace.loader.session import ForEngines
from headrace.samplers.distributed import DistributedSampler
from headrace.samplers.kept import KeptSampler
from headrace.samplers.sampler import ElasticSampler
from headrace.shared_memory.arena import Arena
from headrace.shared_memory.leases import LocalMemory
from headrace.shared_memory.per_process import PerProcess
from headrace.telemetry.object_growth import warn_of_objects
from headrace.workers.auto.backend import advise, choose
from headrace.workers.auto.scaling import AutomaticIterator, tuner_for
from headrace.workers.inline import InlineIterator
from headrace.workers.processes.executor import ProcessIterator
from headrace.workers.threads import ThreadIterator

ARENA = PerProcess(Arena)
LOCAL_MEMORY = PerProcess(LocalMemory)

T_co = TypeVar("T_co", covariant=True)


class DataLoader(ForEngines, Observed, TorchDataLoader[T_co]):
    """`torch.utils.data.DataLoader` whose batches travel through leased memory.

    Takes torch's arguments, with torch's checks, defaults, orders and worker seeds. What differs is the way of a batch:
    default collation writes it once, into memory that was used before, and with workers the training process sees that
    very memory. A batch belongs to its user all the same: writable, and unchanged for as long as it is kept.

    That memory belongs to the process: all loaders use it in turn, and it goes with the last loader that was iterated.
    It holds the batches that are kept plus about `prefetch_factor + 1` per worker (without workers: two).

    Beyond torch's arguments, all of them keywords:

    - `seed`: an integer makes the order of the samples and every random number drawn while a sample is loaded a
      function of (seed, epoch, position): the same for any number of workers, backend, restart and, with
      `shard="auto"`, world size. `random`, NumPy, torch and `headrace.rng()` are seeded for each sample (threads:
      `rng()` only). Epochs count up by themselves from 0; `set_epoch` sets the number.
    - `shard="auto"`: deals the data out over the ranks (`torch.distributed`, or the launcher's environment), iterable
      data over the workers too: every sample once. Ranks always get equally many batches: the last ones are dropped
      with `drop_last=True`, else filled up with samples that come twice. Implies `seed=0` if none is given.
    - `backend`: where the workers run: `"process"`, `"thread"`, `"inline"` (in the calling thread, without any), or
      `"auto"`: the first epoch begins with a trial of a few samples, and then the attribute says which of the three.
    - `num_workers="auto"`: workers are added and retired while training goes on, by what is measured; with map-style
      data, whose batches are the same whatever is decided (streams: one for each core if they are split, else one).
      Implies `seed=0` if none is given, and persistent workers.
      `prefetch_factor="auto"`: likewise, how many batches are made ahead for each. What was decided, and why, is in the
      log `headrace` and in `recording.events`; the attributes say what holds now.
    - `memory_budget`: bytes that workers and the batches ahead may take when "auto" decides; otherwise half of what is
      free when the loader is made.
    - `batches_per_epoch`: an epoch ends after so many batches, and the next one goes on behind them.
    - `on_error`: what becomes of a sample that raises, in loading or collation: `"raise"`; `"skip"`, which shortens its
      batch; `"replace"`, by another one, drawn at random from what the sampler draws from; or a function that gets a
      `BadSample` and returns one of the three. Input and output that may succeed later is tried again first. Errors of
      the machine (no memory, no descriptors, a full disk) and of the program are always raised. A batch never becomes
      empty: if all its samples are skipped, one other takes their place.
    - `max_errors`: how many bad samples an epoch may have, on this rank: a number, or a share (0.01) of its samples.
    - `quarantine`: a file to which a line of JSON is added for each bad sample; see `headrace.load_quarantine`.
    - `exclude`: samples to leave out: their numbers, what `load_quarantine` returns, or the path of such a file.
    - `sample_timeout`: seconds that a sample (where datasets make them all at once, a batch) may take. Then its worker
      is ended and replaced; at the second time the sample counts as bad.
    - `original_errors=True`: an exception in a worker is raised as it was, with its arguments and attributes, instead
      of as torch's copy with another text.

    - `snapshot_every_n_steps`: accepted because torchdata's `StatefulDataLoader` has it, and ignored: a state is always
      of the latest batch.
    - `on_stats`: called every ten seconds, and at the end of each epoch, with the `stats` of that moment. See
      `TensorBoardWriter` and `OpenMetricsWriter`.

    Where the time goes is always recorded: `stats` has the figures, `report()` says in words who waits for whom, what
    to change, and what that would gain.

    A worker process that dies is replaced, and its batches are made again; a sample that kills its workers again and
    again counts as bad. `faults` says what happened so far.

    `state_dict()` says what was delivered, `load_state_dict()` goes on behind it in this or another process, with any
    number of workers. Not thread-safe: iterate one loader in one thread.
    """

    def __init__(  # noqa: PLR0913 - torch fixes the list
        self,
        dataset: Dataset[T_co],
        batch_size: int | None = 1,
        shuffle: bool | None = None,
        sampler: Sampler[Any] | Iterable[Any] | None = None,
        batch_sampler: Sampler[list[Any]] | Iterable[list[Any]] | None = None,
        num_workers: int | Literal["auto"] = 0,
        collate_fn: Callable[[list[Any]], Any] | None = None,
        pin_memory: bool = False,
        drop_last: bool = False,
        timeout: float = 0,
        worker_init_fn: Callable[[int], None] | None = None,
        multiprocessing_context: Any = None,
        generator: Any = None,
        *,
        prefetch_factor: int | Literal["auto"] | None = None,
        persistent_workers: bool = False,
        pin_memory_device: str = "",
        in_order: bool = True,
        seed: int | None = None,
        shard: Literal["auto"] | None = None,
        backend: Backend = "process",
        batches_per_epoch: int | None = None,
        original_errors: bool = False,
        on_error: OnError = "raise",
        max_errors: float | None = None,
        quarantine: str | os.PathLike[str] | None = None,
        exclude: Excluded | None = None,
        sample_timeout: float | None = None,
        memory_budget: int | None = None,
        on_stats: OnStats | None = None,
        snapshot_every_n_steps: int | None = 1,
    ) -> None:
        check_arguments(
            dataset, seed=seed, shard=shard, backend=backend, batches_per_epoch=batches_per_epoch, on_error=on_error,
            max_errors=max_errors, sample_timeout=sample_timeout, on_stats=on_stats, memory_budget=memory_budget,
        )  # fmt: skip
        check_samples(dataset, sampler, batch_sampler)
        self._keep(
            _own=self._begin_own(dataset), quarantine=None if quarantine is None else checked_path(quarantine),
            on_error=on_error, max_errors=max_errors, sample_timeout=sample_timeout, on_stats=on_stats, shard=shard,
            memory_budget=memory_budget, snapshot_every_n_steps=snapshot_every_n_steps, backend=backend,
            batches_per_epoch=batches_per_epoch, original_errors=original_errors,
        )  # fmt: skip
        auto = automatic(dataset, num_workers, prefetch_factor, backend, shard)
        if seed is None and (shard is not None or auto.workers):
            self.seed = 0
        else:
            self.seed = seed

        if exclude is None:
            self.exclude = None
        else:
            self.exclude = checked_exclude(exclude, dataset, batch_sampler or sampler)

        if sampler is None and batch_sampler is None and is_map(dataset):
            sampler = self._own_sampler(dataset, shuffle, drop_last, generator)
            if sampler is not None:
                shuffle = None

        super().__init__(
            dataset, batch_size, shuffle, sampler, batch_sampler, auto.num_workers, collate_fn, pin_memory, drop_last,
            timeout, worker_init_fn, multiprocessing_context, generator,
            prefetch_factor=auto.prefetch_factor,
            persistent_workers=persistent_workers or auto.workers,
            pin_memory_device=pin_memory_device,
            in_order=in_order,
        )  # fmt: skip
        self._own.tuner = tuner_for(self, workers=auto.workers, prefetch=auto.prefetch)

    def _own_sampler(self, dataset: Any, shuffle: Any, drop_last: bool, generator: Any) -> Sampler[int] | None:
        """Returns the sampler of a loader that is given none; None if torch's will do."""
        if self.exclude is None:
            excluded: Any = ()
        else:
            excluded = self.exclude

        if self.seed is None:
            if not len(excluded):
                return None
            return KeptSampler(len(dataset), excluded, shuffle=bool(shuffle), generator=generator)

        self._own.alone = self.shard is None
        if self.shard:
            rank = None
            size = None
        else:
            rank, size = ALONE

        return DistributedSampler(
            dataset, shuffle=bool(shuffle), seed=self.seed, rank=rank, world_size=size,
            uneven="drop" if drop_last else "pad", exclude=excluded,
        )  # fmt: skip

    def set_epoch(self, epoch: int) -> None:
        """Sets the number of the next epoch, for samplers and datasets too, in workers that are kept as well.

        A dataset hears of it by its own `set_epoch`, if it has one. Without `seed=` that is all; with `seed=` the
        number also decides the order and the random numbers, and the epochs after it count on from there.
        """
        self._own.epoch = epoch
        self._own.announced = True
        for listener in (self.dataset, self.batch_sampler, self.sampler):
            if callable(listen := getattr(listener, "set_epoch", None)):
                listen(epoch)

    def state_dict(self) -> Snapshot:
        """Returns what was delivered so far, of which epoch: a small dictionary for `load_state_dict`.

        Batches that were only prefetched do not count. It can be saved with `torch.save` or sent to another process;
        `headrace.merge_states` joins those of several ranks. Costs microseconds, apart from `state_dict()` of a data
        set that has one.
        """
        if self._own.resume is not None:
            return self._own.resume

        if self._own.record is None:
            elastic = getattr(resumable(self._index_sampler), "elastic", bool(self.shard))
            draws = pattern_of_draws(self.dataset, workers=self._has_workers, persistent=self.persistent_workers)
            return blank(self._terms(None), self, draws, elastic=elastic)

        supply = self._own.supply
        delivered = 0
        if supply is not None and supply.delivered != self.batches_per_epoch:
            delivered = supply.delivered
        return self._own.record.snapshot(self, portion=delivered)

    def load_state_dict(self, state_dict: Snapshot) -> None:
        """Has the next iteration go on behind what was delivered when the state was saved.

        The number of workers, their kind, `prefetch_factor` and, where all ranks share one order, the world size may be
        different. Batches are the same, bit for bit, as they would have been; so are random numbers drawn in the data
        set with `seed=`. Raises `StateError` if the state belongs to other data, another seed or another rank.
        """
        terms = self._terms(None)
        sampler = resumable(self._index_sampler)
        state: Snapshot | None = None
        if state_dict != {}:
            checked(state_dict, terms.fingerprint)
            state = part_for(state_dict, terms.world)
            is_map = self._dataset_kind == DatasetKind.Map
            check_reach(state, batches_of(self) if is_map else None, sampler, len(generators(self)))

        self._iterator = None
        self._own.record = self._own.resume = self._own.supply = self._own.draws = None
        if state is None:
            return

        if state["finished"]:
            if state["sampler"] is not None and isinstance(sampler, ElasticSampler):
                sampler.load_state_dict(state["sampler"])  # what lasts longer than an epoch, such as changed weights
                sampler.set_epoch(sampler.epoch)
            state = next_epoch(state)

        self._own.epoch = state["epoch"]
        self._own.resume = state
        self._own.draws = state["later_draws"] or None
        portion = state["portion"]
        if self.batches_per_epoch is not None and 0 < portion < self.batches_per_epoch:
            self._own.supply = Supply(self._iterate, portion)

    def next_terms(self) -> Terms:
        """Returns the terms of the epoch that begins now. For engines; counts the epoch."""
        terms = self._terms(self._own.resume)
        if self._own.alone and terms.world.size > 1:
            warnings.warn(
                f"seed= without shard='auto': each of the {terms.world.size} ranks loads all samples in one order. "
                "Add shard='auto', or give a sampler of headrace.samplers.",
                stacklevel=2,
            )
            self._own.alone = False

        self._own.resume = None
        self._own.epoch += 1
        self._own.announced = False
        return terms

    def _terms(self, resume: Snapshot | None) -> Terms:
        is_stream = self._dataset_kind == DatasetKind.Iterable
        return Terms(
            loader=self._own.name,
            epoch=self._own.epoch,
            announce=self._own.announced or self.seed is not None,
            seed=self.seed,
            world=current_world() if self.seed is not None or is_stream else distributed_world(),
            deal=is_stream and bool(self.shard),
            in_order=self.in_order,
            fingerprint=self._fingerprint(),
            resume=resume,
            draws=self._own.draws,
        )

    def _fingerprint(self) -> dict[str, Any]:
        is_map = self._dataset_kind == DatasetKind.Map
        return {
            "dataset": f"{type(self.dataset).__module__}.{type(self.dataset).__qualname__}",
            "length": known_length(self.dataset) if is_map else None,
            "seed": self.seed,
            "batch_size": self.batch_size,
            "samplers": names_of_samplers(self._index_sampler) if is_map else [],
        }

    def __iter__(self) -> Any:
        if self.batches_per_epoch is None:
            return self._iterate()
        if self._own.supply is None:
            self._own.supply = Supply(self._iterate)
        return Portion(self._own.supply, self.batches_per_epoch)

    def _iterate(self) -> Any:
        before = self._own.before_epoch()
        try:
            return self._iterate_once()
        except BaseException:
            # It may come from a signal handler, at any line. Nothing was delivered, so the epoch has not begun.
            self._iterator = None  # workers that were kept may have been told of it
            self._own.go_back(before)
            self._keep_datasets()
            raise

    def _keep_datasets(self) -> None:
        """Has new workers go on with the states of the dataset that the workers had which were kept until now."""
        record = self._own.record
        if record is None or self._own.resume is not None:
            return
        if record.finished and record.keeps_datasets and self.num_workers and record.progress.lanes:
            self.load_state_dict(self.state_dict())

    def _iterate_once(self) -> Any:
        resume = self._own.resume
        epoch = self._own.epoch
        announced = self._own.announced
        iterator = self._begin_epoch()
        if resume is None or not resume["batches"] or not isinstance(iterator, EpochIterator):
            return iterator

        if iterator.is_at_end():  # the state was saved behind the last batch, and nobody could know that it was
            if announced and epoch != resume["epoch"]:
                self.set_epoch(epoch)
            iterator = self._begin_epoch()

        return iterator

    def _begin_epoch(self) -> Any:
        """Returns an iterator that is at the beginning of the next epoch, or where a state says."""
        kept = self._iterator
        if isinstance(kept, AutomaticIterator):
            kept._reset(self)
            iterator: Any = kept
        else:
            if isinstance(kept, EpochIterator) and kept.record.lanes != self.num_workers:
                self._iterator = None  # the lanes of another run end with its epoch
            iterator = super().__iter__()

        if isinstance(iterator, EpochIterator):
            self._own.record = iterator.record
        return iterator

    def __len__(self) -> int:
        if self.batches_per_epoch is not None:
            return self.batches_per_epoch

        length = super().__len__()
        if self.shard is None or self._dataset_kind != DatasetKind.Iterable or (size := current_world().size) == 1:
            return length

        share = (self.batch_size or 1) * size
        samples = len(self.dataset)
        if self.drop_last:
            return samples // share
        return -(-samples // share)

    @property
    def _has_workers(self) -> bool:
        """Whether batches are made by workers, as far as it is decided."""
        return (self.num_workers > 0 or self._own.tuner is not None) and self.backend != "inline"

    def _get_iterator(self) -> Any:
        if self.num_workers:
            operator.index(self.num_workers)  # torch takes 2.0, too, until an epoch begins: a TypeError
        if makes_batches(self.dataset, self.collate_fn) and callable(prepare := getattr(self.dataset, "prepare", None)):
            prepare()
        if self.backend == "auto" and self._own.tuner is not None:
            self.backend = "process"  # of which there may be none
        if self.backend == "auto" and self.num_workers > 0:
            self.backend = choose(self).backend
        if not self._has_workers:
            self._own.memory = LOCAL_MEMORY.get()
            return InlineIterator(self, self._own.memory)

        if self.backend == "thread":
            self.check_worker_number_rationality()
            self._own.memory = LOCAL_MEMORY.get()
            return ThreadIterator(self, self._own.memory)

        if os.name != "posix":
            return super()._get_iterator()  # descriptors cannot be handed to workers there
        if self._own.tuner is None or not self._own.tuner.limits.tunes_workers:
            self.check_worker_number_rationality()

        if not self._own.looked_at:
            warn_of_objects(self.dataset, self.num_workers)
            advise(self)
            self._own.looked_at = True

        self._own.arena = ARENA.get()
        if self._own.tuner is not None:
            self._own.memory = LOCAL_MEMORY.get()
            return AutomaticIterator(self, self._own.arena, self._own.zygotes, self._own.memory, self._own.tuner)

        return ProcessIterator(self, self._own.arena, self._own.zygotes)

    def __getstate__(self) -> dict[str, Any]:
        """Leaves the memory out: a copied or unpickled loader makes its own."""
        own = self._own.without_resources()
        if own.tuner is None:
            begins = {}
        else:
            begins = {"num_workers": own.tuner.now.workers}

        return {**self.__dict__, "_own": own, **begins}

    def __class_getitem__(cls, parameters: Any) -> Any:
        """Takes `DataLoader[Sample]` and `DataLoader[Sample, Batch]`; the second is for readers of the code only."""
        if isinstance(parameters, tuple) and len(parameters) == 2:
            parameters = parameters[0]
        return super().__class_getitem__(parameters)  # type: ignore[misc]  # Generic defines it
