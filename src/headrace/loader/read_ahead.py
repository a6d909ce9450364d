"""Reads ahead what lies elsewhere: from the indices that come next to the byte ranges that they stand for."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any

import numpy as np

from headrace.core.errors import HeadraceError, StorageError
from headrace.core.process import this_process
from headrace.epoch.spec import LoaderSpec
from headrace.loader.known_order import KnownOrder, may_draw_ahead
from headrace.loader.remote_datasets import RangesOf, lies_elsewhere, place_of, ranges_of
from headrace.samplers.key_arrays import Keys
from headrace.storage.fetching.endpoint import Endpoint, endpoint
from headrace.storage.fetching.fetcher import PER_RANGE, default_budget
from headrace.storage.fetching.io_client import IO_PROCESS, IOProcess
from headrace.storage.fetching.ranges import ByteRange
from headrace.storage.fetching.read_plan import Plan
from headrace.storage.locations import is_url, parse
from headrace.storage.stores.registry import cache_kind, has_limit, keeps_all, name_at
from headrace.telemetry.remote_reads import RemoteReads

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


class RemoteReading:
    """How a loader reads data that lie elsewhere: through what, and how far ahead."""

    def __init__(self, dataset: Any, io_process: IOProcess | None) -> None:
        """io_process: that of worker processes; None: whoever makes batches reads in threads of this process."""
        self._dataset = dataset
        self._process = this_process.current
        self._io_process = io_process
        self._endpoint: Endpoint
        if io_process is not None:
            self._endpoint = io_process.client
        else:
            self._endpoint = endpoint()

        self._before = self._endpoint.count()
        self._ahead: LoaderReadAhead | None = None
        self._is_read_ahead = False
        ranges = ranges_of(dataset)
        if ranges is not None:
            self._ahead = LoaderReadAhead(ranges, self._endpoint)

    def fits(self, dataset: Any, *, processes: bool) -> bool:
        """Tells whether it goes on with an epoch of this dataset, in this process."""
        # In a forked child, neither the threads of the parent nor its connections are there.
        is_own = self._process is this_process.current
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
        if self._ahead is not None and self._ahead.stores:
            return cache_kind(min(self._ahead.stores))
        if not is_url(place):
            return ""

        # Of a stream, or an order that is not known, only the place is known.
        name = name_at(parse(place))
        if name is None:
            return ""
        return cache_kind(name)

    @property
    def stays_on_node(self) -> bool:
        """Whether what was fetched once comes from a cache of this node from then on."""
        return self._cache_kind(place_of(self._dataset)) == "all"

    @property
    def io_pid(self) -> int | None:
        """The I/O process that runs now; None without one."""
        if self._io_process is None:
            return None
        return self._io_process.pid

    def begin(self, spec: LoaderSpec, epoch: int) -> EpochReadAhead | None:
        """Begins an epoch. Returns what is to be told of its indices; None: nothing can be read ahead.

        Whoever drops that ends the epoch: what was read ahead for it leaves the memory.
        """
        # A stream has no indices: it reads ahead by itself.
        self._is_read_ahead = hasattr(self._dataset, "__iter__")
        if self._ahead is None or not may_draw_ahead(spec.index_sampler, workers=self._io_process is not None):
            return None
        self._is_read_ahead = True
        return self._ahead.begin(KnownOrder.of(spec.index_sampler), epoch)


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


class LoaderReadAhead:
    """What the epochs of one loader have in common that are read ahead."""

    def __init__(self, ranges: RangesOf, endpoint: Endpoint) -> None:
        self.ranges = ranges
        self.endpoint = endpoint
        self.stores: set[str] = set()
        """The names of the stores of all that was announced."""
        self.coming: _Announced | None = None
        """What was announced of the next epoch."""
        # How many requests there were when this epoch began; None before the first one.
        self._requests: int | None = None

    def begin(self, order: KnownOrder | None, epoch: int) -> EpochReadAhead:
        """Begins an epoch. What was announced of another one is dropped.

        order: what is known of the order of this epoch and the next; None: nothing.
        """
        announced = self.coming
        self.coming = None
        if announced is None or announced.epoch != epoch or order is None:
            announced = _Announced(self.endpoint, epoch)

        # The I/O process is asked once: the epoch compares with the same number.
        requests = self.requests()
        nothing_was_missing = requests is not None and requests == self._requests
        quiet = nothing_was_missing and bool(self.stores) and all(map(keeps_all, self.stores))
        self._requests = requests
        return EpochReadAhead(self, order, announced, requests, quiet=quiet)

    def requests(self) -> int | None:
        """Returns how many requests there were; None while the I/O process is being started anew."""
        try:
            return self.endpoint.count().requests
        except StorageError:
            return None


class _Announced:
    """What was announced of one epoch. It leaves the endpoint with this object."""

    def __init__(self, endpoint: Endpoint, epoch: int) -> None:
        self.epoch = epoch
        self.plan = Plan(endpoint)
        self.bytes = 0
        """Of what has not left yet."""
        self.sizes: dict[int, int] = {}
        """The same by position."""

    def add(self, position: int, ranges: Sequence[ByteRange], next_uses: list[int] | None) -> None:
        """Announces what is read at a position, which may be nothing."""
        size = sum(wanted.size + PER_RANGE for wanted in ranges)
        self.sizes[position] = size
        self.bytes += size
        if ranges:
            self.plan.announce(position, ranges, next_uses)

    def passed(self, position: int) -> None:
        """Forgets what was announced up to a position."""
        for behind in [at for at in self.sizes if at <= position]:
            self.bytes -= self.sizes.pop(behind)


class EpochReadAhead:
    """Announces one epoch, and the beginning of the next. See `epoch.look_ahead.ReadsAhead`."""

    def __init__(
        self,
        loader: LoaderReadAhead,
        order: KnownOrder | None,
        announced: _Announced,
        requests: int | None,
        *,
        quiet: bool,
    ) -> None:
        """requests: how many there were at the beginning; None: unknown.

        quiet: nothing is announced, because all of the epoch before was in the cache of this node.
        """
        self._loader = loader
        self._order = order
        self._now = announced
        self._quiet = quiet
        self._requests = requests
        self._limit = HORIZON * default_budget()
        self._limit_over_end = OVER_END * default_budget()
        self._next_batches: Iterator[Keys] | None = None

    def has_room(self) -> bool:
        size = self._now.bytes
        count = len(self._now.sizes)
        coming = self._loader.coming
        if coming is not None:
            size += coming.bytes
            count += len(coming.sizes)
        return size < self._limit and count < MOST

    def announce(self, position: int, index: Any) -> None:
        if self._quiet:
            self._now.sizes.setdefault(position, 0)
        elif position not in self._now.sizes:
            self._announce(self._now, position, index)

    def ended(self) -> None:
        """See `ReadsAhead.ended`: what the next epoch begins with is announced, a batch at a time."""
        if self._quiet or self._order is None or not self.has_room():
            return

        epoch = self._now.epoch + 1
        if self._next_batches is None:
            self._next_batches = self._order.batches(epoch)
            self._loader.coming = _Announced(self._loader.endpoint, epoch)

        coming = self._loader.coming
        # The next epoch may have begun, while somebody still reads this one.
        if coming is None or coming.epoch != epoch or coming.bytes >= self._limit_over_end:
            return
        keys = next(self._next_batches, None)
        if keys is not None:
            self._announce(coming, len(coming.sizes), keys)

    def drawn(self) -> None:
        self._now.plan.tell()
        coming = self._loader.coming
        if coming is not None:
            coming.plan.tell()

    def passed(self, position: int) -> None:
        self._now.passed(position)
        # Nearly always all of it was read by then, so that there is nothing left to drop.
        if position % EVERY == 0 and not self._quiet:
            self._now.plan.passed(position)
        # Somebody may have emptied the cache.
        if self._quiet and position % LOOK_EVERY == 0:
            self._quiet = self._loader.requests() == self._requests

    def _announce(self, announced: _Announced, position: int, index: Any) -> None:
        next_uses = None
        try:
            keys = np.atleast_1d(np.asarray(index, np.int64))
            ranges = self._loader.ranges(keys)
            stores = {wanted.object.store for wanted in ranges}
            if self._order is not None and any(map(has_limit, stores)):
                ranges, next_uses = self._with_next_uses(self._order, announced.epoch, keys)
        except (HeadraceError, IndexError, TypeError, ValueError, OverflowError):
            # A key that the dataset does not have, or data that are damaged: whoever makes the batch says so.
            announced.add(position, [], None)
            return

        self._loader.stores |= stores
        announced.add(position, ranges, next_uses)

    def _with_next_uses(self, order: KnownOrder, epoch: int, keys: Keys) -> tuple[list[ByteRange], list[int] | None]:
        """Returns the ranges of samples, and when each is used in the epoch behind this one."""
        uses = order.uses(epoch + 1, keys)
        if uses is None:
            return self._loader.ranges(keys), None

        found: list[ByteRange] = []
        next_uses: list[int] = []
        for number, use in enumerate(uses.tolist()):
            ranges = self._loader.ranges(keys[number : number + 1])
            found += ranges
            next_uses += [use] * len(ranges)

        return found, next_uses
