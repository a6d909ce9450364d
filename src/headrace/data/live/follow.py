"""`headrace.follow`: sources that never end."""

from __future__ import annotations

import os
from collections.abc import Iterable, Mapping
from typing import TYPE_CHECKING, Any, Literal, Never

from headrace.core.errors import UsageError, wrong_argument
from headrace.data.doors import refuse_unknown
from headrace.data.live.bounds import LINGER, SPAN, Moment, feed_options, start_of
from headrace.data.live.schemes import PLACE, SQL, FollowArguments, Scheme, no_source, scheme_of, shown
from headrace.sources.brokers.frames import Frame
from headrace.sources.feed.feed_options import FeedOptions, OnGap
from headrace.sources.journal.deliveries import Duplicates

if TYPE_CHECKING:
    from headrace.data.gather import RaggedAs
    from headrace.data.live.dataset import LogDataset
    from headrace.data.live.decoding import Decode, Decoding

WITH_FIELDS = ("json", "msgpack", "avro", "arrow")

EVERYWHERE = ("start", "until", "idle", "span", "linger", "on_gap")
"""The keywords that all sources have."""


def follow(  # noqa: PLR0913 - the ways in which sources are read
    uri: Any,
    columns: Iterable[str] | None = None,
    *,
    decode: Decoding | Decode = "bytes",
    ragged: RaggedAs = "pad",
    start: Moment | Mapping[int, int] = "earliest",
    until: int | Moment | None = None,
    idle: float | None = None,
    span: int = SPAN,
    linger: float = LINGER,
    on_gap: OnGap = "raise",
    options: Mapping[str, object] | None = None,
    query: str | None = None,
    table: str | None = None,
    key: str | None = None,
    settle: float | None = None,
    xid: str | None = None,
    journal: str | os.PathLike[str] | None = None,
    journal_bytes: int | str | None = None,
    delivery: Literal["at-most-once"] | None = None,
    duplicates: Duplicates = "keep",
    frame: Frame = "lines",
    listen: bool = False,
    stream: bool = False,
    **others: Never,
) -> LogDataset:
    """Opens a source that never ends: a topic, a stream, a queue, a socket, or a database to which rows are added.

    Connects with nobody yet.

    Args:
        uri: `kafka://host/topic`, `redis://host/stream`, `amqp://host/vhost/queue`, `tcp://host:port`, `unix:///path`
            (docs/howto/sources.md), or a database as `headrace.open` takes it (docs/howto/sql.md).
        columns: their names, in the order wanted, of records with fields.
        decode: what the bytes of a record are: "bytes" (as they are), "json", "msgpack", "avro", "arrow", "npy", or a
            function from bytes to a sample. Rows of a database have columns already.
        ragged: how a batch holds samples of different lengths, as for `headrace.open`.
        start: where to begin: "earliest", "latest", a time (`datetime`, ISO 8601, or seconds since 1970), or positions
            by partition. A loaded state knows better.
        until: where an epoch ends: "now" (at what is there when it begins), after so many samples, or at a time.
        idle: seconds without a record after which an epoch ends.
        span: samples of a span: what is shuffled together, and read again after a resume.
        linger: seconds after which a span ends that is not full.
        on_gap: what happens where the source no longer has what comes next: "raise", or "skip" with a warning.
        options: of Kafka: settings of librdkafka, and of a registry of schemas.
        query: of a database, as for `headrace.open`.
        table: of a database, as for `headrace.open`.
        key: of a database, as for `headrace.open`; it must be a whole number that ascends.
        settle: of a database: seconds for which a row must have been there. Without it rows of PostgreSQL wait for the
            transactions that write, and others for 2 seconds.
        xid: of a table in PostgreSQL: a column of type `xid8` that is no part of samples.
        journal: of a queue or a socket: the folder in which messages are kept until they are done with. None: in
            memory, where `delivery` says so.
        journal_bytes: what the journal may take, such as "10GB". A full one stops receiving; nothing is dropped.
        delivery: of a queue or a socket without a journal: says that what was received may be lost when the process
            ends.
        duplicates: what becomes of messages that a broker delivers again and that have no id: "keep" or "drop".
        frame: what a record is on a socket: "lines" (empty ones are passed over), "length" (four bytes in front) or
            "arrow" (a row).
        listen: whether to wait for clients at the address of a socket, rather than to connect to it.
        stream: whether a queue of RabbitMQ is a stream: it keeps its messages, and needs no journal.

    Returns:
        A dataset that `headrace.DataLoader` reads.

    Raises:
        UsageError: wrong arguments.
        MissingExtraError: the client of a source is missing.

    Examples:
        >>> events = headrace.follow("kafka://localhost:9092/events", decode="json", start="latest")
        >>> loader = headrace.DataLoader(events, batch_size=64, batches_per_epoch=100)
    """
    refuse_unknown("follow", others)
    scheme = scheme_of(uri)
    if scheme is None:
        raise no_source(uri)

    if ragged not in ("pad", "nested", "list"):
        raise wrong_argument("ragged", ragged, "'pad', 'nested' or 'list'", place=PLACE)
    given = {
        "query": query, "table": table, "key": key, "settle": settle, "xid": xid, "journal": journal,
        "journal_bytes": journal_bytes, "delivery": delivery, "duplicates": duplicates, "frame": frame,
        "listen": listen, "stream": stream,
    }  # fmt: skip
    words = {name: value for name, value in given.items() if value != _DEFAULTS.get(name)}
    _check_words(words, scheme, uri)
    _check_options(options, scheme)
    if columns is not None:
        columns = _checked_columns(columns)

    feed = feed_options(start_of(start, scheme, stream=stream), until, idle, span, linger, on_gap)
    return _dataset(FollowArguments(uri, options, columns, words), scheme, feed, decode, ragged)


