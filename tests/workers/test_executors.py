"""Every executor delivers what `InlineExecutor` delivers, through the protocol alone.

An executor of another kind joins by one line in `EXECUTORS`.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import pytest
import torch
from torch.utils.data import BatchSampler, Dataset, IterableDataset, SequentialSampler

from headrace.core.randomness.unseeded import Seeding
from headrace.core.world import ALONE
from headrace.epoch.epoch import Epoch
from headrace.epoch.opening import Opening
from headrace.epoch.record import Draws, Terms
from headrace.epoch.spec import LoaderSpec, Shared
from headrace.faults.counts import FaultCounter
from headrace.faults.policy import Policy
from headrace.loader.origin import LoaderOrigin
from headrace.shared_memory.arena import Arena
from headrace.shared_memory.leases import LocalMemory
from headrace.telemetry.recorder import Recorder
from headrace.workers.auto.scaling import AutoScaler, scale_of
from headrace.workers.auto.tuner import Choice, Limits, Tuner
from headrace.workers.inline import InlineExecutor
from headrace.workers.processes.executor import ProcessExecutor
from headrace.workers.processes.start import ForkServers
from headrace.workers.processes.starter import PoolStarter
from headrace.workers.protocol import Executor
from headrace.workers.scale import asked_scale
from headrace.workers.threads import ThreadExecutor


class Rows(Dataset[torch.Tensor]):
    """Rows whose number stands in them; some raise."""

    def __init__(self, length: int, bad: tuple[int, ...] = ()) -> None:
        self.length = length
        self.bad = bad

    def __len__(self) -> int:
        return self.length

    def __getitem__(self, key: int) -> torch.Tensor:
        if key in self.bad:
            raise ValueError(f"row {key} is damaged")
        return torch.full((300,), key)


class Stream(IterableDataset[torch.Tensor]):
    """The same rows, dealt out by nobody: one worker reads all of them."""

    def __init__(self, length: int) -> None:
        self.length = length

    def __iter__(self) -> Iterator[torch.Tensor]:
        return (torch.full((300,), number) for number in range(self.length))


def inline(spec: LoaderSpec) -> Executor:
    return InlineExecutor(LocalMemory())


def threads(spec: LoaderSpec) -> Executor:
    return ThreadExecutor(spec, LocalMemory())


def processes(spec: LoaderSpec) -> Executor:
    return ProcessExecutor(PoolStarter(Arena(), ForkServers()), Recorder("processes"), asked_scale(spec))


def scaled(spec: LoaderSpec) -> Executor:
    """Begins with workers, and goes on as the tuner likes."""
    limits = Limits(most=spec.num_workers, budget=10**12, tunes_workers=False)
    tuner = Tuner(limits, Choice(spec.num_workers, 2))
    scale = scale_of(tuner, spec.num_workers)
    return AutoScaler(
        ProcessExecutor(PoolStarter(Arena(), ForkServers()), Recorder("scaled"), scale), LocalMemory(), tuner
    )


EXECUTORS: list[Callable[[LoaderSpec], Executor]] = [inline, threads, processes, scaled]


def spec_for(dataset: Any, workers: int = 2) -> LoaderSpec:
    """What a loader over the dataset would be told to do: batches of four, in order."""
    is_map = not isinstance(dataset, IterableDataset)
    sampler = SequentialSampler(dataset if is_map else range(dataset.length))
    index_sampler: Any = BatchSampler(sampler, 4, drop_last=False)
    if not is_map:
        index_sampler = [[0] * 4 for _ in range(100)]  # an iterable dataset is only told how many
    return LoaderSpec(
        dataset=dataset,
        is_map=is_map,
        batched=True,
        batch_size=4,
        drop_last=False,
        index_sampler=index_sampler,
        sampler=sampler,
        collate_fn=torch.utils.data.default_collate,
        generator=None,
        worker_init_fn=None,
        multiprocessing_context=None,
        num_workers=workers,
        prefetch_factor=2,
        in_order=True,
        persistent_workers=True,
        timeout=0,
        seed=None,
        sample_timeout=None,
        original_errors=True,
    )


def begun(spec: LoaderSpec, executor: Executor, number: int = 0, policy: Policy | None = None) -> Epoch:
    """Begins an epoch with an executor, as an iterator does."""
    fingerprint = {"dataset": "rows", "length": None, "seed": None, "batch_size": 4, "samplers": []}
    terms = Terms("loader", number, False, None, None, ALONE, False, True, fingerprint, None)
    opening = Opening(spec, terms, indices=iter(spec.index_sampler), base_seed=7, shared_seed=None, group=None)
    origin = LoaderOrigin(spec, has_workers=executor.replicas > 0)
    shared = Shared(policy, FaultCounter(None, None), Seeding())
    epoch = opening.epoch(origin, Draws("", ""), None, None, replicas=executor.replicas, shared=shared)
    executor.start(epoch)
    return epoch


def results(epoch: Epoch, executor: Executor) -> list[Any]:
    """Takes all results as an iterator does: numbers of rows, or what an exception says."""
    found: list[Any] = []
    while True:
        epoch.pending = None
        try:
            batch, _ = executor.next_result()
            found.append(batch[:, 0].tolist())
        except StopIteration:
            return found
        except ValueError as error:
            found.append(str(error))

        assert epoch.pending is not None
        epoch.deliveries = epoch.leaving + 1
        epoch.record.handed_out = epoch.pending
        epoch.record.settle()


@pytest.fixture(params=EXECUTORS, ids=lambda made: made.__name__)
def make(request: pytest.FixtureRequest) -> Iterator[Callable[[LoaderSpec], Executor]]:
    """Makes executors of one kind, and closes them in the end."""
    made: list[Executor] = []

    def make_one(spec: LoaderSpec) -> Executor:
        made.append(request.param(spec))
        return made[-1]

    yield make_one
    for executor in made:
        executor.close()


EXPECTED = [list(range(first, min(first + 4, 26))) for first in range(0, 26, 4)]


def test_batches_are_those_of_the_sampler_in_its_order(make: Callable[[LoaderSpec], Executor]) -> None:
    spec = spec_for(Rows(26))
    executor = make(spec)
    assert results(begun(spec, executor), executor) == EXPECTED


def test_each_of_several_epochs_is_whole(make: Callable[[LoaderSpec], Executor]) -> None:
    spec = spec_for(Rows(26))
    executor = make(spec)
    for number in range(3):
        epoch = begun(spec, executor, number)
        assert results(epoch, executor) == EXPECTED
        assert epoch.progress.batches == len(EXPECTED)


def test_an_epoch_that_is_left_leaves_nothing_in_the_next(make: Callable[[LoaderSpec], Executor]) -> None:
    spec = spec_for(Rows(26))
    executor = make(spec)
    begun(spec, executor)
    executor.next_result()
    assert results(begun(spec, executor, 1), executor) == EXPECTED


def test_an_exception_takes_the_place_of_its_batch(make: Callable[[LoaderSpec], Executor]) -> None:
    spec = spec_for(Rows(26, bad=(5, 21)))
    executor = make(spec)
    expected: list[Any] = list(EXPECTED)
    expected[1] = "row 5 is damaged"
    expected[5] = "row 21 is damaged"
    assert results(begun(spec, executor), executor) == expected


def test_nothing_counts_before_it_leaves(make: Callable[[LoaderSpec], Executor]) -> None:
    spec = spec_for(Rows(26))
    executor = make(spec)
    epoch = begun(spec, executor)
    assert (epoch.progress.batches, epoch.pending) == (0, None)
    executor.next_result()
    assert epoch.pending is not None
    assert epoch.pending[0] == 0


def test_a_stream_ends_where_its_data_end(make: Callable[[LoaderSpec], Executor]) -> None:
    spec = spec_for(Stream(26), workers=1)
    executor = make(spec)
    epoch = begun(spec, executor)
    assert results(epoch, executor) == EXPECTED
    assert set(epoch.ends) == {0}


@pytest.mark.parametrize("taken", [0, len(EXPECTED)])
def test_the_end_is_known_without_taking_a_batch(make: Callable[[LoaderSpec], Executor], taken: int) -> None:
    spec = spec_for(Rows(26))
    executor = make(spec)
    epoch = begun(spec, executor)
    for _ in range(taken):
        executor.next_result()
        epoch.deliveries += 1
    assert executor.is_at_end() == (taken == len(EXPECTED))


def test_closing_ends_the_workers_and_may_be_repeated(make: Callable[[LoaderSpec], Executor]) -> None:
    spec = spec_for(Rows(26))
    executor = make(spec)
    executor.close()
    begun(spec, executor)
    workers = list(executor.workers)
    executor.close()
    executor.close()
    assert [worker for worker in workers if worker.is_alive()] == []
