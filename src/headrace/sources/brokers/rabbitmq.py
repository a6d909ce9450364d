"""Queues of RabbitMQ, classic and quorum ones, as a receiver. Messages are acked when the journal has them.

A message has an id if its sender has set the property `message_id`. One that is delivered again and is in the journal
is dropped there, and acked: otherwise such messages would fill the prefetch window, and nothing more would come.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import cast

from headrace.sources.brokers.amqp import AmqpAddress
from headrace.sources.brokers.amqp_consumer import AmqpConsumer, Delivery
from headrace.sources.journal.receiver import Messages


@dataclass(frozen=True)
class RabbitQueue:
    """A queue of a broker."""

    address: AmqpAddress

    @property
    def place(self) -> str:
        """The URL without user, password and query."""
        return self.address.place

    def receiver(self) -> RabbitReceiver:
        """Makes the receiver. Raises `MissingExtraError`."""
        self.address.parameters()
        return RabbitReceiver(self.address)


class RabbitReceiver:
    """Consumes a queue."""

    delivers_again = True

    def __init__(self, address: AmqpAddress) -> None:
        self._address = address
        self._consumer = AmqpConsumer(address, lambda: None)
        self._connections = 0

    def connect(self) -> None:
        """Connects and begins to consume. Raises `Away`; `StorageError` for a wrong password or a missing queue."""
        self._consumer.connect()
        self._connections += 1

    def receive(self, timeout: float, limit: int) -> Messages:
        """Returns what has come. Raises `Away`, `StorageError`."""
        came = self._consumer.receive(timeout, limit)
        self._consumer.adapt(came)
        return Messages(
            [delivery.body for delivery in came],
            [self._id_of(delivery) for delivery in came],
            [delivery.redelivered for delivery in came],
            [(self._connections, delivery.tag) for delivery in came],
        )

    def _id_of(self, delivery: Delivery) -> bytes | None:
        message_id: str | None = delivery.properties.message_id
        if message_id:
            return message_id.encode("utf-8", "surrogateescape")
        return None

    @property
    def place(self) -> str:
        """The URL without user, password and query."""
        return self._address.place

    def ack(self, token: object) -> None:
        """Acks the message of this token, and all before it. Raises `Away`."""
        connection, tag = cast(tuple[int, int], token)
        # Of a connection that is gone, the broker has taken the messages back.
        if connection == self._connections:
            self._consumer.ack(tag)

    def rest(self, timeout: float) -> None:
        """Answers heartbeats, and takes nothing. Raises `Away`."""
        self._consumer.rest(timeout)

    def close(self) -> None:
        """Ends the connection. What was not acked goes back to the queue."""
        self._consumer.close()
