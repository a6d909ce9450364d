"""`headrace.DataLoader`: torch's loader with other workers, a reproducible order on request, and a state."""

from __future__ import annotations

import contextlib
import functools
import operator
from collections.abc import Callable, Iterable
from dataclasses import replace
from multiprocessing.context import BaseContext
from typing import Any, Literal

import torch
from torch.utils.data import Dataset, Sampler

from headrace.batches.whole_batches import makes_batches
from headrace.core.errors import StateError, UsageError, warn
from headrace.core.hugging_face_streams import told_epoch
from headrace.core.protocols import answers, is_live, says_yes, tell_epoch
from headrace.core.torch_internals import DatasetKind
from headrace.device.options import AskedDevice, checked_device
from headrace.epoch.fixed_length import EndlessBatches, FixedLengthEpoch
from headrace.epoch.snapshot import Snapshot, checked, parts_of
from headrace.faults.counts import Faults
from headrace.faults.policy import ErrorAction, OnError
from headrace.loader.automatic import Auto, automatic, memory_limit
from headrace.loader.executors import executor_for, has_workers
from headrace.loader.iterator import LoaderIterator, ProcessesIterator, WorkersIterator
from headrace.loader.left_alone import check_states
from headrace.loader.options import (
    AskedArguments,
    AskedBackend,
    AskedShard,
    Options,
    Stragglers,
    T_co,
    as_ray,
    check_arguments,
    check_ray,
    check_samples,
    check_stragglers,
    checked_exclude,
    checked_log,
    default_seed,
    is_map,
)
from headrace.loader.own_sampler import adopt_shard, own_sampler
from headrace.loader.position import part_of
from headrace.loader.rank_check import name_here
from headrace.loader.rebuilds import ACCELERATE, ReadByRay, refuse_rebuild, shown_to_frameworks
from headrace.loader.reporting import Observed, OnStats
from headrace.loader.session import LoaderSession
from headrace.loader.setting import setting_of
from headrace.telemetry.labels import label_for
from headrace.telemetry.recorder import Recorder
from headrace.telemetry.recording import Setting
from headrace.workers.auto.scaling import tuner_for
from headrace.workers.protocol import Backend

FACES: dict[Backend, type[LoaderIterator]] = {
    "inline": LoaderIterator,
    "thread": WorkersIterator,
    "process": ProcessesIterator,
}
"""What the loop holds, by the executor's backend: torch's classes differ, and users test for them."""


