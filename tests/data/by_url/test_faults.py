"""What goes wrong on the way: nothing wrong is delivered, and what passes is waited for."""

from __future__ import annotations

import contextlib
import os
import signal
import threading
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

import headrace
from headrace.core.errors import DatasetNotFoundError, ObjectChangedError, StorageError, UsageError
from tests.data.by_url.conftest import Twice
from tests.data.by_url.test_every_form import same
from tests.servers.faulty import Fault, FaultyServer

Make = Callable[..., Twice]


def loader_of(dataset: Any, workers: int = 0, **words: Any) -> headrace.DataLoader[Any]:
    return headrace.DataLoader(dataset, batch_size=8, seed=3, shuffle=True, num_workers=workers, **words)


@pytest.mark.parametrize("workers", [0, 2])
@pytest.mark.parametrize(
    "fault",
    [
        Fault("status", 503),
        Fault("status", 429),
        Fault("status", 500),
        Fault("reset"),
        Fault("cut", after=300),
        Fault("short"),
    ],
    ids=lambda fault: f"{fault.kind} {fault.status}" if fault.kind == "status" else fault.kind,
)
@pytest.mark.quick(workers=2, fault=[Fault("status", 503), Fault("cut", after=300)])
def test_what_passes_is_waited_for(twice: Make, faulty_server: FaultyServer, fault: Fault, workers: int) -> None:
    data = twice("pt", "s3")
    expected = list(loader_of(data.local))
    # Every third request fails, for a while.
    faulty_server.faults.extend([fault, None, None] * 8)
    found = list(loader_of(data.remote, workers))
    assert len(found) == len(expected)
    assert all(map(same, found, expected))
    assert not faulty_server.faults


@pytest.mark.parametrize("workers", [0, 2])
def test_an_object_that_changes_in_mid_epoch_is_named(twice: Make, faulty_server: FaultyServer, workers: int) -> None:
    data = twice("pt", "s3")
    changed = faulty_server.folder / "b" / "samples" / "000000041.pt"
    changed.write_bytes(changed.read_bytes() + b"more")
    with pytest.raises(ObjectChangedError, match="000000041"):
        list(loader_of(data.remote, workers))


@pytest.mark.parametrize("workers", [0, 2])
def test_a_parquet_file_that_changes_in_mid_epoch_is_no_damaged_one(
    twice: Make, faulty_server: FaultyServer, workers: int
) -> None:
    data = twice("parquet", "s3")
    for file in (faulty_server.folder / "b").rglob("*.parquet"):
        file.write_bytes(file.read_bytes()[::-1])
    with pytest.raises(ObjectChangedError, match=r"\.parquet"):
        list(loader_of(data.remote, workers))


def test_a_range_of_files_on_a_web_server(faulty_server: FaultyServer) -> None:
    for number in range(3):
        faulty_server.put("b", f"part-{number}.csv", f"x,y\n{number},1\n".encode())
    dataset = headrace.open(f"{faulty_server.url}/b/part-{{0..2}}.csv")
    assert [int(dataset[number]["x"]) for number in range(3)] == [0, 1, 2]


def test_a_cache_has_no_url(tmp_path: Path) -> None:
    with pytest.raises(UsageError, match="cache_dir"):
        headrace.open("s3://b/x.parquet", cache_dir="s3://b/cache")


def test_an_endpoint_without_http_is_refused(tmp_path: Path) -> None:
    with pytest.raises(UsageError, match=r"127\.0\.0\.1:9000"):
        headrace.open("s3://b/x.parquet", options={"endpoint": "127.0.0.1:9000", "skip_signature": True})


@pytest.mark.parametrize("workers", [0, 2])
def test_on_error_decides_about_an_object_that_is_gone(twice: Make, faulty_server: FaultyServer, workers: int) -> None:
    data = twice("pt", "s3")
    (faulty_server.folder / "b" / "samples" / "000000041.pt").unlink()
    with pytest.raises(FileNotFoundError, match="000000041"):
        list(loader_of(data.remote, workers))

    loader = loader_of(data.remote, workers, on_error="skip")
    delivered = sum(len(batch["y"]) for batch in loader)
    assert delivered == len(data.local) - 1


