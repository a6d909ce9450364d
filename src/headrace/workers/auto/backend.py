"""`backend="auto"`: measures the first samples, and chooses where the workers run.

Measured on two cores, two workers, batches of 32 that cost the main process 0.03 to 1.7 ms: below 0.25 ms a batch is
made sooner than handed over from anywhere else; above it, worker processes win unless the dataset's work releases the
interpreter lock, when threads save the start of workers, their memory and the way between processes.
"""

from __future__ import annotations

import copy
import logging
import threading
import time
from collections.abc import Callable
from typing import Any, Literal, NamedTuple

import numpy as np
from torch.utils.data import DataLoader as TorchDataLoader
from torch.utils.data import DistributedSampler, RandomSampler, SequentialSampler, SubsetRandomSampler

from headrace.batches.fetch_map import MapFetcher
from headrace.batches.index import Positioned
from headrace.batches.whole_batches import whole_batches
from headrace.core.protocols import is_stateful
from headrace.core.rng import SampleStreams, global_states_kept
from headrace.core.torch_internals import DatasetKind, compute_with_one_thread
from headrace.samplers.sampler import ElasticSampler
from headrace.telemetry.digest import extend_digest

QUICK = 0.25e-3
"""Seconds within which a batch is made sooner than it is handed over."""

SCALES = 1.6
"""How much more two threads must get done than one, to be worth their risks."""

TRIAL, TIMES = 0.2, 5
"""Seconds that one measurement may take, about, and how often it is repeated within them."""

WHOLE_NUMBERS = (SequentialSampler, RandomSampler, SubsetRandomSampler, DistributedSampler, ElasticSampler)
"""Samplers whose keys are the numbers from 0 to the dataset's length."""

_said: set[str] = set()
"""Of which data it was said that workers slow them down: once is enough."""

LOGGER = logging.getLogger("headrace")


class BackendChoice(NamedTuple):
    """Where batches are made, and the reason in words."""

    backend: Literal["inline", "thread", "process"]
    why: str


def choose(loader: TorchDataLoader[Any]) -> BackendChoice:
    """Chooses where the batches of a loader with workers are made; says so in the log `headrace`.

    Loads a few samples about twelve times, from shallow copies of the dataset. Random generators are left as they were.
    """
    hindrance = _hindrance(loader)
    with global_states_kept():
        if hindrance:
            choice = BackendChoice("process", hindrance)
        else:
            choice = _measured(loader)

    LOGGER.info("backend='auto' chose %s: %s", choice.backend, choice.why)
    return choice


def advise(loader: TorchDataLoader[Any]) -> None:
    """Says in the log `headrace` if the workers of a loader will only slow it down; looks at two batches for that.

    Only of a dataset that makes whole batches from memory: that is often quicker than handing them over.
    """
    dataset: Any = loader.dataset
    size = loader.batch_size
    if not getattr(dataset, "lies_in_memory", False) or not size or not len(dataset) or dataset.place in _said:
        return

    fetch = whole_batches(dataset, loader.collate_fn)
    if fetch is None:
        return

    keys = np.linspace(0, len(dataset) - 1, size).astype(np.int64)
    seconds = []
    with global_states_kept():
        for _ in range(2):
            started = time.perf_counter()
            fetch(keys)
            seconds.append(time.perf_counter() - started)

    place = dataset.place
    if min(seconds) < QUICK:
        _said.add(place)
        LOGGER.warning(
            "headrace: workers (%d) slow this loader down: a batch of %s takes %.3f ms to make, less than handing "
            "it over from a worker. Use num_workers=0, or backend='auto', which decides.",
            loader.num_workers, place, min(seconds) * 1e3,
        )  # fmt: skip


def _hindrance(loader: TorchDataLoader[Any]) -> str:
    """Returns why the samples cannot be measured; empty if they can."""
    if loader._dataset_kind != DatasetKind.Map:
        return "the samples of a stream cannot be looked at beforehand"
    if is_stateful(loader.dataset):
        return "the dataset has a state, which a trial would change"

    sampler = getattr(loader._index_sampler, "sampler", loader._index_sampler)
    if not isinstance(sampler, WHOLE_NUMBERS):
        return f"the keys of a {type(sampler).__name__} are not known beforehand"
    if loader.worker_init_fn is not None:
        return "worker_init_fn may prepare what samples need"
    dataset: Any = loader.dataset
    if len(dataset):
        return ""
    return "the dataset is empty"


