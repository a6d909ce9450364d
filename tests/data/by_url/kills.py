"""Kills at random what reads data by URL: `python tests/data/by_url/kills.py --rounds 100 --seed N [--round N]`.

In each round two trainers with one cache between them read a bucket of a real server, and one to three times something
is killed: a trainer, a worker, the I/O process, or the server, which may also stop for a while. Killed trainers go on
from the state that they saved last. Both must get the batches of an undisturbed run from local files, the cache must be
whole behind it, and nothing may be left. `--round N` runs one round again. The exit status is 1 if there were findings.
"""

from __future__ import annotations

import argparse
import contextlib
import dataclasses
import os
import random
import shutil
import sys
import tempfile
import time
import zlib
from collections import Counter
from pathlib import Path
from typing import Any

import numpy as np

sys.path.insert(0, str(Path(__file__).parents[3]))

from headrace.data.formats.columns import block_from
from headrace.data.formats.columns.schema import Field, Schema
from headrace.data.formats.registry import open_writer
from tests.data.by_url.places import BUCKET, KINDS, Place, places
from tests.data.by_url.rounds import EPOCHS, TRAINERS, Event, Finding, Plan, Round, Trainers, undisturbed

FORMS = {
    "folder": "classes",
    "pt": "samples",
    "webdataset": "shards.tar",
    "parquet": "rows.parquet",
    "npy": "rows.npy",
}
ROWS = 160
WIDTH = 4000
"""Numbers of 4 bytes in a sample."""

LONG_STOP = 30.0


