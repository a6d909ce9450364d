"""Which URLs name a source that never ends, and how each is opened."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from typing import Any, NamedTuple

from headrace.core.errors import UsageError, wrong_argument
from headrace.core.sizes import bytes_in
from headrace.core.text.urls import URL, is_url, shown_url
from headrace.sources.journal.receiver import ReceiverSource
from headrace.sources.log import LogSource
from headrace.sources.sql.recognition import is_sql
from headrace.storage.locations import bound_path

PLACE = "headrace.follow"

LEAST_JOURNAL = 1_000_000
"""Bytes that a journal must be able to hold: less may not have room for a single message."""

OF_A_JOURNAL = ("journal", "journal_bytes", "delivery")

OF_SQL = ("query", "table", "key", "settle", "xid")


class FollowArguments(NamedTuple):
    """What `headrace.follow` was given."""

    uri: Any
    options: Mapping[str, object] | None
    columns: Iterable[str] | None
    words: Mapping[str, Any]
    """Keywords that some sources have only, as far as they were given."""


@dataclass(frozen=True)
class Scheme:
    """How the URLs of some schemes are opened, and which keywords they have beside those of all sources."""

    open: Callable[[FollowArguments], LogSource]
    keywords: tuple[str, ...] = ()
    takes_options: bool = False
    many_partitions: bool = False

    @property
    def positions(self) -> str:
        """What positions for `start=` look like, in words."""
        if self.many_partitions:
            return "positions by partition, such as {0: 1500, 1: 1720}"
        return "a position of the one partition, such as {0: 1500}"


def _kafka(asked: FollowArguments) -> LogSource:
    from headrace.sources.brokers.kafka import KafkaSource

    return KafkaSource.of(os.fsdecode(asked.uri), asked.options)


def _redis(asked: FollowArguments) -> LogSource:
    from headrace.sources.brokers.redis_address import RedisAddress
    from headrace.sources.brokers.redis_streams import RedisStreamSource

    return RedisStreamSource(RedisAddress(os.fsdecode(asked.uri)))


def _rabbitmq(asked: FollowArguments) -> LogSource:
    from headrace.sources.brokers.amqp import AmqpAddress
    from headrace.sources.brokers.rabbitmq import RabbitQueue
    from headrace.sources.brokers.rabbitmq_streams import RabbitStreamSource

    address = AmqpAddress(os.fsdecode(asked.uri))
    if asked.words.get("stream"):
        for name in (*OF_A_JOURNAL, "duplicates"):
            if name in asked.words:
                expected = "nothing: a stream keeps its messages itself"
                raise wrong_argument(name, asked.words[name], expected, place=PLACE)
        return RabbitStreamSource(address)
    return _with_journal(RabbitQueue(address), asked)


def _socket(asked: FollowArguments) -> LogSource:
    from headrace.sources.brokers.sockets import SocketSource

    frame = asked.words.get("frame", "lines")
    listen = asked.words.get("listen", False)
    return _with_journal(SocketSource(os.fsdecode(asked.uri), frame, listen), asked)


def _with_journal(messages: ReceiverSource, asked: FollowArguments) -> LogSource:
    """Returns the log of a queue or a socket. Raises `UsageError` where it is not said where messages are kept."""
    from headrace.sources.journal.journal_log import JournalSource

    words = asked.words
    journal = words.get("journal")
    delivery = words.get("delivery")
    if journal is not None and not (isinstance(journal, (str, os.PathLike)) and os.fsdecode(journal)):
        raise wrong_argument("journal", journal, "a folder of this machine", place=PLACE)
    if journal is not None and is_url(journal):
        raise wrong_argument("journal", shown_url(os.fsdecode(journal)), "a folder of this machine", place=PLACE)
    if delivery not in (None, "at-most-once"):
        raise wrong_argument("delivery", delivery, "'at-most-once', with journal=None", place=PLACE)
    if (journal is None) != (delivery is not None):
        what = "a queue or a socket does not keep what it has delivered"
        found = f"journal={journal!r}" + (f", delivery={delivery!r}" if delivery else "")
        fix = (
            "give journal= a folder on a disk of this machine: what is received lies there until it is done with. Or, "
            "if samples may be lost, say so: journal=None, delivery='at-most-once'"
        )
        raise UsageError.about(what, place=messages.place, found=found, fix=fix)

    limit = words.get("journal_bytes")
    if limit is not None and bytes_in(limit, "journal_bytes") < LEAST_JOURNAL:
        raise wrong_argument("journal_bytes", limit, "1MB or more", place=PLACE)
    if journal is not None:
        journal = bound_path(journal)
    return JournalSource(messages, journal, limit, words.get("duplicates", "keep"))


def _sql(asked: FollowArguments) -> LogSource:
    from headrace.sources.sql.log import SQLSource

    return SQLSource(asked.uri, **{name: asked.words.get(name) for name in OF_SQL}, columns=asked.columns)


_REDIS = Scheme(_redis)
RABBITMQ = Scheme(_rabbitmq, (*OF_A_JOURNAL, "duplicates", "stream"))
SOCKET = Scheme(_socket, (*OF_A_JOURNAL, "frame", "listen"))
SQL = Scheme(_sql, OF_SQL)

SCHEMES: dict[str, Scheme] = {
    "kafka": Scheme(_kafka, takes_options=True, many_partitions=True),
    "redis": _REDIS,
    "rediss": _REDIS,
    "amqp": RABBITMQ,
    "amqps": RABBITMQ,
    "tcp": SOCKET,
    "unix": SOCKET,
}
"""What opens the URLs of each scheme; databases that are followed besides."""


def scheme_of(uri: object) -> Scheme | None:
    """Returns how a source is opened that never ends; a database counts as one. None: this is no such source."""
    if is_sql(uri):
        return SQL
    if not isinstance(uri, (str, os.PathLike)):
        return None
    match = URL.match(os.fsdecode(uri))
    if match is None:
        return None
    return SCHEMES.get(match["scheme"].lower())


def is_log(uri: object) -> bool:
    """Tells whether this is the URL of a source that never ends. Databases are none: they are opened, or followed."""
    return scheme_of(uri) not in (None, SQL)


def source_of(uri: str, options: Mapping[str, object] | None) -> LogSource:
    """Returns what a URL of a log names, with usual keywords; of queues and sockets without a journal."""
    scheme = scheme_of(uri)
    if scheme is None:
        raise no_source(uri)

    words: dict[str, Any] = {}
    if "journal" in scheme.keywords:
        words = {"delivery": "at-most-once"}
    return scheme.open(FollowArguments(uri, options, None, words))


def no_source(uri: object) -> UsageError:
    """Returns the error for something that has an end; the caller raises it."""
    expected = ", ".join(f"{scheme}://" for scheme in SCHEMES) + ", or a database"
    fix = "headrace.open reads what has an end: files, folders, stores, queries"
    return UsageError.about(
        "nothing is added here that could be followed", place=PLACE, found=shown(uri), expected=expected, fix=fix
    )


def refuse_log(uri: object) -> None:
    """Raises `UsageError` for the URL of a source that never ends, where one with an end is wanted."""
    if is_log(uri):
        fix = f"follow it: headrace.follow({shown(uri)!r}, ...)"
        raise UsageError.about("this source never ends", place="headrace.open", found=shown(uri), fix=fix)


def shown(uri: object) -> str:
    """Returns a source as it may be shown, without secrets."""
    if isinstance(uri, (str, os.PathLike)):
        return shown_url(os.fsdecode(uri))
    return repr(uri)
