"""Training under torchrun is killed with `kill -9` and comes back with other ranks: each sample counts once.

A batch counts if it lies in front of the step from which the next run goes on. All batches that count, in their order,
are those of one rank that nobody interrupts.
"""

from __future__ import annotations

import contextlib
import json
import os
import select
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path

import pytest
import torch.distributed

from tests.servers.networks import inside, torchrun_of_node, two_nodes

from .elastic_program import EPOCHS, STEPS, loader_of

ROOT = Path(__file__).parents[2]
PATIENCE = 120

pytestmark = [
    pytest.mark.thorough,
    pytest.mark.timeout(400),
    pytest.mark.skipif(not torch.distributed.is_gloo_available(), reason="needs gloo"),
    pytest.mark.skipif(not hasattr(os, "pidfd_open"), reason="needs pidfd_open, to see processes end"),
]


@dataclass
class Agent:
    """One torchrun: how it is started, and with which ranks."""

    ranks: int
    options: tuple[str, ...] = ("--standalone", "--local-addr=127.0.0.1")
    prefix: tuple[str, ...] = ()
    interface: str = "lo"


@dataclass
class Job:
    """A job that is started several times. All of its processes are gone when the `with` block ends."""

    folder: Path
    kind: str = "map"
    workers: int = 0
    runs: int = 0
    started: list[subprocess.Popen[bytes]] = field(default_factory=list)

    def __enter__(self) -> Job:
        return self

    def __exit__(self, *error: object) -> None:
        self.kill()

    def start(self, *agents: Agent, **settings: int) -> list[subprocess.Popen[bytes]]:
        """Starts the script under these agents. settings: see the program."""
        self.runs += 1
        given = {"folder": str(self.folder), "run": self.runs, "kind": self.kind, "workers": self.workers, **settings}
        for agent in agents:
            command = [
                *agent.prefix, sys.executable, "-m", "torch.distributed.run", *agent.options,
                f"--nproc-per-node={agent.ranks}", "-m", "tests.loader.elastic_program", json.dumps(given),
            ]  # fmt: skip
            environment = {
                **os.environ,
                "OMP_NUM_THREADS": "1",
                "GLOO_SOCKET_IFNAME": agent.interface,
                # Otherwise ranks that torchrun starts again find the addresses of those before them in its store, and
                # gloo cannot connect (pytorch/pytorch#135712).
                "TORCH_DISABLE_SHARE_RDZV_TCP_STORE": "1",
            }
            with (self.folder / "errors").open("ab") as errors:
                process = subprocess.Popen(
                    command, cwd=ROOT, env=environment, stdout=subprocess.PIPE, stderr=errors, start_new_session=True
                )
            self.started.append(process)
        return self.started

    def run(self, *agents: Agent, **settings: int) -> None:
        """Runs the script to its end."""
        for process in self.start(*agents, **settings):
            process.communicate(timeout=PATIENCE)
            assert process.returncode == 0, self.said()
        self.started.clear()
        wait_for_ends(processes_naming(self.folder))  # workers of ranks that were killed, too

    def run_until_killed(self, *agents: Agent, pause_at: int) -> None:
        """Runs the script until all ranks pause at a step, and kills all processes."""
        for agent, process in zip(agents, self.start(*agents, pause_at=pause_at), strict=True):
            for _ in range(agent.ranks):
                line = self.line_of(process)
                assert line.startswith(b"paused"), self.said()
        self.kill()

    def line_of(self, process: subprocess.Popen[bytes]) -> bytes:
        """Returns the next line that ranks print; nothing if they end, or say nothing for long."""
        assert process.stdout is not None
        line = b""
        deadline = time.monotonic() + PATIENCE
        while not line.endswith(b"\n"):
            ready, _, _ = select.select([process.stdout], [], [], max(deadline - time.monotonic(), 0))
            if not ready or not (byte := os.read(process.stdout.fileno(), 1)):
                break
            line += byte
        return line

    def kill(self) -> None:
        """Kills the agents with all their ranks and workers, and waits until they are gone."""
        kill(processes_naming(self.folder))
        for process in self.started:
            with process:
                process.kill()
        self.started.clear()

    def said(self) -> str:
        return (self.folder / "errors").read_text(errors="replace")[-3000:]

    # -- what it trained on --------------------------------------------------------------------------------------------

    def batches(self, run: int, attempt: int = 0) -> dict[int, list[int]]:
        """Returns the batches of all ranks of a run, by step."""
        paths = sorted(self.folder.glob(f"{run}-{attempt}-*-of-*"), key=lambda path: int(path.name.split("-")[2]))
        parts = [dict(json.loads(line) for line in path.read_text().splitlines()) for path in paths]
        assert len({path.name.rpartition("-")[2] for path in paths}) == 1
        assert len(parts) == int(paths[0].name.rpartition("-")[2])

        # A rank that was killed may lack the last step.
        steps = set.intersection(*(set(part) for part in parts))
        together = {step: zip(*(part[step] for part in parts), strict=True) for step in sorted(steps)}
        return {step: [number for place in places for number in place] for step, places in together.items()}

    def check(self, *attempts: tuple[int, int, int, int]) -> None:
        """Compares with a run that nobody interrupts.

        attempts: run, attempt, the step from which it must have gone on, and its last step.
        """
        whole = reference(self.kind)
        counted: list[list[int]] = []
        for run, attempt, first, last in attempts:
            batches = self.batches(run, attempt)
            assert list(batches) == list(range(first + 1, last + 1))
            assert list(batches.values()) == whole[first:last]
            counted = counted[:first] + list(batches.values())
        assert counted == whole


