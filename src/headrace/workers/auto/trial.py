"""A trial of batches that are made quickly: what they cost where they are wanted, and handed over by workers.

Both ways are the loader's own, with a copy of the dataset and the same few batches again and again. What decides is CPU
time. It is nearly the same on a busy machine, while the time that passes depends on who else wants the cores.
"""

from __future__ import annotations

import itertools
import time
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any, NamedTuple

import torch.multiprocessing
from torch.utils.data import BatchSampler, SubsetRandomSampler

from headrace.core.copies import shallow_copy
from headrace.core.process.machine import cores
from headrace.core.randomness.unseeded import Seeding
from headrace.core.world import ALONE
from headrace.epoch.epoch import Epoch
from headrace.epoch.indices import begin_indices
from headrace.epoch.opening import Opening
from headrace.epoch.record import Draws, Terms
from headrace.epoch.spec import LoaderSpec, Shared
from headrace.faults.counts import FaultCounter
from headrace.shared_memory.arena import Arena
from headrace.shared_memory.leases import LocalMemory
from headrace.telemetry.recorder import Recorder
from headrace.workers.inline import InlineExecutor
from headrace.workers.processes.executor import ProcessExecutor
from headrace.workers.processes.start import ForkServers
from headrace.workers.processes.starter import PoolStarter
from headrace.workers.protocol import Executor
from headrace.workers.scale import asked_scale
from headrace.workers.stragglers.prefetch import may_draw_early

SECONDS = 0.04
"""How long each way is measured, about."""

FEWEST, MOST = 24, 256
"""Batches that are measured."""

TOO_LONG = 0.4
"""Seconds after which no further batches are measured: some of them are slow, and quick ones decide."""

PARTS = 8
"""Into so many parts the batches are divided: what interrupts some of them does not count."""


SCHEDSTAT = Path("/proc/self/schedstat")
"""What Linux tells of the CPU time of a thread, in nanoseconds; other systems have no such file."""


class Cost(NamedTuple):
    """Seconds that a batch costs: all that pass, of CPU time here, and of CPU time in all workers together."""

    passed: float
    here: float
    workers: float


class _Nobody:
    """The loader of a record of which nobody takes a state."""

    def random_state(self) -> None:
        """Returns that no order is drawn."""

    def dataset_state(self) -> None:
        """Returns that the dataset has no state."""


def can_be_tried(spec: LoaderSpec) -> bool:
    """Tells whether workers can be started at once, and asked what CPU time they took."""
    context = spec.multiprocessing_context or torch.multiprocessing
    return context.get_start_method() == "fork" and SCHEDSTAT.exists()


def cost_here(spec: LoaderSpec, batches: Sequence[Any]) -> Cost:
    """Returns what batches cost in the calling thread. Raises what the dataset raises."""
    executor = InlineExecutor(LocalMemory())
    try:
        return _cost(executor, replace(_trial(spec, batches, FEWEST), num_workers=0), FEWEST)
    finally:
        executor.close()


def cost_by_workers(spec: LoaderSpec, batches: Sequence[Any], here: float) -> Cost:
    """Returns what batches cost that workers hand over. here: seconds that one costs without. Raises as `cost_here`."""
    count = int(min(max(SECONDS / here, FEWEST), MOST))
    spec = _trial(spec, batches, 2 * count)
    executor = ProcessExecutor(PoolStarter(Arena(), ForkServers()), Recorder("trial"), asked_scale(spec))
    try:
        return _cost(executor, spec, count)
    finally:
        executor.close()


def seconds_by_workers(here: Cost, handed_over: Cost, num_workers: int) -> float:
    """Returns how many seconds pass for a batch that workers make while others wait for cores or for data, at best."""
    waits = max(here.passed - here.here, 0)
    each = (handed_over.workers + waits) / num_workers
    return max(each, handed_over.here, (handed_over.here + handed_over.workers) / cores())


def _trial(spec: LoaderSpec, batches: Sequence[Any], count: int) -> LoaderSpec:
    """Returns a spec of so many batches and more, which repeat those given."""
    repeated = list(itertools.islice(itertools.cycle(batches), 2 * count))
    sampler: Any = repeated
    # How many tasks a worker holds depends on whether the sampler's code is known. This one's is.
    if spec.batched and may_draw_early(spec) and len({len(batch) for batch in batches}) == 1:
        keys = list(itertools.chain.from_iterable(repeated))
        sampler = BatchSampler(SubsetRandomSampler(keys), len(batches[0]), drop_last=False)
    return replace(
        spec,
        dataset=shallow_copy(spec.dataset),
        index_sampler=sampler,
        sampler=None,
        generator=None,
        persistent_workers=False,
        timeout=0,
        sample_timeout=None,
    )


def _cost(executor: Executor, spec: LoaderSpec, count: int) -> Cost:
    epoch = _begun(spec, executor)
    ends = time.perf_counter() + TOO_LONG
    for _ in range(count // 2):
        _take(epoch, executor)
        if time.perf_counter() > ends:
            break

    size = max(count // PARTS, 1)
    passed: list[float] = []
    cpu: list[float] = []
    workers = executor.workers
    before = _cpu_of(workers)
    for _ in range(PARTS):
        began, began_cpu = time.perf_counter(), time.thread_time()
        for _ in range(size):
            _take(epoch, executor)
        passed.append(time.perf_counter() - began)
        cpu.append(time.thread_time() - began_cpu)
        if time.perf_counter() > ends:
            break

    spent = _cpu_of(workers) - before
    return Cost(min(passed) / size, sorted(cpu)[len(cpu) // 2] / size, spent / (len(passed) * size))


def _begun(spec: LoaderSpec, executor: Executor) -> Epoch:
    terms = Terms("trial", 0, False, None, spec.seed, ALONE, False, True, {"batch_size": spec.batch_size}, None)
    opening = Opening(spec, terms, indices=begin_indices(spec), base_seed=0, shared_seed=None, group=None)
    shared = Shared(None, FaultCounter(None, None), Seeding())
    epoch = opening.epoch(_Nobody(), Draws("", ""), None, None, replicas=executor.replicas, shared=shared)
    executor.start(epoch)
    return epoch


def _take(epoch: Epoch, executor: Executor) -> None:
    """Takes a batch as an iterator does."""
    epoch.pending = None
    executor.next_result()
    epoch.deliveries = epoch.leaving + 1
    epoch.record.handed_out = epoch.pending
    epoch.record.settle()


def _cpu_of(workers: Sequence[Any]) -> float:
    """Returns the seconds of CPU time that worker processes took so far (`/proc/PID/task/*/schedstat` of Linux)."""
    nanoseconds = 0
    for worker in workers:
        for task in Path(f"/proc/{worker.pid}/task").iterdir():
            nanoseconds += int((task / "schedstat").read_text().split()[0])
    return nanoseconds / 1e9
