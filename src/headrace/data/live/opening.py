"""`headrace.open` for sources that never end: which they are, and what their keywords mean."""

from __future__ import annotations

import datetime
import math
import operator
import os
import re
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Literal, NamedTuple, TypedDict

from headrace.core.errors import UsageError, wrong_argument
from headrace.core.sizes import bytes_in
from headrace.core.text.urls import URL, is_url, shown_url
from headrace.sources.brokers.frames import Frame
from headrace.sources.feed.feed_options import FeedOptions, OnGap
from headrace.sources.journal.journal import Duplicates
from headrace.sources.journal.receiver import ReceiverSource
from headrace.sources.log import LogSource, Start
from headrace.sources.sql.recognition import is_sql
from headrace.storage.fetching.fetcher import default_budget
from headrace.storage.locations import bound_path

if TYPE_CHECKING:
    from headrace.data.gather import RaggedAs
    from headrace.data.live.dataset import LogDataset

PLACE = "headrace.open"

WITH_FIELDS = ("json", "msgpack", "avro", "arrow")

LEAST_JOURNAL = 1_000_000
"""Bytes that a journal must be able to hold: less may not have room for a single message."""

SPAN = 50_000
LINGER = 5.0
SPAN_BYTES = 64 << 20

LEAST_SECONDS = 1e8
"""Since 1970, of a time as a number: in 1973. What is less is no time that anybody has meant."""

MOST_SECONDS = 253_402_300_800.0
"""Since 1970: the year 10000, behind which no time can be written."""

Moment = str | float | datetime.datetime


class LiveOptions(TypedDict, total=False):
    """Keywords of `headrace.open` for sources that never end."""

    start: Moment | Mapping[int, int]
    """Where to begin: "earliest" (if not given), "latest", a time (`datetime`, ISO 8601, or seconds since 1970), or
    positions by partition. A loaded state knows better."""
    until: int | Moment
    """Where an epoch ends: "now" (at what is there when it begins), after so many samples, or at a time."""
    idle: float
    """Seconds without a record after which an epoch ends."""
    span: int
    """Samples of a span: what is shuffled together, and read again after a resume. 50,000 if not given."""
    linger: float
    """Seconds after which a span ends that is not full. 5 if not given."""
    on_gap: OnGap
    """What happens where the source no longer has what comes next: "raise", or "skip" with a warning."""
    follow: bool
    """Of a database: whether rows that are added later come too. Its key must be a whole number that ascends."""
    settle: float
    """Of a database that is followed: seconds for which a row must have been there. Without it rows of PostgreSQL wait
    for the transactions that write, and others for 2 seconds; see docs/sql.md."""
    xid: str
    """Of a table in PostgreSQL that is followed: a column of type `xid8` that is no part of samples."""
    journal: str | os.PathLike[str] | None
    """Of a queue or a socket: the folder in which messages are kept until they are done with. None: in memory, where
    `delivery` says so."""
    journal_bytes: int | str
    """What the journal may take, such as "10GB". A full one stops receiving; nothing is dropped."""
    delivery: Literal["at-most-once"]
    """Of a queue or a socket without a journal: says that what was received may be lost when the process ends."""
    duplicates: Duplicates
    """What becomes of messages that a broker delivers again and that have no id: "keep" (if not given) or "drop"."""
    frame: Frame
    """What a record is on a socket: "lines" (if not given; empty ones are passed over), "length" (four bytes in front)
    or "arrow" (a row)."""
    listen: bool
    """Whether to wait for clients at the address of a socket, rather than to connect to it."""
    stream: bool
    """Whether a queue of RabbitMQ is a stream: it keeps its messages, and needs no journal."""


EVERYWHERE = ("start", "until", "idle", "span", "linger", "on_gap")
"""The keywords that all sources have."""

OF_A_JOURNAL = ("journal", "journal_bytes", "delivery")


class OpenArguments(NamedTuple):
    """What `headrace.open` was given."""

    uri: Any
    options: Mapping[str, object] | None
    columns: Iterable[str] | None
    table: Mapping[str, str | None]
    """`query`, `table` and `key`."""
    live: Mapping[str, Any]


@dataclass(frozen=True)
class Scheme:
    """How the URLs of some schemes are opened, and which keywords they have beside those of all sources."""

    open: Callable[[OpenArguments], LogSource]
    keywords: tuple[str, ...] = ()
    takes_options: bool = False
    many_partitions: bool = False

    @property
    def positions(self) -> str:
        """What positions for `start=` look like, in words."""
        if self.many_partitions:
            return "positions by partition, such as {0: 1500, 1: 1720}"
        return "a position of the one partition, such as {0: 1500}"


