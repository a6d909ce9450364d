"""What a journal costs: messages over TCP and from RabbitMQ, with a journal, without one, and by a baseline loop."""

from __future__ import annotations

import contextlib
import functools
import itertools
import os
import random
import socket
import statistics
import struct
import tempfile
import threading
import time
from collections.abc import Callable, Iterator
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Any, NamedTuple

from tests.servers import rabbitmq

from benchmarks.harness.table import OURS, Row, Table
from benchmarks.harness.turns import beside, fail, in_turn
from headrace.core.process.memory import PeakMemory, tree_memory
from headrace.sources.brokers.amqp import AmqpAddress
from headrace.sources.brokers.rabbitmq import RabbitQueue
from headrace.sources.brokers.sockets import SocketSource
from headrace.sources.journal.journal import JournalWriter
from headrace.sources.journal.journal_log import JournalSource
from headrace.sources.journal.reader import JournalReader

SIZES = (256, 4096)
LIMIT = 4 << 20
NO_JOURNAL = "headrace, no journal"
CHECKED = "Each message of each round was compared with what was sent."


class Given(NamedTuple):
    """How much is measured."""

    messages: int
    rounds: int


def messages_of(numbers: range, size: int) -> list[bytes]:
    """Returns the messages with these numbers."""
    rest = bytes(size - 8)
    return [struct.pack(">Q", number) + rest for number in numbers]


def send(answer: Connection, count: int, size: int) -> None:
    """Sends all messages, each behind its length, to everyone who connects. answer: is sent the port."""
    server = socket.create_server(("127.0.0.1", 0))
    answer.send(server.getsockname()[1])
    while True:
        connection, _ = server.accept()
        with connection, contextlib.suppress(ConnectionError):
            for start in range(0, count, 256):
                numbers = range(start, min(start + 256, count))
                connection.sendall(b"".join(struct.pack(">I", size) + one for one in messages_of(numbers, size)))


def by_headrace(source: JournalSource, count: int) -> Iterator[list[bytes]]:
    """Yields messages as they come."""
    log = source.open()
    seen = 0
    while seen < count:
        for records in log.poll(10.0, LIMIT):
            seen += len(records.values)
            yield list(records.values)  # type: ignore[arg-type]
    log.close()


def by_socket(port: int, count: int) -> Iterator[list[bytes]]:
    """The same by a loop that receives and cuts."""
    seen = 0
    data = b""
    with socket.create_connection(("127.0.0.1", port)) as connection:
        while seen < count:
            data += connection.recv(1 << 20)
            values = []
            place = 0
            while place + 4 <= len(data):
                end = place + 4 + int.from_bytes(data[place : place + 4], "big")
                if end > len(data):
                    break
                values.append(data[place + 4 : end])
                place = end
            data = data[place:]
            seen += len(values)
            yield values


def by_pika(address: str, queue: str, count: int) -> Iterator[list[bytes]]:
    """The same by a loop over pika."""
    import pika

    with pika.BlockingConnection(pika.URLParameters(address)) as connection:
        channel = connection.channel()
        channel.basic_qos(prefetch_count=2000)
        for number, (method, _, body) in enumerate(channel.consume(queue), 1):
            if number % 500 == 0 or number == count:
                channel.basic_ack(method.delivery_tag, multiple=True)
            yield [body]
            if number == count:
                break


Read = Callable[[], Iterator[list[bytes]]]


def rate_of(read: Read, count: int, size: int, before: Callable[[], None]) -> float:
    """Returns the messages/s from opening to the last message, which are compared then."""
    before()
    began = time.perf_counter()
    values = list(itertools.chain.from_iterable(read()))
    seconds = time.perf_counter() - began
    if values != messages_of(range(count), size):
        fail("wrong messages came")
    return count / seconds


def nothing() -> None:
    """What a round begins with where all is there already."""


def compare(bare: tuple[str, Read], source: Any, size: int, given: Given, fill: Callable[[], None] = nothing) -> Row:
    """Returns the rates of a baseline loop and of headrace, with a journal and without, in turn.

    fill: what each of them begins with, which is not timed.
    """
    with tempfile.TemporaryDirectory(prefix="headrace-journal-") as folder:
        number = itertools.count()

        def on_disk() -> Iterator[list[bytes]]:
            return by_headrace(JournalSource(source, f"{folder}/{next(number)}"), given.messages)

        def in_memory() -> Iterator[list[bytes]]:
            return by_headrace(JournalSource(source, None), given.messages)

        reads = {bare[0]: bare[1], OURS: on_disk, NO_JOURNAL: in_memory}
        calls = {name: functools.partial(rate_of, read, given.messages, size, fill) for name, read in reads.items()}
        return Row(f"{size:,} bytes", in_turn(calls, given.rounds, untimed=0))


def over_tcp(given: Given) -> Table:
    """Messages with a length in front, from a process of its own."""
    rows = []
    for size in SIZES:
        with beside(send, given.messages, size) as sender:
            port = sender.recv()
            bare = "socket loop", functools.partial(by_socket, port, given.messages)
            rows.append(compare(bare, SocketSource(f"tcp://127.0.0.1:{port}", "length"), size, given))
    return Table("messages over TCP", "messages/s", rows, CHECKED, base="socket loop")


