"""Fetches byte ranges: those that are waited for at once, those that are announced in their order, within a budget."""

from __future__ import annotations

import heapq
import itertools
import threading
import time
from collections import defaultdict, deque
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Protocol

from headrace.core.process.memory import give_back_memory, machine_memory
from headrace.storage.cache import NEVER
from headrace.storage.fetching.answers import Part, RequestOutcome, parts_of, span_of
from headrace.storage.fetching.figures import FetchFigures
from headrace.storage.fetching.range_sources import Brought
from headrace.storage.fetching.ranges import GAP, LARGEST, ByteRange, PlannedRead, WaitingRanges
from headrace.storage.fetching.store_requests import StoreRequests, Use
from headrace.storage.stores.retries import THROTTLED
from headrace.telemetry.remote_reads import RemoteReads

BUDGET = 512 << 20
"""Bytes of memory for reading ahead; less where the machine has less than 16 times as much memory."""

BESIDE = 1 / 8
"""The share of it that is left to what clients and allocators take beside the bytes themselves."""

UNDER_WAY = 1 / 8
"""The share of it that may be on its way: until an answer is complete, a client holds parts of it twice."""

AT_ONCE = 16
"""A request for what is announced brings so small a part of that: a store sends over one connection only so fast."""

PER_RANGE = 20 << 10
"""Bytes that are added to each range when it is decided how many to announce: what is noted of one takes 1 KB."""

IDLE = 5.0
"""Seconds after which a thread without work ends."""


class RangeSource(Protocol):
    """What brings bytes; see `sources.bring`."""

    def __call__(self, ranges: Sequence[ByteRange], next_uses: Sequence[int], *, ahead: bool) -> Brought:
        """Returns the bytes from the first of some ranges of an object to the last."""


