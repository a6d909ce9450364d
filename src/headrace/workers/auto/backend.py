"""`backend="auto"`: measures the first samples, and chooses where the workers run.

A batch that is made sooner than workers hand it over needs none. What handing over costs depends on the batch (0.2 to
0.9 ms of CPU time on two cores), so both ways are tried where batches take less than 3 ms. Above that, worker processes
win unless the dataset's work releases the interpreter lock: then threads save the start of workers, their memory and
the way between processes.
"""

from __future__ import annotations

import copy
import itertools
import logging
import threading
import time
from collections.abc import Callable, Sequence
from functools import partial
from operator import attrgetter
from typing import Any, Literal, NamedTuple

import numpy as np
from torch.utils.data import DataLoader as TorchDataLoader
from torch.utils.data import DistributedSampler, RandomSampler, SequentialSampler, SubsetRandomSampler

from headrace.batches.fetch_map import MapFetcher
from headrace.batches.index import Positioned
from headrace.batches.whole_batches import whole_batches
from headrace.core.copies import shallow_copy
from headrace.core.protocols import is_stateful, says_yes
from headrace.core.randomness.rng import SampleStreams, global_states_kept
from headrace.core.torch_internals import DatasetKind, compute_with_one_thread
from headrace.epoch.spec import LoaderSpec
from headrace.samplers.sampler import ElasticSampler
from headrace.telemetry.digest import extend_digest
from headrace.telemetry.stopwatch import queued_seconds
from headrace.workers.auto.trial import can_be_tried, cost_by_workers, cost_here, seconds_by_workers

QUICK = 3e-3
"""Seconds within which a batch may be made sooner than it is handed over."""

EXPECTED = 0.3e-3
"""Seconds that handing over costs, where it cannot be tried: of CPU time, for a batch of two tensors."""

SURELY = 1.25
"""How much sooner batches must come from workers than without, at best, to be worth their cores and memory."""

TRIED = 4
"""Batches that are tried."""

SCALES = 1.9
"""How much more two threads must get done than one: two processes get nearly twice as much done."""

TRIAL, TIMES = 0.2, 5
"""Seconds that one measurement may take, about, and how often it is repeated within them."""

WHOLE_NUMBERS = (SequentialSampler, RandomSampler, SubsetRandomSampler, DistributedSampler, ElasticSampler)
"""Samplers whose keys are the numbers from 0 to the dataset's length; others are copied and asked."""

_said: set[str] = set()
"""Of which data it was said that workers slow them down: once is enough."""

LOGGER = logging.getLogger("headrace")


class BackendChoice(NamedTuple):
    """Where batches are made, and the reason in words."""

    backend: Literal["inline", "thread", "process"]
    why: str


def choose(loader: TorchDataLoader[Any], spec: LoaderSpec) -> BackendChoice:
    """Chooses where the batches of a loader with workers are made; says so in the log `headrace`.

    Loads a few samples about twelve times, and quick ones some hundred times, from shallow copies of the dataset.
    Leaves random generators as they were. spec: of the loader.
    """
    with global_states_kept():
        hindrance = _hindrance(loader)
        if hindrance:
            choice = BackendChoice("process", hindrance)
        else:
            choice = _measured(loader, spec)

    LOGGER.info("backend='auto' chose %s: %s", choice.backend, choice.why)
    return choice


def advise(loader: TorchDataLoader[Any]) -> None:
    """Says in the log `headrace` if the workers of a loader will only slow it down; looks at two batches for that.

    Only of a dataset that makes whole batches from memory: that is often quicker than handing them over.
    """
    dataset: Any = loader.dataset
    size = loader.batch_size
    if not says_yes(dataset, "lies_in_memory") or not size or not len(dataset):
        return

    place = str(getattr(dataset, "place", type(dataset).__name__))
    fetch = whole_batches(dataset, loader.collate_fn)
    if fetch is None or place in _said:
        return

    keys = np.linspace(0, len(dataset) - 1, size).astype(np.int64)
    seconds = []
    with global_states_kept():
        for _ in range(2):
            started = time.perf_counter()
            fetch(keys)
            seconds.append(time.perf_counter() - started)

    if min(seconds) < EXPECTED:
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

    if loader.worker_init_fn is not None:
        return "worker_init_fn may prepare what samples need"
    dataset: Any = loader.dataset
    if len(dataset):
        return ""
    return "the dataset is empty"


