"""A consumer that stands still: what is read ahead stays within the budget."""

from __future__ import annotations

import json
import subprocess
import sys
import threading
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from numpy.lib.format import open_memmap

import headrace
from headrace.storage.fetching import fetcher
from headrace.storage.fetching.endpoint import endpoint
from headrace.storage.fetching.fetcher import BESIDE, RangeFetcher
from headrace.storage.fetching.range_sources import bring
from tests.servers.faulty import FaultyServer
from tests.servers.nginx import Nginx

ROWS = 600
"""More than 4 MiB: smaller columns are read whole."""

SAMPLE = 10_000
BUDGET = 400_000
BATCH = 8 * SAMPLE

SMALL_BUDGET = f"""
from headrace.storage.fetching import fetcher
fetcher.BUDGET = {BUDGET}
"""


@pytest.fixture
def dataset(faulty_server: FaultyServer, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Any:
    """15 times as much as the budget, which is small here, in I/O processes and in this process."""
    monkeypatch.setattr(fetcher, "BUDGET", BUDGET)
    everywhere = tmp_path / "everywhere"
    everywhere.mkdir()
    (everywhere / "sitecustomize.py").write_text(SMALL_BUDGET)
    monkeypatch.setenv("PYTHONPATH", str(everywhere))
    (faulty_server.folder / "b").mkdir()
    rows = np.random.default_rng(1).integers(0, 255, (ROWS, SAMPLE), np.uint8)
    np.save(faulty_server.folder / "b" / "rows.npy", rows)
    return headrace.open("s3://b/rows.npy", options=faulty_server.s3_options)


@pytest.mark.thorough
def test_without_workers(dataset: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    # One of its own: in the process's, requests of other tests may be under way, to servers that are gone.
    endpoint()
    budget = BUDGET // 4
    reading = RangeFetcher(bring, budget)
    monkeypatch.setattr("headrace.storage.fetching.endpoint._ENDPOINT", reading)
    iterator = iter(headrace.DataLoader(dataset, batch_size=8, shuffle=True, seed=3))
    next(iterator)
    announced = 0
    for ranges in reading._announced[max(reading._announced)].values():
        announced += sum(wanted.size for wanted in ranges)
    assert announced > 2 * budget
    most = 0
    waiting = threading.Event()
    # It is used up, but for what is less than a sample, and then no more is taken.
    for _ in range(3000):
        most = max(most, reading.held)
        if most >= budget - SAMPLE:
            break
        waiting.wait(0.01)
    for _ in range(100):
        most = max(most, reading.held)
        waiting.wait(0.01)
    assert budget - SAMPLE <= most <= budget
    assert len(list(iterator)) == ROWS // 8 - 1
    reading.close()


@pytest.mark.thorough
def test_with_workers_the_server_is_asked_for_no_more(dataset: Any, faulty_server: FaultyServer) -> None:
    """Counted where the bytes come from: an I/O process that holds more has asked for it."""
    before = faulty_server.bytes_sent
    loader = headrace.DataLoader(dataset, batch_size=8, shuffle=True, seed=3, num_workers=2, prefetch_factor=1)
    iterator = iter(loader)
    next(iterator)
    # That of the loop, and two that each worker may have made or be making.
    taken = 5 * BATCH
    room = int(BUDGET * (1 - BESIDE))
    waiting = threading.Event()
    for _ in range(100):
        assert faulty_server.bytes_sent - before <= taken + room
        waiting.wait(0.01)
    assert faulty_server.bytes_sent - before > room
    assert len(list(iterator)) == ROWS // 8 - 1


@pytest.mark.stress
@pytest.mark.parametrize("shuffle", [True, False])
@pytest.mark.parametrize("workers", [0, 2])
@pytest.mark.parametrize("sample", [10_000, 100_000])
def test_memory_stays_within_the_budget_for_a_minute(
    nginx_server: Nginx, sample: int, workers: int, shuffle: bool
) -> None:
    """With the real budget, and all memory that the fetching process takes."""
    (nginx_server.root / "b").mkdir()
    # Sparse: a file without blocks.
    path = nginx_server.root / "b" / "rows.npy"
    open_memmap(path, mode="w+", dtype=np.uint8, shape=(1_500_000_000 // sample, sample)).flush()
    given = {
        "source": f"{nginx_server.url}/b/rows.npy",
        "options": {},
        "cache": {},
        "workers": workers,
        "shuffle": shuffle,
        "batch_size": 6_400_000 // sample,
        "batches": 40,  # so many announce more than the budget
        "seconds": 60,
    }
    command = [sys.executable, "-m", "tests.data.by_url.stalled", json.dumps(given)]
    root = Path(__file__).parents[3]
    ran = subprocess.run(command, capture_output=True, text=True, cwd=root, timeout=240, check=False)
    assert ran.returncode == 0, ran.stderr
    found = json.loads(ran.stdout)
    sys.stdout.write(f"{sample} {workers} {shuffle} {found}\n")
    assert found["most"] <= 1.1 * found["budget"]
    # It was used, and did not stand for little.
    assert found["bytes"] > found["budget"]
