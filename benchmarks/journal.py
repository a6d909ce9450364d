"""What a journal costs: messages over TCP and from RabbitMQ, with a journal, without one, and by a bare loop, in turn.

Each round sends the same messages anew, numbered, and compares what came. The bare loops are those that people write:
`recv` and cut, or pika with a prefetch of 2,000 and an ack for every 500 messages. Then: what a flush of the disk costs
by the number of messages that share it, how fast a journal is read back, and what a consumer takes that stands still
while the producer goes on.

    python benchmarks/journal.py [--messages 50000] [--rounds 5] [--only tcp rabbitmq disk still] [--json FILE]
"""

from __future__ import annotations

import argparse
import os
import random
import socket
import statistics
import struct
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

sys.path.append(str(Path(__file__).parents[1]))
from tests.servers import rabbitmq
from tests.servers.processes import free_ports

import results
from headrace.core.process.memory import PeakMemory, tree_memory
from headrace.sources.brokers.amqp import AmqpAddress
from headrace.sources.brokers.rabbitmq import RabbitQueue
from headrace.sources.brokers.sockets import SocketSource
from headrace.sources.journal.journal import JournalWriter
from headrace.sources.journal.journal_log import JournalLog, JournalSource
from headrace.sources.journal.reader import JournalReader

SIZES = (256, 4096)
LIMIT = 4 << 20
CHECKED = "Each message of each round was compared with what was sent."

SENDER = """
import contextlib, socket, struct, sys
host, port, count, size = sys.argv[1], int(sys.argv[2]), int(sys.argv[3]), int(sys.argv[4])
server = socket.create_server((host, port))
while True:
    connection, _ = server.accept()
    with connection, contextlib.suppress(ConnectionError):
        for start in range(0, count, 256):
            numbers = range(start, min(start + 256, count))
            connection.sendall(b"".join(struct.pack(">IQ", size, number) + bytes(size - 8) for number in numbers))
"""


def check(values: list[bytes], count: int, size: int) -> None:
    """Ends the program unless these are the messages that were sent, in order."""
    rest = bytes(size - 8)
    if len(values) != count or any(value != struct.pack(">Q", n) + rest for n, value in enumerate(values)):
        raise SystemExit("wrong messages came")


def read(log: JournalLog, count: int) -> list[bytes]:
    """Reads so many messages as they come."""
    values: list[bytes] = []
    while len(values) < count:
        for records in log.poll(10.0, LIMIT):
            values += records.values  # type: ignore[arg-type]
    return values


def by_headrace(source: JournalSource, count: int) -> tuple[float, list[bytes]]:
    """Returns the seconds from opening to the last message, and the messages."""
    begun = time.perf_counter()
    log = source.open()
    values = read(log, count)
    seconds = time.perf_counter() - begun
    log.close()
    return seconds, values


def by_socket(port: int, count: int) -> tuple[float, list[bytes]]:
    """The same by a loop that receives and cuts."""
    begun = time.perf_counter()
    values: list[bytes] = []
    data = b""
    with socket.create_connection(("127.0.0.1", port)) as connection:
        while len(values) < count:
            data += connection.recv(1 << 20)
            place = 0
            while place + 4 <= len(data):
                end = place + 4 + int.from_bytes(data[place : place + 4], "big")
                if end > len(data):
                    break
                values.append(data[place + 4 : end])
                place = end
            data = data[place:]
    return time.perf_counter() - begun, values


def by_pika(url: str, queue: str, count: int) -> tuple[float, list[bytes]]:
    """The same by a loop over pika."""
    import pika

    begun = time.perf_counter()
    values: list[bytes] = []
    with pika.BlockingConnection(pika.URLParameters(url + "/%2F")) as connection:
        channel = connection.channel()
        channel.basic_qos(prefetch_count=2000)
        for method, _, body in channel.consume(queue):
            values.append(body)
            if len(values) % 500 == 0 or len(values) == count:
                channel.basic_ack(method.delivery_tag, multiple=True)
            if len(values) == count:
                break
        seconds = time.perf_counter() - begun
    return seconds, values


Contender = Callable[[], tuple[float, list[bytes]]]


def rounds_of(contenders: dict[str, Contender], given: argparse.Namespace, size: int, title: str) -> results.Row:
    """Runs all contenders in turn, and prints and returns their rates."""
    rates: dict[str, list[float]] = {name: [] for name in contenders}
    for _ in range(given.rounds):
        for name, contender in contenders.items():
            seconds, values = contender()
            check(values, given.messages, size)
            rates[name].append(given.messages / seconds)
    print(f"\n{title}, {size:,} bytes: messages/s")
    for name, found in rates.items():
        print(f"  {name:<24} {statistics.median(found):>12,.0f} {statistics.median(found) * size / 1e6:>10,.1f} MB/s")
    return results.Row(f"{size:,} bytes", rates)


