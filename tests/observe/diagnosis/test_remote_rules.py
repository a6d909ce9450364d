"""Data that come over a network: each rule finds what bounds them, and the gain that follows from the figures."""

from __future__ import annotations

import json
from dataclasses import replace
from typing import Any

import pytest

from headrace.observe.diagnosis.diagnose import diagnose
from headrace.observe.diagnosis.finding import Finding
from headrace.observe.diagnosis.remote import pack_command
from headrace.telemetry.recording import Recording
from headrace.telemetry.remote_reads import RemoteReads, TrafficWindow
from tests.observe.diagnosis.steady import MS, Loop, recording_of

LOOP = Loop(load=100 * MS, load_cpu=2 * MS, loop=10 * MS, workers=2)
"""Two workers wait for nearly all of a batch: the loop gets one every 50 ms, and works on it for 10 ms."""

WAITED = 200 * 40 * MS
"""Seconds that this loop waits, about."""

BYTES = 200 * 16 * 100_000
REMOTE = RemoteReads(
    requests=3200, bytes=BYTES, waits=3200, ranges=3200, whole_objects=3200, first_bytes=BYTES,
    request_seconds=3200 * 0.05, waited=WAITED, waited_bytes=BYTES, waited_in_flight=12 * WAITED,
    waited_at_limit=0.9 * WAITED, cpu=0.5, limit=12, limit_is="measured", line=42e6, place="s3://bucket/photos",
    is_read_ahead=True,
)  # fmt: skip
"""The line is full: more than 12 requests brought no more."""


def findings(remote: RemoteReads, loop: Loop = LOOP) -> dict[str, Finding]:
    given = replace(loop, recording={"remote": remote})
    return {finding.name: finding for finding in diagnose(recording_of(given)).findings}


def remote(**figures: Any) -> RemoteReads:
    return replace(REMOTE, **figures)


def test_a_full_line_is_the_limit_and_more_workers_do_not_help() -> None:
    found = findings(REMOTE)
    finding = found["network-limits"]
    assert finding.stage == "read"
    assert "40.0 MB a second came, 0.95 of the line (42.0 MB" in finding.sentence
    assert "More than 12 requests" in finding.sentence
    # Half of the waiting of 98 ms a batch, by two workers
    assert finding.gain == pytest.approx(50 / 26, rel=0.05)
    assert finding.interval is not None
    assert not {"slow-read", "too-few-workers", "small-objects", "latency-limits"} & found.keys()
    assert {"slow-read", "too-few-workers"} <= findings(remote(waited=0.0)).keys()


def test_where_epochs_repeat_a_cache_is_the_fix() -> None:
    finding = findings(REMOTE, replace(LOOP, epochs=2, batches=100))["network-limits"]
    assert "cache_dir=" in finding.advice
    assert "from the second epoch on" in finding.advice
    # Nothing is left but the loop, behind 2 ms for the first batch
    assert finding.gain == pytest.approx(50 / 10, rel=0.1)
    cached = findings(remote(cache="all"), replace(LOOP, epochs=2, batches=100))["network-limits"]
    assert "cache_dir" not in cached.advice


def test_too_little_memory_to_read_ahead_is_named() -> None:
    bounded = remote(limit=48, limit_is="rising", waited_at_limit=0.0, waited_for_memory=0.9 * WAITED)
    finding = findings(bounded)["latency-limits"]
    assert "no more memory" in finding.sentence
    assert "512 MB" in finding.advice
    # For twice the memory: half of 98 ms is left, by two workers
    assert "twice as much" in finding.advice
    assert finding.gain == pytest.approx(50 / 26, rel=0.05)


def test_an_unknown_order_is_named() -> None:
    unknown = remote(limit=24, limit_is="rising", waited_at_limit=0.1 * WAITED, is_read_ahead=False)
    finding = findings(unknown)["latency-limits"]
    assert "nothing says which samples come next" in finding.sentence
    assert "seed=0" in finding.advice
    # 12 of 256 requests: next to nothing is left of the waiting, and the loop takes 10 ms.
    assert finding.gain == pytest.approx(50 / 10, rel=0.1)
    assert "carries 160 MB a second; 42.0 MB a second were seen" in finding.advice
    # Without reading ahead, more workers ask for more at a time.
    assert "too-few-workers" in findings(unknown)


@pytest.mark.parametrize(
    ("reason", "words"), [("refused", "has refused"), ("most", "no more at a time"), ("rising", "still raising")]
)
def test_why_no_more_requests_are_made_is_named(reason: str, words: str) -> None:
    large = remote(limit_is=reason, bytes=100 * BYTES, waited_bytes=100 * BYTES)
    finding = findings(large)["latency-limits"]
    assert words in finding.sentence
    assert finding.gain is None


