"""The arguments of a loader that torch does not know: what they may be."""

from __future__ import annotations

import sys
from collections.abc import Callable
from dataclasses import dataclass, field
from numbers import Integral
from pathlib import Path
from typing import Any, Literal, TypeVar

import numpy as np
from torch.utils.data import DataLoader as TorchDataLoader
from torch.utils.data import IterableDataset

from headrace.cluster.options import Ray
from headrace.core.errors import UsageError, wrong_argument
from headrace.core.extras import require
from headrace.core.protocols import is_live, is_stateful
from headrace.core.torch_internals import IterDataPipe, MapDataPipe
from headrace.core.world import Shard, World, current_world, distributed_world
from headrace.device.options import AskedDevice, OnDevice
from headrace.epoch.spec import LoaderSpec
from headrace.faults.policy import ErrorAction, OnError, Policy
from headrace.faults.quarantine import Excluded, checked_path, excluded_numbers
from headrace.faults.replacements import Replacements, replacements_of
from headrace.loader.reporting import OnStats
from headrace.samplers.frameworks import split_by_lightning
from headrace.samplers.packed import PackedBatchSampler

AskedBackend = Literal["process", "thread", "inline", "auto", "ray"] | Ray
BACKENDS = ("process", "thread", "inline", "auto", "ray")

Stragglers = Literal["wait", "defer"]
"""What becomes of the order when a batch is late."""

AskedShard = Literal["auto"] | Shard


@dataclass(frozen=True)
class Options:
    """The checked arguments of a loader that torch does not have. `loader.setting` has what was chosen from them."""

    seed: int | None = None
    asked_seed: int | None = None
    """The one that the user gave: some abilities need a seed, and then there is one by default."""
    counts_epochs: bool = False
    """Whether the number of each epoch is told to the dataset and the samplers: with a seed for the order."""
    shard: AskedShard | None = None
    backend: AskedBackend = "process"
    batches_per_epoch: int | None = None
    on_error: OnError = field(default_factory=OnError)
    log: Path | None = None
    """Where bad samples are written down: `on_error.log`, checked."""
    exclude: Any = None
    """Numbers of the samples that are left out: int64 [n], ascending; None: none."""
    memory: int | None = None
    """Bytes that workers and the batches ahead may take where their number is found by measuring; None: half of what
    is free."""
    on_stats: OnStats | None = None
    stragglers: Stragglers = "wait"
    on_device: OnDevice | None = None
    """Where batches go, and what becomes of them there; None: they stay on this machine."""

    def world(self, *, is_stream: bool) -> World:
        """Returns which of how many parts of the data this process gets."""
        if isinstance(self.shard, Shard):
            return World(self.shard.rank, self.shard.world)
        if self.seed is not None or is_stream:
            return current_world()
        return distributed_world()

    def policy(self, spec: LoaderSpec, rank: int) -> Policy | None:
        """Returns what becomes of bad samples; None: they raise."""
        if self.on_error.is_plain:
            return None

        replacements = Replacements()
        if spec.is_map:
            replacements = replacements_of(spec.index_sampler, spec.dataset, self.exclude)
        return Policy(self.on_error.action, self.seed, rank, replacements)


T_co = TypeVar("T_co", covariant=True)


ON_DEVICE = ("device", "ahead", "device_transform", "fixed_addresses")
"""Arguments that say what becomes of batches on a device."""


class AskedArguments(TorchDataLoader[T_co]):
    """Torch's loader with the arguments of ours as attributes, where frameworks look for them that build a loader anew.

    Here stands what holds for a loader of a subclass that never calls the constructor: torch's loader, nothing more.
    """

    seed: int | None = None
    shard: AskedShard | None = None
    backend: AskedBackend = "process"
    batches_per_epoch: int | None = None
    on_error: ErrorAction | OnError = "raise"
    on_stats: OnStats | None = None
    stragglers: Stragglers = "wait"
    device: AskedDevice | None = None
    ahead: int | None = None
    device_transform: Callable[[Any], Any] | None = None
    fixed_addresses: bool = False
    _options = Options()
    _given_to: int | None = None
    """The `id` of the loader that the options were given to. Ray Train wraps a loader in one of its own class, which
    takes over all attributes of the first one, and has a device of its own."""

    def __setattr__(self, attr: str, value: Any) -> None:
        """Raises `ValueError`, as torch's loader does, for arguments that would have no effect any more."""
        # A subclass of a loader without a device may have attributes of these names.
        if attr in ON_DEVICE and self._options.on_device is not None and self._given_to == id(self):
            raise ValueError(f"{attr} attribute should not be set after {type(self).__name__} is initialized")
        super().__setattr__(attr, value)

    def __class_getitem__(cls, parameters: object) -> Any:
        """Accepts `DataLoader[Sample]` and `DataLoader[Sample, Batch]`; the second type is for readers only."""
        if isinstance(parameters, tuple) and len(parameters) == 2:
            parameters = parameters[0]
        return super().__class_getitem__(parameters)  # type: ignore[misc]  # Generic defines it

    def check_worker_number_rationality(self) -> None:
        """Warns, as torch does, of more workers than this machine has cores; not of workers on other machines."""
        if as_ray(self.backend) is None:
            super().check_worker_number_rationality()


