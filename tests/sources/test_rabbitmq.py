"""RabbitMQ as a source, with pika as the producer: queues through the journal, and streams as they are."""

from __future__ import annotations

import json
import logging
import os
import pickle
import signal
import socket
import time
import uuid
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest

import headrace
from headrace.core.errors import RecordsLostError, StorageError, UsageError
from headrace.sources.brokers.amqp import AmqpAddress
from headrace.sources.brokers.rabbitmq import RabbitQueue
from headrace.sources.brokers.rabbitmq_streams import RabbitStreamSource
from headrace.sources.journal.journal import JournalWriter
from headrace.sources.journal.journal_log import JournalSource
from headrace.sources.journal.receiver import Away
from headrace.testing.leaks import no_leaks
from tests import programs
from tests.servers.rabbitmq import RabbitMQ
from tests.sources.reading import LIMIT, bytes_in, opened, take, until

pytestmark = pytest.mark.thorough

pika = pytest.importorskip("pika")

DURABLE = 2


@pytest.fixture
def name() -> str:
    return f"q-{uuid.uuid4().hex}"


@pytest.fixture
def journal(tmp_path: Path) -> str:
    return str(tmp_path / "journal")


def declare(broker: RabbitMQ, name: str, **arguments: Any) -> None:
    with broker.channel() as channel:
        channel.queue_declare(name, durable=True, arguments={key.replace("_", "-"): v for key, v in arguments.items()})


def publish(broker: RabbitMQ, name: str, bodies: Sequence[bytes], ids: Sequence[str | None] | None = None) -> None:
    with broker.channel() as channel:
        channel.confirm_delivery()
        for index, body in enumerate(bodies):
            properties = pika.BasicProperties(delivery_mode=DURABLE, message_id=ids[index] if ids else None)
            channel.basic_publish("", name, body, properties)


def waiting_in(broker: RabbitMQ, name: str) -> int:
    """Messages that nobody has taken; those that were not acked count once their consumer is gone."""
    with broker.channel() as channel:
        count: int = channel.queue_declare(name, passive=True).method.message_count
        return count


def queue(broker: RabbitMQ, name: str, journal: str | None, **options: Any) -> JournalSource:
    return JournalSource(RabbitQueue(AmqpAddress(f"{broker.url}/{name}")), journal, **options)


def numbers(start: int, stop: int) -> list[bytes]:
    return [b"%d" % number for number in range(start, stop)]


# -- queues ----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("kind", ["classic", "quorum"])
def test_messages_come_once_and_leave_the_queue(shared_rabbitmq: RabbitMQ, name: str, journal: str, kind: str) -> None:
    declare(shared_rabbitmq, name, x_queue_type=kind)
    publish(shared_rabbitmq, name, numbers(0, 500))
    with no_leaks(), opened(queue(shared_rabbitmq, name, journal)) as log:
        assert take(log, 500) == numbers(0, 500)
        publish(shared_rabbitmq, name, [b"", b"later"])
        assert take(log, 2) == [b"", b"later"]
    assert waiting_in(shared_rabbitmq, name) == 0
    with opened(queue(shared_rabbitmq, name, journal)) as log:
        assert log.resolve("earliest") == {0: 0}
        assert take(log, 502)[-3:] == [b"499", b"", b"later"]


@pytest.mark.thorough
def test_a_message_of_64_megabytes(shared_rabbitmq: RabbitMQ, name: str, journal: str) -> None:
    declare(shared_rabbitmq, name)
    body = os.urandom(1 << 20) * 64
    publish(shared_rabbitmq, name, [b"small", body, b"last"])
    with opened(queue(shared_rabbitmq, name, journal)) as log:
        assert take(log, 3) == [b"small", body, b"last"]


KILLED = """
import sys, threading
from headrace.sources.brokers import rabbitmq
from headrace.sources.brokers.amqp import AmqpAddress
from headrace.sources.journal.journal_log import JournalSource
# Killed when the messages are in the journal, and before the broker is told.
rabbitmq.RabbitReceiver.ack = lambda self, token: (print("safe", flush=True), threading.Event().wait())
log = JournalSource(rabbitmq.RabbitQueue(AmqpAddress(sys.argv[1])), sys.argv[2]).open()
threading.Event().wait()
"""