def over_tcp(given: argparse.Namespace, folder: Path) -> results.Table:
    """Messages with a length in front, from a process of its own."""
    rows = []
    for size in SIZES:
        port = free_ports(1)[0]
        words = [sys.executable, "-c", SENDER, "127.0.0.1", str(port), str(given.messages), str(size)]
        sender = subprocess.Popen(words)
        source = SocketSource(f"tcp://127.0.0.1:{port}", "length")
        number = iter(range(1000))

        def on_disk(source: SocketSource = source, number: Any = number, size: int = size) -> tuple[float, list[bytes]]:
            return by_headrace(JournalSource(source, str(folder / f"tcp-{size}-{next(number)}")), given.messages)

        def in_memory(source: SocketSource = source) -> tuple[float, list[bytes]]:
            return by_headrace(JournalSource(source, None), given.messages)

        def bare(port: int = port) -> tuple[float, list[bytes]]:
            return by_socket(port, given.messages)

        while socket.socket().connect_ex(("127.0.0.1", port)):
            time.sleep(0.05)
        try:
            contenders = {"socket loop": bare, "headrace": on_disk, "headrace, no journal": in_memory}
            rows.append(rounds_of(contenders, given, size, "TCP"))
        finally:
            sender.kill()
            sender.wait()
    return results.Table("messages over TCP", "messages/s", rows, CHECKED, base="socket loop")


def from_rabbitmq(given: argparse.Namespace, folder: Path) -> results.Table | None:
    """Messages that lie in a classic queue."""
    script = rabbitmq.find_rabbitmq()
    if script is None:
        print("\nRabbitMQ is not installed")
        return None

    rows = []
    (folder / "broker").mkdir()
    with rabbitmq.running(folder / "broker", script) as broker:
        for size in SIZES:
            queue = f"messages-{size}"
            number = iter(range(1000))

            def filled(queue: str = queue, size: int = size) -> str:
                with broker.channel() as channel:
                    channel.queue_declare(queue)
                    for one in range(given.messages):
                        channel.basic_publish("", queue, struct.pack(">Q", one) + bytes(size - 8))
                return f"{broker.url}/{queue}"

            def on_disk(number: Any = number, size: int = size, filled: Any = filled) -> tuple[float, list[bytes]]:
                queue_of = RabbitQueue(AmqpAddress(filled()))
                return by_headrace(JournalSource(queue_of, str(folder / f"amqp-{size}-{next(number)}")), given.messages)

            def in_memory(filled: Any = filled) -> tuple[float, list[bytes]]:
                return by_headrace(JournalSource(RabbitQueue(AmqpAddress(filled())), None), given.messages)

            def bare(queue: str = queue, filled: Any = filled) -> tuple[float, list[bytes]]:
                filled()
                return by_pika(broker.url, queue, given.messages)

            contenders = {"pika loop": bare, "headrace": on_disk, "headrace, no journal": in_memory}
            rows.append(rounds_of(contenders, given, size, "RabbitMQ"))
    return results.Table("messages of RabbitMQ", "messages/s", rows, CHECKED, base="pika loop")


