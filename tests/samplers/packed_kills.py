"""Kills a two-rank torchrun at random while it trains on packs: `python tests/samplers/packed_kills.py --kills 200`.

A rank or torchrun itself is killed after a random number of steps, and the run is started again, until its epoch is
over; then another one begins. In each epoch every step must have had the batches of an undisturbed run.
"""

from __future__ import annotations

import argparse
import contextlib
import json
import os
import random
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).parents[2]))

from headrace.core.process.memory import process_tree
from headrace.samplers import PackedBatchSampler
from tests.samplers.packed_trainer import DOCUMENTS, LENGTHS, ORDER

RANKS = 2
LIMIT = 100.0
"""Seconds of one start."""


def expected() -> list[list[int]]:
    """Returns the documents of each batch of an undisturbed run, over all ranks."""
    return [list(batch) for batch in PackedBatchSampler(LENGTHS, rank=0, world_size=1, uneven="pad", **ORDER)]


def lines_of(folder: Path, rank: int) -> list[dict[str, Any]]:
    """Returns what a rank has written; a line that was cut by a kill is left out."""
    path = folder / f"trained-{rank}"
    if not path.exists():
        return []
    found = []
    for line in path.read_text().splitlines():
        with contextlib.suppress(json.JSONDecodeError):
            found.append(json.loads(line))
    return found


def kill(processes: Iterable[int]) -> None:
    """Kills those of the processes that are still there."""
    for process in processes:
        with contextlib.suppress(ProcessLookupError):
            os.kill(process, signal.SIGKILL)


@contextlib.contextmanager
def started(folder: Path, workers: int) -> Iterator[subprocess.Popen[str]]:
    """Starts torchrun, of which nothing is left behind."""
    launcher = ["-m", "torch.distributed.run", "--standalone", f"--nproc-per-node={RANKS}"]
    script = [str(Path(__file__).with_name("packed_trainer.py")), str(folder), str(workers)]
    environment = {**os.environ, "OMP_NUM_THREADS": "1", "PYTHONPATH": os.pathsep.join(filter(None, sys.path))}
    command = [sys.executable, *launcher, *script]
    with subprocess.Popen(
        command, env=environment, text=True, stdout=subprocess.DEVNULL, stderr=subprocess.PIPE
    ) as process:
        try:
            yield process
        finally:
            if process.poll() is None:
                kill(process_tree(process.pid))


def run_and_kill(folder: Path, drawn: random.Random) -> bool:
    """Starts the training, and kills one of its processes after some steps. Tells whether it was killed."""
    workers = drawn.choice([0, 0, 1])
    before = [len(lines_of(folder, rank)) for rank in range(RANKS)]
    victim = drawn.randrange(RANKS + 1)
    watched = min(victim, RANKS - 1)
    steps = drawn.randrange(12)
    with started(folder, workers) as process:
        until = time.monotonic() + LIMIT
        while process.poll() is None and time.monotonic() < until:
            lines = lines_of(folder, watched)[before[watched] :]
            pids = [line["pid"] for line in lines if "pid" in line]
            if pids and len(lines) > steps:
                if victim < RANKS:
                    kill(pids[:1])
                    process.communicate(timeout=LIMIT)
                else:
                    # Its ranks have sessions of their own, and would train on beside the next start.
                    ranks = process_tree(process.pid)
                    kill([process.pid])
                    kill(ranks)
                return True
            time.sleep(0.002)
        _, errors = process.communicate(timeout=LIMIT)
    if process.returncode:
        raise AssertionError(f"the training failed by itself:\n{errors[-3000:]}")
    return False


def check(folder: Path) -> None:
    """Raises `AssertionError` unless each step had the batches of an undisturbed run, and each document came once."""
    batches = expected()
    trained: dict[tuple[int, int], list[int]] = {}
    for rank in range(RANKS):
        for line in lines_of(folder, rank):
            if "step" in line:
                # A step whose state was not saved is trained again, with the same documents.
                known = trained.setdefault((line["step"], rank), line["documents"])
                assert known == line["documents"], (rank, line, known)

    steps = -(-len(batches) // RANKS)
    missing = {(step, rank) for step in range(1, steps + 1) for rank in range(RANKS)} ^ trained.keys()
    assert not missing, f"steps and ranks that are missing, or too many: {sorted(missing)}"
    together = [trained[step, rank] for step in range(1, steps + 1) for rank in range(RANKS)]
    assert together[: len(batches)] == batches
    assert sorted(key for batch in together[: len(batches)] for key in batch) == list(range(DOCUMENTS))


def run(seed: int, kills: int, root: Path) -> tuple[int, int]:
    """Kills so often, and trains what has begun to its end. Returns the kills and the epochs."""
    drawn = random.Random(seed)
    done = epochs = 0
    while done < kills:
        folder = root / f"epoch-{epochs}"
        folder.mkdir()
        while not (folder / "done").exists():
            if done < kills:
                done += run_and_kill(folder, drawn)
                continue
            with started(folder, 0) as process:
                _, errors = process.communicate(timeout=LIMIT)
            assert process.returncode == 0, errors[-3000:]
        check(folder)
        epochs += 1
    return done, epochs


def main() -> None:
    """Kills, and says what came of it."""
    parser = argparse.ArgumentParser(description="Kills a training on packs at random.")
    parser.add_argument("--kills", type=int, default=200)
    parser.add_argument("--seed", type=int, default=random.SystemRandom().randrange(1 << 30))
    given = parser.parse_args()
    sys.stdout.write(f"seed {given.seed}\n")
    sys.stdout.flush()
    with tempfile.TemporaryDirectory(prefix="headrace-packed-") as folder:
        kills, epochs = run(given.seed, given.kills, Path(folder))
    sys.stdout.write(f"{kills} kills in {epochs} epochs: every document came once, in the batches of a whole run\n")


if __name__ == "__main__":
    main()
