"""Trainings whose server is away for a while: they wait, say for what, and go on as if nothing had been."""

from __future__ import annotations

import re
import time

import pytest

import headrace
from tests.sources.loading import flat, read
from tests.sources.outages import DURABLE, FIXTURES, WAYS, away
from tests.sources.training import Training

pytestmark = pytest.mark.thorough

COUNT = 480
HALF = 240

FULL = 12
"""Batches that are full with the first half: its last 40 records wait for a span that is full."""

SILENT_FOR = 60
"""Seconds of an outage of which something is said, whatever the client library; most are quicker."""

SAID = "has not answered for"

SECONDS = [1, pytest.param(SILENT_FOR, marks=pytest.mark.stress)]

SECRETS = ("secret-of-redis", "guest:guest", "swordfish")


@pytest.mark.parametrize("seconds", SECONDS)
@pytest.mark.parametrize("way", WAYS)
@pytest.mark.parametrize("kind", FIXTURES)
@pytest.mark.timeout(400)
def test_a_server_that_is_away_is_waited_for(request, tmp_path, kind, way, seconds):
    """Half of the records come before, and half behind the outage, at which the training stands and waits."""
    server = request.getfixturevalue(FIXTURES[kind])
    with DURABLE[kind](request, f"away_{kind}_{way}_{seconds}") as source:
        opened = {**source.opened, "span": 100, "linger": 3600.0, "until": COUNT}
        # To commit needs the server.
        training = Training.of(tmp_path, source.uri, opened, checkpoint_every=1, commit=False)
        source.write(range(HALF))
        process = training.start(workers=1)
        training.wait_for_batches(process, FULL)
        with away(server, way):
            time.sleep(seconds)
        source.write(range(HALF, COUNT))
        assert training.wait(process) == 0, training.said()

        assert sorted(flat(training.trained())) == list(range(COUNT))
        if source.same_order:
            data = headrace.follow(source.uri, **opened)
            assert training.trained() == read(headrace.DataLoader(data, batch_size=16, shuffle=True, seed=3))
        said = training.said()
        if seconds == SILENT_FOR:
            assert re.search(SAID, said), said
            assert source.uri.rpartition("@")[2].partition("/")[0] in said
        assert not any(secret in said for secret in SECRETS)
