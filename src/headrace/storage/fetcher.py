"""Fetches byte ranges: those that are waited for at once, those that are announced in their order, within a budget."""

from __future__ import annotations

import heapq
import itertools
import threading
import time
from collections import deque
from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from typing import Protocol

from headrace.core.memory import machine_memory
from headrace.storage.cache import NEVER
from headrace.storage.in_flight import InFlight
from headrace.storage.meter import Meter
from headrace.storage.ranges import ByteRange, Waiting
from headrace.storage.retrying import THROTTLED
from headrace.storage.seen import Seen
from headrace.storage.sources import Brought
from headrace.telemetry.remote_reads import RemoteReads

BUDGET = 512 << 20
"""Bytes that are read ahead at most; less where the machine has less than 16 times as much memory."""

IDLE = 5.0
"""Seconds after which a thread without work ends."""


class Source(Protocol):
    """What brings bytes; see `sources.bring`."""

    def __call__(self, ranges: Sequence[ByteRange], next_uses: Sequence[int], *, ahead: bool) -> Brought:
        """Returns the bytes from the first of some ranges of an object to the last."""


Use = tuple[int, int]
"""The number of a plan, and the position in it at which a range is wanted."""


def default_budget() -> int:
    """Returns how many bytes to read ahead at most on this machine."""
    return min(BUDGET, machine_memory() // 16)


@dataclass(eq=False)
class _Fetched:
    """What is known of a range that was asked for. Guarded by the fetcher's lock."""

    wanted: ByteRange
    next_use: int = NEVER
    """When it is used again behind its first use."""
    uses: list[Use] = field(default_factory=list)
    """Where it was announced, and was not read yet."""
    readers: list[_Reading] = field(default_factory=list)
    """Who waits for it."""
    data: memoryview | None = None
    is_waiting: bool = True
    """Whether no thread has asked for it yet."""


class _Reading:
    """A call of `Fetcher.read` that waits for ranges."""

    def __init__(self) -> None:
        self.missing = 0
        self.ready = threading.Event()
        self.error: BaseException | None = None


class Fetcher:
    """Reads ranges of objects through several threads. Any thread may call it.

    What is read belongs to the caller: memory that nobody changes, as long as a view of it exists.
    """

    def __init__(self, source: Source, budget: int | None = None) -> None:
        """source: is called by several threads at a time. budget: bytes that are read ahead at most."""
        self._source = source
        if budget is None:
            self.budget = default_budget()
        else:
            self.budget = budget

        self.counts = RemoteReads()
        """What was read so far, as it grows."""

        self.in_flight = InFlight()
        self._meter = Meter()
        self._seen = Seen()
        # Calls of `read` that wait, and until when what is told of such times was summed up.
        self._readings = 0
        self._summed_up = 0.0
        self._lock = threading.Lock()
        self._work = threading.Condition(self._lock)
        self._known: dict[ByteRange, _Fetched] = {}
        self._waiting = Waiting()
        # Ranges by urgency: first those that are waited for, then by plan and position. One may be in it several times,
        # or be gone by now: `_known` and `_Fetched.is_waiting` tell.
        self._queue: list[tuple[int, Use, int, ByteRange]] = []
        self._order = itertools.count()
        self._announced: dict[int, dict[int, list[ByteRange]]] = {}
        self._abandoned: deque[int] = deque()
        self._held = 0
        self._under_way = 0
        self._threads = 0
        self._idle = 0
        self._closed = False

    # -- what others call ----------------------------------------------------------------------------------------------

    def announce(
        self, plan: int, position: int, ranges: Sequence[ByteRange], next_uses: Sequence[int] | None = None
    ) -> None:
        """See `Endpoint.announce`."""
        with self._lock:
            self._drop_abandoned()
            self._announced.setdefault(plan, {})[position] = list(ranges)
            for number, wanted in enumerate(ranges):
                fetched = self._known.get(wanted)
                if fetched is None:
                    fetched = self._want(wanted)
                    heapq.heappush(self._queue, (1, (plan, position), next(self._order), wanted))
                if next_uses is not None:
                    fetched.next_use = next_uses[number]
                fetched.uses.append((plan, position))

            self._put_threads_to_work()

    def passed(self, plan: int, position: int) -> None:
        """Says that a plan is behind a position: what was announced up to there is not kept for it any more."""
        with self._lock:
            self._drop_abandoned()
            self._pass(plan, position)
            self._put_threads_to_work()

    def abandon(self, plan: int) -> None:
        """See `Endpoint.abandon`."""
        self._abandoned.append(plan)
        # A finalizer may run in a thread that holds the lock, so nobody waits for it here. Whoever holds it may have
        # looked for abandoned plans already: then the next one who takes it drops this plan.
        if self._lock.acquire(blocking=False):
            try:
                self._drop_abandoned()
            finally:
                self._lock.release()

    def read(self, ranges: Sequence[ByteRange]) -> list[memoryview]:
        """Returns the bytes of ranges, each of them as one view. Waits until they are there.

        Raises what the source raised for one of them.
        """
        reading = _Reading()
        found: list[memoryview | None] = [None] * len(ranges)
        missing: list[tuple[int, ByteRange]] = []
        with self._lock:
            self._drop_abandoned()
            for at, wanted in enumerate(ranges):
                fetched = self._known.get(wanted)
                if fetched is not None and fetched.data is not None:
                    found[at] = self._use(fetched, fetched.data)
                    self.counts.hits += 1
                    continue

                self.counts.waits += 1
                missing.append((at, wanted))
                if fetched is None:
                    fetched = self._want(wanted)
                if fetched.is_waiting:
                    heapq.heappush(self._queue, (0, (0, 0), next(self._order), wanted))
                fetched.readers.append(reading)
                reading.missing += 1

            if missing:
                self._sum_up(time.perf_counter())
                self._readings += 1
                self._put_threads_to_work()

        if missing:
            try:
                reading.ready.wait()
            finally:
                self._ends_to_wait()
            with self._lock:
                self._collect(reading, missing, found)

        return found  # type: ignore[return-value]  # each was found, or `_collect` has raised

    def _ends_to_wait(self) -> None:
        with self._lock:
            self._sum_up(time.perf_counter())
            self._readings -= 1

    def read_into(self, ranges: Sequence[ByteRange], out: memoryview) -> None:
        """See `Endpoint.read_into`."""
        at = 0
        for data in self.read(ranges):
            out[at : at + len(data)] = data
            at += len(data)

    def read_directly(self, count: int) -> None:
        """See `Endpoint.read_directly`."""
        with self._lock:
            self.counts.read_directly += count

    def count(self) -> RemoteReads:
        """See `Endpoint.count`."""
        with self._lock:
            self._sum_up(time.perf_counter())
            return replace(
                self.counts,
                limit=self.in_flight.limit,
                limit_is=self.in_flight.reason,
                line=self._meter.best(),
                windows=self._meter.windows(),
            )

    def close(self) -> None:
        """Ends the threads when they have done what they do now. Whoever waits gets an error."""
        with self._lock:
            self._closed = True
            for fetched in self._known.values():
                for reading in fetched.readers:
                    reading.error = RuntimeError("the fetcher was closed")
                    reading.ready.set()
            self._work.notify_all()

    @property
    def held(self) -> int:
        """Bytes that were fetched and not read yet, or are on their way."""
        return self._held

    # -- with the lock held --------------------------------------------------------------------------------------------

    def _pass(self, plan: int, position: int) -> None:
        announced = self._announced.get(plan, {})
        for behind in [at for at in announced if at <= position]:
            for wanted in announced.pop(behind):
                self._drop_use(wanted, (plan, behind))

        if not announced:
            self._announced.pop(plan, None)

    def _drop_abandoned(self) -> None:
        while self._abandoned:
            plan = self._abandoned.popleft()
            self._pass(plan, max(self._announced.get(plan, {}), default=-1))

    def _want(self, wanted: ByteRange) -> _Fetched:
        fetched = self._known[wanted] = _Fetched(wanted)
        self._waiting.add(wanted)
        return fetched

    def _use(self, fetched: _Fetched, data: memoryview) -> memoryview:
        """Returns the bytes, which are kept only for those who have announced that they will read them, too."""
        if fetched.uses:
            fetched.uses.pop(0)
        self._drop_if_unused(fetched)
        return data

    def _drop_use(self, wanted: ByteRange, use: Use) -> None:
        fetched = self._known.get(wanted)
        if fetched is not None and use in fetched.uses:
            fetched.uses.remove(use)
            self._drop_if_unused(fetched)

    def _drop_if_unused(self, fetched: _Fetched) -> None:
        if fetched.uses or fetched.readers:
            return
        if fetched.is_waiting:
            self._waiting.remove(fetched.wanted)
            del self._known[fetched.wanted]
        elif fetched.data is not None:
            self._held -= fetched.wanted.size
            del self._known[fetched.wanted]
            self._put_threads_to_work()

    def _collect(
        self, reading: _Reading, missing: Sequence[tuple[int, ByteRange]], found: list[memoryview | None]
    ) -> None:
        """Takes what a reading has waited for. Raises its error, after nothing of it is kept for it any more."""
        for at, wanted in missing:
            fetched = self._known.get(wanted)
            if fetched is None or reading not in fetched.readers:
                continue
            fetched.readers.remove(reading)
            if fetched.data is not None:
                found[at] = self._use(fetched, fetched.data)
            else:
                self._drop_if_unused(fetched)

        if reading.error is not None:
            raise reading.error

    def _put_threads_to_work(self) -> None:
        """Wakes threads, or starts further ones, if there is something that may be asked for now."""
        if not self._queue:
            return

        room = self.in_flight.limit - self._under_way
        wanted = min(room, len(self._queue))
        if self._idle:
            self._work.notify(max(min(wanted, self._idle), 1))
        for _ in range(min(wanted - self._idle, self.in_flight.limit - self._threads)):
            self._threads += 1
            threading.Thread(target=self._run, name="headrace-fetch", daemon=True).start()

    def _next_request(self) -> list[ByteRange]:
        """Returns the ranges that the next request brings; none if nothing may be asked for now."""
        if self._under_way >= self.in_flight.limit:
            return []

        while self._queue:
            urgency, _, _, wanted = self._queue[0]
            fetched = self._known.get(wanted)
            if fetched is None or not fetched.is_waiting:
                heapq.heappop(self._queue)
                continue

            # What is waited for is fetched whatever the budget says: nothing would go on otherwise.
            room = self.budget - self._held
            if urgency > 0 and wanted.size > room and self._held > 0:
                return []

            heapq.heappop(self._queue)
            return self._begin(self._waiting.take(wanted, room))

        return []

    def _begin(self, ranges: list[ByteRange]) -> list[ByteRange]:
        for wanted in ranges:
            self._known[wanted].is_waiting = False
            self._held += wanted.size

        now = time.perf_counter()
        self._sum_up(now)
        self._under_way += 1
        self.in_flight.started(now, self._under_way)
        return ranges

    def _end(
        self, ranges: Sequence[ByteRange], brought: Brought | None, error: BaseException | None, began: float
    ) -> None:
        now = time.perf_counter()
        self._sum_up(now)
        self._under_way -= 1
        start = ranges[0].start
        data = None
        if brought is not None:
            data = brought.data
            self._count(ranges, brought, began, now)

        for wanted in ranges:
            fetched = self._known[wanted]
            if data is not None:
                fetched.data = data[wanted.start - start : wanted.stop - start]
            elif error is None and fetched.readers:
                # It lies in the cache, and meanwhile somebody waits for it: now it is wanted in memory.
                self._ask_again(fetched)
                continue
            else:
                # Whoever asks for it again has it tried again.
                del self._known[wanted]
                self._held -= wanted.size

            for reading in fetched.readers:
                reading.missing -= 1
                if error is not None:
                    reading.error = error
                if reading.missing == 0 or error is not None:
                    reading.ready.set()

            if data is not None:
                self._drop_if_unused(fetched)

        # By now more requests may be allowed than there are threads.
        self._put_threads_to_work()

    def _ask_again(self, fetched: _Fetched) -> None:
        fetched.is_waiting = True
        self._held -= fetched.wanted.size
        self._waiting.add(fetched.wanted)
        heapq.heappush(self._queue, (0, (0, 0), next(self._order), fetched.wanted))

    def _count(self, ranges: Sequence[ByteRange], brought: Brought, began: float, now: float) -> None:
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
        if self._readings:
            counts.waited_bytes += brought.from_network
        for wanted in ranges:
            if self._seen.add(wanted):
                counts.again_bytes += wanted.size
            else:
                counts.first_bytes += wanted.size
            if brought.data is None:
                counts.stored_ahead += wanted.size

        self._meter.brought(began, now, brought.from_network)
        self.in_flight.finished(now, brought.from_network)

    def _sum_up(self, now: float) -> None:
        """Counts the time since the last call, in which nothing has changed. Is called before anything changes."""
        passed = now - self._summed_up
        self._summed_up = now
        if not self._readings:
            return

        counts = self.counts
        counts.waited += passed
        counts.waited_in_flight += passed * self._under_way
        if self._under_way >= self.in_flight.limit:
            counts.waited_at_limit += passed
        elif self._waiting:
            # There is something to ask for, and it may be asked for, but for the budget.
            counts.waited_for_memory += passed

    # -- the threads ---------------------------------------------------------------------------------------------------

    def _run(self) -> None:
        ranges: list[ByteRange] = []
        brought = None
        error = None
        began = 0.0
        while True:
            # The lock is taken once for each request: whoever iterates waits for it, too.
            with self._lock:
                if ranges:
                    self._end(ranges, brought, error, began)
                    brought = None

                ranges = self._next_request()
                while not ranges:
                    if self._closed or not self._wait_for_work():
                        self._threads -= 1
                        return
                    ranges = self._next_request()
                known = [self._known[wanted] for wanted in ranges]
                next_uses = [fetched.next_use for fetched in known]
                ahead = not any(fetched.readers for fetched in known)

            began = time.perf_counter()
            brought, error = self._fetch(ranges, next_uses, ahead=ahead)

    def _wait_for_work(self) -> bool:
        """Waits until there may be something to ask for. Returns False if there was nothing for long."""
        self._drop_abandoned()
        self._idle += 1
        woken = self._work.wait(IDLE)
        self._idle -= 1
        return (woken and not self._closed) or (bool(self._queue) and not self._closed)

    def _fetch(
        self, ranges: Sequence[ByteRange], next_uses: Sequence[int], *, ahead: bool
    ) -> tuple[Brought | None, BaseException | None]:
        try:
            return self._source(ranges, next_uses, ahead=ahead), None
        except Exception as error:  # noqa: BLE001 - it belongs to whoever waits for the bytes
            return None, error

    def retried(self, kind: str) -> None:
        """Says that a request is made again, after a failure of a kind of `retrying.KINDS`."""
        with self._lock:
            self.counts.retries += 1
            if kind == THROTTLED:
                self.counts.busy += 1
                self.in_flight.busy(time.perf_counter())