def is_map(dataset: object) -> bool:
    """Tells whether a dataset is one with keys."""
    return not isinstance(dataset, IterableDataset)


def checked_on_error(on_error: ErrorAction | OnError, dataset: object, given: object) -> dict[str, Any]:
    """Returns what `Options` has of bad samples. `given`: the user's sampler. Raises `UsageError`."""
    errors = OnError.of(on_error)
    if errors.action not in ("raise", "skip"):
        _check_replacements(given)
    exclude = None
    if errors.exclude is not None:
        exclude = checked_exclude(errors.exclude, dataset, given)
    return {"on_error": errors, "log": checked_log(errors), "exclude": exclude}


def _check_replacements(given: object) -> None:
    """Raises `UsageError` where parts of a bad document would be of several documents. given: the user's sampler."""
    if not isinstance(given, PackedBatchSampler) or given.fit != "split":
        return
    if given.takes_all_alike or given.source_edges is not None:
        return
    raise UsageError.about(
        "the parts of a bad document would be replaced by several documents",
        place="headrace.DataLoader(on_error=)",
        found="fit='split', and an order that does not say what it draws from",
        expected="on_error='skip', which leaves all parts of a bad document out",
        fix="choose 'skip', or fit='best', or an order= by MixtureSampler or DistributedSampler",
    )