def processes_naming(folder: Path) -> dict[int, int]:
    """Returns the processes whose command names a folder, with a descriptor of each: agents, ranks and workers."""
    found = {}
    for path in Path("/proc").glob("[0-9]*/cmdline"):
        with contextlib.suppress(FileNotFoundError, ProcessLookupError):
            if str(folder).encode() in path.read_bytes():
                found[int(path.parent.name)] = os.pidfd_open(int(path.parent.name))
    return dict(sorted(found.items()))


def kill(processes: dict[int, int]) -> None:
    """Kills processes, the agents first, since they are the oldest, and waits until all have ended."""
    for descriptor in processes.values():
        with contextlib.suppress(ProcessLookupError):
            signal.pidfd_send_signal(descriptor, signal.SIGKILL)
    wait_for_ends(processes)


def wait_for_ends(processes: dict[int, int]) -> None:
    for pid, descriptor in processes.items():
        ready, _, _ = select.select([descriptor], [], [], PATIENCE)
        os.close(descriptor)
        assert ready, f"process {pid} does not end"


def reference(kind: str) -> list[list[int]]:
    loader = loader_of(kind, 1, 0)
    batches = [batch.tolist() for _ in range(EPOCHS) for batch in loader]
    assert len(batches) == STEPS
    return batches


@pytest.mark.parametrize(("kind", "workers"), [("map", 2), ("stream", 0), ("stream", 2)])
def test_a_killed_run_comes_back_with_three_ranks_and_then_with_one(kind: str, workers: int, tmp_path: Path) -> None:
    with Job(tmp_path, kind, workers) as job:
        # Only rank 0 has saved step 6 when all are killed: step 4 is the last complete one.
        job.run_until_killed(Agent(2), pause_at=6)
        job.run_until_killed(Agent(3), pause_at=11)
        job.run(Agent(1))
        job.check((1, 0, 0, 6), (2, 0, 4, 11), (3, 0, 10, STEPS))


@pytest.mark.parametrize(("kind", "workers"), [("map", 2), ("stream", 0)])
def test_torchrun_starts_the_ranks_again_after_one_was_killed(kind: str, workers: int, tmp_path: Path) -> None:
    with Job(tmp_path, kind, workers) as job:
        agent = Agent(2)
        agent.options += ("--max-restarts=1",)
        job.run(agent, die_at=7)
        job.check((1, 0, 0, 7), (1, 1, 6, STEPS))


# -- two nodes ---------------------------------------------------------------------------------------------------------


@dataclass
class Nodes:
    """Two network namespaces with one line between them."""

    names: tuple[str, str]

    def agents(self, ranks: int, attempt: int) -> list[Agent]:
        """Returns the agents of a job with so many ranks on each node."""
        return [
            Agent(ranks, tuple(torchrun_of_node(number, 29500 + attempt)), inside(name), name)
            for number, name in enumerate(self.names)
        ]


@pytest.fixture
def nodes() -> Iterator[Nodes]:
    """Two nodes."""
    with two_nodes() as names:
        yield Nodes(names)


def test_two_nodes_are_killed_and_come_back_with_twice_the_ranks(nodes: Nodes, tmp_path: Path) -> None:
    with Job(tmp_path, "map") as job:
        job.run_until_killed(*nodes.agents(1, attempt=0), pause_at=6)
        job.run(*nodes.agents(2, attempt=1))
        job.check((1, 0, 0, 6), (2, 0, 4, STEPS))
