"""Shards without an index are fetched whole to count their samples, and somebody says so."""

from __future__ import annotations

import io
import logging
import tarfile

import pytest

import headrace
from headrace.data.formats.tar import sample_reader
from tests.servers.faulty import FaultyServer

SHARDS = 3
SAMPLES = 5


def put_shards(server: FaultyServer) -> None:
    """Puts shards without an index into the bucket b."""
    for shard in range(SHARDS):
        out = io.BytesIO()
        with tarfile.open(fileobj=out, mode="w") as file:
            for number in range(SAMPLES):
                info = tarfile.TarInfo(f"{shard}{number}.txt")
                info.size = 1
                file.addfile(info, io.BytesIO(b"x"))
        server.put("b", f"{shard}.tar", out.getvalue())


def test_a_log_message_says_that_much_is_fetched_to_count(
    faulty_server: FaultyServer, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    put_shards(faulty_server)
    monkeypatch.setattr(sample_reader, "LARGE", 1)
    dataset = headrace.open("s3://b/{0..2}.tar", options=faulty_server.s3_options)
    with caplog.at_level(logging.WARNING, "headrace"):
        assert len(dataset) == SHARDS * SAMPLES
    # The first one was fetched when the data were opened.
    assert "2 shards have no index" in caplog.text
    assert "headrace pack" in caplog.text


def test_what_is_small_is_counted_without_a_word(faulty_server: FaultyServer, caplog: pytest.LogCaptureFixture) -> None:
    put_shards(faulty_server)
    with caplog.at_level(logging.WARNING, "headrace"):
        assert len(headrace.open("s3://b/{0..2}.tar", options=faulty_server.s3_options)) == SHARDS * SAMPLES
    assert caplog.text == ""
