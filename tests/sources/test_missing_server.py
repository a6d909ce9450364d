"""Servers that are not there when an epoch begins: they are waited for, and are an error in the end."""

from __future__ import annotations

import contextlib
import logging
import queue
import signal
import threading

import pytest

import headrace
from headrace.core.errors import StorageError
from headrace.core.spans import Beginning
from headrace.sources import outage
from headrace.sources.brokers import kafka
from headrace.sources.feed.feed import Feed
from tests.servers.processes import free_ports
from tests.sources.every_source import KINDS, SECRET
from tests.sources.loading import values

MISSING = {name: kind for name, kind in KINDS.items() if kind.url is not None}


@contextlib.contextmanager
def feed_of(data):
    """Runs what the I/O process runs, in this one. Gives what it says."""
    said = queue.Queue()
    feed = Feed(data._source, data._feed, Beginning(), said.put, leads=True)
    feed.start()
    try:
        yield feed, said
    finally:
        feed.close()
        feed._thread.join(30)
        assert not feed._thread.is_alive()


@pytest.fixture(params=MISSING)
def missing(request, monkeypatch):
    """A source whose server is not there, and the place that errors name."""
    kind = MISSING[request.param]
    pytest.importorskip(kind.client)
    monkeypatch.setattr(kafka, "FIRST_ANSWER", (0.1, 0.4))
    (port,) = free_ports(1)
    return headrace.follow(kind.url.format(port=port), until="now", **kind.opened), f"127.0.0.1:{port}"


def test_it_is_waited_for_with_a_warning_and_an_error_in_the_end(missing, monkeypatch, caplog):
    data, address = missing
    monkeypatch.setattr(outage, "AWAY", 0.5)
    monkeypatch.setattr("headrace.core.outage.AFTER", 0.0)
    with feed_of(data) as (_, said):
        what, error = said.get(timeout=30)
    assert what == "error"
    assert isinstance(error, StorageError)
    assert address in str(error)
    assert "fix:" in str(error)
    # Those of librdkafka are shown to pytest alone.
    (warning,) = [record for record in caplog.records if record.name == "headrace"]
    assert warning.levelno == logging.WARNING
    assert address in warning.getMessage()
    assert SECRET not in f"{error}{caplog.text}"


@pytest.fixture
def waiting(monkeypatch):
    """An event: the server is waited for."""
    waits = threading.Event()
    wait_after = outage.SourceOutage.wait_after

    def noting(self, what):
        waits.set()
        return wait_after(self, what)

    monkeypatch.setattr(outage.SourceOutage, "wait_after", noting)
    return waits


def test_a_feed_that_is_closed_waits_no_longer(missing, waiting):
    with feed_of(missing[0]):
        assert waiting.wait(30)


def test_reading_begins_when_the_server_is_there(redis_server, waiting):
    lines = [f"XADD late * data '{value.decode()}'\n" for value in values(range(20))]
    redis_server.cli(given="".join(lines))
    redis_server.send_signal(signal.SIGKILL)
    data = headrace.follow(f"{redis_server.url}/late", decode="json", until=20)
    with feed_of(data) as (_, said):
        assert waiting.wait(30)
        redis_server.start()
        what = ""
        while what != "span":
            what, *rest = said.get(timeout=30)
    assert rest[0].count == 20


def test_a_wrong_password_is_an_error_at_once(redis_server):
    data = headrace.follow(f"redis://:{SECRET}@127.0.0.1:{redis_server.port}/t")
    with feed_of(data) as (_, said):
        what, error = said.get(timeout=outage.AWAY / 4)
    assert what == "error"
    assert "check user and password" in str(error)
    assert SECRET not in str(error)