def batches_in(samples: int, share: int, *, drop_last: bool) -> int:
    """Returns how many batches each rank has of a stream. share: samples that all ranks take at a time."""
    if drop_last:
        return samples // share
    return -(-samples // share)


def check_live(dataset: object) -> None:
    """Raises `UsageError` unless a dataset is a log, whose source can be told what is done with."""
    if not is_live(dataset):
        found = type(dataset).__name__
        what = "there is nobody to tell what is done with"
        fix = "leave the call out: it is for what headrace.follow makes of kafka:// and other sources that never end"
        raise UsageError.about(what, place="headrace.DataLoader.commit", found=found, fix=fix)


def checked_log(on_error: OnError) -> Path | None:
    """Returns where bad samples are written down; None: nowhere."""
    if on_error.log is None:
        return None
    return checked_path(on_error.log)


def checked_exclude(exclude: Excluded, dataset: object, given: object) -> Any:
    """Returns the numbers of the samples to leave out, int64 [n], ascending. `given`: the user's sampler.

    A loader that is built from the attributes of another one is given that one's sampler, which leaves them out.
    """
    if is_map(dataset) and hasattr(dataset, "__len__"):
        numbers = excluded_numbers(exclude, len(dataset))
        if given is None or _leaves_out(given, numbers):
            return numbers

    if not is_map(dataset):
        found = "an iterable dataset"
    else:
        found = "a sampler of yours"

    raise UsageError.about(
        "cannot leave samples out of an order that is not the loader's own",
        place="headrace.OnError(exclude=)",
        found=found,
        expected="a map-style dataset with a length, without sampler and batch_sampler",
        fix="give the exclude= to the sampler (headrace.samplers.DistributedSampler), or leave the keys out of it",
    )


def _leaves_out(sampler: Any, numbers: Any) -> bool:
    sampler = getattr(sampler, "sampler", sampler)
    left_out: Any = getattr(split_by_lightning(sampler) or sampler, "excluded", None)
    return left_out is not None and np.array_equal(left_out, numbers)


def check_arguments(dataset: Any, **given: Any) -> None:
    """Checks the arguments that torch does not know. Raises `UsageError`."""
    count = given["batches_per_epoch"]
    rules = {
        "seed": (given["seed"] is None or is_whole(given["seed"]), "a whole number, or None"),
        "shard": (_is_shard(given["shard"]), "'auto', a headrace.Shard, or None"),
        "backend": (
            isinstance(given["backend"], Ray) or given["backend"] in BACKENDS,
            "'process', 'thread', 'inline', 'auto', 'ray' or a headrace.Ray",
        ),
        "on_stats": (given["on_stats"] is None or callable(given["on_stats"]), "a function, or None"),
        "stragglers": (given["stragglers"] in ("wait", "defer"), "'wait' or 'defer'"),
        "batches_per_epoch": (
            count is None or (is_whole(count) and 0 < count <= sys.maxsize),
            "a positive whole number, or None",
        ),
    }
    for name, (holds, expected) in rules.items():
        if not holds:
            raise wrong_argument(name, given[name], expected, place="headrace.DataLoader")

    if given["shard"] and isinstance(dataset, (IterDataPipe, MapDataPipe)):
        raise UsageError.about(
            "cannot deal out a data pipe",
            place="headrace.DataLoader(shard=)",
            found=type(dataset).__name__,
            expected="a map-style dataset or an IterableDataset",
            fix="put a sharding_filter into the pipe, and leave shard= out",
        )


def check_stragglers(asked: Stragglers, dataset: object, seed: int | None, *, in_order: bool) -> None:
    """Raises `UsageError` for a loader that shall defer late batches, and cannot record that."""
    if asked == "wait":
        return

    place = "headrace.DataLoader, stragglers='defer'"
    if not is_map(dataset) or is_live(dataset):
        found = type(dataset).__name__
        expected = "a map-style dataset: the samples of a stream have no numbers"
        fix = "leave stragglers= out"
        raise UsageError.about("a stream keeps its order", place=place, found=found, expected=expected, fix=fix)
    if is_stateful(dataset):
        found = f"{type(dataset).__name__}, which has a state_dict"
        expected = "a dataset without a state, so that any worker may make any batch"
        what, fix = "the state of a dataset follows its order", "leave stragglers= out"
        raise UsageError.about(what, place=place, found=found, expected=expected, fix=fix)
    if seed is None:
        found, fix = "no seed", "give a seed="
        expected = "a seed=: then the random numbers of a sample do not depend on when it comes"
        raise UsageError.about("stragglers='defer' needs seed=", place=place, found=found, expected=expected, fix=fix)
    if not in_order:
        found, fix = "in_order=False", "leave one of the two out"
        expected = "in_order=True: the sampler's order, of which single batches come later"
        raise UsageError.about("two orders were asked for", place=place, found=found, expected=expected, fix=fix)


def as_ray(backend: AskedBackend) -> Ray | None:
    """Returns what was asked of Ray; None if nothing was."""
    if isinstance(backend, Ray):
        return backend
    if backend == "ray":
        return Ray()
    return None


def check_ray(backend: AskedBackend, dataset: object, num_workers: Any) -> None:
    """Raises `UsageError` for a loader whose workers cannot run on other machines."""
    ray = as_ray(backend)
    if ray is None:
        return

    place = "headrace.DataLoader, backend='ray'"
    require("ray", "ray")
    if num_workers == 0:
        raise wrong_argument("num_workers", 0, "how many workers Ray shall start, at least 1", place=place)
    if isinstance(num_workers, int) and 0 < num_workers < ray.local:
        raise wrong_argument("local", ray.local, f"at most num_workers, which is {num_workers}", place="headrace.Ray")
    if is_live(dataset):
        raise UsageError.about(
            "a log is read on the machine that trains",
            place=place,
            found=type(dataset).__name__,
            expected="stored data, or a dataset of yours",
            fix="leave backend= out: workers of this machine share what the I/O process has read",
        )


def _is_shard(value: object) -> bool:
    return value is None or isinstance(value, Shard) or (isinstance(value, str) and value == "auto")


def is_whole(value: object) -> bool:
    """Tells whether a value is a whole number, of Python or NumPy, and no bool."""
    return isinstance(value, Integral) and not isinstance(value, bool)


def seeds_of(
    seed: int | None, dataset: object, shard: object, batch_sampler: object, *, moves_samples: bool
) -> dict[str, Any]:
    """Returns the seeds among the `Options` of a loader: 0 where an ability needs one, and the user gave none.

    Parts of a document that is cut come in several batches, and must be of one document although steps draw random
    numbers: these follow the seed of the sampler. Its order stays its own matter.

    moves_samples: whether workers come and go, so that which of them loads a sample depends on timing.
    """
    asked = seed
    if asked is not None:
        asked = int(asked)

    chosen = asked
    if chosen is None and (shard is not None or moves_samples or is_live(dataset)):
        chosen = 0
    counts = chosen is not None
    if chosen is None and isinstance(batch_sampler, PackedBatchSampler) and batch_sampler.fit == "split":
        chosen = batch_sampler.seed
    return {"seed": chosen, "asked_seed": asked, "counts_epochs": counts}
