"""URLs and keywords that can be seen to be wrong before anybody connects: `headrace.open` refuses them at once."""

from __future__ import annotations

import datetime
import traceback

import pytest

import headrace
from headrace.core.errors import UsageError
from tests.pairs import in_turn

SECRET = "geheim42"

PORTS = [
    "kafka://host:x/topic",
    "kafka://host:65536/topic",
    "kafka://host:0/topic",
    "kafka://one:9092,two:x/topic",
    f"redis://me:{SECRET}@host:x/stream",
    f"redis://me:{SECRET}@host:65536/stream",
    f"redis://me:a/{SECRET}@host/stream",
    f"amqp://me:{SECRET}@host:x/queue",
    f"amqps://me:{SECRET}@host:0/queue",
    "tcp://host:x",
    "tcp://host:65536",
    f"postgresql://me:{SECRET}@host:x/db",
    f"postgres://me:{SECRET}@host:65536/db",
    f"mysql://me:{SECRET}@host:x/db",
    f"mariadb://me:{SECRET}@host:65536/db",
]

HOSTS = [
    "kafka://:9092/topic",
    "kafka://one:9092,,two:9092/topic",
    f"redis://me:{SECRET}@/stream",
    "redis:///stream",
    f"amqp://me:{SECRET}@:5672/queue",
    "redis://[::1/stream",
    "amqp://[::1/queue",
    "tcp://[::1:9000",
]

NAMES = [
    ("kafka://host:9092", "no topic"),
    ("kafka:///topic", "no topic"),
    (f"kafka://host/topic?password={SECRET}", "no topic"),
    (f"redis://me:{SECRET}@host", "no stream"),
    (f"redis://me:{SECRET}@host/stream?word={SECRET}", "wrong setting"),
    (f"redis://host/stream?db={SECRET}", "wrong setting"),
    (f"amqp://me:{SECRET}@host/", "no queue"),
    (f"amqp://host/queue?word={SECRET}", "wrong setting"),
    ("tcp://host", "wrong address"),
    ("tcp://:9000", "wrong address"),
    ("tcp://host:9000/path", "wrong address"),
    (f"tcp://me:{SECRET}@host:9000", "wrong address"),
    ("unix:///", "wrong address"),
    ("unix://host/path", "wrong address"),
    (f"tcp://host:9000?word={SECRET}", "wrong setting"),
]


def open_url(url, folder):
    live = {}
    if url.startswith(("amqp", "tcp", "unix")):
        live = {"journal": folder / "journal"}
    elif url.startswith(("postgres", "mysql", "mariadb")):
        live = {"table": "t", "key": "k"}
    return headrace.follow(url, **live)


WRONG = [(url, "wrong port") for url in PORTS] + [(url, "no host") for url in HOSTS] + NAMES


@pytest.mark.parametrize(("url", "said"), WRONG)
def test_a_url_that_cannot_be_right_is_refused_at_once(url, said, tmp_path):
    with pytest.raises(UsageError, match=said) as raised:
        open_url(url, tmp_path)

    text = str(raised.value)
    for part in ("place:", "headrace.", "found:", "expected:", "fix:"):
        assert part in text
    assert SECRET not in "".join(traceback.format_exception(raised.value))


@pytest.mark.parametrize(
    "url",
    [
        "kafka://one:9092,[::1]:9093,three/topic",
        "redis://me:a%2Fb@[::1]:6379/stream?db=2",
        "rediss://host/a/stream",
        "amqp://me:word@host/queue?vhost=name&prefetch=5",
        "tcp://[::1]:9000",
        "tcp://:9000?listen",
        "unix:///run/socket",
        "postgresql:///db",
        "postgresql://one:5432,two:5433/db",
        "postgresql://me:a?b@host:5432/db",
        "mysql://me:word@host/db",
    ],
)
def test_a_url_that_may_be_right_is_opened(url, tmp_path):
    if url.startswith(("postgres", "mysql")):
        pytest.importorskip("adbc_driver_postgresql")
        pytest.importorskip("pymysql")
    open_url(url, tmp_path)


