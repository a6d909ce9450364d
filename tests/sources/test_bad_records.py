"""Records that cannot be decoded: what comes in their place, and how they are named."""

from __future__ import annotations

import pytest

import headrace
from tests.sources.loading import flat, loader_of, read, values

pytest.importorskip("confluent_kafka")

COUNT = 200


def topic_with_bad(broker, name, bad):
    """Makes a topic of one partition in which the messages of these numbers are no JSON."""
    broker.make_topic(name)
    messages = values(range(COUNT))
    for number in bad:
        messages[number] = b"{"
    broker.produce(name, messages)
    return headrace.follow(broker.url(name), decode="json", span=100, until=COUNT)


@pytest.mark.thorough
@pytest.mark.parametrize("word", ["skip", "replace"])
def test_alone_in_a_batch_a_bad_record_gives_way_to_one_of_its_span(shared_kafka, word):
    bad = [0, 1, 50, 51, 52, 150, 199]
    data = topic_with_bad(shared_kafka, f"alone-{word}", bad)
    loader = loader_of(data, batch_size=1, shuffle=False, on_error=word)
    found = flat(read(loader))
    assert len(found) == COUNT
    assert loader.faults.replaced == len(bad)

    instead = [found[number] for number in bad]
    assert not set(instead) & set(bad)
    assert [number // 100 for number in instead] == [number // 100 for number in bad]
    assert len(set(instead)) == len(bad)
    assert [number for place, number in enumerate(found) if place not in bad] == [
        n for n in range(COUNT) if n not in bad
    ]

    again = loader_of(data, batch_size=1, shuffle=False, on_error=word, num_workers=2)
    assert flat(read(again)) == found


def test_a_batch_of_bad_records_holds_one_of_its_span(shared_kafka):
    data = topic_with_bad(shared_kafka, "batch", range(120, 140))
    loader = loader_of(data, batch_size=20, shuffle=False, on_error="skip")
    batches = read(loader)
    assert [len(batch) for batch in batches] == [20] * 6 + [1] + [20] * 3
    (instead,) = batches[6]
    assert instead in {*range(100, 120), *range(140, 200)}
    assert loader.faults.skipped == 19
    assert loader.faults.replaced == 1


@pytest.mark.parametrize("bad", [b"caf\xe9", b"\xed\xa0\x80", b"\xff\xfe\x00"])
def test_text_that_is_no_utf8_is_a_bad_record(shared_kafka, bad, tmp_path):
    name = f"text-{bad.hex()}"
    shared_kafka.make_topic(name)
    shared_kafka.produce(name, ["größe".encode(), b"", bad, "🙂".encode()])
    url = shared_kafka.url(name)
    data = headrace.follow(url, decode="text", until=4)
    with pytest.raises(UnicodeDecodeError) as raised:
        next(iter(loader_of(data, shuffle=False)))
    assert f"{url}/0@2" in "".join(raised.value.__notes__)

    quarantine = tmp_path / "bad.jsonl"
    on_error = headrace.OnError("skip", log=quarantine)
    (batch,) = loader_of(data, shuffle=False, on_error=on_error, num_workers=1)
    assert batch == ["größe", "", "🙂"]
    (line,) = headrace.load_quarantine(quarantine)
    assert line.path == f"{url}/0@2"

    with pytest.raises(UnicodeDecodeError):
        headrace.pack(data, tmp_path / "packed")
