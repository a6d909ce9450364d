"""Streams that split themselves, where Accelerate splits what torch's loader reads: each sample once, or an error."""

from __future__ import annotations

import os
import re
import subprocess
import sys

import pytest

from tests.clients.test_clients import SCRIPTS, output_of, torchrun

pytest.importorskip("accelerate", reason="accelerate is not installed: `make test-clients` installs it")
pytestmark = [pytest.mark.clients, pytest.mark.timeout(300)]

ENVIRONMENT = {**os.environ, "OMP_NUM_THREADS": "1"}


def command(kind: str, way: str, workers: int) -> list[str]:
    return [sys.executable, *torchrun(2), str(SCRIPTS / "accelerate_stream.py"), kind, way, str(workers)]


@pytest.mark.parametrize("workers", [0, 2])
@pytest.mark.parametrize("kind", ["plain", "packed"])
def test_a_stream_that_the_first_rank_reads_for_all_comes_once(kind: str, workers: int) -> None:
    printed, _ = output_of(command(kind, "dispatched", workers), ENVIRONMENT)
    batches = re.findall(r"batch (\d) \[([\d, ]+)\]", printed)
    assert {rank for rank, _ in batches} == {"0", "1"}
    assert sorted(int(number) for _, numbers in batches for number in numbers.split(",")) == list(range(64))


@pytest.mark.parametrize("workers", [0, 2])
def test_a_stream_of_which_each_rank_keeps_a_part_is_an_error(workers: int) -> None:
    ended = subprocess.run(
        command("plain", "shared", workers), env=ENVIRONMENT, capture_output=True, text=True, timeout=200, check=False
    )
    assert ended.returncode != 0
    assert "a stream would be split over the ranks twice" in ended.stderr
    assert "batch" not in ended.stdout
