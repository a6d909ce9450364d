"""Metrics over all ranks: what a framework gathers has each sample once, or the user is told that it has not."""

from __future__ import annotations

import os
import sys

import pytest

from tests.clients.test_clients import SCRIPTS, output_of, torchrun

pytest.importorskip("accelerate", reason="accelerate is not installed: `make test-clients` installs it")
pytestmark = [pytest.mark.clients, pytest.mark.timeout(300)]


def gathered(ranks: int, way: str, samples: int, batch_size: int) -> tuple[list[int], str]:
    """Returns what `gather_for_metrics` returned over an epoch, sorted, and what was written to stderr."""
    script = [str(SCRIPTS / "accelerate_metrics.py"), way, str(samples), str(batch_size)]
    environment = {**os.environ, "OMP_NUM_THREADS": "1"}
    printed, errors = output_of([sys.executable, *torchrun(ranks), *script], environment)
    (line,) = (line for line in printed.splitlines() if line.startswith("gathered "))
    return [int(number) for number in line.split()[1:]], errors


@pytest.mark.parametrize(
    ("ranks", "way", "samples", "batch_size"),
    [
        (2, "shard", 11, 4),  # one sample is repeated, as the last of the last rank
        (3, "shard", 13, 4),  # two are, each in a batch of its own
        (3, "split", 10, 4),  # Accelerate's own sampler repeats two behind all others
    ],
)
def test_each_sample_counts_once(ranks: int, way: str, samples: int, batch_size: int) -> None:
    found, errors = gathered(ranks, way, samples, batch_size)
    assert found == list(range(samples))
    assert "counts" not in errors


def test_samples_that_count_twice_are_told() -> None:
    found, errors = gathered(3, "shard", 10, 4)
    assert found == [0, 0, 1, 1, *range(2, 10)]
    assert "gather_for_metrics() counts 2 samples twice: 10 samples do not divide evenly among 3 ranks" in errors
