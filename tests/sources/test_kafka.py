"""Kafka topics as data: each message once, the same batches after a resume, and what happens when things break."""

from __future__ import annotations

import copy
import dataclasses
import json
import logging
import os
import signal
import threading
from pathlib import Path

import pytest

import headrace
from headrace.core.errors import RecordsLostError, SampleError, StateError, StorageError, UsageError
from headrace.sources.brokers.kafka import KafkaSource
from headrace.storage.fetching.io_client import IO_PROCESS
from tests.sources.loading import flat, ids_of, loader_of, read, values

pytest.importorskip("confluent_kafka")

COUNT = 600
"""Messages of most topics."""


@pytest.fixture
def topic(shared_kafka, request):
    """The URL of a topic with three partitions and `COUNT` messages."""
    name = f"{request.node.name.replace('[', '-').replace(']', '')}"[:200]
    shared_kafka.make_topic(name, 3)
    for partition in range(3):
        shared_kafka.produce(name, values(range(partition, COUNT, 3)), partition=partition)
    return shared_kafka.url(name)


def open_topic(url, **live):
    return headrace.follow(url, **{"decode": "json", "span": 150, "linger": 1.0, "until": COUNT, **live})


WORKERS = [{"num_workers": 0}, {"num_workers": 2}, {"num_workers": 2, "backend": "thread"}]


@pytest.mark.parametrize("workers", WORKERS)
def test_each_message_comes_once(topic, workers):
    found = read(loader_of(open_topic(topic), **workers))
    assert sorted(flat(found)) == list(range(COUNT))
    assert flat(found) != list(range(COUNT))


@pytest.mark.thorough
def test_batches_are_the_same_with_any_workers(topic):
    orders = [read(loader_of(open_topic(topic), **workers)) for workers in WORKERS]
    assert orders[0] == orders[1] == orders[2]


@pytest.mark.thorough
@pytest.mark.parametrize("first,second", [(0, 2), (2, 0), (2, 1)])
def test_a_resume_goes_on_with_the_next_batch(topic, first, second):
    whole = read(loader_of(open_topic(topic)))
    loader = loader_of(open_topic(topic), num_workers=first)
    before = read(loader, 13)
    state = json.loads(json.dumps(loader.state_dict()))
    other = loader_of(open_topic(topic), num_workers=second)
    other.load_state_dict(state)
    assert before + read(other) == whole


def test_an_epoch_goes_on_where_the_one_before_stopped(shared_kafka):
    shared_kafka.make_topic("goes-on", 1)
    shared_kafka.produce("goes-on", values(range(COUNT)))
    endless = headrace.follow(shared_kafka.url("goes-on"), decode="json", span=150)
    loader = loader_of(endless, batches_per_epoch=5)
    found = read(loader) + read(loader)
    again = loader_of(endless)
    assert read(again, 5) + read(again, 5) == found
    assert len(set(flat(found))) == 160


def test_a_further_epoch_of_data_with_an_end_has_the_same_messages(topic):
    loader = loader_of(open_topic(topic))
    first = read(loader)
    second = read(loader)
    assert first != second
    assert sorted(flat(first)) == sorted(flat(second))


def test_without_shuffle_messages_come_by_partition_and_offset(shared_kafka):
    shared_kafka.make_topic("in-order", 1)
    shared_kafka.produce("in-order", values(range(COUNT)))
    found = read(loader_of(open_topic(shared_kafka.url("in-order")), shuffle=False))
    assert flat(found) == list(range(COUNT))


def test_messages_that_come_later_are_read(shared_kafka):
    shared_kafka.make_topic("later", 2)
    shared_kafka.produce("later", values(range(32)))
    data = headrace.follow(shared_kafka.url("later"), decode="json", span=32, linger=0.2)
    batches = iter(loader_of(data, num_workers=2))
    first = [ids_of(next(batches)) for _ in range(2)]
    writer = threading.Thread(target=shared_kafka.produce, args=("later", values(range(32, 64))))
    writer.start()
    later = [ids_of(next(batches)) for _ in range(2)]
    writer.join()
    assert sorted(flat(first)) == list(range(32))
    assert sorted(flat(later)) == list(range(32, 64))


