"""What `num_workers="auto"` and `prefetch_factor="auto"` ask for."""

from __future__ import annotations

import os
from dataclasses import dataclass
from typing import Any, NamedTuple

from headrace.core.errors import wrong_argument
from headrace.core.process.machine import cores
from headrace.core.protocols import is_stateful
from headrace.core.sharding import splits_itself
from headrace.core.sizes import bytes_in
from headrace.core.torch_internals import IterDataPipe
from headrace.core.world import local_world_size
from headrace.loader.options import AskedBackend, as_ray, is_map, is_whole


@dataclass(frozen=True)
class Auto:
    """For `DataLoader(num_workers=)`: chooses the number of workers by measuring, within a limit of memory.

    Attributes:
        memory: limit for the workers and the batches made ahead together, in bytes or as text such as "8GB" or "512
            MiB"; None: half of the memory that is free when the loader is made.

    Raises:
        UsageError: the limit is anything else.

    Examples:
        >>> loader = headrace.DataLoader(list(range(6)), num_workers=headrace.Auto(memory="1GB"))
        >>> loader.persistent_workers
        True
    """

    memory: int | str | None = None

    def __post_init__(self) -> None:
        self.nbytes()

    def nbytes(self) -> int | None:
        """Returns the limit in bytes; None: no limit was given."""
        if self.memory is None:
            return None

        return bytes_in(self.memory, "memory", place="headrace.Auto")


def memory_limit(num_workers: object) -> int | None:
    """Returns the bytes that `num_workers=Auto(memory=)` allows; None: no limit was given."""
    if isinstance(num_workers, Auto):
        return num_workers.nbytes()
    return None


class Automatic(NamedTuple):
    """What of a loader's setting is decided while it runs, and what it begins with."""

    workers: bool
    prefetch: bool
    num_workers: int
    prefetch_factor: int | None


def automatic(dataset: Any, num_workers: Any, prefetch_factor: Any, backend: AskedBackend, shard: Any) -> Automatic:
    """Returns what "auto" means for a dataset: workers come and go where it does not matter which of them loads what.

    Elsewhere (streams, datasets with a state, threads) there are as many as cores; one for a stream that is neither
    dealt out nor seems to split itself, since each worker would give all of it. Raises `UsageError`.
    """
    for name, value in (("num_workers", num_workers), ("prefetch_factor", prefetch_factor)):
        if isinstance(value, str) and value != "auto":
            raise wrong_argument(name, value, "a whole number, or 'auto'", place="headrace.DataLoader")
    if num_workers is None or num_workers is Auto:
        expected = "a whole number, 'auto', or headrace.Auto()"
        raise wrong_argument("num_workers", num_workers, expected, place="headrace.DataLoader")

    wanted = num_workers == "auto" or isinstance(num_workers, Auto)
    if wanted and prefetch_factor not in (None, "auto") and not (is_whole(prefetch_factor) and prefetch_factor > 0):
        expected = "a positive whole number, 'auto' or None"
        raise wrong_argument("prefetch_factor", prefetch_factor, expected, place="headrace.DataLoader")

    in_processes = backend == "process" or as_ray(backend) is not None or (wanted and backend == "auto")
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
