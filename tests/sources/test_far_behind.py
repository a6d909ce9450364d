"""A resume reads what its batches need: of a long log, nothing that lies before the open span."""

from __future__ import annotations

import json

import pytest

import headrace
from tests.sources.every_source import SOURCES
from tests.sources.loading import loader_of, read, values

pytestmark = pytest.mark.thorough

SPAN = 100
BATCH = 50
COUNT = 3000

PLACES = (500, 2550)
"""Samples that are trained on before a resume: in front of a span, and in the middle of one."""

TAIL = 1000
"""Records that lie behind a resume."""

CONNECTING = 50_000
"""Bytes that a server sends to a client that connects, looks for more, and the like."""


def resumed(uri: str, opened: dict[str, object], place: int) -> headrace.DataLoader:
    """Returns a loader whose next batch is the one behind so many samples."""
    loader = loader_of(headrace.follow(uri, **opened), batch_size=BATCH)
    read(loader, place // BATCH)
    state = json.loads(json.dumps(loader.state_dict()))
    del loader
    other = loader_of(headrace.follow(uri, **opened), batch_size=BATCH)
    other.load_state_dict(state)
    return other


@pytest.mark.parametrize("kind", ["kafka", "redis", "rabbitmq_stream", "postgres"])
def test_the_feed_reads_from_the_open_span_on(request, kind):
    with SOURCES[kind](request, f"far_{kind}") as source:
        source.write(range(COUNT))
        opened = {**source.opened, "span": SPAN, "linger": 60.0, "until": COUNT}
        whole = read(loader_of(headrace.follow(source.uri, **opened), batch_size=BATCH))
        for place in PLACES:
            loader = resumed(source.uri, opened, place)
            assert read(loader) == whole[place // BATCH :]
            beside = loader.stats.live.records - (COUNT - place)
            assert beside == place % SPAN


def test_the_server_sends_no_more_when_more_lies_before(redis_server):
    """As the server counts it. All that lies before would be 350 kB."""
    sent = []
    written = 0
    for place in (1000, 6_050):
        lines = [f"XADD far * data '{value.decode()}'\n" for value in values(range(written, place + TAIL))]
        redis_server.cli(given="".join(lines))
        written = place + TAIL
        opened = {"decode": "json", "span": SPAN, "linger": 60.0, "until": written}
        loader = resumed(f"{redis_server.url}/far", opened, place)
        before = redis_server.sent()
        assert len(read(loader)) == TAIL // BATCH
        sent.append(redis_server.sent() - before)
    assert abs(sent[1] - sent[0]) <= CONNECTING