def _kafka(asked: OpenArguments) -> LogSource:
    from headrace.sources.brokers.kafka import KafkaSource

    return KafkaSource.of(os.fsdecode(asked.uri), asked.options)


def _redis(asked: OpenArguments) -> LogSource:
    from headrace.sources.brokers.redis_address import RedisAddress
    from headrace.sources.brokers.redis_streams import RedisStreamSource

    return RedisStreamSource(RedisAddress(os.fsdecode(asked.uri)))


def _rabbitmq(asked: OpenArguments) -> LogSource:
    from headrace.sources.brokers.amqp import AmqpAddress
    from headrace.sources.brokers.rabbitmq import RabbitQueue
    from headrace.sources.brokers.rabbitmq_streams import RabbitStreamSource

    address = AmqpAddress(os.fsdecode(asked.uri))
    if asked.live.get("stream"):
        for name in (*OF_A_JOURNAL, "duplicates"):
            if name in asked.live:
                expected = "nothing: a stream keeps its messages itself"
                raise wrong_argument(name, asked.live[name], expected, place=PLACE)
        return RabbitStreamSource(address)
    return _with_journal(RabbitQueue(address), asked)


def _socket(asked: OpenArguments) -> LogSource:
    from headrace.sources.brokers.sockets import SocketSource

    frame = asked.live.get("frame", "lines")
    listen = asked.live.get("listen", False)
    return _with_journal(SocketSource(os.fsdecode(asked.uri), frame, listen), asked)


def _with_journal(messages: ReceiverSource, asked: OpenArguments) -> LogSource:
    """Returns the log of a queue or a socket. Raises `UsageError` where it is not said where messages are kept."""
    from headrace.sources.journal.journal_log import JournalSource

    live = asked.live
    journal = live.get("journal")
    delivery = live.get("delivery")
    if journal is not None and not (isinstance(journal, (str, os.PathLike)) and os.fsdecode(journal)):
        raise wrong_argument("journal", journal, "a folder of this machine", place=PLACE)
    if journal is not None and is_url(journal):
        raise wrong_argument("journal", shown_url(os.fsdecode(journal)), "a folder of this machine", place=PLACE)
    if delivery not in (None, "at-most-once"):
        raise wrong_argument("delivery", delivery, "'at-most-once', with journal=None", place=PLACE)
    if (journal is None) != (delivery is not None):
        what = "a queue or a socket does not keep what it has delivered"
        found = f"journal={journal!r}" + (f", delivery={delivery!r}" if delivery else "")
        cure = (
            "give journal= a folder on a disk of this machine: what is received lies there until it is done with. Or, "
            "if samples may be lost, say so: journal=None, delivery='at-most-once'"
        )
        raise UsageError.about(what, place=messages.place, found=found, cure=cure)

    limit = live.get("journal_bytes")
    if limit is not None and bytes_in(limit, "journal_bytes") < LEAST_JOURNAL:
        raise wrong_argument("journal_bytes", limit, "1MB or more", place=PLACE)
    if journal is not None:
        journal = bound_path(journal)
    return JournalSource(messages, journal, limit, live.get("duplicates", "keep"))


def _sql(asked: OpenArguments) -> LogSource:
    from headrace.sources.sql.log import SQLSource

    settle = asked.live.get("settle")
    return SQLSource(asked.uri, **asked.table, columns=asked.columns, settle=settle, xid=asked.live.get("xid"))


_REDIS = Scheme(_redis)
_RABBITMQ = Scheme(_rabbitmq, (*OF_A_JOURNAL, "duplicates", "stream"))
_SOCKET = Scheme(_socket, (*OF_A_JOURNAL, "frame", "listen"))
_SQL = Scheme(_sql, ("follow", "settle", "xid"))

SCHEMES: dict[str, Scheme] = {
    "kafka": Scheme(_kafka, takes_options=True, many_partitions=True),
    "redis": _REDIS,
    "rediss": _REDIS,
    "amqp": _RABBITMQ,
    "amqps": _RABBITMQ,
    "tcp": _SOCKET,
    "unix": _SOCKET,
}
"""What opens the URLs of each scheme; databases that are followed besides."""


def _scheme_of(uri: object, live: Mapping[str, Any]) -> Scheme | None:
    if is_sql(uri):
        if live.get("follow"):
            return _SQL
        return None
    if not isinstance(uri, (str, os.PathLike)):
        return None
    match = URL.match(os.fsdecode(uri))
    if match is None:
        return None
    return SCHEMES.get(match["scheme"].lower())


def is_log(uri: object, live: Mapping[str, Any]) -> bool:
    """Tells whether a source never ends. live: the keywords of such sources that were given."""
    return _scheme_of(uri, live) is not None