def kill_before_ack(broker: RabbitMQ, name: str, journal: str, prefetch: int) -> None:
    with programs.Program(["-c", KILLED, f"{broker.url}/{name}?prefetch={prefetch}", journal]) as program:
        assert program.read_line() == "safe\n"
        program.kill()


@pytest.mark.thorough
def test_what_is_delivered_again_is_dropped_and_acked(shared_rabbitmq: RabbitMQ, name: str, journal: str) -> None:
    declare(shared_rabbitmq, name)
    publish(shared_rabbitmq, name, numbers(0, 40), [f"id {number}" for number in range(40)])
    kill_before_ack(shared_rabbitmq, name, journal, 40)
    until(lambda: waiting_in(shared_rabbitmq, name) == 40)
    publish(shared_rabbitmq, name, numbers(40, 50), [f"id {number}" for number in range(40, 50)])
    with opened(queue(shared_rabbitmq, name, journal)) as log:
        assert take(log, 50) == numbers(0, 50)
        assert log._receiving.journal.deliveries.dropped > 0
    assert waiting_in(shared_rabbitmq, name) == 0


def test_more_is_delivered_again_than_fits_the_prefetch_window(
    shared_rabbitmq: RabbitMQ, name: str, journal: str
) -> None:
    declare(shared_rabbitmq, name)
    publish(shared_rabbitmq, name, numbers(0, 300), [f"id {number}" for number in range(300)])
    # All of them are in the journal, and the broker knows of none.
    writer = JournalWriter(journal)
    assert writer.append(numbers(0, 300), [b"id %d" % number for number in range(300)]) == 300
    writer.sync()
    writer.close()
    publish(shared_rabbitmq, name, [b"new"], ["new"])
    source = JournalSource(RabbitQueue(AmqpAddress(f"{shared_rabbitmq.url}/{name}?prefetch=5")), journal)
    with opened(source) as log:
        log.seek({0: 300})
        assert take(log, 1) == [b"new"]
        assert log._receiving.journal.deliveries.dropped == 300
    assert waiting_in(shared_rabbitmq, name) == 0


@pytest.mark.parametrize("duplicates", ["keep", "drop"])
def test_without_ids_the_user_says_what_becomes_of_what_is_delivered_again(
    shared_rabbitmq: RabbitMQ, name: str, journal: str, duplicates: str
) -> None:
    declare(shared_rabbitmq, name)
    publish(shared_rabbitmq, name, numbers(0, 5))
    kill_before_ack(shared_rabbitmq, name, journal, 1)
    until(lambda: waiting_in(shared_rabbitmq, name) == 5)
    with opened(queue(shared_rabbitmq, name, journal, duplicates=duplicates)) as log:
        again = numbers(0, 1) if duplicates == "keep" else []
        assert take(log, 5 + len(again)) == [*numbers(0, 1), *again, *numbers(1, 5)]


@pytest.mark.thorough
def test_a_broker_that_is_stopped_and_goes_on(shared_rabbitmq: RabbitMQ, name: str, journal: str) -> None:
    declare(shared_rabbitmq, name)
    publish(shared_rabbitmq, name, numbers(0, 10))
    with opened(queue(shared_rabbitmq, name, journal)) as log:
        assert take(log, 10) == numbers(0, 10)
        shared_rabbitmq.send_signal(signal.SIGSTOP)
        try:
            begun = time.monotonic()
            assert log.poll(2.0, LIMIT) == []
            assert time.monotonic() - begun < 20
        finally:
            shared_rabbitmq.send_signal(signal.SIGCONT)
        publish(shared_rabbitmq, name, numbers(10, 20))
        assert take(log, 10) == numbers(10, 20)


