"""Frameworks that nobody here wrote train over a bucket, in two ranks: each object is fetched once for all of them."""

from __future__ import annotations

import collections
import importlib.util
import os
import re
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
import torch

from tests.clients.test_clients import SCRIPTS, TORCHRUN, output_of
from tests.servers.nginx import Nginx

pytestmark = [pytest.mark.clients, pytest.mark.timeout(300)]

COUNT = 40
BURNING = "while True:\n    pass"


@pytest.fixture
def bucket(nginx_server: Nginx, tmp_path: Path) -> Nginx:
    """s3://bucket/samples holds one object for each sample."""
    for number in range(COUNT):
        path = tmp_path / f"{number:03d}.pt"
        torch.save({"number": torch.tensor(number), "features": torch.full((4,), float(number))}, path)
        nginx_server.put("bucket", f"samples/{path.name}", path.read_bytes())
    nginx_server.make_list("bucket", "samples")
    return nginx_server


@pytest.fixture
def busy_cores() -> Iterator[None]:
    """Twice as many programs as there are cores, which only burn time."""
    count = 2 * (os.cpu_count() or 1)
    burning = [subprocess.Popen([sys.executable, "-c", BURNING]) for _ in range(count)]
    yield
    for process in burning:
        process.kill()
        process.wait()


def fetched(server: Nginx) -> collections.Counter[str]:
    """Returns how often each object was asked for."""
    asked = re.findall(r'"GET /bucket/(samples/\S+) HTTP', (server.run / "access.log").read_text())
    return collections.Counter(asked)


def run(script: str, launcher: tuple[str, ...], bucket: Nginx, cache: Path, imported_from: str) -> dict[int, list[int]]:
    """Runs a script, and returns the numbers of the samples that each rank got, in their order."""
    environment = {
        **os.environ,
        "OMP_NUM_THREADS": "1",
        "IMPORTED_FROM": imported_from,
        "SOURCE": "s3://bucket/samples",
        "CACHE": str(cache),
        "AWS_ENDPOINT_URL": bucket.url,
        "AWS_ALLOW_HTTP": "true",
        "AWS_SKIP_SIGNATURE": "true",
    }
    command = [sys.executable, *launcher, str(SCRIPTS / script)]
    printed, _ = output_of(command, environment)
    samples: dict[int, list[int]] = {}
    for rank, numbers in re.findall(r"^batch (\d+) \[(.*)\]$", printed, re.MULTILINE):
        samples.setdefault(int(rank), []).extend(map(int, numbers.split(",")))
    return samples


@pytest.mark.parametrize("imported_from", ["headrace", "torch"])
@pytest.mark.parametrize(
    ("needs", "script", "launcher"),
    [("torch", "torchrun_url.py", TORCHRUN), ("lightning", "lightning_url.py", ())],
    ids=["torchrun", "lightning"],
)
def test_two_ranks_fetch_each_object_once(
    bucket: Nginx, tmp_path: Path, needs: str, script: str, launcher: tuple[str, ...], imported_from: str
) -> None:
    if importlib.util.find_spec(needs) is None:
        pytest.skip(f"{needs} is not installed: `make test-clients` installs it")
    samples = run(script, launcher, bucket, tmp_path / "cache", imported_from)
    check_epochs(samples)
    assert fetched(bucket) == {f"samples/{number:03d}.pt": 1 for number in range(COUNT)}


@pytest.mark.usefixtures("busy_cores")
def test_two_ranks_fetch_each_object_once_on_busy_cores(bucket: Nginx, tmp_path: Path) -> None:
    samples = run("torchrun_url.py", TORCHRUN, bucket, tmp_path / "cache", "headrace")
    check_epochs(samples)
    assert fetched(bucket) == {f"samples/{number:03d}.pt": 1 for number in range(COUNT)}


def check_epochs(samples: dict[int, list[int]]) -> None:
    """In each of two epochs, the two ranks together got each sample once."""
    assert set(samples) == {0, 1}
    half = COUNT // 2
    for epoch in range(2):
        part = slice(epoch * half, (epoch + 1) * half)
        assert sorted(samples[0][part] + samples[1][part]) == list(range(COUNT))
