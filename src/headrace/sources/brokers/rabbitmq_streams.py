"""Streams of RabbitMQ as logs: a queue of type "stream" keeps its messages, and is read from any offset on.

Positions are the broker's offsets. They have gaps, since each of the broker's segments begins with an entry of its own.
Nothing is told to the broker about what was read: this protocol has no such thing.
"""

from __future__ import annotations

import datetime
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

from headrace.core.errors import RecordsLostError, wrong_argument
from headrace.sources.brokers.amqp import OFFSET, AmqpAddress, translated
from headrace.sources.brokers.amqp_consumer import AmqpConsumer, Delivery, say_goodbye
from headrace.sources.brokers.read_ahead_thread import Fetched, ReadAheadLog
from headrace.sources.journal.receiver import Away
from headrace.sources.log import Positions, Start
from headrace.sources.outage import no_answer

QUIET = 0.1
"""Seconds without a message after which a look at the end of a stream has seen it."""

LOOK = 4096
"""Messages that a look may bring: those of the broker's largest chunk."""


@dataclass(frozen=True)
class RabbitStreamSource:
    """A stream of a broker."""

    address: AmqpAddress

    @property
    def place(self) -> str:
        """The URL without user, password and query."""
        return self.address.place

    def open(self) -> RabbitStreamLog:
        """Makes the log. Raises `MissingExtraError`; what the broker refuses is told by the first question or poll."""
        self.address.parameters()
        return RabbitStreamLog(self.address)


class RabbitStreamLog(ReadAheadLog):
    """Reads a stream, which is a log of one partition."""

    def __init__(self, address: AmqpAddress) -> None:
        self.identity = {"kind": "RabbitMQ stream", "name": address.name}
        self._address = address
        super().__init__(_StreamFetcher(address), address.place)

    def resolve(self, start: Start) -> Positions:
        """Returns the offset that `start` means now. A time means the chunk of messages that the broker has of it.

        Raises `StorageError`, `UsageError`.
        """
        if start == "earliest":
            return {0: _asked(self._address, first_of)}
        if start == "latest":
            return self.ends()
        if isinstance(start, Mapping) and set(start) == {0}:
            return {0: start[0]}
        if isinstance(start, (int, float)) and not isinstance(start, bool):
            moment = datetime.datetime.fromtimestamp(start, datetime.UTC)
            return {0: _asked(self._address, lambda address: first_since(address, moment))}
        raise wrong_argument("start", start, '"earliest", "latest", seconds since 1970, or {0: offset}')

    def ends(self) -> Positions:
        """Returns the offset behind the last message of the broker's last chunk. Raises `StorageError`."""
        return {0: _asked(self._address, end_of)}

    def commit(self, positions: Positions) -> None:
        """Does nothing: the broker keeps messages by its own rules."""


def _asked(address: AmqpAddress, question: Callable[[AmqpAddress], int]) -> int:
    """Returns the answer to a question. Raises `StorageError`, also if the broker is away."""
    try:
        return question(address)
    except Away as away:
        fix = "see whether the address is right and the broker runs"
        raise no_answer("the broker does not answer", address.place, away, fix) from away


def first_of(address: AmqpAddress) -> int:
    """Returns the offset of the first message that is there; 0 for an empty stream. Raises `Away`, `StorageError`."""
    found = _look(address, "first", 1)
    return found[0] if found else 0


def first_since(address: AmqpAddress, moment: datetime.datetime) -> int:
    """Returns the offset of the first message of the chunk that the broker has of this time, or else the end."""
    found = _look(address, moment, 1)
    return found[0] if found else end_of(address)


def end_of(address: AmqpAddress) -> int:
    """Returns the offset behind the last message; 0 for an empty stream. Raises `Away`, `StorageError`."""
    found = _look(address, "last", LOOK)
    return found[-1] + 1 if found else 0


def _look(address: AmqpAddress, offset: str | datetime.datetime, most: int) -> list[int]:
    """Returns the offsets of messages that come first from there on: `most`, or what comes until it is quiet."""
    found: list[int] = []

    def on_message(channel: Any, method: Any, properties: Any, body: bytes) -> None:
        found.append(int(properties.headers[OFFSET]))

    connection = address.connect()
    try:
        with translated(address):
            channel = connection.channel()
            channel.basic_qos(prefetch_count=most)
            channel.basic_consume(address.name, on_message, arguments={OFFSET: offset})
            while len(found) < most:
                before = len(found)
                quiet = time.monotonic() + QUIET
                while len(found) == before and time.monotonic() < quiet:
                    connection.process_data_events(QUIET)
                if len(found) == before:
                    break
    finally:
        say_goodbye(connection)
    return found


class _StreamFetcher:
    """Consumes a stream from an offset on."""

    def __init__(self, address: AmqpAddress) -> None:
        self._address = address
        self._consumer = AmqpConsumer(address, self._arguments)
        self._next = 0

    def _arguments(self) -> dict[str, Any]:
        # What came with an earlier prefetch window, and was not handed out yet, is not asked for again.
        return {OFFSET: self._next}

    def go_to(self, position: int) -> None:
        """Connects, and consumes from this offset on. Raises `Away`, `StorageError`, `RecordsLostError`."""
        first = first_of(self._address)
        end = end_of(self._address)
        # In front of the first message of a segment lies one entry of the broker.
        if first and position < first - 1:
            raise self._lost(f"offset {position:,}, and the first one that is there is {first:,}", first)
        if position > end:
            raise self._lost(f"offset {position:,}, and the stream ends with {end - 1:,}", first)

        self._next = position
        self._consumer.connect()

    def _lost(self, found: str, first: int) -> RecordsLostError:
        fix = f"begin at {first:,} or later; or have the stream keep its messages longer (x-max-age)"
        what = "the stream does not have the messages from which to continue"
        error = RecordsLostError.about(what, place=self._address.place, found=found, fix=fix)
        error.partition = 0
        error.earliest = first
        return error

    def fetch(self, timeout: float, limit: int) -> Fetched:
        """Returns what has come. Raises `Away`, `StorageError`."""
        came = self._consumer.receive(timeout, limit)
        positions: list[int] = []
        values: list[bytes] = []
        for delivery in came:
            offset = self._offset_of(delivery)
            if offset >= self._next:
                positions.append(offset)
                values.append(delivery.body)
                self._next = offset + 1

        if came:
            # For a stream this only makes room in the prefetch window.
            self._consumer.ack(came[-1].tag)
            self._consumer.adapt(came)
        return Fetched(positions, values, not came)

    def _offset_of(self, delivery: Delivery) -> int:
        headers = delivery.properties.headers or {}
        if OFFSET not in headers:
            raise self._address.refused("a queue that is no stream", "open it with journal=, as a queue")
        return int(headers[OFFSET])

    def rest(self) -> None:
        """Answers heartbeats. Raises `Away`."""
        self._consumer.rest(0)

    def close(self) -> None:
        """Ends the connection."""
        self._consumer.close()