def from_rabbitmq(given: Given) -> Table:
    """Messages that lie in a classic queue."""
    script = rabbitmq.find_rabbitmq()
    if script is None:
        fail("RabbitMQ is not installed; without it: --parts tcp disk")

    rows = []
    with tempfile.TemporaryDirectory() as folder, rabbitmq.running(Path(folder), script) as broker:
        for size in SIZES:
            queue = f"messages-{size}"

            def fill(queue: str = queue, size: int = size) -> None:
                with broker.channel() as channel:
                    channel.queue_declare(queue)
                    for message in messages_of(range(given.messages), size):
                        channel.basic_publish("", queue, message)

            bare = "pika loop", functools.partial(by_pika, broker.url + "/%2F", queue, given.messages)
            rows.append(compare(bare, RabbitQueue(AmqpAddress(f"{broker.url}/{queue}")), size, given, fill))
    return Table("messages of RabbitMQ", "messages/s", rows, CHECKED, base="pika loop")


def on_disk(given: Given) -> Table:
    """What one flush costs, shared by so many messages; then the journal is read back, and at random."""
    rows, notes = [], []
    with tempfile.TemporaryDirectory(prefix="headrace-journal-") as folder:
        number = itertools.count()

        def append(size: int, group: int, times: int, *, sync: bool) -> float:
            payloads = messages_of(range(group), size)
            writer = JournalWriter(Path(folder, str(next(number))))
            began = time.perf_counter()
            for _ in range(times):
                writer.append(payloads)
                if sync:
                    writer.sync()
            rate = times * group / (time.perf_counter() - began)
            writer.close()
            return rate

        for size in SIZES:
            for group in (1, 10, 100, 1000):
                calls = {
                    "synced": functools.partial(append, size, group, max(2000 // group, 20), sync=True),
                    "written": functools.partial(append, size, group, max(20_000 // group, 20), sync=False),
                }
                rows.append(Row(f"{size:,} bytes, {group:,} at once", in_turn(calls, given.rounds, untimed=0)))
            notes.append(read_back(Path(folder, f"read-{size}"), size, given))
    return Table("messages appended to a journal", "messages/s", rows, "", base="written", notes=notes)


def read_back(folder: Path, size: int, given: Given) -> str:
    """Reads a journal from its beginning, and single records at random. Returns the rates in words."""
    writer = JournalWriter(folder)
    payloads = left = messages_of(range(given.messages), size)
    while left:
        taken = writer.append(left)
        writer.sync()
        left = left[taken:]

    rates = []
    for _ in range(given.rounds):
        reader = JournalReader(folder)
        began = time.perf_counter()
        values: list[bytes] = []
        while len(values) < given.messages:
            values += reader.read(len(values), LIMIT)
        rates.append(given.messages / (time.perf_counter() - began))
        reader.close()
        if values != payloads:
            fail("wrong messages were read")

    reader = JournalReader(folder)
    single = []
    for number in random.Random(0).choices(range(given.messages), k=500):
        began = time.perf_counter()
        found = reader.read(number, 1)
        single.append(time.perf_counter() - began)
        if found != [payloads[number]]:
            fail("a wrong message was read")
    reader.close()
    writer.close()
    alone = statistics.median(single) * 1e6
    return f"{size:,} bytes, read back: {statistics.median(rates):,.0f} messages/s; one at random: {alone:,.0f} us"


PARTS = {"tcp": over_tcp, "rabbitmq": from_rabbitmq, "disk": on_disk}


def journal(messages: int = 50_000, rounds: int = 5, parts: tuple[str, ...] = tuple(PARTS)) -> list[Table]:
    """What a journal costs: messages over TCP and from RabbitMQ, with a journal, without one, and by a baseline loop.

    Each round sends the same messages anew, numbered, and compares what came. The baseline loops are those that people
    write: `recv` and cut, or pika with a prefetch of 2,000 and an ack for every 500 messages. Then: what a flush of the
    disk costs by the number of messages that share it, and how fast a journal is read back.
    """
    return [PARTS[part](Given(messages, rounds)) for part in parts]


def full(messages: int = 200_000, still: float = 10.0, limit: int = 64_000_000) -> list[Table]:
    """A journal that is full: a producer that never waits by itself, and a consumer that reads nothing for a while.

    Messages of 4,096 bytes come over TCP. Afterwards all of them are read and compared. still: seconds for which the
    consumer stands still. limit: bytes of the journal. Of the memory, the sender's is counted, too.
    """
    size = 4096
    largest = 0
    ended = threading.Event()
    with tempfile.TemporaryDirectory(prefix="headrace-journal-") as folder, beside(send, messages, size) as sender:
        port = sender.recv()

        def watch() -> None:
            nonlocal largest
            while not ended.wait(0.02):
                sizes = []
                for path in Path(folder, "full").glob("*"):
                    with contextlib.suppress(FileNotFoundError):
                        sizes.append(path.stat().st_size)
                largest = max(largest, sum(sizes))

        watcher = threading.Thread(target=watch)
        watcher.start()
        before = tree_memory(os.getpid())
        with PeakMemory(os.getpid()) as memory:
            log = JournalSource(SocketSource(f"tcp://127.0.0.1:{port}", "length"), f"{folder}/full", limit).open()
            time.sleep(still)
            meanwhile = log.ends()[0]
            seen = 0
            while seen < messages:
                for records in log.poll(10.0, LIMIT):
                    numbers = range(seen, seen + len(records.values))
                    if list(records.values) != messages_of(numbers, size):
                        fail("wrong messages came")
                    seen = numbers.stop
                log.commit({0: seen})
            log.close()
        ended.set()
        watcher.join()
    notes = [f"{meanwhile:,} messages were received while the consumer stood still."]
    rows = [
        Row("the journal, at most", {OURS: [largest / 1e6], "the limit": [limit / 1e6]}),
        Row("memory, more than before, at most", {OURS: [(memory.peak - before) / 1e6]}),
    ]
    title = f"{messages:,} messages of {size:,} bytes, {still:g} s of standing still"
    checked = "All messages came afterwards, and were compared."
    return [Table(title, "MB", rows, checked, better="less", base="the limit", notes=notes)]
