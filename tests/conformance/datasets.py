"""Datasets, samplers and worker functions of the tests. All can be sent to a process that was spawned."""

import asyncio
import multiprocessing
import os
import random
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from multiprocessing.synchronize import Event
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch.utils.data import Dataset, IterableDataset, Sampler, get_worker_info

PATIENCE = 60.0  # seconds until a worker gives up waiting for its test

in_parent_only = False  # set by a test; a process that was forked sees the change


def worker_id() -> int:
    """The id of this worker, -1 where there is none."""
    info = get_worker_info()
    return -1 if info is None else info.id


class Numbers(Dataset[torch.Tensor]):
    """Sample i is the tensor i, without dimensions."""

    def __init__(self, length: int) -> None:
        self.length = length

    def __len__(self) -> int:
        return self.length

    def __getitem__(self, index: int) -> torch.Tensor:
        return torch.tensor(index)


class Rows(Dataset[torch.Tensor]):
    """Sample i is a row of floats i."""

    def __init__(self, length: int, width: int = 3) -> None:
        self.length = length
        self.width = width

    def __len__(self) -> int:
        return self.length

    def __getitem__(self, index: int) -> torch.Tensor:
        return torch.full((self.width,), float(index))


class WholeBatches(Dataset[torch.Tensor]):
    """Answers for a list of indices, never for one. Sample i is (i, size of the request)."""

    def __len__(self) -> int:
        return 7

    def __getitem__(self, index: int) -> torch.Tensor:
        raise AssertionError("a single sample was asked for")

    def __getitems__(self, indices: list[int]) -> list[torch.Tensor]:
        assert type(indices) is list
        return [torch.tensor([index, len(indices)]) for index in indices]


class AsTensor(Numbers):
    """Answers for many with one tensor."""

    def __getitems__(self, indices: list[int]) -> torch.Tensor:
        return torch.tensor(indices)


class SingleOnly(Numbers):
    """Says that it has no answer for lists."""

    __getitems__ = None


class OneOrMany(Numbers):
    """Tells apart how it was asked: one index gives the number, a list gives negative numbers."""

    def __getitems__(self, indices: list[int]) -> list[torch.Tensor]:
        return [torch.tensor(-index) for index in indices]


class TwoPart(Exception):
    """Cannot be built from one string."""

    def __init__(self, code: int, text: str) -> None:
        super().__init__(code, text)


class WithMessage(Exception):
    """Takes its text by the keyword `message` only."""

    message = "stands for any text"

    def __init__(self, *, message: str) -> None:
        super().__init__(message)


class Failing(Numbers):
    """Raises the given exception for some indices."""

    def __init__(self, length: int, error: Exception, at: Iterable[int]) -> None:
        super().__init__(length)
        self.error = error
        self.at = frozenset(at)

    def __getitem__(self, index: int) -> torch.Tensor:
        if index in self.at:
            raise self.error
        return super().__getitem__(index)


class Dying(Numbers):
    """Ends its own process at the given index, when told to."""

    def __init__(self, length: int, at: int, go: Event, die: Callable[[], None]) -> None:
        super().__init__(length)
        self.at = at
        self.go = go
        self.die = die

    def __getitem__(self, index: int) -> torch.Tensor:
        if index == self.at:
            assert self.go.wait(PATIENCE)
            # No event tells that the parent is now inside `next`, which is where it has to learn of the death
            time.sleep(0.3)
            self.die()
        return super().__getitem__(index)


def kill_self() -> None:
    os.kill(os.getpid(), signal.SIGKILL)


def exit_at_once() -> None:
    os._exit(3)


class Gated(Numbers):
    """Holds some samples back until the gate opens."""

    def __init__(self, length: int, gate: Event, held: Iterable[int]) -> None:
        super().__init__(length)
        self.gate = gate
        self.held = frozenset(held)

    def __getitem__(self, index: int) -> torch.Tensor:
        if index in self.held:
            assert self.gate.wait(PATIENCE)
        return super().__getitem__(index)


class Opening(Numbers):
    """Opens the gate with one sample, and gives another one only when the gate is open."""

    def __init__(self, length: int, gate: Event, held: int, opener: int) -> None:
        super().__init__(length)
        self.gate = gate
        self.held = held
        self.opener = opener

    def __getitem__(self, index: int) -> torch.Tensor:
        if index == self.opener:
            self.gate.set()
        if index == self.held:
            assert self.gate.wait(PATIENCE)
        return super().__getitem__(index)


