"""Every kind of source, each with a writer that is not ours, so that one test can be run over all of them."""

from __future__ import annotations

import contextlib
import os
import random
import shutil
import signal
import socket
import sqlite3
import subprocess
import threading
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest

from tests.servers.processes import free_ports
from tests.servers.rabbitmq import RabbitMQ
from tests.sources.loading import values

Hurt = Callable[[random.Random], None]


@dataclass
class Source:
    """A source with records that have the numbers 0, 1, 2, ..."""

    uri: str
    write: Callable[[range], None]
    """Writes records, and waits until they are there."""
    opened: dict[str, Any] = field(default_factory=dict)
    """Further keywords of `headrace.open`."""
    hurt: Hurt = lambda rng: None
    """Has the server stand still, or restarts it."""
    same_order: bool = True
    """Whether records lie in the source in the same order in every run."""


def go_on(pid: int) -> None:
    """Has a process that stands still go on, if nobody has ended it meanwhile."""
    with contextlib.suppress(ProcessLookupError):
        os.kill(pid, signal.SIGCONT)


def stopping(pid: Callable[[], int]) -> Hurt:
    """Returns what has a server stand still for up to a second."""

    def hurt(rng: random.Random) -> None:
        stopped = pid()
        os.kill(stopped, signal.SIGSTOP)
        threading.Timer(rng.uniform(0.1, 1.0), go_on, (stopped,)).start()

    return hurt


@contextlib.contextmanager
def kafka(
    request: pytest.FixtureRequest, name: str, partitions: int = 3, fixture: str = "kafka_broker"
) -> Iterator[Source]:
    broker = request.getfixturevalue(fixture)
    broker.make_topic(name, partitions)

    def write(numbers: range) -> None:
        for partition in range(partitions):
            broker.produce(name, values(numbers[partition::partitions]), partition=partition)

    yield Source(broker.url(name), write, {"decode": "json"}, stopping(lambda: broker.process.pid))


@contextlib.contextmanager
def redis(request: pytest.FixtureRequest, name: str) -> Iterator[Source]:
    server = request.getfixturevalue("redis_server")

    def write(numbers: range) -> None:
        lines = [f"XADD {name} * data '{value.decode()}'\n" for value in values(numbers)]
        server.cli(given="".join(lines))

    def hurt(rng: random.Random) -> None:
        if rng.random() < 0.5:
            server.send_signal(signal.SIGKILL)
            server.start()
        else:
            stopping(lambda: server.process.pid)(rng)

    yield Source(f"{server.url}/{name}", write, {"decode": "json"}, hurt)


@dataclass
class StreamWriter:
    """Writes messages to a stream of RabbitMQ, each once.

    A stream is there again a moment after its broker. What comes before is taken by nobody, and the broker may never
    answer to it: so the messages that lie in the stream are counted.
    """

    broker: RabbitMQ
    name: str
    written: int = 0

    def write(self, numbers: range) -> None:
        """Writes records, and waits until they are there."""
        goal = self.written + len(numbers)
        self._wait_for(self.written, 60)
        while self.written < goal:
            with self.broker.channel() as channel:
                for value in values(numbers[self.written - goal :]):
                    channel.basic_publish("", self.name, value)
                self.written = self._wait_for(goal, 10)

    def _wait_for(self, goal: int, seconds: float) -> int:
        """Returns how many messages the stream has, once they are so many, or the time is over and it is there."""
        deadline = time.monotonic() + seconds
        while True:
            count = self._count()
            if count >= goal or (count >= 0 and time.monotonic() > deadline):
                return count
            time.sleep(0.05)

    def _count(self) -> int:
        """Returns how many messages the stream has; -1 while it is not there."""
        import pika

        with self.broker.channel() as channel:
            try:
                count: int = channel.queue_declare(self.name, passive=True).method.message_count
            except pika.exceptions.ChannelClosedByBroker:
                return -1
        return count


@contextlib.contextmanager
def rabbitmq(request: pytest.FixtureRequest, name: str, *, stream: bool = False) -> Iterator[Source]:
    import pika

    broker = request.getfixturevalue("shared_rabbitmq")
    folder = request.getfixturevalue("tmp_path")
    with broker.channel() as channel:
        arguments = {"x-queue-type": "stream"} if stream else {}
        channel.queue_declare(name, durable=True, arguments=arguments)
    if stream:
        broker.save()  # it may be killed at once

    def write(numbers: range) -> None:
        with broker.channel() as channel:
            channel.confirm_delivery()
            for number, value in zip(numbers, values(numbers), strict=True):
                properties = pika.BasicProperties(delivery_mode=2, message_id=str(number))
                channel.basic_publish("", name, value, properties, mandatory=True)

    opened: dict[str, Any] = {"decode": "json", "journal": str(folder / f"journal-{name}")}
    if stream:
        write = StreamWriter(broker, name).write
        opened = {"decode": "json", "stream": True}

    def hurt(rng: random.Random) -> None:
        stopping(lambda: broker.process.pid)(rng)

    yield Source(f"{broker.url}/{name}", write, opened, hurt, same_order=stream)