@pytest.mark.thorough
def test_a_broker_that_is_killed_and_started_again(
    shared_rabbitmq: RabbitMQ, name: str, journal: str, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.WARNING, "headrace")
    declare(shared_rabbitmq, name)
    ids = [f"id {number}" for number in range(400)]
    publish(shared_rabbitmq, name, numbers(0, 200), ids[:200])
    with opened(queue(shared_rabbitmq, name, journal)) as log:
        first = take(log, 1)
        shared_rabbitmq.save()
        shared_rabbitmq.restart()
        until(lambda: _published(shared_rabbitmq, name, numbers(200, 400), ids[200:]))
        assert first + take(log, 400 - len(first)) == numbers(0, 400)
    assert "guest" not in caplog.text
    assert waiting_in(shared_rabbitmq, name) == 0


@pytest.mark.parametrize("comes_back", [True, False])
def test_a_queue_that_was_there_is_waited_for(
    shared_rabbitmq: RabbitMQ, name: str, journal: str, monkeypatch: pytest.MonkeyPatch, comes_back: bool
) -> None:
    if not comes_back:
        monkeypatch.setattr("headrace.sources.brokers.amqp_consumer.MISSING", 0.0)
    declare(shared_rabbitmq, name)
    publish(shared_rabbitmq, name, numbers(0, 5))
    with opened(queue(shared_rabbitmq, name, journal)) as log:
        assert take(log, 5) == numbers(0, 5)
        until(lambda: told_by_rabbitmqctl(shared_rabbitmq, name) == (0, 0))
        with shared_rabbitmq.channel() as channel:
            channel.queue_delete(name)
        if not comes_back:
            with pytest.raises(StorageError, match="404 NOT_FOUND"):
                log.poll(20, LIMIT)
            return

        # It is asked for, and missing, at least once.
        assert log.poll(1.0, LIMIT) == []
        declare(shared_rabbitmq, name)
        publish(shared_rabbitmq, name, numbers(5, 10))
        assert take(log, 5) == numbers(5, 10)


