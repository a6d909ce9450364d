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
from headrace.core.errors import StateError, warn
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
    batches_in,
    check_arguments,
    check_live,
    check_ray,
    check_stragglers,
    checked_on_error,
    is_map,
    seeds_of,
)
from headrace.loader.position import part_of
from headrace.loader.rank_check import name_here
from headrace.loader.rebuilds import ACCELERATE, ReadByRay, refuse_rebuild, shown_to_frameworks
from headrace.loader.reporting import Observed, OnStats
from headrace.loader.samplers import adopt_shard, check_samples, own_sampler
from headrace.loader.session import LoaderSession
from headrace.loader.setting import asked_setting
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

    `stats` has figures of where the time goes; `report()` says what training waits for, what to change, and the gain.
    headrace replaces a worker process that dies and makes its batches again. A sample that kills its workers repeatedly
    counts as bad; `faults` has the counts.

    `state_dict()` says what was delivered, `load_state_dict()` continues after it in this or another process, with any
    number of workers. Not thread-safe: iterate a loader in one thread.

    Args:
        dataset: map-style (`dataset[key]`, with a length) or iterable.
        batch_size: samples of a batch; None: samples come one by one, without a batch dimension.
        shuffle: whether each epoch has another order. Not for an iterable dataset, nor beside a sampler.
        sampler: gives the key of one sample after the other, in place of `shuffle`.
        batch_sampler: gives the keys of each batch, in place of `batch_size`, `shuffle`, `sampler` and `drop_last`.
        num_workers: how many workers make batches; 0: the calling thread. `"auto"` measures, and adds and retires
            workers in training; `Auto(memory="8GB")` also limits their memory. For map-style datasets without a state,
            in processes, it implies `seed=0` and persistent workers. `setting.num_workers` says how many.
        collate_fn: makes a batch of a list of samples; None: torch's rules, written straight into the batch's memory.
        pin_memory: whether batches lie in page-locked memory, for quick copies to the accelerator.
        drop_last: whether to leave out the last batch of an epoch if it is not full.
        timeout: seconds to wait for a batch from workers; 0: for ever.
        worker_init_fn: is called in each worker with its number, before it loads anything.
        multiprocessing_context: how processes start: `"fork"`, `"spawn"`, `"forkserver"`, a context; None: Python's.
        generator: draws the order and the base seed of workers; None: torch's global one. With `seed` it is not used.
        prefetch_factor: batches that each worker makes ahead; None: 2 with workers. `"auto"` chooses by measuring.
        persistent_workers: whether workers stay from one epoch to the next.
        pin_memory_device: as in torch: the device for which memory is pinned; empty: the current accelerator.
        in_order: whether batches of workers come in the sampler's order; otherwise as they are ready.
        seed: makes the order and every random number drawn while a sample loads depend on seed, epoch and position
            alone: the same for any number of workers, any backend, after a restart and, with `shard="auto"`, for any
            world size. docs/reference/seed.md has a table of all that it switches.
        shard: `"auto"` gives every sample to exactly one worker of one rank, and all ranks equally many batches. With
            tensor, context or pipeline parallelism, `headrace.Shard(rank, world)` takes the place of rank and world
            size: ranks with the same shard get the same batches. Both imply `seed=0` if you give no seed.
        backend: who makes batches: `"process"`, `"thread"`, `"inline"` (the calling thread), or `"auto"`, which tries a
            few samples when the first epoch begins. `setting.backend` shows the choice. `"ray"`: worker processes on
            the machines of a Ray cluster; `headrace.Ray` says which, and how many run on this machine.
        batches_per_epoch: ends each epoch after this number of batches. The next epoch continues after them.
        on_error: what happens to a sample that raises in loading or collation: `"raise"`; `"skip"` shortens its batch;
            `"replace"` takes another sample; a function gets a `BadSample` and returns one of these words. `OnError`
            adds limits, a log, a timeout and samples to leave out. A policy retries input and output first that may
            succeed later. Errors of the machine (no memory, a full disk) and of the program are always raised.
        on_stats: a function that gets the current `stats` every ten seconds and at the end of each epoch, such as
            `TensorBoardWriter` or `OpenMetricsWriter`.
        stragglers: `"wait"` keeps the order. `"defer"`, with `seed=`: a batch that is late changes places with the next
            one that is ready, and comes at most 64 batches later. The state knows: each sample comes once, after a
            resume too.
        device: `"cuda"`, another accelerator or `"auto"`: batches come on the device, all tensors of one in one
            transfer from page-locked memory, the next one while you compute with this one. `.to(device)` then finds
            nothing to do. Implies `pin_memory=True`. Without an accelerator, batches stay in this machine's memory.
        ahead: how many batches are on their way to the device while you have one; 1 by default.
        device_transform: a function of a batch on the device, or a module: runs behind the copy, without gradients, on
            the stream that you compute on. With `seed=` its random numbers depend on seed, epoch and position alone.
        fixed_addresses: has each batch lie where the first one does, as CUDA graphs need it. All must have its shapes.

    Raises:
        UsageError: the arguments do not fit each other or the dataset. Those of torch raise as torch does.

    Examples:
        >>> loader = headrace.DataLoader(list(range(6)), batch_size=2, shuffle=True, seed=0)
        >>> sorted(torch.cat(list(loader)).tolist())
        [0, 1, 2, 3, 4, 5]
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
        check_samples(dataset, sampler, batch_sampler, collate_fn)
        check_ray(backend, dataset, num_workers)
        auto = automatic(dataset, num_workers, prefetch_factor, backend, shard)
        seeds = seeds_of(seed, dataset, shard, batch_sampler, moves_samples=auto.workers)
        if seeds["counts_epochs"]:
            seed = seeds["seed"]
        check_stragglers(stragglers, dataset, seed, in_order=in_order)

        options = Options(
            **seeds,
            memory=memory_limit(num_workers),
            on_device=checked_device(device, ahead, device_transform, fixed_addresses=fixed_addresses),
            **checked_on_error(on_error, dataset, sampler if batch_sampler is None else batch_sampler),
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

        Args:
            epoch: counted from 0.

        Examples:
            >>> loader = headrace.DataLoader(list(range(4)), shuffle=True, seed=0)
            >>> loader.set_epoch(3)
        """
        self._session.position.epoch = epoch
        self._session.position.announced = True
        for listener in (self.dataset, self.batch_sampler, self.sampler):
            tell_epoch(listener, epoch)

    def state_dict(self) -> Snapshot:
        """Tells which batches of which epoch were delivered so far.

        Batches that were only prefetched do not count. Takes microseconds, plus the time of the dataset's own.

        Returns:
            A small dictionary to save or to send; `headrace.merge_states` joins those of several ranks.

        Raises:
            StateError: the dataset or the sampler has a state that could not be taken.

        Examples:
            >>> loader = headrace.DataLoader([1, 2, 3, 4], batch_size=2)
            >>> first = next(iter(loader))
            >>> loader.state_dict()["batches"]
            1
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
        differ. Batches are the same, bit for bit, as without the interruption; with `seed=` so are random numbers in
        the dataset.

        Args:
            state_dict: what `state_dict()` or `headrace.merge_states` returned.

        Raises:
            StateError: the state belongs to other data, another seed or another rank.

        Examples:
            >>> loader = headrace.DataLoader([1, 2, 3, 4], batch_size=2)
            >>> first = next(iter(loader))
            >>> loader.load_state_dict(loader.state_dict())
            >>> list(loader)
            [tensor([3, 4])]
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
        does not answer is told by the next call, which a warning says.

        Args:
            state_dict: what `state_dict()` returned.

        Raises:
            UsageError: the dataset is no log.
            StateError: the state is one of another dataset.
            StorageError: the source refuses.

        Examples:
            >>> def save(loader: headrace.DataLoader, state: dict) -> None:
            ...     torch.save(state, "checkpoint.pt")
            ...     loader.commit(state)
        """
        check_live(self.dataset)
        checked(state_dict, self._session.terms(self, None).fingerprint)
        self.dataset.commit(parts_of(state_dict)[0])  # type: ignore[attr-defined]  # `check_live` has looked

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

        share = (self.batch_size or 1) * self._options.world(is_stream=True).size
        samples = len(self.dataset)  # type: ignore[arg-type]  # it has a length, or torch would have raised
        return batches_in(samples, share, drop_last=self.drop_last)

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
        return asked_setting(self, has_workers=has_workers(self, self._session))

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

    def __getstate__(self) -> dict[str, Any]:
        """Leaves the memory out: a copied or unpickled loader makes its own."""
        return {**self.__dict__, "_session": self._session.without_resources()}