def _measured(loader: TorchDataLoader[Any]) -> BackendChoice:
    try:
        trial = _Trial(loader)
        if trial.draws():
            return BackendChoice("process", "samples draw from the global random generators, which threads share")
        alone = trial.run(1)
        batch = alone.seconds * trial.batch / len(trial.keys)
        if batch < QUICK and loader.timeout == 0:
            return BackendChoice("inline", f"a batch takes {batch * 1e3:.3f} ms, less than handing it over")
        both = trial.run(2)
    except Exception as error:  # noqa: BLE001 - the epoch itself will raise it, with its place
        return BackendChoice("process", f"the first samples raise {type(error).__name__}")

    return judged(alone, both)


def judged(alone: Run, both: Run) -> BackendChoice:
    """Chooses between threads and processes by what one thread and two at once made of the same samples."""
    gain = 2 * alone.seconds / both.seconds
    if both.digests != alone.digests * 2:
        return BackendChoice("process", "samples come out differently when two threads load them")
    if gain < SCALES:
        return BackendChoice("process", f"two threads get {gain:.2f} times as much done as one")
    return BackendChoice("thread", f"two threads get {gain:.2f} times as much done as one")


class Run(NamedTuple):
    """How long it took to make the same samples in one thread or more, and what each of them got."""

    seconds: float
    digests: list[int]


class _Trial:
    """The same few samples, loaded and collated in several ways."""

    def __init__(self, loader: TorchDataLoader[Any]) -> None:
        self._loader = loader
        dataset: Any = loader.dataset
        started = time.perf_counter()
        self._fetch([0])
        each = time.perf_counter() - started
        self.batch: int = loader.batch_size or getattr(loader.batch_sampler, "batch_size", None) or 1
        count = int(min(self.batch, max(TRIAL / max(each, 1e-9), 1)))
        self.keys = [number * len(dataset) // count for number in range(count)]

    def draws(self) -> bool:
        """Returns whether samples draw from the global random generators."""
        streams = SampleStreams(0, seed_globals=False, watch=True)
        self._fetcher(streams)(self.keys)
        streams.pause()
        return streams.drawn

    def run(self, count: int) -> Run:
        """Loads the samples in so many threads at once; the quickest of a few times."""
        runs: list[Run] = []
        ends = time.perf_counter() + TRIAL
        while not runs or (len(runs) < TIMES and time.perf_counter() < ends):
            runs.append(self._run_once(count))
        return min(runs, key=lambda run: run.seconds)

    def _run_once(self, count: int) -> Run:
        digests = list[int]()
        failures = list[Exception]()
        times = list[float]()
        fetchers = [self._fetcher(SampleStreams(0, seed_globals=False)) for _ in range(count)]
        together = threading.Barrier(count)

        def load(fetch: Callable[[list[int]], Any]) -> None:
            compute_with_one_thread()
            together.wait()
            times.append(time.perf_counter())
            try:
                samples = fetch(self.keys)
                times.append(time.perf_counter())
                digests.append(extend_digest(0, samples))
            except Exception as error:  # noqa: BLE001 - raised again below
                failures.append(error)

        threads = [threading.Thread(target=load, args=(fetch,), daemon=True) for fetch in fetchers]
        for thread in threads:
            thread.start()

        for thread in threads:
            thread.join()

        for failure in failures:
            raise failure

        return Run(max(times) - min(times), digests)

    def _fetch(self, keys: list[int]) -> Any:
        return self._fetcher(None)(keys)

    def _fetcher(self, streams: SampleStreams | None) -> Callable[[list[int]], Any]:
        """Returns what makes the samples of some keys, from a copy of the dataset: what the copy opens goes with it.

        Threads shall not meet in the loader's leased memory here, so collation is torch's.
        """
        batched = self._loader._auto_collation
        fetcher = MapFetcher(copy.copy(self._loader.dataset), batched, self._loader.collate_fn, streams)

        def fetch(keys: list[int]) -> Any:
            if batched:
                return fetcher.fetch(keys if streams is None else Positioned(keys, range(len(keys))))

            return [
                fetcher.fetch(key if streams is None else Positioned(key, range(place, place + 1)))
                for place, key in enumerate(keys)
            ]

        return fetch
