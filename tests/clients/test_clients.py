"""Code that nobody here wrote: real frameworks get the same batches from headrace's loader as from torch's.

Each script of `scripts/` runs five times: as it is, with `DataLoader` imported from headrace, with that one's batches
on a simulated accelerator, under `headrace run`, and after `headrace.use()`. The batches of each rank, in
their order, must be those of torch's loader, and headrace's class must be the one that the framework iterates. `make
test-clients` installs the frameworks into an environment of its own.
"""

from __future__ import annotations

import functools
import importlib.util
import os
import signal
import subprocess
import sys
from importlib.metadata import version
from pathlib import Path
from typing import NamedTuple

import pytest

from headrace.core.text.versions import numbers_of
from tests.servers.processes import free_ports

pytestmark = [pytest.mark.clients, pytest.mark.timeout(300)]

SCRIPTS = Path(__file__).parent / "scripts"


class Client(NamedTuple):
    """A framework, and the way in which its script is started."""

    name: str
    needs: str
    """The modules without which there is nothing to try."""
    script: str
    launcher: tuple[str, ...] = ()
    """What stands before the script: arguments of `python`."""
    arguments: tuple[str, ...] = ()
    builds_its_own: bool = False
    """Whether the framework makes its loader from torch's class, so that an import in the script changes nothing."""
    own_iterator: bool = False
    """Whether that loader also makes torch's iterator itself, so that no loader of headrace's makes the batches."""


def torchrun(ranks: int) -> tuple[str, ...]:
    """Returns the arguments of `python` that start a script on so many ranks."""
    return ("-m", "torch.distributed.run", "--standalone", f"--nproc-per-node={ranks}")


TORCHRUN = torchrun(2)
# With `--cpu` it starts one process, whatever the number; the scripts ask for CPUs themselves. Older versions take port
# 0 as it is, instead of a free one, and the ranks never meet.
LAUNCH = ("-m", "accelerate.commands.launch", "--multi_gpu", "--num_processes=2", "--num_machines=1",
          "--mixed_precision=no", "--dynamo_backend=no", f"--main_process_port={free_ports(1)[0]}")  # fmt: skip

CLIENTS = [
    Client("lightning", "lightning", "lightning_fit.py"),
    Client("lightning-ddp", "lightning", "lightning_ddp.py"),
    Client("accelerate", "accelerate", "accelerate_prepare.py", builds_its_own=True),
    Client("accelerate-stateful", "accelerate", "accelerate_prepare.py", (), ("stateful",), builds_its_own=True),
    Client("accelerate-launch", "accelerate", "accelerate_prepare.py", LAUNCH, builds_its_own=True),
    Client("transformers", "transformers", "transformers_trainer.py", builds_its_own=True),
    Client("torch-geometric", "torch_geometric", "geometric.py"),
    Client("skorch", "skorch", "skorch_net.py"),
    Client("datasets", "datasets", "hf_datasets.py"),
    Client("monai", "monai", "monai_loader.py"),
    Client("torchrun", "torch", "torchrun_ddp.py", TORCHRUN),
    Client("mp-spawn", "torch", "mp_spawn.py"),
    Client("torchdata", "torchdata", "torchdata_stateful.py"),
    Client("torchdata-nodes", "torchdata.nodes", "torchdata_nodes.py"),
    Client("webdataset", "webdataset", "webdataset_stream.py"),
    Client("litdata", "litdata", "litdata_streaming.py"),
    Client("litdata-own", "litdata", "litdata_streaming.py", (), ("own",), builds_its_own=True, own_iterator=True),
    Client("mosaicml", "torchvision streaming", "mosaicml_streaming.py"),
    Client("mosaicml-own", "torchvision streaming", "mosaicml_streaming.py", (), ("own",), builds_its_own=True),
]

WHY = {
    "torchvision": ": mosaicml-streaming imports it, and PyPI has builds for torch with CUDA only",
    "streaming": ": to try it, pip install mosaicml-streaming",
}
"""Why `make test-clients` does not install a module."""


class Delivered(NamedTuple):
    """What a script said."""

    batches: dict[int, list[str]]
    """Of each rank, in their order."""
    classes: dict[int, set[str]]
    """Of each rank: the loaders that were iterated, "torch" or "headrace"."""
    report: str


def output_of(command: list[str], environment: dict[str, str]) -> tuple[str, str]:
    """Runs a command beside the scripts, with all that it starts. Returns what it printed, and its errors."""
    environment = {**environment, "PYTHONFAULTHANDLER": "1"}  # a process that aborts says where its threads were
    with subprocess.Popen(
        command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, env=environment, cwd=SCRIPTS,
        start_new_session=True,
    ) as process:  # fmt: skip
        try:
            printed, errors = process.communicate(timeout=200)
        except subprocess.TimeoutExpired:
            os.killpg(process.pid, signal.SIGKILL)  # the ranks too
            raise
    assert process.returncode == 0, errors[-4000:]
    return printed, errors


@functools.cache
def outcome(client: Client, way: str) -> Delivered:
    """Runs a client's script in one of the five ways."""
    start = [sys.executable, *(["-m", "headrace", "run"] if way == "run" else [])]
    script = [str(SCRIPTS / client.script)]
    if way == "use":
        script = [str(SCRIPTS / "with_use.py"), *script]
    command = [*start, *client.launcher, *script, *client.arguments]
    environment = {**os.environ, "OMP_NUM_THREADS": "1", "COLUMNS": "160", "TOKENIZERS_PARALLELISM": "false"}
    environment.pop("IMPORTED_FROM", None)
    environment.pop("ON_DEVICE", None)
    if way in ("import", "device"):
        environment["IMPORTED_FROM"] = "headrace"
    if way == "device":
        environment["ON_DEVICE"] = "1"
    printed, errors = output_of(command, environment)
    batches: dict[int, list[str]] = {}
    classes: dict[int, set[str]] = {}
    for line in printed.splitlines():
        kind, _, rest = line.partition(" ")
        rank, _, said = rest.partition(" ")
        if kind == "batch":
            batches.setdefault(int(rank), []).append(said)
        elif kind == "class":
            classes.setdefault(int(rank), set()).add(said)
    return Delivered(batches, classes, errors)


@pytest.mark.parametrize("way", ["torch", "import", "device", "run", "use"])
@pytest.mark.parametrize("client", CLIENTS, ids=lambda client: client.name)
def test_a_framework_gets_the_same_batches(client: Client, way: str) -> None:
    for module in client.needs.split():
        if importlib.util.find_spec(module) is None:
            pytest.skip(f"{module} is not installed{WHY.get(module, ': `make test-clients` installs it')}")
    if way == "device" and client.builds_its_own:
        pytest.skip("the framework takes the loader's dataset and samplers, and moves batches itself")
    if client.launcher is LAUNCH and way in ("run", "use") and numbers_of(version("accelerate")) < (1, 13):
        pytest.skip("on several ranks, Accelerate before 1.13 takes the state of any loader for that of torchdata's")
    reference = outcome(client, "torch")
    assert reference.batches
    assert all(reference.batches.values())
    seen = outcome(client, way)
    assert seen.batches == reference.batches
    expected = "torch" if way == "torch" or (way == "import" and client.builds_its_own) else "headrace"
    assert seen.classes == {rank: {expected} for rank in reference.classes}
    if way == "run":
        assert f"{'torch' if client.own_iterator else 'headrace'}'s loader" in seen.report
        for rank in range(1, len(reference.batches)):
            assert f"rank {rank}" in seen.report
