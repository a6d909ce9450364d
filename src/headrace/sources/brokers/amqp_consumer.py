"""Consumes a queue or a stream of RabbitMQ, with a prefetch window that fits the size of the messages.

The protocol counts messages, not bytes: a thousand messages of 64 MB on their way would take 64 GB of memory. So the
window begins small and grows as the messages turn out to be small.
"""

from __future__ import annotations

import contextlib
import threading
import time
from collections.abc import Callable, Iterator
from typing import Any, NamedTuple

from headrace.core.errors import StorageError
from headrace.core.extras import extra
from headrace.sources.brokers.amqp import NOT_FOUND, OFFSET, PREFETCH, AmqpAddress, prefetch_for, translated
from headrace.sources.journal.receiver import Away

GROWTH = 8
"""The window grows at most so much at once: the next messages may be larger than those before."""

MISSING = 60.0
"""Seconds for which a queue that was there may be missing: a broker that starts again has its queues a while later."""

GOODBYE = 2.0
"""Seconds that a broker has to answer when the connection is closed."""


class Delivery(NamedTuple):
    """A message as it came."""

    tag: int
    redelivered: bool
    properties: Any
    body: bytes


class AmqpConsumer:
    """A connection with one consumer. One thread calls it, which also answers the broker's heartbeats."""

    def __init__(self, address: AmqpAddress, arguments: Callable[[], dict[str, Any] | None]) -> None:
        """arguments: of `basic.consume`, asked for each time that consuming begins."""
        self._address = address
        self._arguments = arguments
        self._connection: Any = None
        self._channel: Any = None
        self._window = 0
        self._largest = 0
        self._came: list[Delivery] = []
        self._size = 0
        self._was_there = False
        self._missing_since: float | None = None

    def connect(self) -> None:
        """Connects and begins to consume. Raises `Away`; `StorageError` for a wrong password or a missing queue."""
        self._connect(self._address.prefetch or PREFETCH)

    def _connect(self, window: int) -> None:
        self.close()
        self._connection = self._address.connect()
        with translated(self._address):
            self._channel = self._connection.channel()
            with self._missed_for_a_while():
                self._channel.queue_declare(self._address.name, passive=True)
            self._window = 0
            if self._arguments() is None:
                self._refuse_stream()
            self._consume(window)

    @contextlib.contextmanager
    def _missed_for_a_while(self) -> Iterator[None]:
        """Makes `Away` of the answer that there is no such queue, if there was one not long ago."""
        exceptions = extra("pika.exceptions", "rabbitmq")
        try:
            yield
        except exceptions.ChannelClosedByBroker as error:
            if error.reply_code != NOT_FOUND or not self._was_there:
                raise

            now = time.monotonic()
            if self._missing_since is None:
                self._missing_since = now
            if now - self._missing_since > MISSING:
                raise
            raise Away(f"{error.reply_code} {error.reply_text}") from error

        self._was_there = True
        self._missing_since = None

    def _refuse_stream(self) -> None:
        """Raises `StorageError` if the queue is a stream: as a queue it is read from its end on, and nothing may come.

        Only streams take an offset.
        """
        exceptions = extra("pika.exceptions", "rabbitmq")
        trial = self._connection.channel()
        trial.basic_qos(prefetch_count=1)
        try:
            trial.basic_consume(self._address.name, lambda *_: None, arguments={OFFSET: "first"})
        except exceptions.ChannelClosedByBroker:
            return
        fix = "open it with stream=True, which needs no journal"
        where = self._address.place
        raise StorageError.about("this is no queue", place=where, found="a queue of type stream", fix=fix)

    def _consume(self, window: int) -> None:
        """Adds a consumer with this window. Those of a channel add up, and its messages keep their order."""
        self._channel.basic_qos(prefetch_count=window)
        self._channel.basic_consume(self._address.name, self._on_message, arguments=self._arguments())
        self._window += window

    def _on_message(self, channel: Any, method: Any, properties: Any, body: bytes) -> None:
        if channel is not self._channel:
            return  # of a connection that is being closed: the broker takes it back
        self._came.append(Delivery(method.delivery_tag, method.redelivered, properties, body))
        self._size += len(body)

    def receive(self, timeout: float, limit: int) -> list[Delivery]:
        """Returns what has come; waits for it up to `timeout` seconds. Raises `Away`, `StorageError`."""
        if self._channel is None:
            raise Away("not connected")

        with translated(self._address):
            deadline = time.monotonic() + timeout
            if not self._came:
                self._connection.process_data_events(timeout)
            # One call handles what the client has read at once, which may be a part of what has come.
            while self._came and self._size < limit and time.monotonic() < deadline:
                count = len(self._came)
                self._connection.process_data_events(0)
                if len(self._came) == count:
                    break
            self._check()

        came = self._came
        self._came = []
        self._size = 0
        return came

    def adapt(self, came: list[Delivery]) -> None:
        """Adapts the window to the size of messages that came, if it is far from it. Raises `Away`."""
        if not came or self._address.prefetch is not None or self._channel is None:
            return

        self._largest = max(self._largest // 2, *(len(delivery.body) for delivery in came), 1)
        wanted = min(prefetch_for(self._largest), GROWTH * self._window)
        grows = wanted >= 2 * self._window
        if not grows and wanted * 2 > self._window:
            return
        with translated(self._address):
            if grows and self._arguments() is None:
                self._consume(wanted - self._window)
            else:
                # A stream has its place in each consumer, and no consumer shrinks.
                self._connect(wanted)

    def _check(self) -> None:
        if self._channel.is_closed:
            raise Away("the broker has closed the channel")
        if not self._channel.consumer_tags:
            raise Away("the broker has ended the consumer: the queue was deleted, or its server has gone")

    def ack(self, tag: int) -> None:
        """Acks a message, and all before it. Raises `Away`."""
        if self._channel is not None:
            with translated(self._address):
                self._channel.basic_ack(tag, multiple=True)

    def rest(self, timeout: float) -> None:
        """Answers heartbeats. The broker sends no more than the window, since nothing is acked. Raises `Away`."""
        if self._channel is None:
            raise Away("not connected")
        with translated(self._address):
            self._connection.process_data_events(timeout)
            self._check()

    def close(self) -> None:
        """Ends the connection. What was not acked goes back to the queue."""
        connection = self._connection
        self._connection = None
        self._channel = None
        self._came = []
        self._size = 0
        if connection is not None:
            say_goodbye(connection)


def say_goodbye(connection: Any) -> None:
    """Closes a connection, and waits for the broker's answer for a moment only: it may be stopped."""
    if not connection.is_open:
        return

    def close() -> None:
        # Messages that have come and were not looked at, pika refuses one by one, which streams do not allow.
        with contextlib.suppress(Exception):
            connection.process_data_events(0)
            connection.close()

    # From here on no other thread uses the connection. This one ends when heartbeats stay away, at the latest.
    closing = threading.Thread(target=close, name="headrace-goodbye", daemon=True)
    closing.start()
    closing.join(GOODBYE)
