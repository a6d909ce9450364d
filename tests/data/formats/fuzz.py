"""Damages stored data at random and reads them: `python tests/data/formats/fuzz.py --seconds 60 --seed N [--format F]`.

Each batch of cases runs in a process of its own, so that one that dies, hangs or takes too much memory is noticed.
`--case N` runs one case again and shows the whole traceback. The exit status is 1 if there were findings.
"""

from __future__ import annotations

import argparse
import json
import os
import resource
import select
import shutil
import signal
import sys
import tempfile
import time
import traceback
import warnings
from collections import Counter
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

sys.path.insert(0, str(Path(__file__).parents[3]))

from headrace.data.formats.registry import FORMATS, format_named
from tests.data.formats import damage, samples

PER_BATCH = 150
PATIENCE = 20.0  # seconds for one case
MEMORY = 2 << 30
"""Bytes that a case may take beyond what the process has at its beginning."""


@dataclass(frozen=True)
class Job:
    """Where sound data lie, where they are damaged, and what decides the damage."""

    masters: Path
    room: Path
    format: str
    seed: int


def make_masters(root: Path, formats: list[str]) -> None:
    """Writes sound data of each format, a file and a folder of shards where there are both."""
    for format in formats:
        for sharded in range(len(samples.PATHS.get(format, ("data",)))):
            folder = root / format / str(sharded)
            folder.mkdir(parents=True)
            block = samples.usual(format, count=12)
            samples.write(format, samples.path_of(format, folder, bool(sharded)), samples.halves(block))


def run_case(job: Job, case: int) -> dict[str, str] | None:
    """Runs one case. Returns a finding, or None."""
    rng = np.random.default_rng([job.seed, case])
    sharded = int(rng.integers(len(samples.PATHS.get(job.format, ("data",)))))
    folder = job.room / str(case)
    shutil.copytree(job.masters / job.format / str(sharded), folder)
    what = damage.mutate(folder, rng)
    path = samples.path_of(job.format, folder, bool(sharded))
    given = job.format if rng.random() < 0.5 else None
    fault = error = None
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        try:
            damage.read_all(path, given)
        except Exception as raised:  # noqa: BLE001 - which ones there are is the question
            error, fault = raised, damage.fault_of(raised, folder)
    strange = [one for one in caught if one.category is not UserWarning]
    if fault is None and strange:
        fault = (
            f"warning {strange[0].category.__name__}: {strange[0].message} ({strange[0].filename}:{strange[0].lineno})"
        )
    shutil.rmtree(folder)
    if fault is None:
        return None
    text = "".join(traceback.format_exception(error)) if error is not None else fault
    return {"what": what, "fault": fault, "error": type(error).__name__, "group": group_of(error, fault), "text": text}


def group_of(error: BaseException | None, fault: str) -> str:
    """Returns what findings have in common: the class, and the last line of our code."""
    if error is None:
        return fault
    frames = traceback.extract_tb(error.__traceback__)
    ours = [f"{Path(f.filename).name}:{f.lineno} {f.name}" for f in frames if "headrace" in f.filename]
    last = f"{Path(frames[-1].filename).name}:{frames[-1].name}"
    return f"{type(error).__name__} at {ours[-1] if ours else '?'} in {last}: {fault}"


def limit_memory() -> None:
    """Lets this process take no more than some memory beyond what it has."""
    pages = int(Path("/proc/self/statm").read_text().split()[0])
    _, hard = resource.getrlimit(resource.RLIMIT_AS)
    resource.setrlimit(resource.RLIMIT_AS, (pages * resource.getpagesize() + MEMORY, hard))
    resource.setrlimit(resource.RLIMIT_CORE, (0, 0))


def run_batch(job: Job, cases: range, deadline: float) -> list[dict[str, Any]]:
    """Runs cases in a process of their own. Returns findings; `cases` of them is the number of those that ran."""
    reading, writing = os.pipe()
    pid = os.fork()
    if pid == 0:
        _child(reading, writing, job, cases, deadline)
    os.close(writing)
    findings, last, data = [], cases.start, b""
    while True:
        ready, _, _ = select.select([reading], [], [], PATIENCE)
        part = os.read(reading, 1 << 16) if ready else b""
        if not part:
            break
        data += part
        *lines, data = data.split(b"\n")
        for line in lines:
            found = json.loads(line)
            if isinstance(found, int):
                last = found
            else:
                findings.append(found | {"case": last, "format": job.format})
    hung = bool(ready) is False
    if hung:
        os.kill(pid, signal.SIGKILL)
    os.close(reading)
    status = os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1])
    if status != 0 or hung:
        name = "HANG" if hung else signal.Signals(-status).name if status < 0 else f"exit status {status}"
        what = damaged_by(job, last)
        shutil.rmtree(job.room, ignore_errors=True)
        findings.append(
            {
                "what": what,
                "fault": name,
                "error": name,
                "group": name,
                "text": name,
                "case": last,
                "format": job.format,
            }
        )
    findings.append({"ran": str(last - cases.start + 1)})
    return findings


