"""`headrace.open` for sources that never end: which they are, and what their keywords mean."""

from __future__ import annotations

import datetime
import os
import re
from collections.abc import Callable, Iterable, Mapping
from typing import Any, Literal, TypedDict

from headrace.core.errors import UsageError, wrong_argument
from headrace.core.urls import URL, shown_url
from headrace.data.gather import RaggedAs
from headrace.data.live.dataset import ColumnsOfLog, LogDataset
from headrace.data.live.decoding import checked_decoding
from headrace.sources.feed import FeedOptions, OnGap
from headrace.sources.log import LogSource, Start
from headrace.storage.fetcher import default_budget

PLACE = "headrace.open"

WITH_FIELDS = ("json", "msgpack", "avro", "arrow")

SPAN = 50_000
LINGER = 5.0
SPAN_BYTES = 64 << 20

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


Opener = Callable[[str, Mapping[str, object] | None], LogSource]


def _kafka(url: str, options: Mapping[str, object] | None) -> LogSource:
    from headrace.sources.kafka import KafkaSource

    return KafkaSource.of(url, options)


SOURCES: dict[str, Opener] = {"kafka": _kafka}
"""What opens the URLs of each scheme."""


def is_log(uri: object) -> bool:
    """Tells whether a URL names a source that never ends."""
    if not isinstance(uri, (str, os.PathLike)):
        return False
    match = URL.match(os.fsdecode(uri))
    return match is not None and match["scheme"].lower() in SOURCES


def open_log(
    uri: Any,
    columns: Iterable[str] | None,
    decode: Any,
    ragged: RaggedAs,
    options: Mapping[str, object] | None,
    live: LiveOptions,
) -> LogDataset:
    """Returns the dataset of a source that never ends. Raises `UsageError`. Connects with nobody yet."""
    url = os.fsdecode(uri)
    scheme = url.partition(":")[0].lower()
    source = SOURCES[scheme](url, options)
    decoding = checked_decoding(decode)
    feed = _feed_of(live)
    if callable(decoding) or decoding == "npy":
        kind = LogDataset
    else:
        kind = ColumnsOfLog
    if columns is not None:
        check_columns(columns, decoding)
    return kind(source, feed, decoding, columns=columns, ragged=ragged, options=options)


def check_columns(columns: Iterable[str], decoding: object) -> None:
    """Raises `UsageError` for columns of records that have none."""
    if isinstance(columns, str) or not isinstance(columns, Iterable):
        raise wrong_argument("columns", columns, "a list of names", place=PLACE)
    if decoding not in WITH_FIELDS:
        found = f"decode={decoding!r}"
        expected = f"one of {', '.join(map(repr, WITH_FIELDS))}"
        raise UsageError.about("columns= is for records with fields", place=PLACE, found=found, expected=expected)


def refuse_live(uri: object, live: Mapping[str, object]) -> None:
    """Raises `UsageError` for keywords of sources that never end, given with other data."""
    if not live:
        return

    known = LiveOptions.__annotations__
    for name in live:
        if name not in known:
            raise TypeError(f"headrace.open() got an unexpected keyword argument {name!r}")

    names = ", ".join(f"{name}=" for name in live)
    shown = repr(uri)
    if isinstance(uri, str):
        shown = shown_url(uri)
    expected = f"a source that never ends: {', '.join(f'{scheme}://' for scheme in SOURCES)}"
    raise UsageError.about(f"{names} is for data that never end", place=PLACE, found=shown, expected=expected)


def _feed_of(live: LiveOptions) -> FeedOptions:
    for name in live:
        if name not in LiveOptions.__annotations__:
            raise TypeError(f"headrace.open() got an unexpected keyword argument {name!r}")

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
        start=_start_of(live.get("start", "earliest")),
        until=until,
        most=most,
        idle=idle,
        on_gap=on_gap,
    )


def _start_of(given: Any) -> Start:
    if given in ("earliest", "latest"):
        return str(given)
    if isinstance(given, Mapping):
        return dict(given)
    return _seconds("start", given, "'earliest', 'latest', a time, or positions by partition")


def _seconds(name: str, given: Any, expected: str) -> float:
    """Returns a time as seconds since 1970. A `datetime` without a zone is of this machine's."""
    if isinstance(given, datetime.datetime):
        return given.timestamp()
    if isinstance(given, str) and re.match(r"\d{4}-\d\d-\d\d", given):
        try:
            return datetime.datetime.fromisoformat(given).timestamp()
        except ValueError as error:
            raise wrong_argument(name, given, "a time such as '2026-11-01T12:00'", place=PLACE) from error
    if isinstance(given, (int, float)) and not isinstance(given, bool) and given >= 0:
        return float(given)
    raise wrong_argument(name, given, expected, place=PLACE)


def _positive(name: str, given: Any, *, whole: bool = False) -> Any:
    is_number = isinstance(given, (int, float)) and not isinstance(given, bool)
    if not is_number or not given > 0 or (whole and given != int(given)):
        kind = "a whole number above 0" if whole else "a number above 0"
        raise wrong_argument(name, given, kind, place=PLACE)
    return given
