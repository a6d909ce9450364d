"""Streams of Redis as a source, with `redis-cli` as the producer."""

from __future__ import annotations

import json
import logging
import os
import pickle
import signal
import time
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

import headrace
from headrace.core.errors import RecordsLostError, StorageError, UsageError
from headrace.sources.brokers.redis_address import RedisAddress, id_at, value_of
from headrace.sources.brokers.redis_streams import RedisStreamSource
from headrace.sources.log import count_records
from headrace.testing.leaks import no_leaks
from tests.servers.redis import Redis
from tests.sources.reading import LIMIT, opened, take, until

pytestmark = pytest.mark.thorough

pytest.importorskip("redis")


def source(server: Redis, **options: Any) -> RedisStreamSource:
    return RedisStreamSource(RedisAddress(f"{server.url}/events"), **options)


def add(server: Redis, start: int, stop: int, *options: str) -> None:
    """Adds entries with the numbers as values."""
    words = " ".join(options)
    server.cli(given="".join(f"XADD events {words} * data {number}\n" for number in range(start, stop)))


def numbers(start: int, stop: int) -> list[bytes]:
    return [b"%d" % number for number in range(start, stop)]


@given(st.integers(0, 2**41 - 1), st.integers(0, 2**22 - 1))
def test_ids_become_positions_in_their_order_and_back(milliseconds: int, sequence: int) -> None:
    address = RedisAddress("redis://host/s")
    entry = f"{milliseconds}-{sequence}"
    position = address.position_of(entry.encode())
    assert 0 <= position < 2**63
    assert id_at(position) == entry
    assert id_at(position + 1) > entry or sequence == 2**22 - 1 or len(str(sequence + 1)) > len(str(sequence))


@pytest.mark.parametrize("entry", [b"2199023255552-0", b"5-4194304"])
def test_an_id_that_does_not_fit_is_named(entry: bytes) -> None:
    with pytest.raises(StorageError, match=entry.decode()):
        RedisAddress("redis://host/s").position_of(entry)


@pytest.mark.parametrize(
    ("fields", "value"),
    [
        ({b"x": b"\xff\0"}, b"\xff\0"),
        ({b"key": b"1", b"data": b"\xff"}, b"\xff"),
        ({b"value": b"v", b"key": b"1"}, b"v"),
    ],
)
def test_the_value_is_the_only_field_or_the_one_named_so(fields: dict[bytes, bytes], value: bytes) -> None:
    assert value_of(fields) == value


def test_the_value_of_several_fields_is_a_json_object() -> None:
    value = value_of({b"a": "ä".encode(), b"b": b"\xff"})
    assert json.loads(value) == {"a": "ä", "b": {"base64": "/w=="}}


def test_entries_are_read_from_any_position_on(redis_server: Redis) -> None:
    with no_leaks(), opened(source(redis_server)) as log:
        assert log.partitions() == [0]
        assert log.resolve("earliest") == log.resolve("latest") == {0: 0}
        log.seek({0: 0})
        assert log.poll(0.05, LIMIT) == []
        add(redis_server, 0, 500)
        positions: list[int] = []
        values: list[bytes] = []
        while len(values) < 500:
            for records in log.poll(5.0, 200):
                positions += records.positions
                values += records.values
        assert values == numbers(0, 500)
        assert positions == sorted(set(positions))
        until(log.at_end)
        assert log.ends() == log.resolve("latest") == {0: positions[-1] + 1}
        assert log.resolve("earliest") == {0: positions[0]}
        for place in (300, 0, 499):
            log.seek({0: positions[place]})
            assert take(log, 1)[0] == b"%d" % place
        log.seek(log.ends())
        add(redis_server, 500, 501)
        assert take(log, 1) == [b"500"]


def test_a_key_that_is_not_there_is_said_once(redis_server: Redis, caplog: pytest.LogCaptureFixture) -> None:
    with no_leaks(), opened(source(redis_server)) as log, caplog.at_level("WARNING", "headrace"):
        log.seek({0: 0})
        for _ in range(3):
            assert log.poll(0.4, LIMIT) == []
        (record,) = caplog.records
        assert "there is no such key" in record.getMessage()
        add(redis_server, 0, 1)
        assert take(log, 1) == [b"0"]