def on_the_disk(given: argparse.Namespace, folder: Path) -> results.Table:
    """What one flush costs, shared by so many messages; then the journal is read back, and at random."""
    rows = []
    for size in SIZES:
        for group in (1, 10, 100, 1000):
            payloads = [struct.pack(">Q", number) + bytes(size - 8) for number in range(group)]
            figures: dict[str, list[float]] = {"synced": [], "written": []}
            for turn in range(given.rounds):
                for name, times in (("synced", max(2000 // group, 20)), ("written", max(20_000 // group, 20))):
                    writer = JournalWriter(folder / f"{name}-{size}-{group}-{turn}")
                    begun = time.perf_counter()
                    for _ in range(times):
                        writer.append(payloads)
                        if name == "synced":
                            writer.sync()
                    figures[name].append(times * group / (time.perf_counter() - begun))
                    writer.close()
            rows.append(results.Row(f"{size:,} bytes, {group:,} at once", figures))
            print(f"\n{size:,} bytes, {group:,} messages at once: messages/s")
            for name, found in figures.items():
                print(f"  {name:<24} {statistics.median(found):>12,.0f}")
        read_back(given, folder, size)
    return results.Table("messages appended to a journal", "messages/s", rows, "", base="written")


def read_back(given: argparse.Namespace, folder: Path, size: int) -> None:
    """Reads a journal from its beginning, and single records at random."""
    writer = JournalWriter(folder / f"read-{size}")
    payloads = [struct.pack(">Q", number) + bytes(size - 8) for number in range(given.messages)]
    left = payloads
    while left:
        taken = writer.append(left)
        writer.sync()
        left = left[taken:]

    rates = []
    for _ in range(given.rounds):
        reader = JournalReader(writer.folder)
        begun = time.perf_counter()
        values: list[bytes] = []
        while len(values) < given.messages:
            values += reader.read(len(values), LIMIT)
        rates.append(given.messages / (time.perf_counter() - begun))
        check(values, given.messages, size)
        reader.close()

    reader = JournalReader(writer.folder)
    chance = random.Random(0)
    single = []
    for number in (chance.randrange(given.messages) for _ in range(500)):
        begun = time.perf_counter()
        if reader.read(number, 1) != [payloads[number]]:
            raise SystemExit("a wrong message was read")
        single.append(time.perf_counter() - begun)
    reader.close()
    writer.close()
    rate = statistics.median(rates)
    print(f"\n{size:,} bytes, read back: {rate:,.0f} messages/s, {rate * size / 1e6:,.0f} MB/s")
    print(f"  one at random: {statistics.median(single) * 1e6:,.0f} us")


def standing_still(given: argparse.Namespace, folder: Path) -> None:
    """A producer that never waits by itself, and a consumer that reads nothing for some seconds."""
    port = free_ports(1)[0]
    size = 4096
    count = 200_000
    limit = 64_000_000
    words = [sys.executable, "-c", SENDER, "127.0.0.1", str(port), str(count), str(size)]
    sender = subprocess.Popen(words)
    journal = folder / "still"
    source = JournalSource(SocketSource(f"tcp://127.0.0.1:{port}", "length"), str(journal), limit)
    largest = 0
    ended = threading.Event()

    def watch() -> None:
        nonlocal largest
        while not ended.wait(0.02):
            sizes = []
            for path in journal.glob("*"):
                try:
                    sizes.append(path.stat().st_size)
                except FileNotFoundError:
                    continue
            largest = max(largest, sum(sizes))

    watcher = threading.Thread(target=watch)
    watcher.start()
    before = tree_memory(os.getpid())
    with PeakMemory(os.getpid()) as memory:
        log = source.open()
        time.sleep(given.still)
        after = log.ends()[0]
        read_so_far = 0
        while read_so_far < count:
            for records in log.poll(10.0, LIMIT):
                for number, value in enumerate(records.values, read_so_far):
                    if value != struct.pack(">Q", number) + bytes(size - 8):
                        raise SystemExit("wrong messages came")
                read_so_far += len(records.values)
            log.commit({0: read_so_far})
        log.close()
    ended.set()
    watcher.join()
    sender.kill()
    sender.wait()
    print(f"\n{count:,} messages of {size:,} bytes, {given.still:g} s of standing still, journal_bytes={limit:,}")
    print(f"  received meanwhile  {after:>14,} messages")
    print(f"  largest journal     {largest:>14,} bytes")
    print(f"  peak memory         {memory.peak - before:>14,} bytes more than before, the sender's counted")


def main() -> None:
    """Runs what is asked for."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--messages", type=int, default=50_000)
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--still", type=float, default=10.0, help="seconds for which the consumer stands still")
    parser.add_argument("--only", nargs="+", choices=["tcp", "rabbitmq", "disk", "still"])
    parser.add_argument("--folder", type=Path, help="where the journals are kept; a temporary folder otherwise")
    results.option(parser)
    given = parser.parse_args()
    wanted = given.only or ["tcp", "rabbitmq", "disk", "still"]
    tables: list[results.Table | None] = []
    with tempfile.TemporaryDirectory(prefix="headrace-journal-", dir=given.folder) as name:
        folder = Path(name)
        if "tcp" in wanted:
            tables.append(over_tcp(given, folder))
        if "rabbitmq" in wanted:
            tables.append(from_rabbitmq(given, folder))
        if "disk" in wanted:
            tables.append(on_the_disk(given, folder))
        if "still" in wanted:
            standing_still(given, folder)
    results.write(given.json, [table for table in tables if table is not None], peers=["pika"])


if __name__ == "__main__":
    main()
