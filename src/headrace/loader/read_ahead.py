"""Reads ahead what lies elsewhere: from the indices that come next to the byte ranges that they stand for."""

from __future__ import annotations

import itertools
from collections import deque
from collections.abc import Callable
from typing import Any

import numpy as np
import numpy.typing as npt
from torch.utils.data import Subset

from headrace.core.errors import HeadraceError
from headrace.epoch.spec import LoaderSpec
from headrace.samplers.key_arrays import key_arrays
from headrace.samplers.sampler import PositionalSampler
from headrace.storage.endpoint import Endpoint, endpoint
from headrace.storage.fetcher import default_budget
from headrace.storage.io_client import IO_PROCESS, IOProcess
from headrace.storage.ranges import ByteRange

Keys = npt.NDArray[np.int64]
RangesOf = Callable[[Keys], list[ByteRange]]

MOST = 4096
"""Indices that are known ahead at most, however small what they stand for."""

EVERY = 8
"""Batches that leave before the endpoint is told of them."""

HORIZON = 2
"""How many times the bytes that are read ahead are announced, so that there is always more to ask for."""


def lies_elsewhere(dataset: Any) -> bool:
    """Tells whether a dataset, or one that it is made of, reads from an object store or a server."""
    while dataset is not None:
        if getattr(dataset, "lies_elsewhere", False):
            return True
        dataset = getattr(dataset, "dataset", None)

    return False


def ranges_of(dataset: Any) -> RangesOf | None:
    """Returns what tells which byte ranges samples of a dataset are; None if there are none, or nobody knows."""
    if type(dataset) is Subset:
        inner = ranges_of(dataset.dataset)
        if inner is None:
            return None
        indices = np.asarray(dataset.indices, np.int64)
        return lambda keys: inner(indices[keys])

    if not getattr(dataset, "lies_elsewhere", False):
        return None
    found: RangesOf | None = getattr(dataset, "byte_ranges", None)
    return found


def may_draw_ahead(index_sampler: Any, *, workers: bool) -> bool:
    """Tells whether indices may be drawn before they are needed.

    With workers torch does so, too. Without them, a sampler of the user's may draw from generators that the dataset
    draws from as well: drawn ahead, both would get other numbers.
    """
    if workers or isinstance(getattr(index_sampler, "sampler", index_sampler), PositionalSampler):
        return True
    return key_arrays(index_sampler) is not None


class RemoteReading:
    """How a loader reads data that lie elsewhere: through what, and how far ahead."""

    def __init__(self, ranges: RangesOf | None, io_process: IOProcess | None) -> None:
        """io_process: that of worker processes; None: whoever makes batches reads in threads of this process."""
        self._io_process = io_process
        self._ahead: ReadAhead | None = None
        if ranges is not None and io_process is not None:
            self._ahead = ReadAhead(ranges, io_process.client)
        elif ranges is not None:
            self._ahead = ReadAhead(ranges, endpoint())

    @property
    def address(self) -> str | None:
        """Of the I/O process; None without one."""
        if self._io_process is None:
            return None
        return self._io_process.address

    def begin(self, spec: LoaderSpec) -> ReadAhead | None:
        """Begins an epoch. Returns what is to be told of its indices; None: nothing can be read ahead."""
        if self._ahead is None or not may_draw_ahead(spec.index_sampler, workers=self._io_process is not None):
            return None
        self._ahead.begin()
        return self._ahead


def remote_reading(dataset: Any, *, processes: bool) -> RemoteReading | None:
    """Returns how a dataset is read whose data lie elsewhere; None if they lie on this machine.

    processes: whether worker processes make the batches. They read through one I/O process.
    """
    if not lies_elsewhere(dataset):
        return None

    io_process = None
    if processes:
        io_process = IO_PROCESS.get()
    return RemoteReading(ranges_of(dataset), io_process)


class ReadAhead:
    """What is announced of one loader's epochs. See `epoch.look_ahead.ReadsAhead`."""

    def __init__(self, ranges: RangesOf, endpoint: Endpoint) -> None:
        self._ranges = ranges
        self._endpoint = endpoint
        self._limit = HORIZON * default_budget()
        self._plans = itertools.count(1)
        self._plan = 0
        # Position and bytes of what was announced and has not left.
        self._ahead: deque[tuple[int, int]] = deque()
        self._bytes = 0

    def begin(self) -> None:
        """Begins an epoch: what was announced of the one before is dropped."""
        self._endpoint.forget(self._plan)
        self._plan = next(self._plans)
        self._ahead.clear()
        self._bytes = 0

    def has_room(self) -> bool:
        """See `ReadsAhead.has_room`."""
        return self._bytes < self._limit and len(self._ahead) < MOST

    def announce(self, position: int, index: Any) -> None:
        """See `ReadsAhead.announce`."""
        try:
            ranges = self._ranges(np.atleast_1d(np.asarray(index, np.int64)))
        except (HeadraceError, IndexError, TypeError, ValueError, OverflowError):
            # A key that the dataset does not have, or data that are damaged: whoever makes the batch says so.
            ranges = []

        size = sum(wanted.size for wanted in ranges)
        self._ahead.append((position, size))
        self._bytes += size
        if ranges:
            self._endpoint.announce(self._plan, position, ranges)

    def passed(self, position: int) -> None:
        """See `ReadsAhead.passed`."""
        while self._ahead and self._ahead[0][0] <= position:
            self._bytes -= self._ahead.popleft()[1]
        # Nearly always all of it was read by then, so that there is nothing left to drop.
        if position % EVERY == 0:
            self._endpoint.passed(self._plan, position)