SMALL = {"bytes": BYTES // 25, "waited_bytes": BYTES // 25, "first_bytes": BYTES // 25, "line": 1.7e6}


@pytest.mark.parametrize("figures", [{"limit_is": "most", "limit": 256}, {"limit_is": "measured", "cpu": 6.0}])
def test_small_objects_are_to_be_packed(figures: dict[str, Any]) -> None:
    found = findings(remote(**SMALL, **figures))
    finding = found["small-objects"]
    assert "Small objects: requests bring 4.00 kB each, and 400 a second" in finding.sentence
    assert "headrace pack s3://bucket/photos s3://bucket/photos-packed." in finding.advice
    # At least what the line that was seen allows: 1.7 MB a second, and not 1.6.
    assert finding.interval is not None
    assert 1.05 <= finding.interval[0] <= 1.08
    # Nearly nothing is left of the waiting.
    assert finding.gain == pytest.approx(50 / 10, rel=0.1)
    assert "network-limits" not in found


def test_small_objects_over_a_full_line_are_not_to_blame() -> None:
    some_bytes = {name: 10 * figure for name, figure in SMALL.items() if name != "line"}
    found = findings(remote(**some_bytes, cpu=0.1))
    assert "network-limits" in found
    assert "small-objects" not in found


def test_pieces_of_shards_are_not_packed_anew() -> None:
    pieces = remote(**SMALL, limit_is="most", whole_objects=0)
    finding = findings(pieces)["small-objects"]
    assert "Small pieces of large objects" in finding.sentence
    assert "headrace pack" not in finding.advice
    assert "small-objects" not in findings(replace(pieces, ranges=40 * pieces.requests))


@pytest.mark.parametrize(
    ("place", "command"),
    [
        ("s3://bucket/photos/", "headrace pack s3://bucket/photos/ s3://bucket/photos-packed"),
        ("s3://bucket/photos/*.jpg", "headrace pack 's3://bucket/photos/*.jpg' s3://bucket/photos-packed"),
        ("https://host/data", "headrace pack https://host/data data-packed"),
        ("https://host/a b;c", "headrace pack 'https://host/a b;c' 'a b;c-packed'"),
    ],
)
def test_the_command_that_packs_is_whole(place: str, command: str) -> None:
    assert pack_command(place) == command


def test_refusals_are_said_whether_or_not_the_loop_waits() -> None:
    refused = remote(busy=100, retries=100, limit=6)
    for loop in (LOOP, Loop(load=10 * MS, loop=20 * MS)):
        finding = findings(refused, loop)["server-refuses"]
        assert "3.0% of the requests" in finding.sentence
        assert "6 at a time" in finding.sentence
    assert "server-refuses" not in findings(remote(busy=3))


@pytest.mark.thorough
def test_a_cache_that_is_too_small_says_what_would_do() -> None:
    small = remote(cache="limited", first_bytes=BYTES // 2, again_bytes=BYTES // 2)
    finding = findings(small, replace(LOOP, epochs=2, batches=100))["cache-too-small"]
    assert "50% of the bytes (160 MB)" in finding.sentence
    # 160 MB, 5 % of places in it, and 8 KB for each of 1,600 objects
    assert 'cache_limit="182MB"' in finding.advice
    # The first epoch stays as it is; of the second one, nothing but the loop is left.
    assert finding.gain == pytest.approx(100 / (50 + 10), rel=0.05)
    half = findings(replace(small, cached_bytes=BYTES // 2), replace(LOOP, epochs=2, batches=100))["cache-too-small"]
    assert half.gain == pytest.approx(100 / (50 + 26), rel=0.05)
    assert "cache-too-small" not in findings(replace(small, again_bytes=BYTES // 100))
    assert "cache-too-small" not in findings(replace(small, cache=""))


def test_a_loader_that_keeps_up_has_nothing_to_say_of_the_network() -> None:
    assert findings(REMOTE, Loop(load=10 * MS, loop=20 * MS, workers=2)).keys() == {"training-limits"}


def test_a_busy_machine_predicts_nothing() -> None:
    busy = replace(
        LOOP,
        queued=90 * MS,
        setting={"cores": 2},
        totals={"looked": 1.0, "other_cores": 1.8, "own_cores": 0.2},
    )
    found = findings(remote(busy=100, cache="limited", again_bytes=BYTES), busy)
    assert {"machine-busy", "server-refuses", "cache-too-small"} == found.keys()
    assert all(finding.gain is None for finding in found.values())


def test_a_recording_comes_back_from_json_with_what_was_read() -> None:
    windows = (TrafficWindow(1.0, 0.25, 1000.0, 3.5), TrafficWindow(1.25, 0.25, 0.0, 0.0))
    before = recording_of(replace(LOOP, recording={"remote": remote(windows=windows)}))
    after = Recording.from_json(json.loads(json.dumps(before.as_json())))
    assert after.remote == before.remote
    assert diagnose(after) == diagnose(before)
