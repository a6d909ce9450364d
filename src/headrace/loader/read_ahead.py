"""Reads ahead what lies elsewhere: from the indices that come next to the byte ranges that they stand for."""

from __future__ import annotations

import copy
import os
from collections.abc import Callable, Iterator
from typing import Any

import numpy as np
import numpy.typing as npt
from torch.utils.data import BatchSampler, Subset

from headrace.core.errors import HeadraceError, StorageError
from headrace.core.urls import shown_url
from headrace.epoch.spec import LoaderSpec
from headrace.samplers.key_arrays import key_arrays
from headrace.samplers.sampler import PositionalSampler
from headrace.storage.endpoint import Endpoint, endpoint
from headrace.storage.fetcher import PER_RANGE, default_budget
from headrace.storage.io_client import IO_PROCESS, IOProcess
from headrace.storage.locations import is_url, parse
from headrace.storage.plan import Plan
from headrace.storage.ranges import ByteRange
from headrace.storage.stores import cache_kind, has_limit, keeps_all, name_at
from headrace.telemetry.remote_reads import RemoteReads

Keys = npt.NDArray[np.int64]
RangesOf = Callable[[Keys], list[ByteRange]]

MOST = 4096
"""Indices that are known ahead at most, however small what they stand for."""

EVERY = 8
"""Batches that leave before the endpoint is told of them."""

LOOK_EVERY = 32
"""Batches that leave before it is looked whether something is missing in the cache of which everything was there."""

OVER_END = 1 / 4
"""The share of the bytes that are read ahead which an epoch may take before it begins.

A loader for validation waits there for most of the time, and the others need the memory and the line meanwhile.
"""

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


def place_of(dataset: Any) -> str:
    """Returns where the data of a dataset lie that reads from elsewhere, without secrets; empty if it is not known."""
    while dataset is not None:
        place = getattr(dataset, "place", None)
        if isinstance(place, str):
            return shown_url(place)
        dataset = getattr(dataset, "dataset", None)

    return ""


class RemoteReading:
    """How a loader reads data that lie elsewhere: through what, and how far ahead."""

    def __init__(self, dataset: Any, io_process: IOProcess | None) -> None:
        """io_process: that of worker processes; None: whoever makes batches reads in threads of this process."""
        self._dataset = dataset
        self._pid = os.getpid()
        self._io_process = io_process
        self._endpoint: Endpoint
        if io_process is not None:
            self._endpoint = io_process.client
        else:
            self._endpoint = endpoint()

        self._before = self._endpoint.count()
        self._ahead: ReadAhead | None = None
        self._is_read_ahead = False
        ranges = ranges_of(dataset)
        if ranges is not None:
            self._ahead = ReadAhead(ranges, self._endpoint)

    def fits(self, dataset: Any, *, processes: bool) -> bool:
        """Tells whether it goes on with an epoch of this dataset, in this process."""
        # In a forked child, neither the threads of the parent nor its connections are there.
        is_own = self._pid == os.getpid()
        return is_own and self._dataset is dataset and (self._io_process is not None) == processes

    @property
    def address(self) -> str | None:
        """Of the I/O process; None without one."""
        if self._io_process is None:
            return None
        return self._io_process.address

    def reads(self) -> RemoteReads:
        """Returns what was read since this was made, for all loaders that read through the same."""
        try:
            reads = self._endpoint.count().since(self._before)
        except StorageError:
            # The I/O process is being started anew, which counts from 0 on.
            return RemoteReads()

        # What was brought into the cache only so that a worker finds it there was not there when it was wanted.
        reads.cached_bytes += max(reads.read_directly - reads.stored_ahead, 0)
        reads.place = place_of(self._dataset)
        reads.cache = self._cache_kind(reads.place)
        reads.is_read_ahead = self._is_read_ahead
        return reads

    def _cache_kind(self, place: str) -> str:
        """Returns how the data are cached; see `RemoteReads.cache`."""
        if self._ahead is not None and self._ahead.store:
            return cache_kind(self._ahead.store)
        if not is_url(place):
            return ""

        # Of a stream, or an order that is not known, only the place is known.
        name = name_at(parse(place))
        if name is None:
            return ""
        return cache_kind(name)

    @property
    def io_pid(self) -> int | None:
        """The I/O process that runs now; None without one."""
        if self._io_process is None:
            return None
        return self._io_process.pid

    def begin(self, spec: LoaderSpec, epoch: int) -> ReadAhead | None:
        """Begins an epoch. Returns what is to be told of its indices; None: nothing can be read ahead."""
        # A stream has no indices: it reads ahead by itself.
        self._is_read_ahead = hasattr(self._dataset, "__iter__")
        if self._ahead is None or not may_draw_ahead(spec.index_sampler, workers=self._io_process is not None):
            return None
        self._is_read_ahead = True
        self._ahead.begin(KnownOrder.of(spec.index_sampler), epoch)
        return self._ahead


