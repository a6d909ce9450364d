"""The seam between the journal and what messages come from: a receiver, which a thread calls.

Life of a receiver: one thread calls all of its methods. `connect` comes first, and again after each `Away`. Then
`receive` is called again and again; once messages are safe, `ack` says so, in the order in which they came. While there
is no room for further ones, `rest` is called in the place of `receive`. `close` comes last.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Protocol


class Away(Exception):
    """The other end does not answer or has gone, which passes by itself. Says in words what happened."""


@dataclass
class Messages:
    """Messages in the order in which they came."""

    payloads: Sequence[bytes]
    ids: Sequence[bytes | None] | None = None
    """Of each message what its sender calls it; None: the source knows no ids."""

    redelivered: Sequence[bool] | None = None
    """Of each message whether it may have been delivered before; None: the source does not know."""

    tokens: Sequence[object] | None = None
    """Of each message what `ack` is told; None: the source knows no acks."""

    def before(self, count: int) -> Messages:
        """Returns the first `count` messages, or all where there are fewer."""
        if count >= len(self.payloads):
            return self
        return Messages(
            self.payloads[:count],
            None if self.ids is None else self.ids[:count],
            None if self.redelivered is None else self.redelivered[:count],
            None if self.tokens is None else self.tokens[:count],
        )

    def behind(self, count: int) -> Messages:
        """Returns the messages behind the first `count`."""
        return Messages(
            self.payloads[count:],
            None if self.ids is None else self.ids[count:],
            None if self.redelivered is None else self.redelivered[count:],
            None if self.tokens is None else self.tokens[count:],
        )


class Receiver(Protocol):
    """Takes messages from a source. Every method but `connect` returns soon after its timeout."""

    delivers_again: bool
    """Whether messages that were not acked come again after `Away`. If not, the caller keeps them."""

    def connect(self) -> None:
        """Connects, or begins to listen. Raises `Away`, and `StorageError` if it is of no use to try again."""

    def receive(self, timeout: float, limit: int) -> Messages:
        """Returns what has come, and waits for it up to `timeout` seconds; about `limit` bytes at most.

        Raises `Away`, and `StorageError`.
        """

    def ack(self, token: object) -> None:
        """Tells the source that the message of this token is safe, and all before it. Raises `Away`."""

    def rest(self, timeout: float) -> None:
        """Takes nothing for so many seconds, or less, and keeps connections alive. Raises `Away`."""

    def close(self) -> None:
        """Ends all connections. May be called at any time, also twice."""


class ReceiverSource(Protocol):
    """What is known of a receiver before it connects: frozen, can be pickled and compared."""

    @property
    def place(self) -> str:
        """What a user would call it: a URL without user, password and query."""

    def receiver(self) -> Receiver:
        """Makes the receiver, which is not connected yet. Raises `UsageError`, `MissingExtraError`."""
