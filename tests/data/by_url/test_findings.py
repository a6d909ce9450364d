"""What a loader says of data that it reads from a server: the right finding, with a server that is made that way."""

from __future__ import annotations

import gc
import threading
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from torch.utils.data import Sampler

import headrace
from headrace.data.formats.columns import block_from
from headrace.data.formats.columns.schema import Field, Schema
from headrace.data.formats.registry import open_writer
from headrace.loader.reporting import Report
from headrace.observe.diagnosis.certainty import BUSY
from headrace.observe.page.page import page
from headrace.storage.fetching.endpoint import endpoint
from headrace.storage.fetching.fetcher import RangeFetcher
from tests.data.by_url.conftest import Twice
from tests.servers.faulty import Fault, FaultyServer

# Fetch threads of other tests, which still ask servers that are gone, would count here, too.
pytestmark = pytest.mark.alone

Make = Callable[..., Twice]
SCHEMA = Schema((Field("data", "bytes"),))


def photos(server: FaultyServer, count: int, size: int, form: str = "folder") -> str:
    """Puts samples of so many bytes on a server, and returns their URL."""
    writer = open_writer(server.folder / "b" / "photos", SCHEMA, form)
    rng = np.random.default_rng(0)
    writer.append(block_from(SCHEMA, [{"data": rng.bytes(size)} for _ in range(count)]))
    writer.seal()
    return "s3://b/photos"


class Backwards(Sampler[int]):
    """An order that nobody knows ahead."""

    def __init__(self, length: int) -> None:
        self.length = length

    def __len__(self) -> int:
        return self.length

    def __iter__(self) -> Iterator[int]:
        return iter(range(self.length - 1, -1, -1))


def names(loader: headrace.DataLoader[Any]) -> set[str]:
    return {finding.name for finding in loader.diagnose().findings}


def skip_if_busy(found: set[str]) -> None:
    """Where others have the cores, no gain is predicted, and most findings are withheld."""
    if BUSY in found:
        pytest.skip("other processes have the cores")


@pytest.mark.thorough
@pytest.mark.parametrize("workers", [0, 2])
def test_small_objects_far_away_are_to_be_packed(faulty_server: FaultyServer, workers: int) -> None:
    url = photos(faulty_server, 400, 2000)
    faulty_server.delay = 0.1
    data = headrace.open(url, options=faulty_server.s3_options)
    loader = headrace.DataLoader(data, batch_size=8, shuffle=True, seed=1, num_workers=workers, collate_fn=len)
    assert sum(loader) == 400
    found = names(loader)
    skip_if_busy(found)
    assert "small-objects" in found
    assert not {"network-limits", "too-few-workers", "slow-read"} & found
    assert "headrace pack s3://b/photos s3://b/photos-packed" in " ".join(str(loader.report()).split())


@pytest.mark.thorough
def test_a_loader_that_was_only_waited_for_does_not_keep_up(faulty_server: FaultyServer) -> None:
    """Epochs of a single batch: behind it nothing is measured, so that all of the time was waiting."""
    data = headrace.open(photos(faulty_server, 40, 2000), options=faulty_server.s3_options)
    loader = headrace.DataLoader(data, batch_size=40, shuffle=True, seed=1, collate_fn=len)
    for _ in range(3):
        assert list(loader) == [40]

    told = " ".join(str(loader.report()).split())
    assert "The loop waited 100% of the time for data" in told
    assert "no training was measured between batches" in told
    assert "keeps up" not in told
    assert "training-limits" not in names(loader)
    assert "times as fast" not in told


@pytest.mark.thorough
def test_an_order_that_nobody_knows_is_named(faulty_server: FaultyServer) -> None:
    url = photos(faulty_server, 120, 2000)
    faulty_server.delay = 0.02
    data = headrace.open(url, options=faulty_server.s3_options)
    loader = headrace.DataLoader(data, batch_size=2, sampler=Backwards(120), collate_fn=len)
    assert sum(loader) == 120
    found = names(loader)
    skip_if_busy(found)
    assert "latency-limits" in found
    assert loader.stats.remote is not None
    assert not loader.stats.remote.is_read_ahead
    assert loader.stats.remote.in_flight <= 2.5


def test_a_server_that_refuses_is_named(faulty_server: FaultyServer, twice: Make) -> None:
    data = twice("pt", "s3")
    faulty_server.faults.extend([Fault("status", 503), None, None, None] * 8)
    loader = headrace.DataLoader(data.remote, batch_size=4, shuffle=True, seed=1)
    assert len(list(loader)) == 23
    assert "server-refuses" in names(loader)
    remote = loader.stats.remote
    assert remote is not None
    assert (remote.busy, remote.retries) == (8, 8)
    assert remote.limit_is in ("refused", "rising", "measured")