def plan_of(seed: int, number: int, kinds: list[str], sizes: dict[str, int], *, long_stop: bool) -> Plan:
    """Draws a round.

    kinds: of servers that are there. sizes: of the data, by form. long_stop: whether the server stops for 30 seconds.
    """
    drawn = random.Random(f"{seed} {number}")
    form = drawn.choice(list(FORMS))
    weights = {"nginx": 7, "faulty": 2, "seaweed": 1}
    place = drawn.choices(kinds, [weights[kind] for kind in kinds])[0]
    workers = drawn.choice([0, 2, 2])
    limit = drawn.choice([None, max(sizes[form] // 2, 1_000_000)])
    victims = ["trainer", "server", "stop"]
    if workers:
        victims += ["worker", "worker", "io", "io"]

    batches = EPOCHS * -(-ROWS // 8)
    events = []
    for count in range(drawn.choice([1, 1, 2, 3])):
        victim = drawn.choice(victims)
        seconds = drawn.choice([0.0, 0.3, 1.0])
        if long_stop and count == 0:
            victim = "stop"
            seconds = LONG_STOP
        moment = drawn.choice([*TRAINERS, "bytes"])
        amount = drawn.randrange(batches)
        if moment == "bytes":
            amount = drawn.randrange(sizes[form])
        if victim == "server" and place == "seaweed" and number % 4:
            victim = "stop"  # it takes 20 seconds to start
        events.append(Event(moment, amount, victim, drawn.choice(TRAINERS), seconds))

    return Plan(form, FORMS[form], place, workers, limit, tuple(events))


# -- the data ----------------------------------------------------------------------------------------------------------


def write_data(root: Path) -> dict[str, int]:
    """Writes the data of each form. Returns the bytes of each."""
    arrays = Schema((Field("x", "fixed", np.dtype(np.float32), (WIDTH,)), Field("y", "fixed", np.dtype(np.int64))))
    files = Schema((Field("text", "text"), Field("label", "fixed", np.dtype(np.int64), (), ("a", "b"))))
    rng = np.random.default_rng(7)
    sizes = {}
    for form, name in FORMS.items():
        schema = files if form == "folder" else arrays
        rows: list[dict[str, Any]] = []
        for number in range(ROWS):
            row = {
                "x": rng.normal(size=WIDTH).astype(np.float32),
                "y": np.int64(number),
                "text": rng.bytes(WIDTH * 2).hex(),
                "label": np.int64(number % 2),
            }
            rows.append({column: row[column] for column in schema.names})
        writer = open_writer(root / name, schema, form)
        for start in range(0, ROWS, 16):
            writer.append(block_from(schema, rows[start : start + 16]))
        writer.seal()
        sizes[form] = sum(path.stat().st_size for path in [root / name, *(root / name).rglob("*")] if path.is_file())

    return sizes


# -- all of them -------------------------------------------------------------------------------------------------------


@dataclasses.dataclass
class Outcome:
    """What became of some rounds."""

    rounds: int = 0
    killed: Counter[str] = dataclasses.field(default_factory=Counter)
    findings: list[str] = dataclasses.field(default_factory=list)
    seconds: float = 0.0

    def __str__(self) -> str:
        killed = ", ".join(f"{what} {count}" for what, count in sorted(self.killed.items()))
        return f"{self.rounds} rounds, {self.killed.total()} kills ({killed}), {len(self.findings)} findings"


def shared_memory() -> set[str]:
    """Returns the files in /dev/shm that this user has made."""
    found = set()
    for path in Path("/dev/shm").iterdir():
        with contextlib.suppress(OSError):
            if path.stat().st_uid == os.geteuid():
                found.add(path.name)
    return found


def new_seed() -> int:
    """Returns a seed that was not there before."""
    return zlib.crc32(os.urandom(8))


def run(
    seed: int,
    numbers: range,
    root: Path,
    *,
    long_every: int = 0,
    seconds: float = 3600,
    servers: tuple[str, ...] = KINDS,
) -> Outcome:
    """Runs rounds until they are over, or the time is.

    long_every: in one of so many rounds the server stops for 30 seconds; 0: in none. servers: their kinds; those that
    are not installed are left out.
    """
    outcome = Outcome()
    began = time.monotonic()
    data = root / "data" / BUCKET
    data.mkdir(parents=True)
    sys.stdout.write(f"seed {seed}\n")
    trainers = Trainers()
    expected: dict[str, list[int]] = {}
    try:
        sizes = write_data(data)
        with places(data.parent, root, servers) as running:
            for number in numbers:
                if time.monotonic() - began > seconds:
                    break
                is_long = long_every > 0 and number % long_every == long_every - 1
                plan = plan_of(seed, number, list(running), sizes, long_stop=is_long)
                if plan.form not in expected:
                    expected[plan.form] = undisturbed(trainers, plan.form, data / FORMS[plan.form], root / plan.form)
                found = _run_round(
                    seed, number, plan, trainers, running[plan.place], root, expected[plan.form], outcome
                )
                sys.stdout.write(found)
                sys.stdout.flush()
    finally:
        trainers.close()
    outcome.seconds = time.monotonic() - began
    return outcome


def _run_round(
    seed: int,
    number: int,
    plan: Plan,
    trainers: Trainers,
    place: Place,
    root: Path,
    expected: list[int],
    outcome: Outcome,
) -> str:
    """Runs one round, and writes into the outcome. Returns a line about it."""
    folder = root / f"round-{number}"
    folder.mkdir()
    in_memory = shared_memory()
    began = time.monotonic()
    current = Round(plan, trainers, place, folder)
    said = "sound"
    try:
        current.run(expected)
        current.check()
        left = {name for name in shared_memory() - in_memory if "headrace" in name}
        if left:
            raise Finding(f"shared memory is left: {left}")
        shutil.rmtree(folder)
    except Finding as finding:
        said = str(finding)
        outcome.findings.append(f"seed {seed}, round {number}, {plan}: {finding}")
        current.close()
        place.start()

    outcome.rounds += 1
    outcome.killed += current.killed
    took = time.monotonic() - began
    what = " ".join(f"{event.victim}@{event.moment}:{event.amount}" for event in plan.events)
    return f"{number:4} {took:6.1f} s  {plan.form} {plan.place} {plan.workers} {plan.limit} {what}: {said}\n"


def main() -> int:
    """Runs rounds. Returns the exit status."""
    parser = argparse.ArgumentParser(description="Kills at random what reads data by URL.")
    parser.add_argument("--rounds", type=int, default=100)
    parser.add_argument("--seed", type=int, default=new_seed())
    parser.add_argument("--seconds", type=float, default=3600, help="no round begins after these")
    parser.add_argument("--long-every", type=int, default=20, help="in one of so many rounds the server stops for 30 s")
    parser.add_argument("--round", type=int, help="only this one")
    given = parser.parse_args()
    numbers = range(given.rounds)
    if given.round is not None:
        numbers = range(given.round, given.round + 1)

    with tempfile.TemporaryDirectory(prefix="headrace-kills-", ignore_cleanup_errors=True) as folder:
        outcome = run(given.seed, numbers, Path(folder), long_every=given.long_every, seconds=given.seconds)
    for finding in outcome.findings:
        sys.stdout.write(f"\n{finding}\n")
    sys.stdout.write(f"\nseed {given.seed}: {outcome}, {outcome.seconds:.0f} s\n")
    return int(bool(outcome.findings))


if __name__ == "__main__":
    sys.exit(main())