def test_idle_ends_an_epoch(shared_kafka):
    shared_kafka.make_topic("idle", 1)
    shared_kafka.produce("idle", values(range(20)))
    data = headrace.follow(shared_kafka.url("idle"), decode="json", idle=0.3)
    assert sorted(flat(read(loader_of(data)))) == list(range(20))


def test_an_empty_topic_has_no_batches(shared_kafka):
    shared_kafka.make_topic("empty", 2)
    assert read(loader_of(headrace.follow(shared_kafka.url("empty"), decode="json", idle=0.3))) == []


@pytest.mark.thorough
@pytest.mark.parametrize("start,expected", [("latest", []), ({0: 15}, list(range(15, 20)))])
def test_start(kafka_mock, start, expected):
    kafka_mock.produce("start", values(range(20)), partition=0)
    data = headrace.follow(kafka_mock.url("start"), decode="json", idle=0.5, start=start)
    assert sorted(flat(read(loader_of(data)))) == expected


@pytest.mark.thorough
def test_until_now_on_a_broker_that_knows_its_ends(kafka_mock):
    kafka_mock.produce("now", values(range(50)), partition=0)
    data = headrace.follow(kafka_mock.url("now"), decode="json", until="now")
    loader = loader_of(data)
    first = read(loader)
    kafka_mock.produce("now", values(range(50, 60)), partition=0)
    assert sorted(flat(first)) == sorted(flat(read(loader))) == list(range(50))


def test_bytes_come_as_blobs_and_texts_as_strings(shared_kafka):
    shared_kafka.make_topic("words", 1)
    shared_kafka.produce("words", [b"", b"one", "zwölf".encode()])
    url = shared_kafka.url("words")
    (blobs,) = loader_of(headrace.follow(url, decode="bytes", idle=0.3), shuffle=False)
    assert isinstance(blobs, headrace.types.Blobs)
    assert list(map(bytes, blobs)) == [b"", b"one", "zwölf".encode()]
    (texts,) = loader_of(headrace.follow(url, decode="text", idle=0.3), shuffle=False, num_workers=1)
    assert texts == ["", "one", "zwölf"]


def test_a_function_decodes(shared_kafka):
    shared_kafka.make_topic("numbers", 1)
    shared_kafka.produce("numbers", [b"1", b"2", b"3"])
    (batch,) = loader_of(headrace.follow(shared_kafka.url("numbers"), decode=int, idle=0.3), shuffle=False)
    assert batch.tolist() == [1, 2, 3]


# -- what breaks -------------------------------------------------------------------------------------------------------


@pytest.mark.thorough
@pytest.mark.parametrize("workers", [0, 2])
def test_the_io_process_is_killed(topic, workers):
    whole = read(loader_of(open_topic(topic)))
    loader = loader_of(open_topic(topic), num_workers=workers)
    found = []
    for batch in loader:
        found.append(ids_of(batch))
        if len(found) in (3, 17):
            os.kill(IO_PROCESS.get().pid, signal.SIGKILL)
    assert found == whole


def test_a_worker_is_killed(topic):
    whole = read(loader_of(open_topic(topic)))
    loader = loader_of(open_topic(topic), num_workers=2)
    batches = iter(loader)
    found = [ids_of(next(batches)) for _ in range(3)]
    os.kill(batches._workers[0].pid, signal.SIGKILL)
    assert found + [ids_of(batch) for batch in batches] == whole
    assert loader.faults.restarts == 1


