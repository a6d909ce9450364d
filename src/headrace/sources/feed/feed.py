"""A feed: reads a log in the I/O process, and lays it span by span into memory that processes share."""

from __future__ import annotations

import dataclasses
import logging
import os
import sys
import threading
import time
from collections import deque
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

from headrace.core.errors import RecordsLostError, StateError, StorageError
from headrace.core.spans import Beginning, Range, Span
from headrace.sources.feed import span_file
from headrace.sources.feed.feed_options import FeedOptions
from headrace.sources.feed.pending_records import PendingRecords
from headrace.sources.feed.span_rule import Closing
from headrace.sources.log import Log, LogSource, Positions, Records, count_records
from headrace.sources.outage import answer_of

log = logging.getLogger("headrace")

PATIENCE = 0.2
"""Seconds for which a log is waited for before the feed looks around."""

AT_ONCE = 4 << 20
"""Bytes that the feed takes from a log at once."""

SAY_EVERY = 1.0
"""Seconds after which the feed says how far it is."""

ASK_EVERY = 5.0
"""Seconds after which it asks the log for its ends."""


@dataclass(frozen=True)
class FeedStatus:
    """How far a feed is. Sums since it began."""

    at: float
    """When, by `time.monotonic`, which all processes of a machine share."""
    records: int = 0
    nbytes: int = 0
    spans: int = 0
    partitions: int = 0
    lag: int = -1
    """Records that the log has and that were not read yet; -1: not known."""
    full: float = 0.0
    """Seconds in which it did not read, since it kept as much as it may."""