def test_a_time_means_the_entries_since_then(redis_server: Redis) -> None:
    redis_server.cli("XADD", "events", "1000000-0", "data", "old")
    redis_server.cli("XADD", "events", "2000000-0", "data", "new")
    with opened(source(redis_server)) as log:
        log.seek(log.resolve(1500.0))
        assert take(log, 1) == [b"new"]


@pytest.mark.thorough
def test_a_large_entry(redis_server: Redis) -> None:
    import redis

    value = os.urandom(1 << 20) * 64
    redis.Redis(port=redis_server.port, password=redis_server.password).xadd("events", {"data": value})
    add(redis_server, 0, 1)
    with opened(source(redis_server)) as log:
        log.seek(log.resolve("earliest"))
        assert take(log, 2) == [value, b"0"]


def test_what_was_trimmed_is_lost(redis_server: Redis) -> None:
    add(redis_server, 0, 1000)
    with opened(source(redis_server)) as log:
        begin = log.resolve("earliest")
        log.seek(begin)
        assert log.poll(5.0, 1)[0].values == [b"0"]
        redis_server.cli("XTRIM", "events", "MAXLEN", "=", 10)
        earliest = log.resolve("earliest")
        log.seek(begin)
        with pytest.raises(RecordsLostError, match=id_at(earliest[0])) as caught:
            take(log, 1)
        assert (caught.value.partition, caught.value.earliest) == (0, earliest[0])
        log.seek(earliest)
        assert take(log, 10) == numbers(990, 1000)
        redis_server.cli("XTRIM", "events", "MAXLEN", "=", 0)
        log.seek(earliest)
        with pytest.raises(RecordsLostError):
            take(log, 1)


def test_what_was_read_may_be_trimmed(redis_server: Redis) -> None:
    add(redis_server, 0, 100)
    with opened(source(redis_server)) as log:
        log.seek(log.resolve("earliest"))
        assert take(log, 100) == numbers(0, 100)
        until(log.at_end)
        for turn in range(1, 4):
            # By others, all of it: the server's count shows that nothing was missed.
            redis_server.cli("XTRIM", "events", "MAXLEN", "=", 0)
            add(redis_server, 100 * turn, 100 * turn + 100)
            assert take(log, 100) == numbers(100 * turn, 100 * turn + 100)
            until(log.at_end)


def test_committing_sets_a_group_and_trims_if_asked_to(redis_server: Redis) -> None:
    add(redis_server, 0, 100)
    with opened(source(redis_server, trim=True)) as log:
        log.commit({0: 0})
        log.seek(log.resolve("earliest"))
        following = log.poll(5.0, 120)[0].following
        take(log, 1)
        log.commit({0: following})
    read = int(redis_server.cli("XLEN", "events"))
    assert 0 < read < 100
    groups = redis_server.cli("XINFO", "GROUPS", "events").splitlines()
    assert groups[groups.index("name") + 1] == "headrace"
    assert groups[groups.index("last-delivered-id") + 1] == id_at(following - 1)
    with opened(source(redis_server)) as log:
        # As after a restart: the entry before is still there, so that nothing counts as lost.
        log.seek({0: following})
        assert take(log, read - 1) == numbers(101 - read, 100)


def test_entries_are_counted_though_positions_are_times(redis_server: Redis) -> None:
    with opened(source(redis_server)) as log:
        assert count_records(log, {0: 0}, log.ends()) == 0
        add(redis_server, 0, 100)
        first = log.resolve("earliest")
        assert count_records(log, first, log.ends()) == 100
        assert count_records(log, {0: 0}, log.ends()) == 100
        assert count_records(log, log.ends(), log.ends()) == 0
        middle = (first[0] + log.ends()[0]) // 2
        assert 0 < count_records(log, {0: middle}, log.ends()) < 100