@pytest.mark.thorough
def test_a_broker_that_stands_still_is_waited_for(kafka_broker):
    kafka_broker.make_topic("still", 2)
    kafka_broker.produce("still", values(range(COUNT)))
    loader = loader_of(open_topic(kafka_broker.url("still")), num_workers=2)
    batches = iter(loader)
    found = ids_of(next(batches))
    os.kill(kafka_broker.process.pid, signal.SIGSTOP)
    timer = threading.Timer(3.0, os.kill, (kafka_broker.process.pid, signal.SIGCONT))
    timer.start()
    for batch in batches:
        found += ids_of(batch)
    timer.join()
    assert sorted(found) == list(range(COUNT))


@pytest.mark.thorough
def test_messages_that_the_broker_has_dropped(kafka_mock):
    """The mock cluster keeps 5 MB of a partition."""
    url = kafka_mock.url("dropped")
    kafka_mock.produce("dropped", values(range(100)), partition=0)
    loader = loader_of(headrace.follow(url, decode="json", span=50, linger=0.2))
    before = read(loader, 4)
    state = loader.state_dict()
    filling = [b'{"id": 0, "x": 0.5, "fill": "%s"}' % (b"x" * 100_000)] * 100
    kafka_mock.produce("dropped", filling, partition=0)

    other = loader_of(headrace.follow(url, decode="json", span=50, idle=1))
    other.load_state_dict(state)
    with pytest.raises(RecordsLostError, match=r"expected: +offset") as raised:
        read(other)
    assert "on_gap" in str(raised.value)
    assert len(before) == 4

    skipping = loader_of(headrace.follow(url, decode="json", span=50, idle=1, on_gap="skip"))
    skipping.load_state_dict(state)
    after = flat(read(skipping))
    assert set(after) == {0}


@pytest.mark.thorough
def test_a_topic_that_was_made_anew(shared_kafka):
    from confluent_kafka.admin import AdminClient

    url = shared_kafka.url("anew")
    shared_kafka.make_topic("anew", 1)
    shared_kafka.produce("anew", values(range(100)))
    loader = loader_of(headrace.follow(url, decode="json", until=100))
    read(loader, 2)
    state = loader.state_dict()
    admin = AdminClient({"bootstrap.servers": shared_kafka.address})
    admin.delete_topics(["anew"])["anew"].result(30)
    shared_kafka.make_topic("anew", 1)
    shared_kafka.produce("anew", values(range(100)))
    other = loader_of(headrace.follow(url, decode="json", until=100))
    other.load_state_dict(state)
    with pytest.raises(StateError, match=r"(?s)another log.*found: +state: .*, this log: "):
        read(other)


class Growing(KafkaSource):
    """A topic that has one partition until a file is there. The brokers of these tests cannot add any."""

    def open(self):
        log = super().open()
        flag = Path(self.options["client.id"])
        if not flag.exists():
            log._partitions = log._partitions[:1]
            partitions = log.partitions
            log.partitions = lambda: partitions() if flag.exists() else log._partitions
        return log


@pytest.mark.thorough
def test_partitions_that_are_added(shared_kafka, tmp_path):
    shared_kafka.make_topic("added", 3)
    shared_kafka.produce("added", values(range(64)), partition=0)
    flag = tmp_path / "added"
    data = headrace.follow(shared_kafka.url("added"), decode="json", span=64, linger=0.3)
    data._feed = dataclasses.replace(data._feed, look_every=0.1)
    data._source = Growing(shared_kafka.address, "added", {"client.id": str(flag)})
    loader = loader_of(data)
    batches = iter(loader)
    first = [ids_of(next(batches)) for _ in range(4)]
    shared_kafka.produce("added", values(range(64, 96)), partition=2)
    flag.touch()
    later = [ids_of(next(batches)) for _ in range(2)]
    assert sorted(flat(first)) == list(range(64))
    assert sorted(flat(later)) == list(range(64, 96))
    (span,) = loader.state_dict()["sampler"]["spans"]
    assert [part[0] for part in span["ranges"]] == [0, 1, 2]


@pytest.mark.thorough
def test_a_message_of_64_mb(kafka_broker):
    large = b"y" * (64 << 20)
    kafka_broker.make_topic("large")
    kafka_broker.produce("large", [b"a", large, b"b"], partition=0)
    loader = loader_of(headrace.follow(kafka_broker.url("large"), decode="bytes", until=3), shuffle=False, batch_size=1)
    sizes = [len(value) for batch in loader for value in batch]
    assert sizes == [1, 64 << 20, 1]