@contextlib.contextmanager
def tcp(request: pytest.FixtureRequest, name: str) -> Iterator[Source]:
    """A socket that listens; `nc` sends lines there."""
    if shutil.which("nc") is None:
        pytest.skip("nc is not installed (Debian: netcat-openbsd)")

    folder = request.getfixturevalue("tmp_path")
    (port,) = free_ports(1)

    def write(numbers: range) -> None:
        lines = b"".join(value + b"\n" for value in values(numbers))
        while True:
            with contextlib.suppress(OSError), socket.create_connection(("127.0.0.1", port), 5):
                break
        subprocess.run(["nc", "-N", "127.0.0.1", str(port)], input=lines, check=True, timeout=60)

    opened = {"decode": "json", "listen": True, "journal": str(folder / f"journal-{name}")}
    yield Source(f"tcp://127.0.0.1:{port}", write, opened, same_order=False)


@contextlib.contextmanager
def sqlite(request: pytest.FixtureRequest, name: str) -> Iterator[Source]:
    path = Path(request.getfixturevalue("tmp_path")) / "rows.db"
    with contextlib.closing(sqlite3.connect(path)) as database:
        database.execute(f'create table "{name}" (key integer primary key, id integer not null, x real not null)')

    def write(numbers: range) -> None:
        with contextlib.closing(sqlite3.connect(path)) as database:
            rows = [(number, number / 2) for number in numbers]
            database.executemany(f'insert into "{name}" (id, x) values (?, ?)', rows)
            database.commit()

    yield Source(f"sqlite:///{path}", write, {"table": name, "key": "key", "settle": 0.0})


@contextlib.contextmanager
def postgres(request: pytest.FixtureRequest, name: str) -> Iterator[Source]:
    """A table that SQLAlchemy writes."""
    import sqlalchemy

    server = request.getfixturevalue("own_postgres")
    engine = sqlalchemy.create_engine(server.alchemy_url, poolclass=sqlalchemy.NullPool)
    columns = [
        sqlalchemy.Column("key", sqlalchemy.BigInteger, sqlalchemy.Identity(), primary_key=True),
        sqlalchemy.Column("id", sqlalchemy.Integer, nullable=False),
        sqlalchemy.Column("x", sqlalchemy.Double, nullable=False),
    ]
    table = sqlalchemy.Table(name, sqlalchemy.MetaData(), *columns)
    table.create(engine)

    def write(numbers: range) -> None:
        with engine.begin() as connection:
            connection.execute(table.insert(), [{"id": number, "x": number / 2} for number in numbers])

    def hurt(rng: random.Random) -> None:
        server.kill()
        server.start()

    query = f'select key, id, x from "{name}"'
    try:
        yield Source(server.url, write, {"query": query, "key": "key", "settle": 0.0}, hurt)
    finally:
        engine.dispose()


@contextlib.contextmanager
def mariadb(request: pytest.FixtureRequest, name: str) -> Iterator[Source]:
    import sqlalchemy

    server = request.getfixturevalue("shared_mariadb")
    url = f"mysql+pymysql://{server.url.removeprefix('mariadb://')}"
    engine = sqlalchemy.create_engine(url, poolclass=sqlalchemy.NullPool)
    with engine.begin() as connection:
        text = f"create table `{name}` (k bigint auto_increment primary key, id int not null, x double not null)"
        connection.execute(sqlalchemy.text(text))

    def write(numbers: range) -> None:
        rows = [{"id": number, "x": number / 2} for number in numbers]
        with engine.begin() as connection:
            connection.execute(sqlalchemy.text(f"insert into `{name}` (id, x) values (:id, :x)"), rows)

    try:
        yield Source(server.url, write, {"table": name, "key": "k", "settle": 0.0})
    finally:
        engine.dispose()


@contextlib.contextmanager
def rabbitmq_stream(request: pytest.FixtureRequest, name: str) -> Iterator[Source]:
    with rabbitmq(request, name, stream=True) as source:
        yield source


SECRET = "geheim42"
TABLE = {"table": "t", "key": "k"}


@dataclass(frozen=True)
class Kind:
    """A kind of source, and what the tests of all of them need. A new one is a row of `KINDS`."""

    make: Callable[[pytest.FixtureRequest, str], contextlib.AbstractContextManager[Source]]
    server: str | None = None
    """The fixture of its server, where that keeps its data when it is killed."""
    url: str | None = None
    """A URL with a secret in it, of a server at a port of this machine; None: there is no server to connect to."""
    opened: dict[str, Any] = field(default_factory=dict)
    """Keywords of `headrace.follow` for that URL."""
    client: str = ""
    """The module that connects."""


KINDS = {
    "kafka": Kind(
        kafka, "durable_kafka", "kafka://127.0.0.1:{port}/t",
        {"options": {"sasl.username": "me", "sasl.password": SECRET}}, "confluent_kafka",
    ),
    "redis": Kind(redis, "redis_server", f"redis://me:{SECRET}@127.0.0.1:{{port}}/t", {}, "redis"),
    "rabbitmq": Kind(rabbitmq, "shared_rabbitmq"),
    "rabbitmq_stream": Kind(
        rabbitmq_stream, "shared_rabbitmq", f"amqp://me:{SECRET}@127.0.0.1:{{port}}/t", {"stream": True}, "pika"
    ),
    "tcp": Kind(tcp),
    "sqlite": Kind(sqlite),
    "postgres": Kind(
        postgres, "own_postgres", f"postgresql://me:{SECRET}@127.0.0.1:{{port}}/t", TABLE, "adbc_driver_postgresql"
    ),
    "mariadb": Kind(mariadb, "shared_mariadb", f"mariadb://me:{SECRET}@127.0.0.1:{{port}}/t", TABLE, "pymysql"),
}  # fmt: skip

SOURCES = {name: kind.make for name, kind in KINDS.items()}
