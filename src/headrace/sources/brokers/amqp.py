"""Connections to RabbitMQ by pika: addresses, what refuses for good, and what passes by itself."""

from __future__ import annotations

import contextlib
import logging
import ssl
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

from headrace.core.errors import StorageError, wrong_argument
from headrace.core.extras import extra
from headrace.sources.brokers.address import BrokerAddress
from headrace.sources.journal.receiver import Away

CONNECTING = 5.0
"""Seconds for each step of a connection."""

PREFETCH = 8
"""Messages that the broker may send ahead at first, when their size is not known."""

MOST_PREFETCH = 2000
HELD = 64 << 20
"""Bytes of messages that the broker may send ahead, about."""

HEARTBEAT = 15
"""Seconds of silence after which broker or client take the other one for dead. pika may take 40: it looks every 20."""

OFFSET = "x-stream-offset"
"""The argument and the header of streams."""

NOT_FOUND = 404
PRECONDITION_FAILED = 406
REFUSALS = (403, NOT_FOUND, 405, 530, 540)
"""Codes of AMQP: access refused, not found, resource locked, not allowed, not implemented."""


@dataclass(frozen=True)
class AmqpAddress(BrokerAddress):
    """Where a queue or a stream is: `amqp://user:password@host:5672/queue?vhost=name`. `amqps` is AMQP over TLS."""

    FORM = "amqp://host:5672/queue"
    PORTS = {"amqp": 5672, "amqps": 5671}
    NAMED = "queue"
    SETTINGS = ("vhost", "prefetch")

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.prefetch is not None and self.prefetch < 1:
            raise wrong_argument("prefetch", self.prefetch, "a whole number above 0")

    @property
    def prefetch(self) -> int | None:
        """Messages that the broker may send ahead; None: by their size."""
        text = self.settings.get("prefetch")
        if text is None:
            return None
        if not text.isdecimal():
            raise wrong_argument("prefetch", text, "a whole number above 0")
        return int(text)

    def parameters(self) -> Any:
        """Returns how pika connects. Raises `MissingExtraError`."""
        pika = extra("pika", "rabbitmq")
        options = None
        if self.parts.scheme == "amqps":
            options = pika.SSLOptions(ssl.create_default_context(), self.host)
        credentials = pika.PlainCredentials(self.user or "guest", self.password or "guest", erase_on_connect=False)
        return pika.ConnectionParameters(
            host=self.host,
            port=self.port,
            virtual_host=self.settings.get("vhost") or "/",
            credentials=credentials,
            ssl_options=options,
            heartbeat=HEARTBEAT,
            connection_attempts=1,
            socket_timeout=CONNECTING,
            stack_timeout=2 * CONNECTING,
            blocked_connection_timeout=60,
            client_properties={"connection_name": "headrace"},
        )

    def refused(self, found: str, fix: str) -> StorageError:
        """Returns the error of a broker that refuses for good; the caller raises it."""
        return StorageError.about("the broker refuses", place=self.place, found=found, fix=fix)

    def connect(self) -> Any:
        """Returns an open connection. Raises `Away`; `StorageError` if the server refuses for good."""
        pika = extra("pika", "rabbitmq")
        # Pika logs a page of errors for each try; what matters of them is raised.
        logging.getLogger("pika").setLevel(logging.CRITICAL)
        with translated(self):
            return pika.BlockingConnection(self.parameters())


@contextlib.contextmanager
def translated(address: AmqpAddress) -> Iterator[None]:
    """Makes `Away` or `StorageError` of what pika raises inside."""
    exceptions = extra("pika.exceptions", "rabbitmq")
    # A broker that stands still accepts a connection and then says nothing, which is no AMQPError.
    connecting = extra("pika.adapters.utils.connection_workflow", "rabbitmq")
    refused = (
        exceptions.AuthenticationError,
        exceptions.ProbableAuthenticationError,
        exceptions.ProbableAccessDeniedError,
    )
    try:
        yield
    except refused as error:
        fix = "check user, password and ?vhost="
        raise address.refused(_words(error), fix) from None
    except exceptions.ChannelClosedByBroker as error:
        text = f"{error.reply_code} {error.reply_text}"
        if _is_final(error.reply_code, text):
            raise address.refused(text, "check the queue's name, its type and the user's rights") from None
        raise Away(text) from error
    except (exceptions.AMQPError, connecting.AMQPConnectorException, OSError) as error:
        if isinstance(error, StorageError):
            raise
        raise Away(_words(error)) from error


def _is_final(code: int, text: str) -> bool:
    """Tells whether what a broker refuses with this code will be refused again."""
    if code == PRECONDITION_FAILED:
        # Also said of an ack that came too late, after which consuming begins anew.
        return "invalid arg" in text
    # A queue of a server that is being started, or of another one of a cluster, is away.
    return code in REFUSALS and "down or inaccessible" not in text


def _words(error: BaseException) -> str:
    """Returns an error of pika in words: its class says more than its text, which may be empty or quite long."""
    inner = error
    while inner.args and isinstance(inner.args[0], BaseException):
        inner = inner.args[0]
    text = str(inner).partition("\n")[0][:200]
    if text:
        return f"{type(inner).__name__}: {text}"
    return type(inner).__name__


def prefetch_for(largest: int) -> int:
    """Returns how many messages the broker may send ahead, if the largest has so many bytes."""
    return max(2, min(HELD // largest, MOST_PREFETCH))