@pytest.mark.parametrize("workers", [0, 2])
def test_poison_first_and_last_in_a_span(shared_kafka, workers):
    name = f"poison-{workers}"
    shared_kafka.make_topic(name, 1)
    good = values(range(100))
    good[0] = good[49] = good[50] = b"{"
    shared_kafka.produce(name, good)
    url = shared_kafka.url(name)
    loader = loader_of(headrace.follow(url, decode="json", span=50, until=100), num_workers=workers, on_error="skip")
    found = flat(read(loader))
    assert sorted(found) == [number for number in range(100) if number not in (0, 49, 50)]
    assert loader.faults.skipped == 3


def test_a_bad_message_is_named(shared_kafka, tmp_path):
    shared_kafka.make_topic("bad", 2)
    shared_kafka.produce("bad", values(range(10)), partition=0)
    shared_kafka.produce("bad", [*values([10, 11]), b"{"], partition=1)
    url = shared_kafka.url("bad")
    with pytest.raises(ValueError) as raised:
        read(loader_of(headrace.follow(url, decode="json", until=13)))
    assert f"{url}/1@2" in "".join(raised.value.__notes__)

    log = tmp_path / "bad.jsonl"
    on_error = headrace.OnError("skip", log=log)
    read(loader_of(headrace.follow(url, decode="json", until=13), on_error=on_error, num_workers=1))
    (line,) = log.read_text().splitlines()
    assert json.loads(line)["path"] == f"{url}/1@2"


def test_fields_that_change(shared_kafka):
    shared_kafka.make_topic("fields", 1)
    new = [{"id": 100, "x": 1.5, "more": 1}, {"id": 101}, {"id": "a", "x": 1.0}, {"id": 103, "x": 2}]
    shared_kafka.produce("fields", [*values(range(40)), *(json.dumps(one).encode() for one in new)])
    data = headrace.follow(shared_kafka.url("fields"), decode="json", span=40, until=44)
    loader = loader_of(data, on_error="skip", batch_size=4)
    batches = list(loader)
    assert sorted(flat(map(ids_of, batches))) == [*range(40), 100, 103]
    assert {*batches[0]} == {"id", "x"}
    assert loader.faults.skipped == 2


# -- commit ------------------------------------------------------------------------------------------------------------


@pytest.mark.thorough
def test_commit_is_seen_by_the_brokers_own_tools(shared_kafka):
    shared_kafka.make_topic("committed", 1)
    shared_kafka.produce("committed", values(range(100)))
    loader = loader_of(headrace.follow(shared_kafka.url("committed"), decode="json", span=50, until=100), batch_size=10)
    read(loader, 7)
    loader.commit(loader.state_dict())
    assert shared_kafka.committed("committed") == {0: 50}
    read(loader)
    loader.commit(loader.state_dict())
    assert shared_kafka.committed("committed") == {0: 100}


# -- wrong calls -------------------------------------------------------------------------------------------------------


def test_no_such_topic(shared_kafka):
    with pytest.raises(StorageError, match="no such topic"):
        read(loader_of(headrace.follow(shared_kafka.url("missing"), decode="json")))


@pytest.mark.parametrize(
    "url,settings,expected",
    [
        ("kafka://me:secret@host/t", {}, "user and password"),
        ("kafka://host", {}, "no topic"),
        ("kafka:///t", {}, "no topic"),
        ("kafka://host/t", {"decode": "jsn"}, "decode"),
        ("kafka://host/t", {"span": 0}, "span"),
        ("kafka://host/t", {"linger": -1}, "linger"),
        ("kafka://host/t", {"until": "tomorrow"}, "until"),
        ("kafka://host/t", {"start": "first"}, "start"),
        ("kafka://host/t", {"on_gap": "ignore"}, "on_gap"),
        ("kafka://host/t", {"options": {"enable.auto.commit": True}}, "options"),
    ],
)
def test_wrong_calls(url, settings, expected):
    with pytest.raises(UsageError, match=expected) as raised:
        headrace.follow(url, **settings)
    assert "secret" not in str(raised.value)


