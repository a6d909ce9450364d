"""What a fetcher tells of its reading: sums, rates over time, and what those who wait have waited for."""

from __future__ import annotations

from collections.abc import Collection, Sequence
from dataclasses import replace

from headrace.storage.fetching.meter import Meter
from headrace.storage.fetching.range_sources import Brought
from headrace.storage.fetching.ranges import ByteRange
from headrace.storage.fetching.seen import SeenRanges
from headrace.storage.fetching.store_requests import StoreRequests
from headrace.telemetry.remote_reads import RemoteReads


class FetchFigures:
    """Guarded by the fetcher's lock. Times are in seconds of `time.perf_counter()`."""

    def __init__(self, stores: Collection[StoreRequests]) -> None:
        """stores: the requests to all stores, as they change."""
        self.counts = RemoteReads()
        """What was read so far, as it grows."""

        self._stores = stores
        self._meter = Meter()
        self._seen = SeenRanges()
        # Calls of `RangeFetcher.read` that wait, and until when what is told of such times was summed up.
        self._waiting = 0
        self._summed_up = 0.0

    def begins_to_wait(self, now: float, *, more: bool) -> None:
        """Somebody waits from now on. more: see `sum_up`."""
        self.sum_up(now, more=more)
        self._waiting += 1

    def ends_to_wait(self, now: float, *, more: bool) -> None:
        """Somebody does not wait any more. more: see `sum_up`."""
        self.sum_up(now, more=more)
        self._waiting -= 1

    def sum_up(self, now: float, *, more: bool) -> None:
        """Counts the time since the last call, in which nothing has changed. Is called before anything changes.

        more: whether there are ranges that nobody has asked for yet.
        """
        passed = now - self._summed_up
        self._summed_up = now
        if not self._waiting:
            return

        under_way = 0
        at_limit = False
        for requests in self._stores:
            under_way += requests.under_way
            at_limit = at_limit or (requests.under_way > 0 and requests.room <= 0)

        counts = self.counts
        counts.waited += passed
        counts.waited_in_flight += passed * under_way
        if at_limit:
            counts.waited_at_limit += passed
        elif more:
            # There is something to ask for, and it may be asked for, but for the budget.
            counts.waited_for_memory += passed

    def brought(self, ranges: Sequence[ByteRange], brought: Brought, began: float, now: float) -> None:
        """Counts what a request for ranges of one object has brought."""
        counts = self.counts
        start = ranges[0].start
        stop = max(wanted.stop for wanted in ranges)
        if brought.data is not None:
            counts.cached_bytes += max(stop - start - brought.from_network, 0)
        if not brought.from_network:
            return

        counts.requests += 1
        counts.bytes += brought.from_network
        counts.request_seconds += now - began
        counts.ranges += len(ranges)
        counts.whole_objects += start == 0 and stop == ranges[0].object.size
        if self._waiting:
            counts.waited_bytes += brought.from_network
        for wanted in ranges:
            if self._seen.add(wanted):
                counts.again_bytes += wanted.size
            else:
                counts.first_bytes += wanted.size
            if brought.data is None:
                counts.stored_ahead += wanted.size

        self._meter.brought(began, now, brought.from_network)

    def now(self) -> RemoteReads:
        """Returns a copy of all figures."""
        # Of several stores, the one that was asked last is told of.
        latest = max(self._stores, key=lambda requests: requests.last_used, default=None) or StoreRequests()
        return replace(
            self.counts,
            limit=latest.in_flight.limit,
            limit_is=latest.in_flight.reason,
            line=self._meter.best(),
            windows=self._meter.windows(),
        )
