"""Frameworks resume in mid-epoch, also on other ranks: from their own checkpoints, or from states that a loop saves.

Each script trains undisturbed, is stopped after a step, and resumes. What all ranks were trained with in each step
must be what the undisturbed run was trained with, to the bit, random numbers included.
"""

from __future__ import annotations

import contextlib
import importlib.metadata
import importlib.util
import json
import os
import re
import sys
from functools import cache
from pathlib import Path

import pytest

from headrace.core.text.versions import numbers_of
from tests.clients.test_clients import SCRIPTS, output_of, torchrun
from tests.servers import ray as ray_cluster

pytestmark = [pytest.mark.clients, pytest.mark.timeout(600)]

FRAMEWORKS = {"lightning": "lightning", "accelerate": "accelerate", "transformers": "transformers"}
"""The framework of each script, and the module without which there is nothing to try."""

LOOPS = {
    "torchrun": "torch",
    "dcp": "torch",
    "fabric": "lightning",
    "torchtitan": "torchtitan",
    "ray": "ray",
    "geometric": "torch_geometric",
    "monai": "monai",
    "datasets": "datasets",
    "skorch": "skorch",
}
"""The same of scripts whose loop saves the loader's state."""

STREAMS = {"torchdata": "torchdata", "webdataset": "webdataset", "streaming": "datasets"}
"""The same of streams."""

OF_ITS_OWN = ("monai", "datasets")
"""Those whose samples differ from the others': by noise of the library, or for want of noise."""

GLOBAL_BATCH = 8
STEPS_OF_EPOCH = 6

TRAINED = re.compile(r"trained (\d+) (\[\[.*?\]\])")
"""What a rank says of a batch. It may come in the middle of a line that a framework writes on another rank."""

Step = list[list[float]]
"""What all ranks together were trained with in a step, sorted: of each sample, its number and its values."""