def _measured(loader: TorchDataLoader[Any], spec: LoaderSpec) -> BackendChoice:
    try:
        batches = _first_batches(spec)
    except Exception as error:  # noqa: BLE001 - a sampler of the user's may be made in any way
        name = type(getattr(spec.index_sampler, "sampler", spec.index_sampler)).__name__
        why = f"a copy of the sampler ({name}) gives no keys: {type(error).__name__}"
        return BackendChoice("process", why)
    if not batches:
        return BackendChoice("process", "the sampler gives nothing")

    try:
        trial = _Trial(loader, batches[0] if spec.batched else batches[:1])
        draws = trial.draws()
        # Here they would draw from the generators of the script, so that the next order would depend on the choice.
        if loader.timeout == 0 and (spec.seed is not None or not draws) and trial.is_quick():
            choice = _without_workers(spec, batches)
            if choice is not None:
                return choice
        if draws:
            return BackendChoice("process", "samples draw from the global random generators, which threads share")
        alone, both = trial.runs()
    except Exception as error:  # noqa: BLE001 - the epoch itself will raise it, with its place
        return BackendChoice("process", f"the first samples raise {type(error).__name__}")

    return judged(alone, both)


def _first_batches(spec: LoaderSpec) -> list[Any]:
    """Returns a few indices such as the sampler gives, without asking it. Raises if it cannot be copied."""
    sampler = getattr(spec.index_sampler, "sampler", spec.index_sampler)
    if not isinstance(sampler, WHOLE_NUMBERS):
        # What a sampler shares with the loader stays what it is; the rest, such as its generator, is a copy.
        copied = copy.deepcopy(spec.index_sampler, {id(spec.dataset): spec.dataset})
        return list(itertools.islice(copied, TRIED))

    length = len(spec.dataset)
    size = 1
    if spec.batched:
        size = min(spec.batch_size or getattr(spec.index_sampler, "batch_size", None) or 1, length)
    keys = np.linspace(0, length - 1, TRIED * size).astype(np.int64).tolist()
    if not spec.batched:
        return list(keys)
    return [keys[first::TRIED] for first in range(TRIED)]


def _without_workers(spec: LoaderSpec, batches: list[Any]) -> BackendChoice | None:
    """Chooses no workers if batches are made sooner than handed over; None: they are not. Raises as the dataset."""
    here = cost_here(spec, batches)
    if here.passed >= QUICK:
        return None
    by_workers = EXPECTED
    if can_be_tried(spec):
        by_workers = seconds_by_workers(here, cost_by_workers(spec, batches, here.passed), spec.num_workers)
    if here.passed >= SURELY * by_workers:
        return None

    words = f"a batch takes {here.passed * 1e3:.3f} ms, and {by_workers * 1e3:.3f} ms or more from workers"
    if here.passed > by_workers:
        words += ", which is a gain of less than a quarter"
    return BackendChoice("inline", words)


def judged(alone: Run, both: Run) -> BackendChoice:
    """Chooses between threads and processes by what one thread and two at once made of the same samples."""
    gain = _gain(alone, both)
    if both.digests != alone.digests * 2:
        return BackendChoice("process", "samples come out differently when two threads load them")
    if gain < SCALES:
        return BackendChoice("process", f"two threads get {gain:.2f} times as much done as one")
    return BackendChoice("thread", f"two threads get {gain:.2f} times as much done as one")


