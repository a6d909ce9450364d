"""`headrace inspect` and `headrace pack` of sources that never end."""

from __future__ import annotations

import json

import pytest

import headrace
from headrace.core.errors import DatasetError, UsageError
from tests.sources.loading import values

pytestmark = pytest.mark.thorough

pytest.importorskip("confluent_kafka")


def test_inspect(shared_kafka, command):
    shared_kafka.make_topic("seen", 2)
    shared_kafka.produce("seen", values(range(30)), partition=1)
    url = shared_kafka.url("seen")
    status, out, err = command("inspect", url, "--json", "--samples", "2")
    assert status == 0, err
    about = json.loads(out)
    assert about["place"] == url
    assert [one["partition"] for one in about["partitions"]] == [0, 1]
    assert [json.loads(one["begins"])["id"] for one in about["first_records"]] == [0, 1]
    _, shown, _ = command("inspect", url)
    assert "1@0" in shown
    assert "2 partitions" in shown


def test_inspect_takes_no_messages_of_a_queue(command):
    status, _, err = command("inspect", "amqp://me:geheim@127.0.0.1:1/q")
    assert status == 2
    assert "would take its messages" in err
    assert "geheim" not in err


def test_pack(shared_kafka, tmp_path, command):
    shared_kafka.make_topic("packed", 1)
    shared_kafka.produce("packed", values(range(500)))
    target = tmp_path / "packed.parquet"
    status, out, err = command("pack", shared_kafka.url("packed"), str(target), "--until", "500")
    assert status == 0, err
    assert "500 samples as parquet" in out
    data = headrace.open(target)
    assert [int(data[number]["id"]) for number in (0, 250, 499)] == [0, 250, 499]
    assert len(data) == 500


def test_pack_without_an_end(shared_kafka, tmp_path, command):
    status, _, err = command("pack", shared_kafka.url("packed"), str(tmp_path / "out"))
    assert status == 2
    assert "--until now" in err
    assert not list(tmp_path.iterdir())


def test_pack_a_dataset(shared_kafka, tmp_path):
    shared_kafka.make_topic("lines", 2)
    shared_kafka.produce("lines", [b"one", b"two"], partition=0)
    data = headrace.follow(shared_kafka.url("lines"), decode="text", until=2)
    made = headrace.pack(data, tmp_path / "out", headrace.PackOptions("arrow"))
    assert made.samples == 2
    assert [sample["value"] for sample in headrace.open(tmp_path / "out").__getitems__([0, 1])] == ["one", "two"]


def test_what_cannot_be_packed(shared_kafka, tmp_path):
    shared_kafka.make_topic("none", 1)
    url = shared_kafka.url("none")
    with pytest.raises(DatasetError, match="nothing to pack"):
        headrace.pack(headrace.follow(url, decode="json", idle=0.2), tmp_path / "out")
    with pytest.raises(UsageError, match="never ends"):
        headrace.pack(headrace.follow(url, decode="json"), tmp_path / "out")
    with pytest.raises(UsageError, match="cannot be packed"):
        headrace.pack(headrace.follow(url, decode=int, until=1), tmp_path / "out")
    with pytest.raises(UsageError, match="shuffle"):
        headrace.pack(headrace.follow(url, decode="json", until=1), tmp_path / "out", headrace.PackOptions(shuffle=3))
    assert not list(tmp_path.iterdir())
