"""Every stored form by URL: the same samples, batches and resumes as from the files on this machine."""

from __future__ import annotations

import gc
import pickle
import tempfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

import headrace
from tests.data.by_url.conftest import NAMES, PLACES, ROWS, Twice
from tests.pairs import pairwise
from tests.servers.faulty import FaultyServer

Make = Callable[..., Twice]

WORKERS = {"none": {}, "fork": {"num_workers": 2}, "spawn": {"num_workers": 2, "multiprocessing_context": "spawn"}}


SPAWNED = ("webdataset", "parquet")
"""The forms of which spawned workers read epochs; each start takes seconds. With the others this is a stress test."""

FORMS = [
    *pairwise(NAMES, ("none", "fork"), PLACES),
    *(pytest.param(name, "spawn", "http", marks=[] if name in SPAWNED else pytest.mark.stress) for name in NAMES),
]


def same(one: Any, other: Any) -> bool:
    """Tells whether two batches or samples are the same, bit for bit."""
    if isinstance(one, torch.Tensor):
        return one.dtype == other.dtype and torch.equal(one, other)
    if isinstance(one, np.ndarray):
        return one.dtype == other.dtype and np.array_equal(one, other)
    if isinstance(one, dict):
        return one.keys() == other.keys() and all(same(one[name], other[name]) for name in one)
    return bool(one == other)


def batches(dataset: Any, workers: str = "none", **words: Any) -> list[Any]:
    loader = headrace.DataLoader(dataset, batch_size=8, seed=3, **WORKERS[workers], **words)
    return pickle.loads(pickle.dumps(list(loader)))


@pytest.mark.parametrize("place", PLACES)
@pytest.mark.parametrize("name", NAMES)
def test_samples_are_the_same(twice: Make, name: str, place: str) -> None:
    data = twice(name, place)
    assert len(data.remote) == ROWS == len(data.local)
    assert data.remote.schema == data.local.schema
    assert data.remote.place == data.url
    keys = np.random.default_rng(1).integers(0, ROWS, 50).tolist()
    for one, other in zip(data.local.__getitems__(keys), data.remote.__getitems__(keys), strict=True):
        assert same(one, other)
    assert same(data.local[-1], data.remote[-1])
    assert data.remote.__getitems__([]) == []


@pytest.mark.parametrize(("name", "workers", "place"), FORMS)
@pytest.mark.quick(name="webdataset", workers=["none", "fork"])
def test_a_shuffled_epoch_is_the_same_and_resumes_in_the_middle(
    twice: Make, name: str, place: str, workers: str
) -> None:
    data = twice(name, place)
    expected = batches(data.local, shuffle=True)
    assert len(expected) == 12
    loader = headrace.DataLoader(data.remote, batch_size=8, seed=3, shuffle=True, **WORKERS[workers])
    iterator = iter(loader)
    for number in range(5):
        assert same(next(iterator), expected[number])

    state = loader.state_dict()
    del iterator
    again = headrace.DataLoader(data.remote, batch_size=8, seed=3, shuffle=True, **WORKERS[workers])
    again.load_state_dict(state)
    for one, other in zip(again, expected[5:], strict=True):
        assert same(one, other)


@pytest.mark.parametrize(("name", "workers", "place"), FORMS)
@pytest.mark.quick(name="webdataset", workers=["none", "fork"])
def test_a_stream_is_the_same(twice: Make, name: str, place: str, workers: str) -> None:
    data = twice(name, place)
    expected = batches(data.local.stream(shuffle=20), workers)
    found = batches(data.remote.stream(shuffle=20), workers)
    assert len(found) == len(expected)
    assert all(map(same, found, expected))


CACHED = [*pairwise(NAMES, ("none", "fork"), (None, "1MB")), ("parquet", "spawn", None)]


@pytest.mark.parametrize(("name", "workers", "limit"), CACHED)
@pytest.mark.quick(name="webdataset")
def test_a_cache_changes_nothing(twice: Make, name: str, workers: str, limit: str | None, tmp_path: Path) -> None:
    data = twice(name, "s3", cache_dir=tmp_path / "cache", cache_limit=limit)
    expected = batches(data.local, shuffle=True)
    for _ in range(2):
        assert all(map(same, batches(data.remote, workers, shuffle=True), expected))


@pytest.mark.parametrize("name", NAMES)
def test_a_dataset_may_be_sent_to_another_process(twice: Make, name: str) -> None:
    data = twice(name, "s3")
    sent = pickle.loads(pickle.dumps(data.remote))
    assert same(sent[5], data.local[5])
    stream = pickle.loads(pickle.dumps(data.remote.stream()))
    assert same(next(iter(stream)), data.local[0])


def test_a_file_url_is_a_path(tmp_path: Path) -> None:
    np.save(tmp_path / "a b.npy", np.arange(5))
    assert len(headrace.open(f"file://{tmp_path}/a%20b.npy")) == 5


@pytest.mark.thorough
@pytest.mark.parametrize("workers", [0, 2])
def test_a_loader_tells_what_it_has_read(twice: Make, workers: int, tmp_path: Path) -> None:
    data = twice("pt", "s3", cache_dir=tmp_path / "cache")
    loader = headrace.DataLoader(data.remote, batch_size=8, seed=3, shuffle=True, num_workers=workers)
    assert len(list(loader)) == 12
    size = sum(path.stat().st_size for path in Path(data.local.place).glob("*.pt"))
    first = loader.stats.remote
    assert first is not None
    # The next epoch may be begun already, over the end of this one: it is all in the cache.
    assert first.bytes == size
    assert first.requests == ROWS

    assert len(list(loader)) == 12
    second = loader.stats.remote
    assert second is not None
    assert second.bytes == size
    assert second.cached_bytes >= size
    assert second.hit_rate >= 0.5
    assert loader.stats.as_json()["remote"]["bytes"] == size
    assert headrace.DataLoader(data.local).stats.remote is None


def test_what_is_fetched_whole_is_fetched_once_where_there_is_a_cache(
    twice: Make, faulty_server: FaultyServer, tmp_path: Path
) -> None:
    first = twice("hdf5", "s3", cache_dir=tmp_path / "cache")
    before = faulty_server.bytes_sent
    second = twice("hdf5", "s3", cache_dir=tmp_path / "cache")
    assert faulty_server.bytes_sent == before
    assert same(first.remote[7], first.local[7])
    assert same(second.remote[9], second.local[9])


def test_fetched_files_go_with_the_dataset(twice: Make, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    folder = tmp_path / "temporary"
    folder.mkdir()
    monkeypatch.setattr(tempfile, "tempdir", str(folder))
    data = twice("hdf5", "s3")
    assert same(data.remote[7], data.local[7])
    assert len(list(folder.iterdir())) == 1
    data.remote = data.local
    gc.collect()
    assert list(folder.iterdir()) == []


def test_windows_of_tokens_have_a_fingerprint_that_needs_the_options(faulty_server: FaultyServer) -> None:
    faulty_server.put("b", "train.bin", np.arange(1000, dtype=np.uint16).tobytes())
    words = {"dtype": "uint16", "window": 16, "options": faulty_server.s3_options}
    before = headrace.open_tokens("s3://b/train.bin", **words).fingerprint()
    assert headrace.open_tokens("s3://b/train.bin", **words).fingerprint() == before
    faulty_server.put("b", "train.bin", np.arange(1001, dtype=np.uint16).tobytes())
    assert headrace.open_tokens("s3://b/train.bin", **words).fingerprint() != before
