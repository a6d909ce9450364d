"""Where to begin and where to end: what `start=`, `until=` and the like of `headrace.follow` mean."""

from __future__ import annotations

import datetime
import math
import operator
import re
from collections.abc import Mapping
from typing import Any, Literal

from headrace.core.errors import wrong_argument
from headrace.data.live.schemes import PLACE, RABBITMQ, SOCKET, SQL, Scheme
from headrace.sources.feed.feed_options import FeedOptions, OnGap
from headrace.sources.log import Start
from headrace.storage.fetching.fetcher import default_budget

SPAN = 50_000
LINGER = 5.0
SPAN_BYTES = 64 << 20

LEAST_SECONDS = 1e8
"""Since 1970, of a time as a number: in 1973. What is less is no time that anybody has meant."""

MOST_SECONDS = 253_402_300_800.0
"""Since 1970: the year 10000, behind which no time can be written."""

Moment = str | float | datetime.datetime


def feed_options(
    start: Start, until: int | Moment | None, idle: float | None, span: int, linger: float, on_gap: OnGap
) -> FeedOptions:
    """Returns how a log is cut into spans. Raises `UsageError`. Arguments as `headrace.follow` has them."""
    most = None
    end: float | Literal["now"] | None = None
    if isinstance(until, int) and not isinstance(until, bool):
        most = _positive("until", until)
    elif until == "now":
        end = "now"
    elif until is not None:
        end = _seconds("until", until, "'now', a number of samples, or a time")

    if idle is not None:
        idle = _positive("idle", idle)
    if on_gap not in ("raise", "skip"):
        raise wrong_argument("on_gap", on_gap, "'raise' or 'skip'", place=PLACE)

    budget = default_budget()
    return FeedOptions(
        samples=int(_positive("span", span, whole=True)),
        linger=_positive("linger", linger),
        nbytes=min(SPAN_BYTES, budget // 4),
        budget=budget,
        start=start,
        until=end,
        most=most,
        idle=idle,
        on_gap=on_gap,
    )


def start_of(given: Any, scheme: Scheme, *, stream: bool) -> Start:
    """Returns where to begin. Raises `UsageError`; which partitions a topic has, its broker says.

    stream: whether a queue of RabbitMQ is one.
    """
    if isinstance(given, str) and given in ("earliest", "latest"):
        return given
    if isinstance(given, Mapping):
        return _positions(given, scheme)

    knows_times = scheme not in (SOCKET, SQL) and (scheme is not RABBITMQ or stream)
    if knows_times:
        return _seconds("start", given, f"'earliest', 'latest', a time, or {scheme.positions}")
    fix = "this source knows no times: give a position"
    raise wrong_argument("start", given, f"'earliest', 'latest', or {scheme.positions}", place=PLACE, fix=fix)


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

    fix = None
    if name == "until" and given == seconds and isinstance(seconds, float) and seconds < LEAST_SECONDS:
        fix = "give a whole number, as in until=5000, if it is to be a number of samples"
    elif isinstance(seconds, (int, float)) and not isinstance(seconds, bool) and 0 <= seconds < MOST_SECONDS:
        return float(seconds)
    if isinstance(seconds, (int, float)) and seconds >= MOST_SECONDS:
        fix = "give seconds since 1970, not milliseconds"
    raise wrong_argument(name, given, expected, place=PLACE, fix=fix)


def _positive(name: str, given: Any, *, whole: bool = False) -> Any:
    is_number = isinstance(given, (int, float)) and not isinstance(given, bool)
    if not is_number or not 0 < given < math.inf or (whole and given != int(given)):
        kind = "a whole number above 0" if whole else "a number above 0"
        raise wrong_argument(name, given, kind, place=PLACE)
    return given