def remote_reading(dataset: Any, before: RemoteReading | None, *, processes: bool) -> RemoteReading | None:
    """Returns how a dataset is read whose data lie elsewhere; None if they lie on this machine.

    before: how the epoch before was read, which goes on if it still fits: it has begun to read this one. processes:
    whether worker processes make the batches. They read through one I/O process.
    """
    if not lies_elsewhere(dataset):
        return None
    if before is not None and before.fits(dataset, processes=processes):
        return before

    io_process = None
    if processes:
        io_process = IO_PROCESS.get()
    return RemoteReading(dataset, io_process)


class ReadAhead:
    """What is announced of one loader's epochs. See `epoch.look_ahead.ReadsAhead`. Each epoch is a plan."""

    def __init__(self, ranges: RangesOf, endpoint: Endpoint) -> None:
        self._ranges = ranges
        self._endpoint = endpoint
        self._limit = HORIZON * default_budget()
        self._limit_over_end = OVER_END * default_budget()
        self.store = ""
        """The name of the store of what was announced last; empty: nothing was."""
        self._order: KnownOrder | None = None
        self._epoch = -1
        # By epoch: this one, and the next where it is known.
        self._plans: dict[int, Plan] = {}
        # Bytes of what was announced and has not left, by epoch and position.
        self._ahead: dict[int, dict[int, int]] = {}
        self._bytes = 0
        # Whether nothing is announced, because all of the epoch before was in the cache of this node.
        self._quiet = False
        # What had been fetched when this epoch began; None before the first one.
        self._fetched: int | None = None
        self._next: tuple[int, Iterator[Keys]] | None = None

    def begin(self, order: KnownOrder | None, epoch: int) -> None:
        """Begins an epoch: what was announced is dropped, but for what the end of the one before said of this one.

        order: what is known of the order of this epoch and the next; None: nothing.
        """
        self._order = order
        self._epoch = epoch
        self._next = None
        for other in list(self._ahead):
            if other != epoch or order is None:
                del self._plans[other]
                del self._ahead[other]

        if epoch not in self._ahead:
            self._add(epoch)
        self._bytes = sum(self._ahead[epoch].values())

        fetched = self._requests()
        nothing_was = fetched is not None and fetched == self._fetched
        self._quiet = nothing_was and self.store != "" and keeps_all(self.store)
        self._fetched = fetched

    def _requests(self) -> int | None:
        """Returns how many requests there were; None while the I/O process is being started anew."""
        try:
            return self._endpoint.count().requests
        except StorageError:
            return None

    def _add(self, epoch: int) -> None:
        self._ahead[epoch] = {}
        self._plans[epoch] = Plan(self._endpoint)

    def has_room(self) -> bool:
        """See `ReadsAhead.has_room`."""
        return self._bytes < self._limit and sum(map(len, self._ahead.values())) < MOST

    def announce(self, position: int, index: Any) -> None:
        """See `ReadsAhead.announce`."""
        if self._quiet:
            self._ahead[self._epoch].setdefault(position, 0)
        elif position not in self._ahead[self._epoch]:
            self._announce(self._epoch, position, index)

    def ended(self) -> None:
        """See `ReadsAhead.ended`: what the next epoch begins with is announced, a batch at a time."""
        if self._quiet or self._order is None or not self.has_room():
            return

        if self._next is None:
            self._next = 0, self._order.batches(self._epoch + 1)
            self._add(self._epoch + 1)

        if sum(self._ahead[self._epoch + 1].values()) >= self._limit_over_end:
            return

        position, batches = self._next
        keys = next(batches, None)
        if keys is not None:
            self._announce(self._epoch + 1, position, keys)
            self._next = position + 1, batches

    def passed(self, position: int) -> None:
        """See `ReadsAhead.passed`."""
        ahead = self._ahead[self._epoch]
        for behind in [at for at in ahead if at <= position]:
            self._bytes -= ahead.pop(behind)
        # Nearly always all of it was read by then, so that there is nothing left to drop.
        if position % EVERY == 0 and not self._quiet:
            self._plans[self._epoch].passed(position)
        # Somebody may have emptied the cache.
        if self._quiet and position % LOOK_EVERY == 0:
            self._quiet = self._requests() == self._fetched

    def _announce(self, epoch: int, position: int, index: Any) -> None:
        next_uses = None
        try:
            keys = np.atleast_1d(np.asarray(index, np.int64))
            ranges = self._ranges(keys)
            if ranges and self._order is not None and has_limit(ranges[0].object.store):
                ranges, next_uses = self._with_next_uses(self._order, epoch, keys)
        except (HeadraceError, IndexError, TypeError, ValueError, OverflowError):
            # A key that the dataset does not have, or data that are damaged: whoever makes the batch says so.
            ranges = []

        size = sum(wanted.size + PER_RANGE for wanted in ranges)
        self._ahead[epoch][position] = size
        self._bytes += size
        if ranges:
            self.store = ranges[0].object.store
            self._plans[epoch].announce(position, ranges, next_uses)

    def _with_next_uses(self, order: KnownOrder, epoch: int, keys: Keys) -> tuple[list[ByteRange], list[int] | None]:
        """Returns the ranges of samples, and when each is used in the epoch behind this one."""
        uses = order.uses(epoch + 1, keys)
        if uses is None:
            return self._ranges(keys), None

        found: list[ByteRange] = []
        next_uses: list[int] = []
        for number, use in enumerate(uses.tolist()):
            ranges = self._ranges(keys[number : number + 1])
            found += ranges
            next_uses += [use] * len(ranges)

        return found, next_uses


class KnownOrder:
    """The order of all epochs, where it is a function of their numbers."""

    def __init__(self, batch_sampler: BatchSampler, sampler: PositionalSampler) -> None:
        self._batch_sampler = batch_sampler
        self._sampler = sampler

    @classmethod
    def of(cls, index_sampler: Any) -> KnownOrder | None:
        """Returns the order that a sampler gives; None if it is not known ahead of its epoch."""
        if type(index_sampler) is not BatchSampler or not isinstance(index_sampler.sampler, PositionalSampler):
            return None
        return cls(index_sampler, index_sampler.sampler)

    def batches(self, epoch: int) -> Iterator[Keys]:
        """Returns the keys of the batches of an epoch. The sampler itself goes on as it was."""
        sampler = copy.copy(self._sampler)
        sampler.set_epoch(epoch)
        size = self._batch_sampler.batch_size
        return sampler.key_arrays(size, drop_last=self._batch_sampler.drop_last)

    def uses(self, epoch: int, keys: Keys) -> Keys | None:
        """Returns when keys are used in an epoch, counted in positions from the first epoch on; None: unknown."""
        positions = self._sampler.positions_of(epoch, keys)
        if positions is None:
            return None
        return positions + epoch * self._sampler.total