def test_a_server_that_accepts_and_says_nothing_is_away(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("headrace.sources.brokers.amqp.CONNECTING", 0.1)
    with socket.create_server(("127.0.0.1", 0)) as server:
        address = AmqpAddress(f"amqp://127.0.0.1:{server.getsockname()[1]}/q")
        with pytest.raises(Away, match="Timeout"):
            address.connect()


def test_a_full_journal_leaves_messages_with_the_broker(shared_rabbitmq: RabbitMQ, name: str, journal: str) -> None:
    declare(shared_rabbitmq, name)
    bodies = [b"%d " % number + bytes(2000) for number in range(1000)]
    publish(shared_rabbitmq, name, bodies)
    source = JournalSource(RabbitQueue(AmqpAddress(f"{shared_rabbitmq.url}/{name}?prefetch=20")), journal, "100kB")
    with opened(source) as log:
        until(lambda: waiting_in(shared_rabbitmq, name) < 1000)
        assert log.poll(1.0, 1)[0].values == bodies[:1]
        # It stands still with what fits, and with what the broker has sent ahead.
        assert waiting_in(shared_rabbitmq, name) > 900
        log.seek({0: 0})
        read: list[bytes] = []
        while len(read) < len(bodies):
            read += take(log, 1)
            log.commit({0: len(read)})
            assert bytes_in(journal) <= 100_000
        assert read == bodies
    until(lambda: waiting_in(shared_rabbitmq, name) == 0)


def wrong_sources(broker: RabbitMQ) -> dict[str, tuple[str, str]]:
    """What is wrong, with the URL and what is said of it."""
    server = f"127.0.0.1:{broker.port}"
    return {
        "password": (f"amqp://guest:secretword@{server}/q", "ACCESS_REFUSED|Authentication"),
        "queue": (f"{broker.url}/secretless-no-queue", "404 NOT_FOUND"),
        "vhost": (f"{broker.url}/q?vhost=nosuch", "nosuch|AccessDenied"),
    }


@pytest.mark.parametrize("what", ["password", "queue", "vhost"])
@pytest.mark.parametrize("stream", [False, True])
def test_what_is_refused_for_good_is_an_error_without_the_password(
    shared_rabbitmq: RabbitMQ, journal: str, what: str, stream: bool
) -> None:
    url, said = wrong_sources(shared_rabbitmq)[what]
    address = AmqpAddress(url)
    source = RabbitStreamSource(address) if stream else JournalSource(RabbitQueue(address), journal)
    with opened(source) as log:
        log.seek({0: 0})
        with pytest.raises(StorageError, match=said) as caught:
            log.poll(20, LIMIT)
    assert "secretword" not in str(caught.value)
    assert f"amqp://127.0.0.1:{shared_rabbitmq.port}/" in str(caught.value)


def test_a_stream_is_no_queue_and_a_queue_no_stream(shared_rabbitmq: RabbitMQ, name: str, journal: str) -> None:
    declare(shared_rabbitmq, name, x_queue_type="stream")
    declare(shared_rabbitmq, f"{name}-classic")
    publish(shared_rabbitmq, name, [b"a"])  # before it is opened: a queue's messages are there, too
    with opened(queue(shared_rabbitmq, name, journal)) as log, pytest.raises(StorageError, match="stream=True"):
        log.poll(20, LIMIT)
    publish(shared_rabbitmq, f"{name}-classic", [b"a"])
    with opened(RabbitStreamSource(AmqpAddress(f"{shared_rabbitmq.url}/{name}-classic"))) as log:
        log.seek({0: 0})
        with pytest.raises(StorageError, match=r"PRECONDITION_FAILED|540|no stream"):
            log.poll(20, LIMIT)


@pytest.mark.parametrize(
    ("url", "place", "name"),
    [
        ("amqp://me:word@host/q", "amqp://host:5672/q", "q"),
        ("amqps://me:word@host/a%2Fb?vhost=x", "amqps://host:5671/a/b", "a/b"),
        ("amqp://[::1]:99/q", "amqp://[::1]:99/q", "q"),
    ],
)
def test_urls_name_the_queue_and_show_no_secret(url: str, place: str, name: str) -> None:
    address = AmqpAddress(url)
    source = JournalSource(RabbitQueue(address), "folder")
    assert (source.place, address.name) == (place, name)
    assert "word" not in repr(source) + repr(RabbitStreamSource(address))
    assert pickle.loads(pickle.dumps(source)) == source


@pytest.mark.parametrize(
    "url", ["amqp://me:word@host", "amqp://h:x/q", "http://h/q", "amqp://h/q?prefetch=no", "amqp://h/q?x=1"]
)
def test_urls_that_mean_nothing_are_refused_without_their_password(url: str) -> None:
    with pytest.raises(UsageError) as caught:
        AmqpAddress(url)
    assert "word" not in str(caught.value)


def told_by_rabbitmqctl(broker: RabbitMQ, name: str) -> tuple[int, int]:
    """Returns the messages of a queue, and how many of these were delivered and not acked yet."""
    queues = json.loads(broker.ctl("list_queues", "name", "messages", "messages_unacknowledged", "--formatter", "json"))
    (found,) = [queue for queue in queues if queue["name"] == name]
    return found["messages"], found["messages_unacknowledged"]


def test_rabbitmqctl_shows_what_the_journal_does_not_have_yet(
    shared_rabbitmq: RabbitMQ, name: str, journal: str
) -> None:
    declare(shared_rabbitmq, name)
    bodies = [b"%d " % number + bytes(2000) for number in range(1000)]
    publish(shared_rabbitmq, name, bodies)
    data = headrace.follow(
        f"{shared_rabbitmq.url}/{name}", journal=journal, journal_bytes="1MB", span=50, linger=0.5, until=1000
    )
    loader = headrace.DataLoader(data, batch_size=50)
    batches = iter(loader)
    read = [bytes(value) for value in next(batches)]
    # The journal is full with about half of them; what the broker has sent ahead is not acked.
    until(lambda: told_by_rabbitmqctl(shared_rabbitmq, name)[1] > 0)
    messages, unacked = told_by_rabbitmqctl(shared_rabbitmq, name)
    assert 400 < messages < 950
    assert unacked <= messages

    for _ in range(5):
        read += [bytes(value) for value in next(batches)]
    loader.commit(loader.state_dict())
    until(lambda: told_by_rabbitmqctl(shared_rabbitmq, name)[0] < messages)

    for batch in batches:
        read += [bytes(value) for value in batch]
        loader.commit(loader.state_dict())
    assert read == bodies
    until(lambda: told_by_rabbitmqctl(shared_rabbitmq, name) == (0, 0))


# -- streams ---------------------------------------------------------------------------------------------------------


def stream(broker: RabbitMQ, name: str) -> RabbitStreamSource:
    return RabbitStreamSource(AmqpAddress(f"{broker.url}/{name}"))


@pytest.mark.thorough
def test_a_stream_is_read_again_from_any_offset_on(shared_rabbitmq: RabbitMQ, name: str) -> None:
    # Small segments, each of which begins with an entry of the broker: offsets have gaps.
    declare(shared_rabbitmq, name, x_queue_type="stream", x_stream_max_segment_size_bytes=5000)
    bodies = [b"%d " % number + bytes(100) for number in range(300)]
    with no_leaks(), opened(stream(shared_rabbitmq, name)) as log:
        assert log.resolve("earliest") == log.resolve("latest") == {0: 0}
        publish(shared_rabbitmq, name, bodies)
        log.seek(log.resolve("earliest"))
        positions: list[int] = []
        values: list[bytes] = []
        while len(values) < 300:
            for records in log.poll(1.0, 5000):
                positions += records.positions
                values += records.values
        assert values == bodies
        assert positions == sorted(set(positions))
        assert positions[-1] > 300
        assert log.ends() == {0: positions[-1] + 1}
        until(log.at_end)
        for place in (150, 0, 299, 20):
            log.seek({0: positions[place]})
            assert take(log, 1)[0] == bodies[place]
        log.seek(log.ends())
        publish(shared_rabbitmq, name, [b"next"])
        assert take(log, 1) == [b"next"]
        assert log.resolve(0.0) == {0: 0}
        assert log.resolve({0: 7}) == {0: 7}


def test_what_a_stream_has_dropped_is_lost(shared_rabbitmq: RabbitMQ, name: str) -> None:
    declare(
        shared_rabbitmq, name, x_queue_type="stream", x_max_length_bytes=20_000, x_stream_max_segment_size_bytes=5000
    )
    publish(shared_rabbitmq, name, [b"%d " % number + bytes(200) for number in range(300)])
    with opened(stream(shared_rabbitmq, name)) as log:
        first = log.resolve("earliest")[0]
        assert first > 100
        log.seek({0: 3})
        with pytest.raises(RecordsLostError, match=f"the first one that is there is {first}") as caught:
            log.poll(20, LIMIT)
        assert (caught.value.partition, caught.value.earliest) == (0, first)
        log.seek({0: first})
        assert take(log, 1)
        log.seek({0: 10_000})
        with pytest.raises(RecordsLostError, match="the stream ends with"):
            log.poll(20, LIMIT)


@pytest.mark.thorough
def test_a_stream_goes_on_when_its_broker_was_killed(shared_rabbitmq: RabbitMQ, name: str) -> None:
    declare(shared_rabbitmq, name, x_queue_type="stream")
    publish(shared_rabbitmq, name, numbers(0, 100))
    with opened(stream(shared_rabbitmq, name)) as log:
        log.seek({0: 0})
        assert take(log, 100) == numbers(0, 100)
        shared_rabbitmq.save()
        shared_rabbitmq.restart()
        until(lambda: _published(shared_rabbitmq, name, numbers(100, 200)))
        assert take(log, 100) == numbers(100, 200)


def _published(broker: RabbitMQ, name: str, bodies: list[bytes], ids: list[str] | None = None) -> bool:
    # A queue or a stream may take a moment longer than its broker to be there again.
    with broker.channel() as channel:
        try:
            channel.queue_declare(name, passive=True)
        except pika.exceptions.ChannelClosedByBroker:
            return False
    publish(broker, name, bodies, ids)
    return True