def trained(framework: str, ranks: int, folder: Path, *, stop: int = 0, begun: int = 0) -> list[Step]:
    """Trains on so many ranks, up to a step or to the end, from the beginning or after a step."""
    launcher = torchrun(ranks)
    if ranks == 1 or framework == "ray":
        launcher = ()
    script = str(SCRIPTS / f"resumed_{framework}.py")
    arguments = [str(folder), str(stop), str(begun), str(GLOBAL_BATCH // ranks)]
    environment = {**os.environ, "OMP_NUM_THREADS": "1", "TOKENIZERS_PARALLELISM": "false"}
    with contextlib.ExitStack() as ending:
        if framework == "ray":
            # Ray's own processes find the modules beside the script by this path only.
            paths = [str(SCRIPTS), os.environ.get("PYTHONPATH", "")]
            environment["PYTHONPATH"] = os.pathsep.join(filter(None, paths))
            environment |= ray_cluster.variables_for(ending.enter_context(ray_cluster.own_folder()))
        printed, _ = output_of([sys.executable, *launcher, script, *arguments], environment)

    of_ranks: list[list[Step]] = [[] for _ in range(ranks)]
    for rank, rows in TRAINED.findall(printed):
        of_ranks[int(rank)].append(json.loads(rows))
    return [sorted(row for rows in step for row in rows) for step in zip(*of_ranks, strict=True)]


def skip_without(module: str) -> None:
    if importlib.util.find_spec(module) is None:
        pytest.skip(f"{module} is not installed: `make test-clients` installs it")


@cache
def undisturbed(framework: str, folder: Path) -> list[Step]:
    return trained(framework, 1, folder)


@pytest.mark.parametrize(("before", "after", "stop"), [(2, 1, 4), (2, 2, STEPS_OF_EPOCH), (1, 2, 4)])
@pytest.mark.parametrize("framework", FRAMEWORKS)
def test_a_run_resumes_from_a_checkpoint_of_the_framework(
    framework: str, before: int, after: int, stop: int, tmp_path: Path, tmp_path_factory: pytest.TempPathFactory
) -> None:
    skip_without(FRAMEWORKS[framework])
    if framework == "accelerate" and after > before:
        pytest.skip("Accelerate saves the random numbers of each rank, and does not load on more ranks")
    if framework == "transformers" and after > 1 and numbers_of(importlib.metadata.version("transformers")) < (5, 18):
        pytest.skip("on ranks of CPUs, the Trainer before 5.18 asks torch for a device that torch refuses to load onto")

    whole = undisturbed(framework, tmp_path_factory.getbasetemp())
    first = trained(framework, before, tmp_path, stop=stop)
    rest = trained(framework, after, tmp_path, begun=stop)
    assert len(whole) == 2 * STEPS_OF_EPOCH
    assert first + rest == whole


def test_lightning_resumes_from_the_checkpoint_of_an_epoch(
    tmp_path: Path, tmp_path_factory: pytest.TempPathFactory
) -> None:
    skip_without("lightning")
    whole = undisturbed("lightning", tmp_path_factory.getbasetemp())
    first = trained("epochs", 1, tmp_path, stop=STEPS_OF_EPOCH)
    rest = trained("epochs", 1, tmp_path, begun=STEPS_OF_EPOCH)
    assert first + rest == whole


@pytest.mark.parametrize(("version", "at_end", "refused"), [("2.4.0", True, True), ("2.5.2", True, True),
                         ("2.5.2", False, False), ("2.5.3", True, False)])  # fmt: skip
def test_an_older_lightning_is_refused_at_the_end_of_an_epoch(
    version: str, at_end: bool, refused: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its loop would go on with other batches, and nobody would be told."""
    lightning = pytest.importorskip("lightning.pytorch")
    from headrace.errors import UsageError
    from headrace.integrations.lightning import LoaderCallback

    monkeypatch.setattr(lightning, "__version__", version)
    trainer = lightning.Trainer(accelerator="cpu", logger=False)
    trainer.state.fn = "fit"
    loop = {"state_dict": {"combined_loader": [{}]}, "epoch_loop.batch_progress": {"is_last_batch": at_end}}
    with pytest.raises(UsageError, match=f"Lightning {version}") if refused else contextlib.nullcontext():
        LoaderCallback().on_load_checkpoint(trainer, None, {"loops": {"fit_loop": loop}})


@pytest.mark.parametrize(
    ("framework", "before", "after"),
    [
        ("torchrun", 2, 1),
        ("torchrun", 1, 2),
        ("dcp", 2, 1),
        ("dcp", 1, 2),
        ("fabric", 2, 1),
        ("fabric", 1, 2),
        ("torchtitan", 2, 1),
        ("ray", 2, 1),
        ("geometric", 2, 1),
        ("monai", 2, 1),
        ("datasets", 2, 1),
        ("skorch", 1, 1),
    ],
)
def test_a_loop_resumes_from_a_state_that_it_saved(
    framework: str, before: int, after: int, tmp_path: Path, tmp_path_factory: pytest.TempPathFactory
) -> None:
    """On other ranks, with another number of workers: as the plain loop, which `torchrun` is, has gone on."""
    skip_without(LOOPS[framework])
    reference = framework if framework in OF_ITS_OWN else "torchrun"
    whole = undisturbed(reference, tmp_path_factory.getbasetemp())
    first = trained(framework, before, tmp_path, stop=4)
    rest = trained(framework, after, tmp_path, begun=4)
    assert len(whole) == 2 * STEPS_OF_EPOCH
    assert first + rest == whole


@pytest.mark.parametrize(("stream", "before"), [("torchdata", 2), ("webdataset", 2), ("streaming", 1)])
def test_a_stream_resumes_in_mid_epoch(stream: str, before: int, tmp_path: Path) -> None:
    """On one rank, with another number of workers. A run saves its state and reads on: that is the reference."""
    skip_without(STREAMS[stream])
    whole = trained(stream, before, tmp_path, stop=4)
    rest = trained(stream, 1, tmp_path, begun=4)
    assert len(whole) == STEPS_OF_EPOCH
    assert rest == whole[4:]
