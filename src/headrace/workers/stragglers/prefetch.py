"""How many tasks workers hold, and how many results may wait.

Where nobody has said how many tasks, it is more of them, the less a batch takes to make. A message that wakes a process
costs 0.05 to 0.3 ms, which is more than a small batch. With two tasks for each worker, torch's default, each batch
costs two such messages. Where workers hold more tasks, a message brings several.
"""

from __future__ import annotations

from torch.utils.data import (
    BatchSampler,
    DistributedSampler,
    RandomSampler,
    SequentialSampler,
    SubsetRandomSampler,
    WeightedRandomSampler,
)

from headrace.core.process.memory import machine_memory
from headrace.epoch.spec import LoaderSpec
from headrace.samplers.live import LiveSampler
from headrace.samplers.sampler import PositionalSampler
from headrace.workers.scale import Scale

DEFAULT = 2
"""torch's `prefetch_factor` where the user gives none."""

WORK = 4e-3
"""Seconds of work that a worker holds, if its batches are quick."""

MOST = 32
"""Tasks that a worker holds at most."""

BYTES = 16 << 20
"""Bytes of batches that all workers may hold, beyond the default number."""

SPARE_BYTES = 256 << 20
"""Bytes of finished batches that wait behind one that is late; less where the machine has less than 16 GB."""

LOOK = 16
"""Batches after which the number is decided anew."""

FEW = 4
"""How many of these may be slower: on a busy machine, a quick batch may wait for a core."""

KNOWN_SAMPLERS = (SequentialSampler, RandomSampler, SubsetRandomSampler, WeightedRandomSampler, DistributedSampler)
"""torch's samplers, which do not care how early they are asked. One of the user's may."""


class Prefetch:
    """The number of tasks for each worker of one executor."""

    def __init__(self, workers: int) -> None:
        self.tasks = DEFAULT
        self._workers = workers
        self._seconds: list[float] = []
        self._largest = 1

    def made(self, seconds: float, nbytes: int) -> bool:
        """Notes how long a batch took, and its bytes. Tells whether the number of tasks is another one now."""
        self._seconds.append(seconds)
        self._largest = max(self._largest, nbytes)
        if len(self._seconds) < LOOK:
            return False

        before = self.tasks
        by_time = WORK / max(sorted(self._seconds)[-FEW - 1], 1e-9)
        by_bytes = BYTES / (self._largest * self._workers)
        self.tasks = max(min(int(by_time), int(by_bytes), MOST), DEFAULT)
        self._seconds = []
        self._largest = 1
        return self.tasks != before


def prefetch_for(spec: LoaderSpec, scale: Scale, *, remote: bool) -> Prefetch | None:
    """Returns what decides how many tasks workers hold in an epoch; None: the user, the tuner or the network does.

    remote: whether workers are on other machines.
    """
    if scale.changes or remote or spec.prefetch_factor != DEFAULT or not may_draw_early(spec):
        return None
    scale.prefetch = DEFAULT
    return Prefetch(scale.workers)


def may_draw_early(spec: LoaderSpec) -> bool:
    """Tells whether nobody can see how early a sampler is asked: it gives keys, and its code is known."""
    sampler = spec.index_sampler
    if type(sampler) is BatchSampler:
        sampler = sampler.sampler
    if isinstance(sampler, PositionalSampler):
        return spec.is_map and not isinstance(sampler, LiveSampler)
    # It draws once more when it ends. A generator that the user gave may also be used elsewhere meanwhile.
    if type(sampler) is RandomSampler and sampler.generator is not None:
        return False
    return spec.is_map and type(sampler) in KNOWN_SAMPLERS


def spare_memory(spec: LoaderSpec, scale: Scale) -> int:
    """Returns the bytes of finished batches that may wait behind one that is late, beyond `prefetch_factor`.

    0 where the tuner decides, since it keeps to a budget of the user's.
    """
    if scale.changes or not spec.in_order or not may_draw_early(spec):
        return 0
    return min(SPARE_BYTES, machine_memory() // 64)