def test_a_missing_shard_in_the_middle_is_named_before_the_first_batch(faulty_server: FaultyServer) -> None:
    for number in (0, 1, 3):
        faulty_server.put("b", f"shard-{number}.tar", bytes(1024))
    with pytest.raises(DatasetNotFoundError, match=r"shard-2\.tar"):
        headrace.open("s3://b/shard-{0..3}.tar", options=faulty_server.s3_options)


@pytest.mark.parametrize(
    ("url", "words"),
    [
        ("s3://nothing/x.parquet", "nothing"),
        ("s3://b/nothing.parquet", r"nothing\.parquet"),
        ("s3://b/nothing-*.parquet", r"nothing-\*\.parquet"),
    ],
)
def test_what_is_not_there_is_named(faulty_server: FaultyServer, url: str, words: str) -> None:
    faulty_server.put("b", "something.parquet", b"x")
    with pytest.raises((DatasetNotFoundError, StorageError), match=words):
        headrace.open(url, options=faulty_server.s3_options)


@pytest.mark.thorough
@pytest.mark.parametrize("workers", [0, 2])
def test_a_server_that_stops_for_a_while_is_waited_for(twice: Make, faulty_server: FaultyServer, workers: int) -> None:
    data = twice("pt", "s3")
    expected = list(loader_of(data.local))
    found = []
    back = threading.Timer(2.0, setattr, (faulty_server, "always", None))
    for number, batch in enumerate(loader_of(data.remote, workers, prefetch_factor=1 if workers else None)):
        found.append(batch)
        if number == 0:
            faulty_server.always = Fault("reset")
            back.start()
    back.join()
    assert all(map(same, found, expected))
    assert len(found) == len(expected)


@pytest.mark.thorough
@pytest.mark.parametrize("cached", [False, True])
def test_an_io_process_that_is_killed_again_and_again_loses_nothing(twice: Make, tmp_path: Path, cached: bool) -> None:
    words = {}
    if cached:
        words["cache_dir"] = tmp_path / "cache"
    data = twice("pt", "s3", **words)
    expected = list(loader_of(data.local))
    loader = loader_of(data.remote, 2, prefetch_factor=1)
    found = []
    for number, batch in enumerate(loader):
        found.append(batch)
        if number % 4 == 1:
            remote = loader._session.resources.remote
            assert remote is not None
            # The one that was killed before may be gone, and its successor not there yet.
            with contextlib.suppress(ProcessLookupError):
                os.kill(remote.io_pid, signal.SIGKILL)
    assert len(found) == len(expected)
    assert all(map(same, found, expected))


def test_a_worker_that_is_killed_loses_nothing(twice: Make) -> None:
    data = twice("pt", "s3")
    expected = list(loader_of(data.local))
    iterator = iter(loader_of(data.remote, 2, prefetch_factor=1))
    found = [next(iterator)]
    os.kill(iterator._workers[0].pid, signal.SIGKILL)
    found += list(iterator)
    assert len(found) == len(expected)
    assert all(map(same, found, expected))


@pytest.mark.thorough
def test_secrets_are_in_no_state_repr_or_error(twice: Make, faulty_server: FaultyServer) -> None:
    options = {**faulty_server.s3_options, "access_key_id": "AKIASECRET", "secret_access_key": "veryhidden"}
    options.pop("skip_signature")
    twice("pt", "s3")
    dataset = headrace.open("s3://b/samples", options=options)
    loader = loader_of(dataset)
    next(iter(loader))
    told = [repr(dataset), str(loader.state_dict()), repr(dataset.reader), dataset.fingerprint(), str(loader.stats)]
    faulty_server.always = Fault("status", 403, "AccessDenied")
    with pytest.raises(StorageError) as caught:
        headrace.open("s3://b/samples", options=options)
    told.append(str(caught.value))
    for text in told:
        assert "veryhidden" not in text
        assert "AKIASECRET" not in text