class DataLoader(Observed, AskedArguments[T_co]):
    """`torch.utils.data.DataLoader` with batches in recycled memory, exact resume, and faults that lose nothing.

    Takes torch's arguments, with torch's checks, defaults, orders and worker seeds. Default collation writes each batch
    once, into recycled memory that your training loop reads directly; with workers it is shared memory. The batch is
    still yours: you may write to it, and nothing overwrites it while you hold a reference.

    The memory belongs to the process. All loaders share it, and it goes with the last loader that was iterated. It
    holds the batches that you keep, plus about `prefetch_factor + 1` per worker (without workers: two).

    Args:

    seed: makes the order and every random number drawn while a sample loads depend on seed, epoch and position alone:
      the same for any number of workers, any backend, after a restart and, with `shard="auto"`, for any world size.
      docs/reference/seed.md has a table of all that it switches.
    shard: `"auto"` gives every sample to exactly one worker of one rank, and all ranks equally many batches. With
      tensor, context or pipeline parallelism, `headrace.Shard(rank, world)` takes the place of rank and world size:
      ranks with the same shard get the same batches. Both imply `seed=0` if you give no seed.
    backend: who makes batches: `"process"`, `"thread"`, `"inline"` (the calling thread), or `"auto"`, which tries a few
      samples when the first epoch begins. `setting.backend` shows the choice. `"ray"`: worker processes on the machines
      of a Ray cluster; `headrace.Ray` says which, and how many run on this machine.
    num_workers: `"auto"` measures, and adds and retires workers during training; `Auto(memory="8GB")` also limits their
      memory. For map-style datasets without a state, in processes, it implies `seed=0` and persistent workers.
      `setting.num_workers` is the current number.
    prefetch_factor: `"auto"` chooses by measuring how many batches each worker makes ahead.
    batches_per_epoch: ends each epoch after this number of batches. The next epoch continues after them.
    on_error: what happens to a sample that raises in loading or collation: `"raise"`; `"skip"` shortens its batch;
      `"replace"` takes another sample; a function gets a `BadSample` and returns one of these words. `OnError` adds
      limits, a log, a timeout and samples to leave out. A policy retries input and output first that may succeed later.
      Errors of the machine (no memory, a full disk) and of the program are always raised.
    on_stats: a function that gets the current `stats` every ten seconds and at the end of each epoch, such as
      `TensorBoardWriter` or `OpenMetricsWriter`.
    stragglers: `"wait"` keeps the order. `"defer"`, with `seed=`: a batch that is late changes places with the next one
      that is ready, and comes at most 64 batches later. The state says so: each sample comes once, also after a resume.

    device: `"cuda"`, another accelerator or `"auto"`: batches come on the device, all tensors of one in one transfer
      from page-locked memory, the next one while you compute with this one. `.to(device)` then finds nothing to do.
      Implies `pin_memory=True`. Without an accelerator, batches stay in this machine's memory.
    ahead: how many batches are on their way to the device while you have one; 1 by default.
    device_transform: a function of a batch on the device, or a module: runs behind the copy, without gradients, on the
      stream that you compute on. With `seed=` its random numbers depend on seed, epoch and position alone.
    fixed_addresses: has each batch lie where the first one does, as CUDA graphs need it. All must have its shapes.

    `stats` has figures of where the time goes. `report()` says in words what training waits for, what to change, and
    what that would gain.

    headrace replaces a worker process that dies and makes its batches again. A sample that kills its workers
    repeatedly counts as bad. `faults` shows what happened so far.

    `state_dict()` says what was delivered, `load_state_dict()` continues after it in this or another process, with any
    number of workers. Not thread-safe: iterate a loader in one thread.
    """

    generator = ReadByRay()

    def __init__(  # noqa: PLR0913 - torch fixes the list
        self,
        dataset: Dataset[T_co],
        batch_size: int | None = 1,
        shuffle: bool | None = None,
        sampler: Sampler[Any] | Iterable[Any] | None = None,
        batch_sampler: Sampler[list[Any]] | Iterable[list[Any]] | None = None,
        num_workers: int | Literal["auto"] | Auto = 0,
        collate_fn: Callable[[list[Any]], Any] | None = None,
        pin_memory: bool = False,
        drop_last: bool = False,
        timeout: float = 0,
        worker_init_fn: Callable[[int], None] | None = None,
        multiprocessing_context: str | BaseContext | None = None,
        generator: torch.Generator | None = None,
        *,
        prefetch_factor: int | Literal["auto"] | None = None,
        persistent_workers: bool = False,
        pin_memory_device: str = "",
        in_order: bool = True,
        seed: int | None = None,
        shard: AskedShard | None = None,
        backend: AskedBackend = "process",
        batches_per_epoch: int | None = None,
        on_error: ErrorAction | OnError = "raise",
        on_stats: OnStats | None = None,
        stragglers: Stragglers = "wait",
        device: AskedDevice | None = None,
        ahead: int | None = None,
        device_transform: Callable[[Any], Any] | None = None,
        fixed_addresses: bool = False,
    ) -> None:
        plain: dict[str, Any] = {
            "shard": shard,
            "backend": backend,
            "batches_per_epoch": batches_per_epoch,
            "on_stats": on_stats,
            "stragglers": stragglers,
        }
        check_arguments(dataset, seed=seed, **plain)
        check_samples(dataset, sampler, batch_sampler)
        check_ray(backend, dataset, num_workers)
        auto = automatic(dataset, num_workers, prefetch_factor, backend, shard)
        asked_seed, seed = seed, default_seed(seed, dataset, shard, moves_samples=auto.workers)
        check_stragglers(stragglers, dataset, seed, in_order=in_order)

        errors = OnError.of(on_error)
        exclude = None
        if errors.exclude is not None:
            exclude = checked_exclude(errors.exclude, dataset, batch_sampler or sampler)

        options = Options(
            seed=None if seed is None else int(seed),
            asked_seed=asked_seed,
            on_error=errors,
            log=checked_log(errors),
            exclude=exclude,
            memory=memory_limit(num_workers),
            on_device=checked_device(device, ahead, device_transform, fixed_addresses=fixed_addresses),
            **plain,
        )
        self._keep(options, seed=seed, on_error=on_error, **plain)
        self._keep(
            options, device=device, ahead=ahead, device_transform=device_transform, fixed_addresses=fixed_addresses
        )
        self._session = self._begin_session(dataset)
        adopt_shard(shard, sampler, batch_sampler)
        if sampler is None and batch_sampler is None and is_map(dataset):
            sampler = own_sampler(self._session, dataset, bool(shuffle), drop_last, generator)
            if sampler is not None:
                shuffle = None

        with shown_to_frameworks(self):
            super().__init__(
                dataset, batch_size, shuffle, sampler, batch_sampler, auto.num_workers, collate_fn, pin_memory,
                drop_last, timeout, worker_init_fn, multiprocessing_context, generator,
                prefetch_factor=auto.prefetch_factor, persistent_workers=persistent_workers or auto.workers,
                pin_memory_device=pin_memory_device, in_order=in_order,
            )  # fmt: skip
        self._session.tuner = tuner_for(
            self._session.spec(self), workers=auto.workers, prefetch=auto.prefetch, memory=options.memory
        )

    @functools.cached_property
    def _session(self) -> LoaderSession:
        """What the loader keeps from one epoch to the next, of a subclass that never called the constructor."""
        return self._begin_session(vars(self).get("dataset"))

    def _keep(self, options: Options, **arguments: Any) -> None:
        """Keeps arguments as attributes of their names, where frameworks look for them that build a loader anew."""
        vars(self).update(arguments, _options=options, _given_to=id(self))

    def _begin_session(self, dataset: object) -> LoaderSession:
        label = label_for(self, dataset)
        return LoaderSession(options=self._options, name=name_here(), label=label.text, is_rebuild=label.is_rebuild)

    def set_epoch(self, epoch: int) -> None:
        """Sets the number of the next epoch. Also calls `set_epoch` of dataset and samplers, if they have it.

        Copies of the dataset in workers are told, too. With `seed=` the number also decides the order and the random
        numbers, and later epochs count on from it.
        """
        self._session.position.epoch = epoch
        self._session.position.announced = True
        for listener in (self.dataset, self.batch_sampler, self.sampler):
            tell_epoch(listener, epoch)

    def state_dict(self) -> Snapshot:
        """Returns which batches of which epoch were delivered so far: a small dictionary for `load_state_dict`.

        Batches that were only prefetched do not count. You can save the state with `torch.save` or send it to another
        process; `headrace.merge_states` joins the states of several ranks. Takes microseconds, plus the time of the
        dataset's own `state_dict()` if it has one. Raises `StateError` if the dataset or the sampler has a state that
        could not be taken.
        """
        if self._session.position.resume is None:
            check_states(self._session.spec(self))
        return self._taken_state()

    def _taken_state(self) -> Snapshot:
        """Returns the state, whatever protocol the dataset and the samplers have for theirs."""
        self._adopt_changes()
        return self._session.state(self, workers=has_workers(self, self._session))

    def load_state_dict(self, state_dict: Snapshot) -> None:
        """Makes the next iteration continue after the batches that were delivered when the state was saved.

        The number of workers, the backend, `prefetch_factor` and, if all ranks share one order, the world size may
        differ. The batches are the same, bit for bit, as without the interruption; with `seed=` so are random numbers
        drawn in the dataset. Raises `StateError` if the state belongs to other data, another seed or another rank.
        """
        session = self._session
        state: Snapshot | None = None
        if not isinstance(state_dict, dict) or state_dict:
            state = part_of(state_dict, session.spec(self), session.terms(self, None))

        self._iterator = None
        position = session.position
        position.go_to(state, self._index_sampler)
        if position.resume is None or self.batches_per_epoch is None:
            return

        portion = position.resume["portion"]
        if 0 < portion < self.batches_per_epoch:
            position.supply = EndlessBatches(self._iterate, portion)

    def __iter__(self) -> Any:
        if self.batches_per_epoch is None:
            return self._iterate()
        position = self._session.position
        if position.supply is None:
            position.supply = EndlessBatches(self._iterate)
        return FixedLengthEpoch(position.supply, self.batches_per_epoch)

    def commit(self, state_dict: Snapshot) -> None:
        """Tells the source of a log that all before a state is done with: call it when the state is saved durably.

        For the source's own tools, and to free what a journal holds. What training gets does not depend on it: a state
        holds all that a resume needs. A span that is shuffled is done with when all of it was delivered. A server that
        does not answer is told by the next call, which a warning says. Raises `UsageError` for a dataset that is no
        log, `StateError` for a state of another one, and `StorageError` if the source refuses.
        """
        if not is_live(self.dataset):
            found = type(self.dataset).__name__
            what = "there is nobody to tell what is done with"
            cure = "leave the call out: it is for what headrace.open makes of kafka:// and other sources that never end"
            raise UsageError.about(what, place="headrace.DataLoader.commit", found=found, cure=cure)

        checked(state_dict, self._session.terms(self, None).fingerprint)
        self.dataset.commit(parts_of(state_dict)[0])  # type: ignore[attr-defined]  # `is_live` has looked

    def _iterate(self) -> Any:
        if is_live(self.dataset) and says_yes(self.dataset, "endless"):
            self._go_on()
        self._adopt_changes()
        before = replace(self._session.position)
        try:
            return self._iterate_once()
        except BaseException:
            # It may come from a signal handler, at any line. Nothing was delivered, so the epoch has not begun.
            self._iterator = None  # workers that were kept may have been told of it
            self._session.position = before
            self._keep_datasets()
            raise

    # `DataLoader.load_state_dict`, since a subclass may have another state.

    def _go_on(self) -> None:
        """Has the next epoch of data without an end go on behind what was delivered."""
        position = self._session.position
        if position.record is not None and position.resume is None and self.batches_per_epoch is None:
            DataLoader.load_state_dict(self, self._taken_state())

    def _adopt_changes(self) -> None:
        changed = self._session.position.adopt_changes(self)
        if changed is not None:
            DataLoader.load_state_dict(self, changed)

    def _keep_datasets(self) -> None:
        """Has new workers go on with the states of the dataset that the workers had which were kept until now."""
        record = self._session.position.record
        if record is None or self._session.position.resume is not None:
            return
        if record.finished and record.keeps_datasets and self.num_workers and record.progress.replicas:
            with contextlib.suppress(StateError):  # no state to go on with
                DataLoader.load_state_dict(self, self._taken_state())

    def _iterate_once(self) -> Any:
        position = self._session.position
        resume = position.resume
        following = position.following
        told = told_epoch(self.dataset)
        surprise = position.surprise()
        iterator = self._begin_epoch()
        is_late = resume is not None and resume["batches"] and isinstance(iterator, LoaderIterator)
        # The state was saved behind the last batch, and nobody could know that it was. Other ranks may have one more.
        if is_late and iterator.is_at_end() and not iterator.record.is_short:
            if following is not None:
                self.set_epoch(following)
            elif told:  # the state has taken it back to its own epoch
                tell_epoch(self.dataset, told)
            iterator = self._begin_epoch()
        elif surprise is not None:
            warn(surprise)

        return iterator

    def _begin_epoch(self) -> Any:
        """Returns an iterator that is at the beginning of the next epoch, or where a state says."""
        kept = self._iterator
        is_fixed = self._session.tuner is None
        if is_fixed and isinstance(kept, LoaderIterator) and kept.record.replicas != self.num_workers:
            self._iterator = None  # the replicas of another run end with its epoch
        if isinstance(kept, LoaderIterator) and not kept.executor.is_here:
            self._iterator = None  # a forked child begins with workers of its own

        iterator = super().__iter__()
        if isinstance(iterator, LoaderIterator):
            self._session.position.record = iterator.record
        return iterator

    def __len__(self) -> int:
        if self.batches_per_epoch is not None:
            return self.batches_per_epoch

        length = super().__len__()
        if self.shard is None or self._dataset_kind != DatasetKind.Iterable:
            return length

        size = self._options.world(is_stream=True).size
        if size == 1:
            return length

        share = (self.batch_size or 1) * size
        samples = len(self.dataset)  # type: ignore[arg-type]  # it has a length, or torch would have raised
        if self.drop_last:
            return samples // share
        return -(-samples // share)

    @property
    def _is_accelerate_prepared(self) -> bool:
        """What Accelerate asks before it builds a loader of its own from this one's attributes, and splits that."""
        refuse_rebuild(self, ACCELERATE, self._options)
        return False

    @property
    def setting(self) -> Setting:
        """The current backend, number of workers and so on. Before the first epoch: what you asked for."""
        if self.recorder.epoch >= 0:
            return self.recorder.setting

        backend: Backend = "process"
        if not has_workers(self, self._session):
            backend = "inline"
        elif self.backend == "thread":
            backend = "thread"

        return setting_of(self, backend=backend, workers=self.num_workers)

    @property
    def faults(self) -> Faults:
        """Counts of bad samples (skipped, replaced, retried) and of replaced workers so far."""
        return self._session.fault_counter.faults()

    @property
    def recorder(self) -> Recorder:
        """Records the times of batches."""
        return self._session.recorder

    def _get_iterator(self) -> Any:
        """Returns an iterator with the executor that the arguments ask for."""
        if self.num_workers:
            operator.index(self.num_workers)  # torch takes 2.0, too, until an epoch begins: a TypeError
        if makes_batches(self.dataset, self.collate_fn) and answers(self.dataset, "prepare"):
            self.dataset.prepare()  # type: ignore[attr-defined]  # `answers` has looked

        session = self._session
        executor = executor_for(self, session)
        if executor is None:
            return super()._get_iterator()
        return FACES[executor.backend](self, session, executor)

    def check_worker_number_rationality(self) -> None:
        """Warns, as torch does, of more workers than this machine has cores; not of workers on other machines."""
        if as_ray(self.backend) is None:
            super().check_worker_number_rationality()

    def __getstate__(self) -> dict[str, Any]:
        """Leaves the memory out: a copied or unpickled loader makes its own."""
        return {**self.__dict__, "_session": self._session.without_resources()}

    def __class_getitem__(cls, parameters: object) -> Any:
        """Accepts `DataLoader[Sample]` and `DataLoader[Sample, Batch]`; the second type is for readers only."""
        if isinstance(parameters, tuple) and len(parameters) == 2:
            parameters = parameters[0]
        return super().__class_getitem__(parameters)  # type: ignore[misc]  # Generic defines it