def default_budget() -> int:
    """Returns how many bytes of memory reading ahead may take on this machine."""
    return min(BUDGET, machine_memory() // 16)


@dataclass(eq=False, slots=True)
class _Fetched:
    """What is known of a range that was asked for. Guarded by the fetcher's lock."""

    wanted: ByteRange
    next_use: int = NEVER
    """When it is used again behind its first use."""
    uses: list[Use] = field(default_factory=list)
    """Where it was announced, and was not read yet."""
    readers: list[_Reading] = field(default_factory=list)
    """Who waits for it."""
    part: Part | None = None
    """Its bytes, once they are here."""
    is_waiting: bool = True
    """Whether no thread has asked for it yet."""


class _Reading:
    """A call of `RangeFetcher.read` that waits for ranges."""

    def __init__(self) -> None:
        self.missing = 0
        self.ready = threading.Event()
        self.error: BaseException | None = None


class RangeFetcher:
    """Reads ranges of objects through several threads. Any thread may call it.

    What is read belongs to the caller: memory that nobody changes, as long as a view of it exists.
    """

    def __init__(self, source: RangeSource, budget: int | None = None) -> None:
        """source: is called by several threads at a time. budget: bytes that are read ahead at most."""
        self._source = source
        if budget is None:
            self.budget = int(default_budget() * (1 - BESIDE))
        else:
            self.budget = budget

        self._stores: defaultdict[str, StoreRequests] = defaultdict(StoreRequests)
        self._figures = FetchFigures(self._stores.values())
        self._lock = threading.Lock()
        self._work = threading.Condition(self._lock)
        self._known: dict[ByteRange, _Fetched] = {}
        self._waiting = WaitingRanges()
        self._order = itertools.count()
        self._announced: dict[int, dict[int, list[ByteRange]]] = {}
        self._abandoned: deque[int] = deque()
        self._held = 0
        self._under_way = 0
        self._threads = 0
        self._idle = 0
        self._closed = False
        self._has_fetched = False
        """Whether a request has ended since memory was given back."""

    # -- what others call ----------------------------------------------------------------------------------------------

    def announce(self, plan: int, coming: Sequence[PlannedRead]) -> None:
        with self._lock:
            self._drop_abandoned()
            for at in coming:
                self._announce(plan, at)
            self._put_threads_to_work()

    def passed(self, plan: int, position: int) -> None:
        """Says that a plan is behind a position: what was announced up to there is not kept for it any more."""
        with self._lock:
            self._drop_abandoned()
            announced = self._announced.get(plan, {})
            self._drop_uses(plan, [at for at in announced if at <= position])

    def abandon(self, plan: int) -> None:
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
                if fetched is not None and fetched.part is not None:
                    found[at] = self._use(fetched, fetched.part)
                    self._figures.counts.hits += 1
                    continue

                self._figures.counts.waits += 1
                missing.append((at, wanted))
                if fetched is None:
                    fetched = self._want(wanted)
                if fetched.is_waiting:
                    self._enqueue(0, (0, 0), wanted)
                fetched.readers.append(reading)
                reading.missing += 1

            if missing:
                self._figures.begins_to_wait(time.perf_counter(), more=bool(self._waiting))
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
            self._figures.ends_to_wait(time.perf_counter(), more=bool(self._waiting))

    def read_into(self, ranges: Sequence[ByteRange], out: memoryview) -> None:
        at = 0
        for data in self.read(ranges):
            out[at : at + len(data)] = data
            at += len(data)

    def read_directly(self, count: int) -> None:
        with self._lock:
            self._figures.counts.read_directly += count

    def count(self) -> RemoteReads:
        with self._lock:
            self._sum_up(time.perf_counter())
            return self._figures.now()

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
    def counts(self) -> RemoteReads:
        """What was read so far, as it grows."""
        return self._figures.counts

    @property
    def held(self) -> int:
        """Bytes of memory with what was fetched and not read yet, or is on its way."""
        return self._held

    # -- with the lock held --------------------------------------------------------------------------------------------

    def _sum_up(self, now: float) -> None:
        self._figures.sum_up(now, more=bool(self._waiting))

    def _want(self, wanted: ByteRange) -> _Fetched:
        fetched = self._known[wanted] = _Fetched(wanted)
        self._waiting.add(wanted)
        return fetched

    def _announce(self, plan: int, coming: PlannedRead) -> None:
        position = coming.position
        self._announced.setdefault(plan, {})[position] = list(coming.ranges)
        for number, wanted in enumerate(coming.ranges):
            fetched = self._known.get(wanted)
            if fetched is None:
                fetched = self._want(wanted)
                self._enqueue(1, (plan, position), wanted)
            if coming.next_uses is not None:
                fetched.next_use = coming.next_uses[number]
            fetched.uses.append((plan, position))

    def _enqueue(self, urgency: int, use: Use, wanted: ByteRange) -> None:
        heapq.heappush(self._stores[wanted.object.store].queue, (urgency, use, next(self._order), wanted))

    def _use(self, fetched: _Fetched, part: Part) -> memoryview:
        """Returns the bytes, which are kept only for those who have announced that they will read them, too."""
        if fetched.uses:
            fetched.uses.pop(0)
        self._drop_if_unused(fetched)
        return part[0]

    def _drop_abandoned(self) -> None:
        while self._abandoned:
            plan = self._abandoned.popleft()
            self._drop_uses(plan, list(self._announced.get(plan, {})))

    def _drop_uses(self, plan: int, positions: Sequence[int]) -> None:
        announced = self._announced.get(plan, {})
        for position in positions:
            for wanted in announced.pop(position):
                self._drop_use(wanted, (plan, position))

        if not announced:
            self._announced.pop(plan, None)
        self._put_threads_to_work()

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
        elif fetched.part is not None:
            buffer = fetched.part[1]
            buffer.ranges -= 1
            if buffer.ranges == 0:
                self._held -= buffer.size
            del self._known[fetched.wanted]

    def _collect(
        self, reading: _Reading, missing: Sequence[tuple[int, ByteRange]], found: list[memoryview | None]
    ) -> None:
        """Takes what a reading has waited for. Raises its error, after nothing of it is kept for it any more."""
        for at, wanted in missing:
            fetched = self._known.get(wanted)
            if fetched is None or reading not in fetched.readers:
                continue
            fetched.readers.remove(reading)
            if fetched.part is not None:
                found[at] = self._use(fetched, fetched.part)
            else:
                self._drop_if_unused(fetched)

        self._put_threads_to_work()
        if reading.error is not None:
            raise reading.error

    def _put_threads_to_work(self) -> None:
        """Wakes threads, or starts further ones, if there is something that may be asked for now."""
        wanted = 0
        limit = 0
        for requests in self._stores.values():
            wanted += max(min(requests.room, len(requests.queue)), 0)
            limit += requests.in_flight.limit
        if not wanted:
            return

        if self._idle:
            self._work.notify(min(wanted, self._idle))
        for _ in range(min(wanted - self._idle, limit - self._threads)):
            self._threads += 1
            threading.Thread(target=self._run, name="headrace-fetch", daemon=True).start()

    def _next_request(self) -> list[ByteRange]:
        """Returns the ranges that the next request brings, all of one store; none if nothing may be asked for now."""
        most = self.budget * UNDER_WAY
        largest = min(LARGEST, max(int(most / AT_ONCE), GAP))
        is_full = self._under_way >= most
        room = self.budget - self._held
        most_urgent = None
        for requests in self._stores.values():
            if requests.room <= 0 or not self._has_waiting(requests):
                continue

            # What is waited for is fetched whatever the budget says: nothing would go on otherwise.
            urgency, _, _, wanted = requests.queue[0]
            if urgency > 0 and (is_full or (wanted.size > room and self._held > 0)):
                continue
            if most_urgent is None or requests.queue[0] < most_urgent.queue[0]:
                most_urgent = requests

        if most_urgent is None:
            return []
        wanted = heapq.heappop(most_urgent.queue)[-1]
        return self._begin(most_urgent, self._waiting.take(wanted, min(room, largest, most_urgent.largest)))

    def _has_waiting(self, requests: StoreRequests) -> bool:
        """Removes what is gone from the front of a queue. Tells whether there is something left."""
        while requests.queue:
            fetched = self._known.get(requests.queue[0][-1])
            if fetched is not None and fetched.is_waiting:
                return True
            heapq.heappop(requests.queue)
        return False

    def _begin(self, requests: StoreRequests, ranges: list[ByteRange]) -> list[ByteRange]:
        for wanted in ranges:
            self._known[wanted].is_waiting = False

        # Until it is here, all that comes counts, also what lies between the ranges.
        span = span_of(ranges)
        self._held += span
        self._under_way += span
        now = time.perf_counter()
        self._sum_up(now)
        requests.under_way += 1
        requests.last_used = now
        requests.in_flight.started(now, requests.under_way)
        return ranges

    def _end(self, ranges: Sequence[ByteRange], answer: RequestOutcome) -> None:
        now = time.perf_counter()
        self._sum_up(now)
        requests = self._stores[ranges[0].object.store]
        requests.under_way -= 1
        requests.answers += 1
        self._has_fetched = True
        span = span_of(ranges)
        self._held -= span
        self._under_way -= span
        error = answer.error
        if answer.brought is not None:
            self._figures.brought(ranges, answer.brought, answer.began, now)
            if answer.brought.from_network:
                requests.in_flight.finished(now, answer.brought.from_network)

        for number, wanted in enumerate(ranges):
            fetched = self._known[wanted]
            if answer.parts is not None:
                fetched.part = answer.parts[number]
                buffer = fetched.part[1]
                if buffer.ranges == 0:
                    self._held += buffer.size
                buffer.ranges += 1
            elif error is None and fetched.readers:
                # It lies in the cache, and meanwhile somebody waits for it: now it is wanted in memory.
                self._ask_again(fetched)
                continue
            else:
                # Whoever asks for it again has it tried again.
                del self._known[wanted]

            for reading in fetched.readers:
                reading.missing -= 1
                if error is not None:
                    reading.error = error
                if reading.missing == 0 or error is not None:
                    reading.ready.set()

        # Only now: a buffer is dropped when none of its ranges is used.
        if answer.parts is not None:
            for wanted in ranges:
                self._drop_if_unused(self._known[wanted])

    def _ask_again(self, fetched: _Fetched) -> None:
        fetched.is_waiting = True
        self._waiting.add(fetched.wanted)
        self._enqueue(0, (0, 0), fetched.wanted)

    # -- the threads ---------------------------------------------------------------------------------------------------

    def _run(self) -> None:
        ranges: list[ByteRange] = []
        answer = RequestOutcome()
        while True:
            # The lock is taken once for each request: whoever iterates waits for it, too.
            with self._lock:
                if ranges:
                    self._end(ranges, answer)
                    answer = RequestOutcome()

                ranges = self._next_request()
                while not ranges:
                    if self._closed or not self._wait_for_work():
                        self._threads -= 1
                        return
                    ranges = self._next_request()
                # By now more requests may be allowed than there are threads. Only behind its own: a thread that is
                # woken for nothing takes the interpreter from those that work.
                self._put_threads_to_work()
                known = [self._known[wanted] for wanted in ranges]
                next_uses = [fetched.next_use for fetched in known]
                ahead = not any(fetched.readers for fetched in known)
                stays = any(len(fetched.uses) > len(fetched.readers) for fetched in known)

            answer = self._fetch(ranges, next_uses, ahead=ahead, stays=stays)

    def _wait_for_work(self) -> bool:
        """Waits until there may be something to ask for. Returns False if there was nothing for long."""
        self._idle += 1
        woken = self._work.wait(IDLE)
        self._idle -= 1
        if not woken and self._has_fetched:
            self._has_fetched = False
            give_back_memory()
        self._drop_abandoned()
        return not self._closed and (woken or any(requests.queue for requests in self._stores.values()))

    def _fetch(
        self, ranges: Sequence[ByteRange], next_uses: Sequence[int], *, ahead: bool, stays: bool
    ) -> RequestOutcome:
        """Asks for ranges. stays: whether some of them are kept until somebody reads them."""
        began = time.perf_counter()
        try:
            brought = self._source(ranges, next_uses, ahead=ahead)
            if brought.data is None:
                return RequestOutcome(brought, began=began)
            return RequestOutcome(brought, parts_of(brought.data, ranges, stays=stays), began=began)
        except Exception as error:  # noqa: BLE001 - it belongs to whoever waits for the bytes
            return RequestOutcome(error=error, began=began)

    def retried(self, store: str, kind: str) -> None:
        """Says that a request to a store is made again, after a failure of a kind of `retrying.KINDS`."""
        with self._lock:
            counts = self._figures.counts
            counts.retries += 1
            if kind == THROTTLED:
                counts.busy += 1
                self._stores[store].in_flight.busy(time.perf_counter())
