"""Frameworks that split the samples over the ranks, and loaders that do so themselves: every sample comes once.

Every framework gets a loader of every kind of order, on one rank and on two, with an import and under `headrace run`.
What it trains with is counted. Where a framework would lose what a loader was asked for, the loader must refuse.
Lightning's runs also stop in mid-epoch, and go on from their checkpoints.
"""

from __future__ import annotations

import functools
import importlib.util
import itertools
import json
import os
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any, NamedTuple

import pytest

from tests.clients.test_clients import SCRIPTS, output_of

pytestmark = [pytest.mark.clients, pytest.mark.timeout(300)]


class Seen(NamedTuple):
    """What the ranks of a framework got of one order."""

    counts: list[int]
    """How many samples each rank got."""
    numbers: list[int]
    """The samples of all ranks, in ascending order."""
    whole: list[int]
    """The samples of an epoch, in ascending order."""
    raised: str
    """Their errors."""


@functools.cache
def seen(framework: str, way: str, ranks: int) -> dict[tuple[str, str], Seen]:
    """Runs all orders in one framework. Returns what came, by the use that is made of the framework, and the order."""
    command = [sys.executable, *(["-m", "headrace", "run"] if way == "run" else [])]
    if framework == "ray":
        command += [str(SCRIPTS / "every_order.py"), framework, str(ranks)]
    else:
        command += ["-m", "torch.distributed.run", "--standalone", f"--nproc-per-node={ranks}"]
        command += [str(SCRIPTS / "every_order.py"), framework]

    return {key: combined(each) for key, each in told_by(command, ranks).items()}


def told_by(command: list[str], ranks: int, **more: str) -> dict[tuple[str, str], list[dict[str, Any]]]:
    """Runs a command with further environment variables. Returns what the ranks said, by cell and order."""
    paths = [str(SCRIPTS), os.environ.get("PYTHONPATH", "")]
    environment = {"OMP_NUM_THREADS": "1", "TOKENIZERS_PARALLELISM": "false", **more}
    environment["PYTHONPATH"] = os.pathsep.join(filter(None, paths))
    printed, _ = output_of(command, {**os.environ, **environment})
    told: dict[tuple[str, str], list[dict[str, Any]]] = {}
    for line in printed.splitlines():
        if line.startswith("cell "):
            said = json.loads(line.removeprefix("cell "))
            told.setdefault((said["cell"], said["order"]), []).append(said)

    assert all(len(each) == ranks for each in told.values())
    return told


def combined(told: list[dict[str, Any]]) -> Seen:
    """Puts together what the ranks said."""
    numbers = [said.get("numbers", []) for said in sorted(told, key=lambda said: said["rank"])]
    raised = " ".join(said["raised"] for said in told if "raised" in said)
    together = sorted(itertools.chain.from_iterable(numbers))
    return Seen([len(each) for each in numbers], together, told[0]["whole"], raised)


ORDERS = [
    "in order", "shuffle", "seed", "on_error", "exclude", "auto", "device",
    "DistributedSampler", "BlockShuffleSampler", "WeightedSampler", "ClassBalancedSampler", "MixtureSampler",
    "stream", "stream, auto", "LengthBucketBatchSampler", "MaxTokensBatchSampler",
]  # fmt: skip
BATCH = 4
SPLITTING = {"Fabric", "Lightning, fit", "Lightning, validate", "Lightning, predict", "Ray Train"}
"""What splits the orders that the ranks do not split themselves, and takes streams as they are."""
PREPARED = {"transformers, prepared", *(f"Accelerate, {way}" for way in
            ("prepare", "dispatch_batches", "even_batches=False", "split_batches"))}  # fmt: skip
"""What splits all that comes, with Accelerate."""
USES = {
    "accelerate": sorted(PREPARED - {"transformers, prepared"}),
    "fabric": ["Fabric"],
    "lightning": ["Lightning, fit", "Lightning, validate", "Lightning, predict"],
    "ray": ["Ray Train"],
    "transformers": ["transformers, own loader", "transformers, prepared"],
}
MODULES = {"ray": "ray.train", "fabric": "lightning"}
UNSPLIT = {"in order", "shuffle", "seed", "on_error", "exclude", "device", "stream"}
"""What ranks do not split themselves."""
REBUILT = "would build a new loader, without some of its arguments"
NO_SIZE = "you must have a `batch_size` attribute"
"""What Accelerate says of batches whose size varies."""