@pytest.mark.thorough
def test_a_cache_that_is_too_small_is_named(faulty_server: FaultyServer, tmp_path: Path) -> None:
    url = photos(faulty_server, 100, 100_000)
    data = headrace.open(url, options=faulty_server.s3_options, cache_dir=tmp_path / "cache", cache_limit="2MB")
    loader = headrace.DataLoader(data, batch_size=4, shuffle=True, seed=1, collate_fn=len)
    for _ in range(3):
        assert sum(loader) == 100

    remote = loader.stats.remote
    assert remote is not None
    assert remote.cache == "limited"
    # Each of 10 MB once, and most of it again
    assert 9_000_000 < remote.first_bytes <= 10_000_000
    assert remote.again_bytes > 5_000_000
    report = " ".join(str(loader.report()).split())
    assert "cache-too-small" in report
    assert 'cache_limit="12MB"' in report


@pytest.mark.thorough
@pytest.mark.parametrize("workers", [0, 2])
def test_what_is_read_is_on_the_page_and_no_secret_is(twice: Make, faulty_server: FaultyServer, workers: int) -> None:
    data = twice("pt", "http")
    words = {"default_headers": {"Authorization": "Basic geheim"}, "query": "signature=geheim"}
    place = data.url.replace("http://", "http://user:geheim@")
    secret = headrace.open(f"{place}?X-Signature=geheim", format="pt", options=words)
    loader = headrace.DataLoader(secret, batch_size=4, shuffle=True, seed=1, num_workers=workers)
    for _ in range(2):
        assert len(list(loader)) == 23

    recording = loader.recording
    remote = recording.remote
    assert remote is not None
    assert remote.place == data.url
    report = str(Report(recording))
    shown = page("train.py", 1.0, [recording], [loader.diagnose()], {})
    assert "network: " in report
    assert "Over the network" in shown
    assert "over the network" in shown
    assert f"{remote.requests:,}" in shown
    for text in (report, shown, str(recording.as_json()), repr(loader.stats), str(loader.stats.as_json())):
        assert "geheim" not in text

    local = headrace.DataLoader(data.local, batch_size=4)
    assert len(list(local)) == 23
    shown = page("train.py", 1.0, [local.recording], [local.diagnose()], {})
    assert "network: " not in str(local.report())
    assert "Over the network" not in shown


@pytest.mark.thorough
@pytest.mark.parametrize("workers", [0, 2])
def test_bytes_that_workers_take_out_of_the_cache_are_counted_once(twice: Make, workers: int, tmp_path: Path) -> None:
    data = twice("pt", "s3", cache_dir=tmp_path / "cache")
    size = sum(path.stat().st_size for path in Path(data.local.place).glob("*.pt"))
    # Nothing is announced of an order that nobody knows.
    for sampler in (None, Backwards(len(data.local))):
        loader = headrace.DataLoader(data.remote, batch_size=8, sampler=sampler, num_workers=workers)
        assert len(list(loader)) == 12
        assert len(list(loader)) == 12
        remote = loader.stats.remote
        assert remote is not None
        expected = 2 * size - remote.bytes
        assert remote.cached_bytes == pytest.approx(expected, rel=0.01)
        assert remote.cache == "all"


@pytest.mark.thorough
def test_a_broken_cache_is_said_once_and_not_by_each_worker(
    twice: Make, tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    data = twice("pt", "s3", cache_dir=tmp_path / "cache")
    (tmp_path / "cache").mkdir()
    (tmp_path / "cache" / "objects").write_text("no folder")
    loader = headrace.DataLoader(data.remote, batch_size=8, num_workers=2)
    assert len(list(loader)) == 12
    error = capfd.readouterr().err
    assert error.count("gone or damaged") == 1, error


@pytest.mark.thorough
def test_what_a_dropped_loader_has_read_ahead_is_given_up(twice: Make, faulty_server: FaultyServer) -> None:
    data = twice("pt", "s3")
    fetcher = endpoint()
    assert isinstance(fetcher, RangeFetcher)
    before = fetcher.held
    loader = headrace.DataLoader(data.remote, batch_size=8, shuffle=True, seed=1)
    assert len(list(loader)) == 12
    # The next epoch is read ahead already.
    for _ in range(2000):
        if fetcher.held > before:
            break
        threading.Event().wait(0.01)
    assert fetcher.held > before

    del loader
    gc.collect()
    other = headrace.DataLoader(data.remote, batch_size=8, sampler=Backwards(len(data.local)))
    assert len(list(other)) == 12
    for _ in range(2000):
        if fetcher.held == before:
            break
        threading.Event().wait(0.01)
    assert fetcher.held == before
