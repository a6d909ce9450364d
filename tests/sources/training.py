"""Runs `tests.sources.trainer`, kills parts of it, and looks at what it has trained on."""

from __future__ import annotations

import contextlib
import json
import os
import random
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path

PATIENCE = 60.0
"""Seconds that a run may take."""

ROOT = Path(__file__).resolve().parents[2]


@dataclass
class Training:
    """One training over all records of a source, begun anew until it is through."""

    folder: Path
    settings: dict[str, object]
    runs: int = 0
    log: list[str] = field(default_factory=list)

    @staticmethod
    def of(folder: Path, uri: str, opened: dict[str, object], **settings: object) -> Training:
        folder.mkdir(parents=True, exist_ok=True)
        loader = {"shuffle": True, "seed": 3, "shard": "auto"}
        return Training(
            folder, {"uri": uri, "open": opened, "loader": loader, "batch": 16, "checkpoint_every": 3, **settings}
        )

    def start(self, *, workers: int = 0, ranks: int = 1) -> subprocess.Popen[bytes]:
        """Starts the script, from its last checkpoint."""
        self.runs += 1
        for old in self.folder.glob("pids-*.json"):
            old.unlink()
        loader = {**self.settings["loader"], "num_workers": workers}  # type: ignore[dict-item]
        path = self.folder / "settings.json"
        path.write_text(json.dumps({**self.settings, "loader": loader}))
        command = [sys.executable, "-m", "tests.sources.trainer", str(path)]
        if ranks > 1:
            options = ["--standalone", f"--nproc-per-node={ranks}", "--local-addr=127.0.0.1", "-m"]
            command = [sys.executable, "-m", "torch.distributed.run", *options, *command[2:]]
        environment = {**os.environ, "OMP_NUM_THREADS": "1"}
        with (self.folder / "log").open("ab") as log:
            return subprocess.Popen(command, cwd=ROOT, env=environment, stdout=log, stderr=log, start_new_session=True)

    def run(self, **how: int) -> None:
        """Runs it to its end."""
        process = self.start(**how)
        if self.wait(process) != 0 or not self.is_done:
            raise AssertionError(self.said())

    def wait(self, process: subprocess.Popen[bytes]) -> int:
        """Waits for the end of a run; one that does not come to it is ended."""
        try:
            return process.wait(PATIENCE)
        except subprocess.TimeoutExpired:
            end(process)
            raise AssertionError(f"it hangs: {self.said()}") from None

    def wait_for_batches(self, process: subprocess.Popen[bytes], count: int) -> None:
        """Waits until a checkpoint of a run has so many batches."""
        deadline = time.monotonic() + PATIENCE
        while not (self.folder / "checkpoint.json").exists() or len(self.trained()) < count:
            if process.poll() is not None or time.monotonic() > deadline:
                end(process)
                raise AssertionError(self.said())
            time.sleep(0.01)

    @property
    def is_done(self) -> bool:
        return (self.folder / "done").exists()

    def said(self) -> str:
        return (self.folder / "log").read_text(errors="replace")[-3000:]

    def pids(self) -> dict[str, list[int]]:
        """Returns the processes of the run, by what they are, as soon as they are known."""
        found: dict[str, list[int]] = {"trainer": [], "workers": [], "io": []}
        for path in self.folder.glob("pids-*.json"):
            told = json.loads(path.read_text())
            found["trainer"].append(told["trainer"])
            found["workers"] += told["workers"]
            found["io"].append(told["io"])
        return found

    def trained(self) -> list[list[int]]:
        """Returns the numbers of the samples of each batch, by the last checkpoint."""
        return json.loads((self.folder / "checkpoint.json").read_text())["trained"]  # type: ignore[no-any-return]

    def run_with_kills(self, rng: random.Random, kills: int, hurt_broker: Callable[[random.Random], None]) -> int:
        """Runs it to its end, while parts of it are killed at random moments. Returns how many were."""
        done = 0
        while not self.is_done:
            process = self.start(workers=rng.choice([0, 1, 2]), ranks=rng.choice([1, 1, 2]))
            while process.poll() is None and done < kills:
                time.sleep(rng.uniform(0.05, 0.6))
                victim = rng.choice(["trainer", "trainer", "workers", "io", "broker"])
                if victim == "broker":
                    self.log.append("broker")
                    hurt_broker(rng)
                    done += 1
                    continue
                pids = self.pids()[victim]
                if not pids:
                    continue
                with contextlib.suppress(ProcessLookupError):
                    os.kill(rng.choice(pids), signal.SIGKILL)
                    self.log.append(victim)
                    done += 1
                if victim == "trainer":
                    end(process)
            self.wait(process)
            if done >= kills and self.runs > 5 * kills + 10:
                raise AssertionError(self.said())
        return done


def end(process: subprocess.Popen[bytes]) -> None:
    """Ends a run, and all that belongs to it."""
    with contextlib.suppress(ProcessLookupError):
        os.killpg(process.pid, signal.SIGKILL)
    process.wait()