def _dataset(
    asked: FollowArguments, scheme: Scheme, feed: FeedOptions, decode: Decoding | Decode, ragged: RaggedAs
) -> LogDataset:
    # They load Arrow, for which nobody has to wait who follows nothing.
    from headrace.data.live.dataset import ColumnsOfLog, LogDataset
    from headrace.data.live.decoding import checked_decoding
    from headrace.data.live.rows import RowsOfLog

    source = scheme.open(asked)
    if scheme is SQL:
        if decode != "bytes":
            raise wrong_argument("decode", decode, "nothing: rows have columns", place=PLACE)
        return RowsOfLog(source, feed, "bytes", ragged=ragged)

    decoding = checked_decoding(decode)
    if callable(decoding) or decoding == "npy":
        kind = LogDataset
    else:
        kind = ColumnsOfLog
    if asked.columns is not None and decoding not in WITH_FIELDS:
        found = f"decode={decoding!r}"
        expected = f"one of {', '.join(map(repr, WITH_FIELDS))}"
        raise UsageError.about("columns= is for records with fields", place=PLACE, found=found, expected=expected)
    return kind(source, feed, decoding, columns=asked.columns, ragged=ragged, options=asked.options)


_DEFAULTS: dict[str, object] = {"duplicates": "keep", "frame": "lines", "listen": False, "stream": False}
"""Of keywords that some sources have only, where it is not None."""


def _check_words(words: Mapping[str, object], scheme: Scheme, uri: object) -> None:
    """Raises `UsageError` for keywords of other sources."""
    for name in words:
        if name not in scheme.keywords:
            known = [*EVERYWHERE, *scheme.keywords]
            if scheme.takes_options:
                known.append("options")
            expected = f"one of {', '.join(f'{keyword}=' for keyword in known)}"
            raise UsageError.about(f"{name}= is not for this source", place=PLACE, found=shown(uri), expected=expected)


def _check_options(options: object, scheme: Scheme) -> None:
    if options is not None and not isinstance(options, Mapping):
        raise wrong_argument("options", options, "a dict of settings", place=PLACE)
    if options and not scheme.takes_options:
        expected = "nothing: this source has no settings but those of its URL"
        raise wrong_argument("options", sorted(options), expected, place=PLACE)


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