class Run(NamedTuple):
    """How the same samples were made in one thread or more, and what each of the threads got.

    seconds: that passed. computed: seconds of CPU time, of all threads together. waited: seconds in which a thread
    neither computed nor waited for a core; of one thread alone these are its samples' own, such as for a disk.

    Two threads do twice as much if they compute and wait at once: their CPU time and the waits of their samples then
    fill two times what passes. Threads that take turns, such as for the interpreter's lock, fill it once, however busy
    the machine is and however fast it runs at the moment.
    """

    seconds: float
    computed: float
    waited: float
    digests: list[int]


def _gain(alone: Run, both: Run) -> float:
    return (both.computed + 2 * alone.waited) / both.seconds


class _Trial:
    """The same few samples, loaded and collated in several ways."""

    def __init__(self, loader: TorchDataLoader[Any], keys: Sequence[Any]) -> None:
        """keys: those of a batch, of which as many are used as there is time for."""
        self._loader = loader
        keys = list(keys)
        self._fetch(keys[:1])  # what is done once, such as opening files
        self._each = self._seconds(keys[:1])
        count = int(min(len(keys), max(TRIAL / max(self._each, 1e-9), 1)))
        self._all = keys
        self.keys = keys[:count]

    def is_quick(self) -> bool:
        """Returns whether a batch may be made sooner than it is handed over."""
        if len(self.keys) < len(self._all):
            return False  # one sample takes longer
        return any(self._seconds(self._all) < QUICK for _ in range(TIMES))

    def _seconds(self, keys: list[Any]) -> float:
        started = time.perf_counter()
        self._fetch(keys)
        return time.perf_counter() - started

    def draws(self) -> bool:
        """Returns whether samples draw from the global random generators."""
        streams = SampleStreams(0, seed_globals=False, watch=True)
        self._fetcher(streams)(self.keys)
        streams.pause()
        return streams.drawn

    def runs(self) -> tuple[Run, Run]:
        """Loads the samples in one thread, and in two at once; returns the run of each that was disturbed least."""
        alone = list[Run]()
        both = list[Run]()
        ends = time.perf_counter() + 2 * TRIAL
        while not both or (len(both) < TIMES and time.perf_counter() < ends):
            alone.append(self._run_once(1))
            both.append(self._run_once(2))
        least = min(alone, key=attrgetter("waited"))
        return least, max(both, key=partial(_gain, least))

    def _run_once(self, count: int) -> Run:
        digests = list[int]()
        failures = list[Exception]()
        times = list[float]()
        computed = list[float]()
        waited = list[float]()
        fetchers = [self._fetcher(SampleStreams(0, seed_globals=False)) for _ in range(count)]
        together = threading.Barrier(count)

        def load(fetch: Callable[[list[int]], Any]) -> None:
            compute_with_one_thread()
            together.wait()
            queued_before = queued_seconds()
            began = time.perf_counter()
            began_cpu = time.thread_time()
            try:
                samples = fetch(self.keys)
                cpu = time.thread_time() - began_cpu
                ended = time.perf_counter()
                queued = queued_seconds() - queued_before
                times.extend((began, ended))
                computed.append(cpu)
                waited.append(max(ended - began - cpu - queued, 0))
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

        return Run(max(times) - min(times), sum(computed), sum(waited), digests)

    def _fetch(self, keys: list[int]) -> Any:
        return self._fetcher(None)(keys)

    def _fetcher(self, streams: SampleStreams | None) -> Callable[[list[int]], Any]:
        """Returns what makes the samples of some keys, from a copy of the dataset: what the copy opens goes with it.

        Threads shall not meet in the loader's leased memory here, so collation is torch's.
        """
        batched = self._loader._auto_collation
        fetcher = MapFetcher(shallow_copy(self._loader.dataset), batched, self._loader.collate_fn, streams)

        def fetch(keys: list[int]) -> Any:
            if batched:
                return fetcher.fetch(keys if streams is None else Positioned(keys, range(len(keys))))

            return [
                fetcher.fetch(key if streams is None else Positioned(key, range(place, place + 1)))
                for place, key in enumerate(keys)
            ]

        return fetch