def test_records_of_which_none_can_be_decoded(shared_kafka):
    shared_kafka.make_topic("other-form", 1)
    shared_kafka.produce("other-form", [b"<xml/>", b"<xml/>"])
    url = shared_kafka.url("other-form")
    with pytest.raises(SampleError, match=r"unexpected character.* 2 records") as raised:
        read(loader_of(headrace.follow(url, decode="json", until=2)))
    assert f"{url}/0@0" in str(raised.value)


def test_a_log_has_no_length_and_no_numbers(topic):
    data = open_topic(topic)
    with pytest.raises(UsageError, match="sampler"):
        headrace.DataLoader(data, sampler=range(10))
    loader = loader_of(data)
    with pytest.raises(TypeError, match="len"):
        len(loader)
    with pytest.raises(UsageError, match="no numbers"):
        data[0]


def test_passwords_are_never_shown(caplog):
    caplog.set_level(logging.DEBUG)
    options = {"sasl.password": "geheim", "sasl.mechanism": "PLAIN", "security.protocol": "none"}
    data = headrace.follow("kafka://127.0.0.1:1/t", options=options)
    loader = loader_of(data)
    with pytest.raises(StorageError) as raised:
        read(loader)
    assert "geheim" not in f"{raised.value}{data!r}{loader.state_dict()}{caplog.text}{loader!r}{vars(data)['_source']}"


# -- figures -----------------------------------------------------------------------------------------------------------


@pytest.mark.thorough
def test_figures_of_a_source_that_is_read_out(kafka_mock):
    kafka_mock.produce("figures", values(range(100)), partition=0)
    loader = loader_of(headrace.follow(kafka_mock.url("figures"), decode="json", idle=1.5))
    read(loader)
    live = loader.stats.live
    assert (live.place, live.records, live.spans, live.partitions) == (kafka_mock.url("figures"), 100, 1, 4)
    assert live.lag == 0
    assert live.waited > 0
    assert "source: 100 records in 1 span" in str(loader.report())


@pytest.mark.thorough
def test_a_state_before_the_first_batch_and_behind_the_last_one(topic):
    loader = loader_of(open_topic(topic))
    first = loader.state_dict()
    whole = read(loader)
    behind = loader.state_dict()
    second = read(loader)
    for workers in (0, 2):
        again = loader_of(open_topic(topic), num_workers=workers)
        again.load_state_dict(first)
        assert read(again) == whole
        later = loader_of(open_topic(topic), num_workers=workers)
        later.load_state_dict(behind)
        assert read(later) == second


def test_a_state_of_another_topic_is_not_committed(topic, shared_kafka):
    shared_kafka.make_topic("another", 3)
    shared_kafka.produce("another", values(range(30)))
    loader = loader_of(open_topic(topic))
    read(loader, 12)
    other = loader_of(open_topic(shared_kafka.url("another"), until=30))
    with pytest.raises(StateError, match=r"(?s)another log.*found: +state: .*, this log: "):
        other.commit(loader.state_dict())
    assert shared_kafka.committed("another") == {}


@pytest.mark.thorough
def test_a_loader_that_is_dropped_leaves_nothing_open(topic):
    before = len(list(Path("/proc/self/fd").iterdir()))
    for _ in range(3):
        loader = loader_of(open_topic(topic))
        read(loader, 1)
        del loader
    assert len(list(Path("/proc/self/fd").iterdir())) <= before + 2


@pytest.mark.thorough
def test_a_loader_can_be_copied_in_the_middle(topic):
    loader = loader_of(open_topic(topic))
    read(loader, 2)
    assert sorted(flat(read(copy.deepcopy(loader)))) == list(range(COUNT))