@pytest.fixture(scope="module")
def table(request: pytest.FixtureRequest) -> Iterator[Any]:
    """By way and number of ranks: the samples of each rank, by order and use. Printed behind the tests."""
    cells: Any = {(way, ranks): {} for way in ("import", "run") for ranks in (1, 2)}
    yield cells
    with request.config.pluginmanager.getplugin("capturemanager").global_and_fixture_disabled():
        write = request.config.get_terminal_writer().line
        for (way, ranks), told in cells.items():
            uses = list(dict.fromkeys(use for _, use in told))
            columns = "abcdefghijkl"[: len(uses)]
            write(f"\nSamples of each of {ranks} rank{'s' * (ranks > 1)}, {way}")
            for column, use in zip(columns, uses, strict=True):
                write(f"  {column}: {use}")
            write(" " * 26 + "".join(f"{column:>8}" for column in columns))
            for order in ORDERS:
                write(f"{order:26}" + "".join(f"{told.get((order, use), ''):>8}" for use in uses))


def refusal(use: str, order: str, ranks: int) -> str:
    """Returns what the error says in a cell that would lose something; "": all samples come."""
    if use in PREPARED and order in ("seed", "on_error", "stream, auto", "device"):
        return REBUILT
    if use == "Ray Train" and ranks > 1 and order in ("seed", "on_error", "exclude", "device"):
        return REBUILT
    if use == "Accelerate, split_batches" and order == "MaxTokensBatchSampler":
        return NO_SIZE
    if use == "Accelerate, dispatch_batches" and order == "MaxTokensBatchSampler" and ranks > 1:
        return "would lose samples"
    return ""


@pytest.mark.parametrize("ranks", [1, 2])
@pytest.mark.parametrize("way", ["import", "run"])
@pytest.mark.parametrize(("framework", "use"), [(name, use) for name, uses in USES.items() for use in uses])
@pytest.mark.parametrize("order", ORDERS)
def test_every_sample_comes_once(
    framework: str, use: str, order: str, way: str, ranks: int, table: dict[tuple[str, int], dict[tuple[str, str], str]]
) -> None:
    module = MODULES.get(framework, framework)
    if importlib.util.find_spec(module.partition(".")[0]) is None:
        pytest.skip(f"{module} is not installed: `make test-clients` installs it")

    got = seen(framework, way, ranks)[use, order]
    table[way, ranks][order, use] = "refused" if got.raised else "+".join(map(str, got.counts))
    if refused := refusal(use, order, ranks):
        assert refused in got.raised
        return

    assert not got.raised
    expected = got.whole
    # Each rank is given the whole stream, or the whole data, if nobody was asked to split them: as with torch.
    if order in UNSPLIT and (use == "transformers, own loader" or (use in SPLITTING and order == "stream")):
        expected = sorted(expected * ranks)
    # Accelerate repeats samples, so that all ranks have as many batches.
    if use in PREPARED and len(expected) % (ranks * BATCH) and "even" not in use and "dispatch" not in use:
        assert set(got.numbers) == set(expected)
        assert len(set(got.counts)) == 1
        return
    assert got.numbers == expected


@pytest.mark.parametrize("way", ["import", "run"])
def test_lightning_goes_on_in_mid_epoch_on_all_ranks(way: str, tmp_path: Path) -> None:
    """Its checkpoints hold the state of rank 0 alone. Loaders are made before, or in a hook, and then have a worker."""
    if importlib.util.find_spec("lightning") is None:
        pytest.skip("lightning is not installed: `make test-clients` installs it")

    command = [sys.executable, *(["-m", "headrace", "run"] if way == "run" else []), "-m", "torch.distributed.run"]
    command += ["--standalone", "--nproc-per-node=2", str(SCRIPTS / "lightning_resume.py")]
    told = told_by(command, 2, SHARED_FOLDER=str(tmp_path))
    assert set(told) == {(cell, order) for cell in ("given", "hook") for order in ORDERS}
    for (cell, order), said in told.items():
        assert not [each["raised"] for each in said if "raised" in each], (cell, order)
        numbers = sorted(itertools.chain.from_iterable(each["before"] + each["behind"] for each in said))
        expected = said[0]["whole"]
        if order == "stream":
            expected = sorted(expected * 2)
        assert numbers == expected, (cell, order)
        assert all(each["before"] for each in said)
