"""The arguments of a loader that torch does not know: what they may be."""

from __future__ import annotations

import os
import sys
from numbers import Integral
from typing import Any, Literal, NamedTuple, get_args

import numpy as np
from torch.utils.data import IterableDataset

from headrace.batches.fetch_map import is_stateful
from headrace.core.errors import UsageError, explain
from headrace.core.lengths import known_length
from headrace.core.machine import cores
from headrace.core.sharding import splits_itself
from headrace.core.torch_internals import IterDataPipe, MapDataPipe
from headrace.core.world import local_world_size
from headrace.faults.policy import check_fault_arguments
from headrace.faults.quarantine import Excluded, excluded_numbers

Backend = Literal["process", "thread", "inline", "auto"]


def is_map(dataset: Any) -> bool:
    """Tells whether a dataset is one with keys."""
    return not isinstance(dataset, IterableDataset)


def checked_exclude(exclude: Excluded, dataset: Any, given: Any) -> Any:
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

    message = explain(
        "cannot leave samples out of an order that is not the loader's own",
        place="headrace.DataLoader(exclude=)",
        found=found,
        expected="a map-style dataset with a length, without sampler and batch_sampler",
        cure="give the exclude= to the sampler (headrace.samplers.DistributedSampler), or leave the keys out of it",
    )
    raise UsageError(message)


def _leaves_out(sampler: Any, numbers: Any) -> bool:
    left_out: Any = getattr(getattr(sampler, "sampler", sampler), "excluded", None)
    return left_out is not None and np.array_equal(left_out, numbers)


def check_arguments(dataset: Any, *, on_error: Any, max_errors: Any, sample_timeout: Any, **given: Any) -> None:
    """Checks the arguments that torch does not know. Raises `UsageError`."""
    check_fault_arguments(on_error=on_error, max_errors=max_errors, sample_timeout=sample_timeout)
    count = given["batches_per_epoch"]
    rules = {
        "seed": (given["seed"] is None or _is_whole(given["seed"]), "a whole number, or None"),
        "shard": (given["shard"] in (None, "auto"), "'auto' or None"),
        "backend": (given["backend"] in get_args(Backend), "'process', 'thread', 'inline' or 'auto'"),
        "memory_budget": (
            given["memory_budget"] is None or (_is_whole(given["memory_budget"]) and given["memory_budget"] > 0),
            "a number of bytes, or None",
        ),
        "on_stats": (given["on_stats"] is None or callable(given["on_stats"]), "a function, or None"),
        "batches_per_epoch": (
            count is None or (_is_whole(count) and 0 < count <= sys.maxsize),
            "a positive whole number, or None",
        ),
    }
    for name, (holds, expected) in rules.items():
        if not holds:
            raise _wrong(name, given[name], expected)

    if given["shard"] and isinstance(dataset, (IterDataPipe, MapDataPipe)):
        message = explain(
            "cannot deal out a data pipe",
            place="headrace.DataLoader(shard='auto')",
            found=type(dataset).__name__,
            expected="a map-style dataset or an IterableDataset",
            cure="put a sharding_filter into the pipe, and leave shard= out",
        )
        raise UsageError(message)


def check_samples(dataset: Any, sampler: Any, batch_sampler: Any) -> None:
    """Raises `UsageError` if a sampler of headrace was made for more or fewer samples than the dataset has.

    With fewer lengths, labels or weights than samples, the rest would never come, without a word.
    """
    if batch_sampler is not None:
        given = batch_sampler
    else:
        given = sampler

    if is_map(dataset):
        length = known_length(dataset)
    else:
        length = None

    if length is None:
        return

    for one in (given, getattr(given, "sampler", None)):
        expected = getattr(one, "samples_of_dataset", None)
        if expected is not None and expected != length:
            message = explain(
                "the sampler was made for another dataset",
                place=f"headrace.DataLoader, {type(one).__name__}",
                found=f"{expected:,} samples (as many lengths, labels or weights as it was given)",
                expected=f"{length:,}, as many as the dataset has",
                cure="give the sampler one length, label or weight for each sample of this dataset, in its order",
            )
            raise UsageError(message)


class Automatic(NamedTuple):
    """What of a loader's setting is decided while it runs, and what it begins with."""

    workers: bool
    prefetch: bool
    num_workers: int
    prefetch_factor: int | None


def automatic(dataset: Any, num_workers: Any, prefetch_factor: Any, backend: str, shard: Any) -> Automatic:
    """Returns what "auto" means for a dataset: workers come and go where it does not matter which of them loads what.

    Elsewhere (streams, datasets with a state, threads) there are as many as cores; one for a stream that is neither
    dealt out nor seems to split itself, since each worker would give all of it. Raises `UsageError`.
    """
    for name, value in (("num_workers", num_workers), ("prefetch_factor", prefetch_factor)):
        if isinstance(value, str) and value != "auto":
            raise _wrong(name, value, "a whole number, or 'auto'")

    wanted = num_workers == "auto"
    if wanted and prefetch_factor not in (None, "auto") and not (_is_whole(prefetch_factor) and prefetch_factor > 0):
        raise _wrong("prefetch_factor", prefetch_factor, "a positive whole number, 'auto' or None")

    in_processes = backend == "process" or (wanted and backend == "auto")
    free = is_map(dataset) and not is_stateful(dataset) and in_processes and os.name == "posix"
    if wanted:
        one = free or not (is_map(dataset) or shard or isinstance(dataset, IterDataPipe) or splits_itself(dataset))
        if backend == "inline":
            num_workers = 0
        elif one:
            num_workers = 1
        else:
            num_workers = max(cores() // local_world_size(), 1)

    ahead = prefetch_factor == "auto" and num_workers > 0 and in_processes
    if prefetch_factor == "auto":
        if num_workers:
            prefetch_factor = 2
        else:
            prefetch_factor = None

    return Automatic(wanted and free, ahead, num_workers, prefetch_factor)


def _wrong(name: str, value: Any, expected: str) -> UsageError:
    """Returns the error for an argument that is not what it may be."""
    return UsageError(
        explain("wrong argument", place="headrace.DataLoader", found=f"{name}={value!r}", expected=expected)
    )


def _is_whole(value: Any) -> bool:
    return isinstance(value, Integral) and not isinstance(value, bool)