def _child(reading: int, writing: int, job: Job, cases: range, deadline: float) -> None:
    status = 70
    try:
        os.close(reading)
        errors = os.open(os.devnull, os.O_WRONLY)
        os.dup2(errors, 2)
        limit_memory()
        with os.fdopen(writing, "w", buffering=1) as out:
            for case in cases:
                if time.monotonic() > deadline:
                    break
                out.write(f"{case}\n")
                found = run_case(job, case)
                if found is not None:
                    out.write(json.dumps(found) + "\n")
        status = 0
    finally:
        os._exit(status)


def damaged_by(job: Job, case: int) -> str:
    """Returns what was done to the data in a case that did not come back."""
    rng = np.random.default_rng([job.seed, case])
    sharded = int(rng.integers(len(samples.PATHS.get(job.format, ("data",)))))
    folder = job.room / "again"
    shutil.rmtree(folder, ignore_errors=True)
    shutil.copytree(job.masters / job.format / str(sharded), folder)
    return damage.mutate(folder, rng)


def main() -> int:
    """Runs cases until the time is over. Returns the exit status."""
    parser = argparse.ArgumentParser(description="Damages stored data at random and reads them.")
    parser.add_argument("--seconds", type=float, default=60)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--format", choices=samples.FORMATS, action="append")
    parser.add_argument("--case", type=int, help="only this one, in this process")
    given = parser.parse_args()
    for name in FORMATS:
        format_named(name)
    formats, say = given.format or list(samples.FORMATS), sys.stdout.write
    with tempfile.TemporaryDirectory(prefix="headrace-fuzz-") as folder:
        masters, room = Path(folder) / "masters", Path(folder) / "room"
        pid = os.fork()  # what writing starts (threads) is then not in the process that forks
        if pid == 0:
            try:
                make_masters(masters, formats)
                os._exit(0)
            finally:
                traceback.print_exc()
                os._exit(1)
        if os.waitpid(pid, 0)[1] != 0:
            return 2
        if given.case is not None:
            found = run_case(Job(masters, room, formats[0], given.seed), given.case)
            say(json.dumps(found, indent=1).replace("\\n", "\n") + "\n")
            return int(found is not None)
        return _run(masters, room, formats, given.seed, given.seconds)


def _run(masters: Path, room: Path, formats: list[str], seed: int, seconds: float) -> int:
    say = sys.stdout.write
    say(f"seed {seed}, {seconds:g} seconds, formats: {', '.join(formats)}\n")
    deadline, start, ran = time.monotonic() + seconds, 0, Counter[str]()
    groups: Counter[tuple[str, str]] = Counter()
    examples: dict[tuple[str, str], dict[str, str]] = {}
    while time.monotonic() < deadline:
        for format in formats:
            until = min(deadline, time.monotonic() + max(seconds / len(formats) / 3, 2))
            for found in run_batch(Job(masters, room, format, seed), range(start, start + PER_BATCH), until):
                if "ran" in found:
                    ran[format] += int(found["ran"])
                    continue
                key = format, found["group"]
                groups[key] += 1
                if examples.setdefault(key, found) is found:
                    say(f"{format}, case {found['case']}: {found['what']}: {found['group']}\n")
                    sys.stdout.flush()
        start += PER_BATCH
    say(f"\n{sum(ran.values())} cases ({', '.join(f'{name} {count}' for name, count in ran.items())})\n")
    for (format, group), count in groups.most_common():
        found = examples[format, group]
        tail = "\n    ".join(found["text"].strip().splitlines()[-12:])
        say(f"\n{count} x {format}: {group}\n  case {found['case']}: {found['what']}\n    {tail}\n")
    say(f"\n{sum(groups.values())} findings in {len(groups)} groups, seed {seed}\n")
    return int(bool(groups))


if __name__ == "__main__":
    sys.exit(main())