class Witness(Dataset[dict[str, Any]]):
    """Each sample says where and under which circumstances it was made."""

    def __init__(self, length: int) -> None:
        self.length = length
        self.tag = -1
        self.seen = 0

    def __len__(self) -> int:
        return self.length

    def __getitem__(self, index: int) -> dict[str, Any]:
        info = get_worker_info()
        self.seen += 1
        return {
            "index": index,
            "worker": worker_id(),
            "workers": 0 if info is None else info.num_workers,
            "seed": 0 if info is None else info.seed,
            "own_dataset": info is not None and info.dataset is self,
            "pid": os.getpid(),
            "parent_pid": os.getppid(),
            "daemon": multiprocessing.current_process().daemon,
            "threads": torch.get_num_threads(),
            "tag": self.tag,
            "seen": self.seen,
            "in_parent_only": in_parent_only,
        }


class Surroundings(Dataset[dict[str, Any]]):
    """Each sample says what its process has from the one that started it."""

    def __len__(self) -> int:
        return 1

    def __getitem__(self, index: int) -> dict[str, Any]:
        return surroundings()


def surroundings() -> dict[str, Any]:
    """What a process has from the one that started it."""
    mask = os.umask(0)
    os.umask(mask)
    return {
        "folder": os.getcwd(),  # noqa: PTH109 - as text
        "path": sys.path[0],
        "arguments": sys.argv[1:],
        "environment": os.environ.get("ROTATED_KEY", ""),
        "mask": mask,
        "cores": sorted(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else [],
    }


class Rebuilt(Dataset[Any]):
    """Makes when it is unpickled what each worker is to have for itself."""

    def __init__(self, length: int) -> None:
        self.length = length

    def __setstate__(self, state: dict[str, Any]) -> None:
        self.__dict__.update(state)
        self.build()

    def build(self) -> None:
        raise NotImplementedError

    def __len__(self) -> int:
        return self.length


class ThreadPooled(Rebuilt):
    """Sample i is the number i, made by a thread."""

    def build(self) -> None:
        self.pool = ThreadPoolExecutor(2)
        assert list(self.pool.map(abs, [-1, -2])) == [1, 2]

    def __getitem__(self, index: int) -> int:
        return self.pool.submit(abs, index).result(PATIENCE)


class EventLooped(Rebuilt):
    """Sample i is the number i, made by an event loop in a thread."""

    def build(self) -> None:
        self.loop = asyncio.new_event_loop()
        threading.Thread(target=self.loop.run_forever, daemon=True).start()

    def __getitem__(self, index: int) -> int:
        return asyncio.run_coroutine_threadsafe(self.sample(index), self.loop).result(PATIENCE)

    async def sample(self, index: int) -> int:
        return index


class OwnGenerator(Rebuilt):
    """Each sample is a random number."""

    def build(self) -> None:
        self.rng = np.random.default_rng()

    def __getitem__(self, index: int) -> int:
        return int(self.rng.integers(1 << 60))


class PickledGenerator(OwnGenerator):
    """Its pickle holds a generator, too, in the place of which it makes a new one."""

    def __init__(self, length: int) -> None:
        super().__init__(length)
        self.build()


class TorchGenerator(OwnGenerator):
    """Its generator is one of torch's, deep within."""

    def build(self) -> None:
        generator = torch.Generator()
        generator.seed()
        self.steps = [{"generator": generator}]

    def __getitem__(self, index: int) -> int:
        return int(torch.randint(1 << 60, (), generator=self.steps[0]["generator"]))


class FileReader(Rebuilt):
    """Each sample is the next byte of a file that was opened once."""

    def __init__(self, length: int, path: Path) -> None:
        super().__init__(length)
        self.path = path

    def build(self) -> None:
        self.file = self.path.open("rb", buffering=0)

    def __getitem__(self, index: int) -> int:
        return self.file.read(1)[0]


class OwnNumber(Rebuilt):
    """Each sample tells whether the process is the one that unpickled the dataset."""

    def build(self) -> None:
        self.pid = os.getpid()

    def __getitem__(self, index: int) -> bool:
        return self.pid == os.getpid()


class OwnServer(Rebuilt):
    """Sample i is the line i, which a program sends back."""

    def build(self) -> None:
        self.server = subprocess.Popen(["cat"], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True, bufsize=1)

    def __getitem__(self, index: int) -> int:
        assert self.server.stdin is not None
        assert self.server.stdout is not None
        self.server.stdin.write(f"{index}\n")
        return int(self.server.stdout.readline())


class Drawing(Dataset[tuple[int, float, float, float]]):
    """Each sample is the seed of torch and a number from each of the three generators."""

    def __init__(self, length: int) -> None:
        self.length = length

    def __len__(self) -> int:
        return self.length

    def __getitem__(self, index: int) -> tuple[int, float, float, float]:
        return torch.initial_seed(), random.random(), float(np.random.random()), float(torch.rand(()))


class Inner(Numbers):
    """Runs a loader inside `__getitem__`."""

    def __init__(self, length: int, loader_class: Any, **options: Any) -> None:
        super().__init__(length)
        self.loader_class = loader_class
        self.options = options

    def __getitem__(self, index: int) -> torch.Tensor:
        return torch.cat(list(self.loader_class(Numbers(index + 1), batch_size=2, **self.options)))


class Stream(IterableDataset[Any]):
    """The numbers from 0 on. `reported` is the length it claims; `None` claims none."""

    def __init__(self, length: int, reported: int | None = None) -> None:
        self.length = length
        self.reported = reported

    def __iter__(self) -> Iterator[Any]:
        return iter(range(self.length))

    def __len__(self) -> int:
        if self.reported is None:
            raise TypeError("this stream has no length")
        return self.reported


class PerWorkerStream(IterableDataset[int]):
    """Worker w gives w * 100, w * 100 + 1, ..., as many as `lengths[w]` says."""

    def __init__(self, *lengths: int) -> None:
        self.lengths = lengths

    def __iter__(self) -> Iterator[int]:
        worker = max(worker_id(), 0)
        return iter(range(worker * 100, worker * 100 + self.lengths[worker]))


class ShardedStream(IterableDataset[int]):
    """Each worker gives every n-th number, so that together they give each number once."""

    def __init__(self, length: int) -> None:
        self.length = length

    def __iter__(self) -> Iterator[int]:
        info = get_worker_info()
        first, step = (0, 1) if info is None else (info.id, info.num_workers)
        return iter(range(first, self.length, step))


class BoundedStream(IterableDataset[int]):
    """The numbers of a range that a `worker_init_fn` narrows."""

    def __init__(self, start: int, stop: int) -> None:
        self.start = start
        self.stop = stop

    def __iter__(self) -> Iterator[int]:
        return iter(range(self.start, self.stop))


class EpochStream(IterableDataset[int]):
    """Counts how often it was asked for an iterator, and gives that number twice."""

    def __init__(self) -> None:
        self.epoch = 0

    def __iter__(self) -> Iterator[int]:
        self.epoch += 1
        return iter([self.epoch, self.epoch])


class FailingStream(IterableDataset[int]):
    """Raises after some numbers; with `after=None` already when asked for an iterator."""

    def __init__(self, after: int | None) -> None:
        self.after = after

    def __iter__(self) -> Iterator[int]:
        if self.after is None:
            raise ValueError("no stream today")
        return self.generate(self.after)

    def generate(self, after: int) -> Iterator[int]:
        yield from range(after)
        raise ValueError("the stream broke")


class Unsized(Sampler[int]):
    """A sampler without length. Each epoch gives the same indices."""

    def __init__(self, indices: Sequence[Any]) -> None:
        self.indices = indices

    def __iter__(self) -> Iterator[Any]:
        return iter(self.indices)


class CountingBatches(Sampler[list[int]]):
    """Batches of two, and a count of those that were drawn."""

    def __init__(self, batches: int) -> None:
        self.batches = batches
        self.drawn = 0

    def __iter__(self) -> Iterator[list[int]]:
        for number in range(self.batches):
            self.drawn += 1
            yield [2 * number, 2 * number + 1]

    def __len__(self) -> int:
        return self.batches


class EagerShuffle(Sampler[int]):
    """Draws the whole order from the global generator as soon as it is asked for an iterator."""

    def __init__(self, length: int) -> None:
        self.length = length

    def __iter__(self) -> Iterator[int]:
        return iter(torch.randperm(self.length).tolist())

    def __len__(self) -> int:
        return self.length


class FailingSampler(Sampler[int]):
    """Gives some indices and raises."""

    def __iter__(self) -> Iterator[int]:
        yield from range(4)
        raise LookupError("out of indices")


def tag_dataset(worker: int) -> None:
    """A `worker_init_fn`: leaves the worker's id on its copy of the dataset."""
    info = get_worker_info()
    assert info is not None
    info.dataset.tag = worker


def tag_with_seed(worker: int) -> None:
    """A `worker_init_fn`: leaves torch's seed on the worker's copy of the dataset."""
    info = get_worker_info()
    assert info is not None
    info.dataset.tag = torch.initial_seed()


def narrow_stream(worker: int) -> None:
    """A `worker_init_fn`: cuts the range of a `BoundedStream` into one part a worker."""
    info = get_worker_info()
    assert info is not None
    dataset = info.dataset
    share = (dataset.stop - dataset.start) // info.num_workers
    dataset.start += worker * share
    dataset.stop = dataset.start + share


def refuse_to_start(worker: int) -> None:
    """A `worker_init_fn` that raises."""
    raise ValueError(f"worker {worker} has no licence")