def test_a_server_that_is_away_is_told_with_the_next_commit(
    redis_server: Redis, caplog: pytest.LogCaptureFixture
) -> None:
    add(redis_server, 0, 100)
    data = headrace.follow(f"{redis_server.url}/events", decode="text", until=100)
    loader = headrace.DataLoader(data, batch_size=10)
    list(loader)
    state = loader.state_dict()
    redis_server.send_signal(signal.SIGKILL)
    loader.commit(state)
    (warning,) = [record.getMessage() for record in caplog.records if record.name == "headrace"]
    assert "was not told what is done with" in warning
    assert redis_server.password not in warning

    redis_server.start()
    loader.commit(state)
    assert "headrace" in redis_server.cli("XINFO", "GROUPS", "events")


def test_a_server_that_is_killed_and_started_again(redis_server: Redis, caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.WARNING, "headrace")
    add(redis_server, 0, 100)
    with opened(source(redis_server)) as log:
        log.seek(log.resolve("earliest"))
        assert take(log, 100) == numbers(0, 100)
        redis_server.send_signal(signal.SIGKILL)
        assert log.poll(0.2, LIMIT) == []
        with pytest.raises(StorageError, match="does not answer"):
            log.ends()
        redis_server.start()
        add(redis_server, 100, 200)
        assert take(log, 100) == numbers(100, 200)
    assert redis_server.password not in caplog.text


def test_a_server_that_is_stopped_does_not_hold_up_poll(redis_server: Redis) -> None:
    add(redis_server, 0, 10)
    with opened(source(redis_server)) as log:
        log.seek(log.resolve("earliest"))
        assert take(log, 10) == numbers(0, 10)
        redis_server.send_signal(signal.SIGSTOP)
        begun = time.monotonic()
        assert log.poll(0.5, LIMIT) == []
        assert time.monotonic() - begun < 4
        redis_server.send_signal(signal.SIGCONT)
        add(redis_server, 10, 20)
        assert take(log, 10) == numbers(10, 20)


def test_a_stream_that_was_made_anew_is_told(redis_server: Redis) -> None:
    add(redis_server, 0, 10)
    with opened(source(redis_server)) as log:
        log.seek(log.resolve("earliest"))
        take(log, 10)
        redis_server.cli("DEL", "events")
        with pytest.raises(RecordsLostError, match="the stream ends before"):
            take(log, 1)


def test_a_wrong_password_is_an_error_without_it(redis_server: Redis) -> None:
    address = RedisAddress(f"redis://:secretword@127.0.0.1:{redis_server.port}/events")
    with opened(RedisStreamSource(address)) as log:
        with pytest.raises(StorageError, match="check user and password") as caught:
            log.resolve("earliest")
        log.seek({0: 0})
        with pytest.raises(StorageError, match="check user and password"):
            log.poll(20.0, LIMIT)
    assert "secretword" not in str(caught.value)


def test_a_key_of_another_type_is_an_error(redis_server: Redis) -> None:
    redis_server.cli("SET", "events", "text")
    with opened(source(redis_server)) as log:
        with pytest.raises(StorageError, match="WRONGTYPE"):
            log.resolve("earliest")
        log.seek({0: 0})
        with pytest.raises(StorageError, match="WRONGTYPE"):
            log.poll(20.0, LIMIT)


def test_sources_show_no_secret_and_can_be_pickled() -> None:
    secret = RedisStreamSource(RedisAddress("redis://me:word@host/a%20b?db=3"))
    assert secret.place == "redis://host:6379/a b"
    assert "word" not in repr(secret)
    assert pickle.loads(pickle.dumps(secret)) == secret


@pytest.mark.parametrize(
    "url", ["redis://me:word@host", "redis://h:x/s", "http://h/s", "redis://h/s?db=x", "redis://h/s?x=1"]
)
def test_urls_that_mean_nothing_are_refused_without_their_password(url: str) -> None:
    with pytest.raises(UsageError) as caught:
        RedisAddress(url)
    assert "word" not in str(caught.value)
