"""Wall clocks that jump: what is waited for goes by a clock that does not, and records come by position."""

from __future__ import annotations

import functools
import itertools
import threading
from pathlib import Path

import pytest

import headrace
from tests.sources.every_source import SOURCES, kafka
from tests.sources.loading import flat, loader_of, read, values
from tests.sources.training import Training

pytestmark = pytest.mark.thorough

COUNT = 480
PORTION = 120
SPAN = 100
BATCH = 16

FORWARDS = 3600
BACKWARDS = -3600

JUMPING = """
import itertools, os, pathlib, time

true_time = time.time
jumps = itertools.count(0, {step})
time.time = lambda: true_time() + next(jumps)
pathlib.Path(__file__).with_name(f"jumps-{{os.getpid()}}").touch()
"""
"""Runs first in each Python: its wall clock jumps by so many seconds whenever somebody looks."""

_NUMBERS = itertools.count()

# With one partition, records lie in the same order in every run, also while they come. All databases are followed by
# the same code.
KINDS = {**SOURCES, "kafka": functools.partial(kafka, partitions=1)}
del KINDS["sqlite"], KINDS["mariadb"]


@pytest.fixture
def jumping(request, tmp_path, monkeypatch):
    """A folder that names the processes whose wall clock jumps: all Pythons that the test starts."""
    folder = tmp_path / "jumping"
    folder.mkdir()
    (folder / "sitecustomize.py").write_text(JUMPING.format(step=request.param))
    monkeypatch.setenv("PYTHONPATH", str(folder))
    return folder


@pytest.fixture(params=list(KINDS))
def source(request):
    with KINDS[request.param](request, f"clock{next(_NUMBERS)}") as source:
        yield source


def check_jumped(training: Training, jumping: Path) -> None:
    """Looks that the clocks of the trainer and its I/O process have jumped."""
    pids = training.pids()
    for pid in pids["trainer"] + pids["io"]:
        assert (jumping / f"jumps-{pid}").exists()


@pytest.mark.parametrize("jumping", [FORWARDS], indirect=True)
def test_spans_and_epochs_do_not_end_before_their_time(source, tmp_path, jumping):
    """The last records of each portion wait in a span that is not full."""
    opened = {**source.opened, "span": SPAN, "linger": 1800.0, "idle": 1800.0, "until": COUNT}
    training = Training.of(tmp_path / "training", source.uri, opened, checkpoint_every=1)
    process = training.start(workers=1)
    for start in range(0, COUNT, PORTION):
        source.write(range(start, start + PORTION))
        full = (start + PORTION) // SPAN * SPAN
        training.wait_for_batches(process, full // BATCH)
    assert training.wait(process) == 0, training.said()
    check_jumped(training, jumping)

    assert sorted(flat(training.trained())) == list(range(COUNT))
    if source.same_order:
        data = headrace.follow(source.uri, **opened)
        assert training.trained() == read(headrace.DataLoader(data, batch_size=BATCH, shuffle=True, seed=3))


@pytest.mark.parametrize("jumping", [BACKWARDS], indirect=True)
def test_spans_and_epochs_end_in_their_time(source, tmp_path, jumping):
    opened = {**source.opened, "span": 1000, "linger": 0.5, "idle": 1.5}
    training = Training.of(tmp_path / "training", source.uri, opened)
    writer = threading.Thread(target=source.write, args=(range(COUNT),))
    writer.start()
    training.run(workers=1)
    writer.join()
    check_jumped(training, jumping)
    assert sorted(flat(training.trained())) == list(range(COUNT))


def times_of(broker: object, topic: str, count: int) -> list[int]:
    """Returns the times of a topic's messages, as a client of the broker reads them."""
    from confluent_kafka import Consumer, TopicPartition

    consumer = Consumer({"bootstrap.servers": broker.address, "group.id": "times"})
    try:
        consumer.assign([TopicPartition(topic, 0, 0)])
        return [message.timestamp()[1] for message in consumer.consume(count, 30)]
    finally:
        consumer.close()


def test_messages_whose_times_go_backwards_come_by_offset(shared_kafka):
    """As producers set them whose clocks are wrong."""
    minute = 60_000
    backwards = [1_790_000_000_000 - number * minute for number in range(COUNT)]
    topics = {"clock-usual": None, "clock-backwards": backwards}
    found = []
    for topic, times in topics.items():
        shared_kafka.make_topic(topic)
        shared_kafka.produce(topic, values(range(COUNT)), partition=0, times=times)
        data = headrace.follow(shared_kafka.url(topic), decode="json", span=100, linger=60, until=COUNT)
        found.append(read(loader_of(data)))

    told = times_of(shared_kafka, "clock-backwards", COUNT)
    assert all(before > after for before, after in itertools.pairwise(told))
    assert found[0] == found[1]
    assert sorted(flat(found[0])) == list(range(COUNT))