class Feed:
    """Reads one log, in a thread of its own, until it is closed."""

    def __init__(
        self,
        source: LogSource,
        options: FeedOptions,
        beginning: Beginning,
        send: Callable[[tuple[Any, ...]], None],
        *,
        leads: bool,
    ) -> None:
        """Args:

        beginning: where it begins; its spans are read again first.
        send: tells the other end what happens; may be called by any thread.
        leads: whether it closes spans itself; False: it is told of each.
        """
        self._source = source
        self._options = options
        self._beginning = beginning
        self._send = send
        self._leads = leads
        self.error: Exception | None = None
        """What has ended it."""
        self._end: Positions | None = None
        self._number = 0
        self._first = 0
        self._look_again = 0.0
        self._heard = 0.0
        """When the last record came, by `time.monotonic`."""
        self._status = FeedStatus(time.monotonic())
        self._said = 0.0
        self._asked = 0.0
        self._told: deque[Span] = deque(beginning.spans)
        self._changed = threading.Condition()
        self._closed = False
        self._memory: dict[int, tuple[int, int]] = {}  # descriptor and bytes of each span that is there
        self._kept = 0
        self._thread = threading.Thread(target=self._run, name="headrace-feed", daemon=True)

    def start(self) -> None:
        """Begins to read."""
        self._thread.start()

    def close(self) -> None:
        """Ends the feed, without waiting for its end."""
        with self._changed:
            self._closed = True
            self._changed.notify_all()

    def tell(self, span: Span) -> None:
        """Tells it the span that comes next."""
        with self._changed:
            self._told.append(span)
            self._changed.notify_all()

    def passed(self, number: int) -> None:
        """Frees the spans before this one."""
        with self._changed:
            for behind in [known for known in self._memory if known < number]:
                descriptor, nbytes = self._memory.pop(behind)
                os.close(descriptor)
                self._kept -= nbytes
            self._changed.notify_all()

    def memory_of(self, span: Span) -> int | None:
        """Waits for a span. Returns a descriptor of its memory, which the caller closes; None if it is gone."""

        def is_known() -> bool:
            return span.number in self._memory or span.number < self._number or self._closed or self.error is not None

        with self._changed:
            self._changed.wait_for(is_known)
            if span.number in self._memory:
                return os.dup(self._memory[span.number][0])
            return None

    # -- the thread ----------------------------------------------------------------------------------------------------

    def _run(self) -> None:
        try:
            reading = answer_of(self._source.open, self._source.place, self._pause)
            try:
                self._read(reading)
            finally:
                reading.close()
        except Exception as error:  # noqa: BLE001 - it belongs to the loop that waits for spans
            self._fail(error)
        finally:
            self.passed(1 << 62)

    def _fail(self, error: Exception) -> None:
        with self._changed:
            self.error = error
            self._changed.notify_all()
        # The other end may be gone, which is then why it ends.
        if not self._closed:
            self._send(("error", error))

    def _pause(self, seconds: float) -> bool:
        """Waits. Returns whether the feed was closed."""
        with self._changed:
            return self._changed.wait_for(lambda: self._closed, seconds)

    def _read(self, reading: Log) -> None:
        beginning = self._begun = answer_of(lambda: self._opened(reading), self._source.place, self._pause)
        if not self._leads:
            self._wait_to_be_told()
        spans = list(self._told)
        if spans:
            positions = {part.partition: part.start for part in spans[0].ranges}
        elif beginning.after is not None:
            positions = beginning.after.following()
        else:
            positions = dict(beginning.begin or {})

        self._end = beginning.end
        self._coming = PendingRecords(positions)
        if spans:
            self._number = spans[0].number
            self._first = spans[0].first
        elif beginning.after is not None:
            self._number = beginning.after.number + 1
            self._first = beginning.after.stop

        reading.seek(positions)
        self._heard = time.monotonic()
        closing = self._options.closing()
        while not self._closed:
            self._say(reading)
            if not self._has_room():
                self._wait_for_room()
            elif self._told:
                self._read_told(reading, self._told[0])
            elif not self._leads:
                self._wait_to_be_told()
            elif not self._lead(reading, closing):
                self._said = 0.0
                self._say(reading)
                self._send(("ended",))
                return self._stay()

        return None

    def _opened(self, reading: Log) -> Beginning:
        """Returns where the epoch begins and ends, and tells it."""
        before = self._beginning
        check_identity(self._source.place, before.identity, reading.identity)
        begin = before.begin
        if begin is None:
            begin = reading.resolve(self._options.start)

        end = before.end
        until = self._options.until
        if end is None and until == "now":
            end = reading.ends()
        elif end is None and isinstance(until, float) and until <= time.time():
            end = reading.resolve(until)

        opened = dataclasses.replace(before, identity=dict(reading.identity), begin=begin, end=end)
        self._send(("opened", opened))
        return opened

    def _has_room(self) -> bool:
        """Tells whether it may read on. Two spans there may be always: a batch may lie in both."""
        used = self._kept + self._coming.nbytes
        return used < self._options.budget or len(self._memory) < 2 or self._closed

    def _wait_for_room(self) -> None:
        """Waits while more than the budget is kept, for a while."""
        began = time.monotonic()
        with self._changed:
            self._changed.wait_for(self._has_room, SAY_EVERY)

        self._heard = time.monotonic()
        full = self._status.full + self._heard - began
        self._status = dataclasses.replace(self._status, full=full)

    def _say(self, reading: Log) -> None:
        """Says how far it is, once in a while."""
        now = time.monotonic()
        if now < self._said + SAY_EVERY:
            return

        self._said = now
        lag = self._status.lag
        if reading.at_end() >= self._coming.starts().keys():
            lag = 0
        elif now >= self._asked + ASK_EVERY:
            self._asked = now
            lag = self._lag(reading)

        partitions = len(self._coming.starts())
        self._status = dataclasses.replace(self._status, at=now, lag=lag, partitions=partitions)
        self._send(("status", self._status))

    def _lag(self, reading: Log) -> int:
        """Returns about how many records the log has that were not read; -1 if it does not say."""
        try:
            return count_records(reading, self._coming.following(), reading.ends())
        except StorageError:
            return -1  # it is away

    def _wait_to_be_told(self) -> None:
        with self._changed:
            self._changed.wait_for(lambda: self._told or self._closed)

    def _stay(self) -> None:
        """Keeps the last spans until the loop is through with them."""
        with self._changed:
            self._changed.wait_for(lambda: self._closed)

    def _clock(self) -> float:
        """Returns the time by which records get older: not while nothing is read since there is no room."""
        return time.monotonic() - self._status.full

    def _lead(self, reading: Log, closing: Closing) -> bool:
        """Reads on, and closes spans that are full. Returns whether there is more to come."""
        self._look_for_partitions(reading)
        self._take_in(reading, closing.linger)
        is_over = self._is_over(reading)
        while self._coming.count and self._left() > 0:
            coming = self._coming
            at_end = reading.at_end()
            ending = dataclasses.replace(closing, samples=min(closing.samples, self._left()))
            if not self._number:
                ending = ending.of_first(coming.count, at_end=at_end >= coming.starts().keys())

            waited = self._clock() - coming.oldest()
            if is_over:
                waited = ending.linger

            # To see whether it is full takes a look at all that waits.
            if coming.count < ending.samples and coming.nbytes < ending.nbytes and waited < ending.linger:
                break
            counts = ending.cut(coming.sizes(), at_end, waited)
            if counts is None:
                break
            self._close_span(counts)

        return self._left() > 0 and not (is_over and not self._coming.count)

    def _left(self) -> int:
        """Returns how many samples the epoch may still have."""
        if self._options.most is None:
            return sys.maxsize
        return self._options.most - self._first

    def _is_over(self, reading: Log) -> bool:
        """Tells whether the end of the epoch has come."""
        until = self._options.until
        if self._end is None and isinstance(until, float) and until <= time.time():
            self._end = reading.resolve(until)
            self._send(("opened", dataclasses.replace(self._begun, end=self._end)))
        if self._end is not None:
            following = self._coming.following()
            return all(following.get(partition, 0) >= end for partition, end in self._end.items())

        idle = self._options.idle
        return idle is not None and time.monotonic() - self._heard >= idle

    def _take_in(self, reading: Log, patience: float) -> None:
        """Takes in what the log gives within `patience` seconds, or `PATIENCE`."""
        try:
            came = reading.poll(min(patience, PATIENCE), AT_ONCE)
        except RecordsLostError as error:
            self._skip_gap(reading, error)
            return

        now = time.monotonic()
        for records in came:
            end = None
            if self._end is not None:
                end = self._end.get(records.partition, 0)

            before = self._coming.nbytes
            count = self._coming.add(records, end, self._clock())
            if count:
                status = self._status
                nbytes = status.nbytes + self._coming.nbytes - before
                self._status = dataclasses.replace(status, records=status.records + count, nbytes=nbytes)
                self._heard = now

    def _skip_gap(self, reading: Log, error: RecordsLostError) -> None:
        """Goes on behind records that the log does not have any more. Raises the error if that is not asked for."""
        if self._options.on_gap != "skip" or error.earliest is None:
            raise error

        log.warning("%s", error)
        self._coming.skip(error.partition, error.earliest)
        reading.seek(self._coming.following())

    def _look_for_partitions(self, reading: Log) -> None:
        """Takes up partitions that the log did not have before, from their first record on."""
        now = time.monotonic()
        if now < self._look_again:
            return

        self._look_again = now + self._options.look_every
        new = {*reading.partitions()} - {*self._coming.starts()}
        if new:
            first = reading.resolve("earliest")
            self._take_up(reading, {partition: first[partition] for partition in new})

    def _take_up(self, reading: Log, positions: Positions) -> None:
        for partition, position in positions.items():
            self._coming.add_partition(partition, position)
        reading.seek(self._coming.following())

    # -- spans ---------------------------------------------------------------------------------------------------------

    def _close_span(self, counts: dict[int, int]) -> None:
        """Makes a span of the first records of each partition, and tells of it."""
        starts = self._coming.starts()
        taken = self._coming.take(counts)
        ranges = []
        for partition, stop in self._coming.starts().items():
            ranges.append(Range(partition, starts[partition], stop))

        span = Span(self._number, self._first, sum(counts.values()), tuple(ranges))
        self._keep(span, taken)
        self._send(("span", span))

    def _read_told(self, reading: Log, span: Span) -> None:
        """Reads a span that was closed before or by another rank."""
        stops = span.following()
        new = {part.partition: part.start for part in span.ranges if part.partition not in self._coming.starts()}
        if new:
            self._take_up(reading, new)
        while not self._closed and self._lacks(stops):
            self._take_in(reading, PATIENCE)
        if self._closed:
            return

        counts = self._coming.before(stops)
        taken = self._coming.take(counts)
        for partition, stop in stops.items():
            self._coming.skip(partition, stop)

        found = sum(counts.values())
        if found != span.count:
            span = self._lost(span, found)
        if taken:
            self._keep(span, taken)
        with self._changed:
            self._told.popleft()
            if not taken:
                self._count(span)
        if self._leads:
            self._send(("span", span))

    def _lacks(self, stops: Positions) -> bool:
        following = self._coming.following()
        return any(following[partition] < stop for partition, stop in stops.items())

    def _lost(self, span: Span, found: int) -> Span:
        """Returns what becomes of a span of which records are gone. Raises `RecordsLostError`."""
        error = RecordsLostError.about(
            "the log no longer has all records of a span",
            place=f"{self._source.place}, span {span.number}",
            found=f"{found:,} records",
            expected=f"{span.count:,}, as before",
            fix='have the log keep its records longer, or pass over the rest of the span: on_gap="skip"',
        )
        if self._options.on_gap != "skip":
            raise error

        log.warning("%s", error)
        return dataclasses.replace(span, lost=True)

    def _keep(self, span: Span, taken: list[Records]) -> None:
        """Lays a span into shared memory."""
        descriptor = span_file.write(span_file.table_of(taken))
        nbytes = os.fstat(descriptor).st_size
        with self._changed:
            self._memory[span.number] = descriptor, nbytes
            self._kept += nbytes
            self._count(span)

    def _count(self, span: Span) -> None:
        """Notes that a span was read. Holds the lock."""
        self._status = dataclasses.replace(self._status, spans=self._status.spans + 1)
        self._number = span.number + 1
        self._first = span.stop
        self._changed.notify_all()


def check_identity(place: str, known: Mapping[str, str], found: Mapping[str, str]) -> None:
    """Raises `StateError` if a state is of another log than the one that was found."""
    for name, value in known.items():
        other = found.get(name, "")
        if value and other and value != other:
            what = "this state belongs to another log"
            fix = "load it where it was saved, or begin again without it"
            who = f"state: {name}={value}, this log: {name}={other}"
            raise StateError.about(what, place=place, found=who, expected=f"the same {name} in both", fix=fix)