def source_of(uri: str, options: Mapping[str, object] | None) -> LogSource:
    """Returns what a URL of a log names, with usual keywords; of queues and sockets without a journal."""
    scheme = _scheme_of(uri, {})
    if scheme is None:
        raise UsageError.about("this is no source that never ends", place=PLACE, found=shown_url(uri))

    live: dict[str, Any] = {}
    if "journal" in scheme.keywords:
        live = {"journal": None, "delivery": "at-most-once"}
    return scheme.open(OpenArguments(uri, options, None, {}, live))


def open_log(
    uri: Any,
    columns: Iterable[str] | None,
    decode: Any,
    ragged: RaggedAs,
    options: Mapping[str, object] | None,
    table: Mapping[str, str | None],
    live: Mapping[str, Any],
) -> LogDataset:
    """Returns the dataset of a source that never ends. Raises `UsageError`. Connects with nobody yet."""
    scheme = _scheme_of(uri, live)
    if scheme is None:
        raise ValueError("this is no log")

    # They load Arrow, for which nobody has to wait who opens no log.
    from headrace.data.live.dataset import ColumnsOfLog, LogDataset
    from headrace.data.live.decoding import checked_decoding
    from headrace.data.live.rows import RowsOfLog

    if options is not None and not isinstance(options, Mapping):
        raise wrong_argument("options", options, "a dict of settings", place=PLACE)
    shown = shown_url(os.fsdecode(uri)) if isinstance(uri, (str, os.PathLike)) else repr(uri)
    known = [*EVERYWHERE, *scheme.keywords]
    if scheme.takes_options:
        known.append("options")
    _check_known(live, known, shown)
    if options and not scheme.takes_options:
        expected = "nothing: this source has no settings but those of its URL"
        raise wrong_argument("options", sorted(options), expected, place=PLACE)

    if columns is not None:
        columns = _checked_columns(columns)
    feed = _feed_of(live, _start_of(live.get("start", "earliest"), scheme, live))
    source = scheme.open(OpenArguments(uri, options, columns, table, live))
    if scheme is _SQL:
        if decode is not True:
            raise wrong_argument("decode", decode, "nothing: rows have columns", place=PLACE)
        return RowsOfLog(source, feed, "bytes", ragged=ragged)

    for name, value in table.items():
        if value is not None:
            raise wrong_argument(name, value, "nothing: this is no database", place=PLACE)

    decoding = checked_decoding(decode)
    if callable(decoding) or decoding == "npy":
        kind = LogDataset
    else:
        kind = ColumnsOfLog
    if columns is not None and decoding not in WITH_FIELDS:
        found = f"decode={decoding!r}"
        expected = f"one of {', '.join(map(repr, WITH_FIELDS))}"
        raise UsageError.about("columns= is for records with fields", place=PLACE, found=found, expected=expected)
    return kind(source, feed, decoding, columns=columns, ragged=ragged, options=options)


def _check_known(live: Mapping[str, Any], known: Iterable[str], shown: str) -> None:
    for name in live:
        if name in LiveOptions.__annotations__ and name not in known:
            expected = f"one of {', '.join(f'{keyword}=' for keyword in known)}"
            raise UsageError.about(f"{name}= is not for this source", place=PLACE, found=shown, expected=expected)
        if name not in known:
            raise TypeError(f"headrace.open() got an unexpected keyword argument {name!r}")


def _checked_columns(columns: object) -> tuple[str, ...]:
    """Returns names of columns. Raises `UsageError` for what cannot be that; whether there are such, records say."""
    expected = "a list of names, each once"
    if isinstance(columns, (str, bytes, Mapping)) or not isinstance(columns, Iterable):
        raise wrong_argument("columns", columns, expected, place=PLACE)

    names = tuple(columns)
    for name in names:
        if not isinstance(name, str) or not name or names.count(name) > 1:
            raise wrong_argument("columns", names, expected, place=PLACE, found=repr(name))
    if not names:
        raise wrong_argument("columns", columns, expected, place=PLACE)
    return names


def refuse_stored(uri: object, given: Mapping[str, object]) -> None:
    """Raises `UsageError` for keywords of stored data, given with a source that never ends; None: it was not given."""
    names = [name for name, value in given.items() if value is not None]
    if names:
        shown = shown_url(os.fsdecode(uri)) if isinstance(uri, (str, os.PathLike)) else repr(uri)
        what = f"{', '.join(f'{name}=' for name in names)} is for stored data"
        raise UsageError.about(what, place=PLACE, found=shown, expected="a path, or a URL of a store")


