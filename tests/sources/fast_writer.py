"""A producer that writes much in a given time: `python -m tests.sources.fast_writer URL FIRST COUNT SIZE SECONDS`.

It spreads `COUNT` records of `SIZE` bytes evenly over `SECONDS`; a receiver that takes nothing makes it wait longer.
"""

from __future__ import annotations

import json
import socket
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from urllib.parse import urlsplit

AT_ONCE = 100
"""Records between two looks at the clock."""

Put = Callable[[list[bytes]], None]


@contextmanager
def kafka(url: str) -> Iterator[Put]:
    from confluent_kafka import Producer

    parts = urlsplit(url)
    # What waits here is not in the topic yet: little is kept.
    producer = Producer({"bootstrap.servers": parts.netloc, "queue.buffering.max.kbytes": 8192, "linger.ms": 5})

    def put(values: list[bytes]) -> None:
        for value in values:
            while True:
                try:
                    producer.produce(parts.path[1:], value)
                    break
                except BufferError:
                    producer.poll(0.1)

    yield put
    assert producer.flush(60) == 0


@contextmanager
def redis(url: str) -> Iterator[Put]:
    import redis as library

    server, _, stream = url.rpartition("/")
    with library.Redis.from_url(server) as client:

        def put(values: list[bytes]) -> None:
            with client.pipeline(transaction=False) as pipeline:
                for value in values:
                    pipeline.xadd(stream, {"data": value})
                pipeline.execute()

        yield put


@contextmanager
def rabbitmq(url: str) -> Iterator[Put]:
    import pika

    server, _, queue = url.rpartition("/")
    with pika.BlockingConnection(pika.URLParameters(f"{server}/%2F")) as connection:
        channel = connection.channel()

        def put(values: list[bytes]) -> None:
            for value in values:
                channel.basic_publish("", queue, value, pika.BasicProperties(delivery_mode=2))

        yield put


@contextmanager
def tcp(url: str) -> Iterator[Put]:
    parts = urlsplit(url)
    with socket.create_connection((parts.hostname or "", parts.port or 0)) as connection:
        yield lambda values: connection.sendall(b"".join(value + b"\n" for value in values))


WRITERS = {"kafka": kafka, "redis": redis, "amqp": rabbitmq, "tcp": tcp}


def main() -> None:
    url = sys.argv[1]
    first, count, size = map(int, sys.argv[2:5])
    seconds = float(sys.argv[5])
    began = time.monotonic()
    with WRITERS[urlsplit(url).scheme](url) as put:
        for start in range(0, count, AT_ONCE):
            time.sleep(max(began + seconds * start / count - time.monotonic(), 0.0))
            numbers = range(first + start, first + min(start + AT_ONCE, count))
            put(
                [
                    json.dumps({"id": number, "x": 0.5, "fill": ""}).encode()[:-2] + b"x" * size + b'"}'
                    for number in numbers
                ]
            )


if __name__ == "__main__":
    main()