KAFKA = ("kafka://host/topic", {"decode": "json"})
REDIS = ("redis://host/stream", {})
QUEUE = ("amqp://host/queue", {"journal": "never-made"})
STREAM = ("amqp://host/queue", {"stream": True})
SOCKET = ("tcp://host:9000", {"journal": "never-made"})
TABLE = ("postgresql:///db", {"table": "t", "key": "k"})

WITH_TIMES = [KAFKA, REDIS, STREAM]
WITHOUT_TIMES = [QUEUE, SOCKET, TABLE]

WRONG_TIMES = [
    *("yesterday", "first", "", "2026-13-01", "2026-11-01T25:00", b"earliest"),
    *(None, True, -1, float("nan"), float("inf"), 1e12, 5j, [0, 5], (0,)),
]
WRONG_POSITIONS = [{}, {0: -1}, {-1: 0}, {"0": 5}, {0: "5"}, {0: 1.5}, {0: True}, {0: None}, {0: 1 << 63}]


@pytest.mark.parametrize(
    ("start", "source"),
    [
        *in_turn(WRONG_TIMES, WITH_TIMES),
        *in_turn(["yesterday", None, -1], WITHOUT_TIMES),
        *in_turn(WRONG_POSITIONS, WITH_TIMES + WITHOUT_TIMES),
    ],
    ids=lambda value: value[0] if isinstance(value, tuple) and len(value) > 1 else repr(value),
)
def test_a_wrong_start_is_refused_at_once(start, source):
    uri, live = source
    with pytest.raises(UsageError, match=r"headrace.follow\(start=\)") as raised:
        headrace.follow(uri, start=start, **live)
    assert "expected:" in str(raised.value)


@pytest.mark.parametrize("source", [REDIS, QUEUE, STREAM, SOCKET, TABLE], ids=lambda source: source[0])
@pytest.mark.parametrize("start", [{1: 5}, {0: 5, 1: 5}], ids=repr)
def test_a_start_in_other_partitions_than_the_one_is_refused_at_once(source, start):
    uri, live = source
    with pytest.raises(UsageError, match="the one partition"):
        headrace.follow(uri, start=start, **live)


@pytest.mark.parametrize("source", WITHOUT_TIMES, ids=lambda source: source[0])
@pytest.mark.parametrize("start", ["2026-11-01T12:00", 1.7e9, datetime.datetime(2026, 11, 1)], ids=repr)
def test_a_time_is_refused_at_once_by_sources_without_times(source, start):
    uri, live = source
    with pytest.raises(UsageError, match="knows no times"):
        headrace.follow(uri, start=start, **live)


@pytest.mark.parametrize("source", WITH_TIMES, ids=lambda source: source[0])
@pytest.mark.parametrize("start", ["2026-11-01T12:00", 0, 1.7e9, datetime.datetime(2026, 11, 1)], ids=repr)
def test_a_time_is_taken_by_the_others(source, start):
    uri, live = source
    headrace.follow(uri, start=start, **live)


@pytest.mark.parametrize("until", [1.5, 0.0, 1e5], ids=repr)
def test_a_number_that_is_no_time_is_not_taken_for_one(until):
    with pytest.raises(UsageError, match="a whole number"):
        headrace.follow("kafka://host/topic", until=until)


@pytest.mark.parametrize("options", [{1: 2}, {"group.id": None}, {"group.id": " "}, {"group.id": b"x"}], ids=repr)
def test_options_that_would_end_the_client_are_refused_at_once(options):
    with pytest.raises(UsageError, match=r"headrace.follow\(options=\)"):
        headrace.follow("kafka://host/topic", options=options)


def test_milliseconds_are_told_from_seconds():
    with pytest.raises(UsageError, match="not milliseconds"):
        headrace.follow("redis://host/stream", start=1_700_000_000_000)


@pytest.mark.parametrize("source", [KAFKA, TABLE], ids=lambda source: source[0])
@pytest.mark.parametrize("columns", ["x", b"x", 5, [], [1], ["x", "x"], [""], {"x": 1}], ids=repr)
def test_wrong_columns_are_refused_at_once(source, columns):
    uri, live = source
    with pytest.raises(UsageError, match=r"headrace.follow\(columns=\)"):
        headrace.follow(uri, columns=columns, **live)
