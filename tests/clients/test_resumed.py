"""`headrace.integrations`: frameworks resume from their own checkpoints, in mid-epoch, also on other ranks.

Each script trains undisturbed, is stopped after a step, and resumes. What all ranks were trained with in each step
must be what the undisturbed run was trained with, to the bit, random numbers included.
"""

from __future__ import annotations

import importlib.util
import json
import os
import re
import sys
from functools import cache
from pathlib import Path

import pytest

from tests.clients.test_clients import SCRIPTS, TORCHRUN, output_of

pytestmark = [pytest.mark.clients, pytest.mark.timeout(600)]

FRAMEWORKS = {"lightning": "lightning", "accelerate": "accelerate", "transformers": "transformers"}
"""The framework of each script, and the module without which there is nothing to try."""

GLOBAL_BATCH = 8
STEPS_OF_EPOCH = 6

TRAINED = re.compile(r"trained (\d+) (\[\[.*?\]\])")
"""What a rank says of a batch. It may come in the middle of a line that a framework writes on another rank."""

Step = list[list[float]]
"""What all ranks together were trained with in a step, sorted: of each sample, its number and its values."""


def trained(framework: str, ranks: int, folder: Path, *, stop: int = 0, begun: int = 0) -> list[Step]:
    """Trains on so many ranks, up to a step or to the end, from the beginning or after a step."""
    launcher = [] if ranks == 1 else [*TORCHRUN[:-1], f"--nproc-per-node={ranks}"]
    script = str(SCRIPTS / f"resumed_{framework}.py")
    arguments = [str(folder), str(stop), str(begun), str(GLOBAL_BATCH // ranks)]
    environment = {**os.environ, "OMP_NUM_THREADS": "1", "TOKENIZERS_PARALLELISM": "false"}
    printed, _ = output_of([sys.executable, *launcher, script, *arguments], environment)

    of_ranks: list[list[Step]] = [[] for _ in range(ranks)]
    for rank, rows in TRAINED.findall(printed):
        of_ranks[int(rank)].append(json.loads(rows))
    return [sorted(row for rows in step for row in rows) for step in zip(*of_ranks, strict=True)]


@cache
def undisturbed(framework: str, folder: Path) -> list[Step]:
    return trained(framework, 1, folder)


@pytest.mark.parametrize(("before", "after", "stop"), [(2, 1, 4), (2, 2, STEPS_OF_EPOCH), (1, 2, 4)])
@pytest.mark.parametrize("framework", FRAMEWORKS)
def test_a_run_resumes_from_a_checkpoint_of_the_framework(
    framework: str, before: int, after: int, stop: int, tmp_path: Path, tmp_path_factory: pytest.TempPathFactory
) -> None:
    if importlib.util.find_spec(FRAMEWORKS[framework]) is None:
        pytest.skip(f"{framework} is not installed: `make test-clients` installs it")
    if framework == "accelerate" and after > before:
        pytest.skip("Accelerate saves the random numbers of each rank, and does not load on more ranks")

    whole = undisturbed(framework, tmp_path_factory.getbasetemp())
    first = trained(framework, before, tmp_path, stop=stop)
    rest = trained(framework, after, tmp_path, begun=stop)
    assert len(whole) == 2 * STEPS_OF_EPOCH
    assert first + rest == whole