def decodes_images(uri: object, decode: object, live: Mapping[str, object]) -> bool:
    """Returns what `decode=` says of stored data. Raises `UsageError` for keywords of sources that never end."""
    if not isinstance(decode, bool):
        found = f"decode={decode!r} for {shown_url(uri) if isinstance(uri, str) else repr(uri)}"
        what = "decode= takes such words for sources that never end"
        raise UsageError.about(what, place=PLACE, found=found, expected=f"True or False, or one of {_schemes()}")

    given = {name: value for name, value in live.items() if not (name == "follow" and value is False)}
    if not given:
        return decode

    for name in given:
        if name not in LiveOptions.__annotations__:
            raise TypeError(f"headrace.open() got an unexpected keyword argument {name!r}")

    names = ", ".join(f"{name}=" for name in given)
    shown = repr(uri)
    if isinstance(uri, str):
        shown = shown_url(uri)
    expected = f"a source that never ends: {_schemes()}"
    raise UsageError.about(f"{names} is for data that never end", place=PLACE, found=shown, expected=expected)


def _schemes() -> str:
    return ", ".join(f"{scheme}://" for scheme in SCHEMES) + ", or a database with follow=True"


def _feed_of(live: Mapping[str, Any], start: Start) -> FeedOptions:
    most = None
    until: float | Literal["now"] | None = None
    given = live.get("until")
    if isinstance(given, int) and not isinstance(given, bool):
        most = _positive("until", given)
    elif given == "now":
        until = "now"
    elif given is not None:
        until = _seconds("until", given, "'now', a number of samples, or a time")

    idle = live.get("idle")
    if idle is not None:
        idle = _positive("idle", idle)

    on_gap = live.get("on_gap", "raise")
    if on_gap not in ("raise", "skip"):
        raise wrong_argument("on_gap", on_gap, "'raise' or 'skip'", place=PLACE)

    budget = default_budget()
    return FeedOptions(
        samples=int(_positive("span", live.get("span", SPAN), whole=True)),
        linger=_positive("linger", live.get("linger", LINGER)),
        nbytes=min(SPAN_BYTES, budget // 4),
        budget=budget,
        start=start,
        until=until,
        most=most,
        idle=idle,
        on_gap=on_gap,
    )


def _start_of(given: Any, scheme: Scheme, live: Mapping[str, Any]) -> Start:
    """Returns where to begin. Raises `UsageError`; which partitions a topic has, its broker says."""
    if isinstance(given, str) and given in ("earliest", "latest"):
        return given
    if isinstance(given, Mapping):
        return _positions(given, scheme)

    knows_times = scheme not in (_SOCKET, _SQL) and (scheme is not _RABBITMQ or bool(live.get("stream")))
    if knows_times:
        return _seconds("start", given, f"'earliest', 'latest', a time, or {scheme.positions}")
    cure = "this source knows no times: give a position"
    raise wrong_argument("start", given, f"'earliest', 'latest', or {scheme.positions}", place=PLACE, cure=cure)


def _positions(given: Mapping[Any, Any], scheme: Scheme) -> dict[int, int]:
    positions = {}
    for partition, position in given.items():
        for number in (partition, position):
            if isinstance(number, bool) or not hasattr(number, "__index__") or not 0 <= number < 1 << 63:
                expected = f"{scheme.positions}: whole numbers of 0 or more"
                raise wrong_argument("start", dict(given), expected, place=PLACE)
        positions[operator.index(partition)] = operator.index(position)

    if not positions or (not scheme.many_partitions and [*positions] != [0]):
        raise wrong_argument("start", dict(given), scheme.positions, place=PLACE)
    return positions


def _seconds(name: str, given: Any, expected: str) -> float:
    """Returns a time as seconds since 1970. A `datetime` without a zone is of this machine's."""
    seconds = given
    if isinstance(given, str) and re.match(r"\d{4}-\d\d-\d\d", given):
        try:
            given = datetime.datetime.fromisoformat(given)
        except ValueError:
            raise wrong_argument(name, given, "a time such as '2026-11-01T12:00'", place=PLACE) from None
    if isinstance(given, datetime.datetime):
        seconds = given.timestamp()

    cure = None
    if name == "until" and given == seconds and isinstance(seconds, float) and seconds < LEAST_SECONDS:
        cure = "give a whole number, as in until=5000, if it is to be a number of samples"
    elif isinstance(seconds, (int, float)) and not isinstance(seconds, bool) and 0 <= seconds < MOST_SECONDS:
        return float(seconds)
    if isinstance(seconds, (int, float)) and seconds >= MOST_SECONDS:
        cure = "give seconds since 1970, not milliseconds"
    raise wrong_argument(name, given, expected, place=PLACE, cure=cure)


def _positive(name: str, given: Any, *, whole: bool = False) -> Any:
    is_number = isinstance(given, (int, float)) and not isinstance(given, bool)
    if not is_number or not 0 < given < math.inf or (whole and given != int(given)):
        kind = "a whole number above 0" if whole else "a number above 0"
        raise wrong_argument(name, given, kind, place=PLACE)
    return given
