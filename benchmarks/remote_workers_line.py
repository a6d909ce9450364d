"""Batches of a worker on another machine over a slow line far away: which part of the line they fill.

A host on this machine stands for the other one, behind `slow_line.py`: 100 ms and 1 Gbit/s by default. The bytes of the
batches that came behind the first one are divided by what the line carries in that time. Each batch is checked.

    python benchmarks/remote_workers_line.py [--round-trip 0.1] [--rate 1e9] [--batches 40] [--rounds 3] [--json FILE]
"""

from __future__ import annotations

import argparse
import contextlib
import multiprocessing
import secrets
import subprocess
import sys
import time
from collections.abc import Iterator
from multiprocessing.connection import Connection
from pathlib import Path

import headrace
import results
from headrace.workers.remote.actors import start_host
from headrace.workers.remote.messages import HostAddress
from ray_rows import Check
from transport import BATCH, CHECKED, ReadySamples


class OneHost:
    """A placement with one place, behind a line."""

    local = 0

    def __init__(self, place: HostAddress) -> None:
        self._place = place
        self._doors: list[Connection] = []

    def open_door(self) -> Connection:
        ours, theirs = multiprocessing.Pipe()
        theirs.send(("place", self._place))
        self._doors.append(theirs)
        return ours

    def close(self) -> None:
        self._doors.clear()


@contextlib.contextmanager
def behind_a_line(round_trip: float, rate: float) -> Iterator[OneHost]:
    """Starts a host and the line to it."""
    key = secrets.token_bytes(32)
    process, control, place = start_host(key, "127.0.0.1", "far-away", str(Path.cwd()), sys.path)
    command = [
        sys.executable, str(Path(__file__).with_name("slow_line.py")), "--to", f"127.0.0.1:{place.port}",
        "--round-trip", str(round_trip), "--rate", str(rate),
    ]  # fmt: skip
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as line:
        try:
            assert line.stdout is not None
            port = int(line.stdout.readline().rpartition(":")[2])
            yield OneHost(place._replace(port=port))
        finally:
            line.terminate()
            control.close()
            process.wait()


def share_of_line(loader: headrace.DataLoader[object], check: Check, rate: float) -> float:
    """Returns which share of the line one epoch fills behind its first batch."""
    nbytes = 0
    began = 0.0
    for number, (images, _) in enumerate(loader):
        if number == 0:
            began = time.perf_counter()
        else:
            nbytes += images.nbytes
        check(number, images)
    return nbytes * 8 / rate / (time.perf_counter() - began)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--round-trip", type=float, default=0.1)
    parser.add_argument("--rate", type=float, default=1e9)
    parser.add_argument("--batches", type=int, default=40)
    parser.add_argument("--rounds", type=int, default=3)
    results.option(parser)
    given = parser.parse_args()
    check = Check()
    shares = []
    with behind_a_line(given.round_trip, given.rate) as hosts:
        loader = headrace.DataLoader(
            ReadySamples(given.batches * BATCH), batch_size=BATCH, seed=0, num_workers=1, persistent_workers=True,
            backend=headrace.Ray(),
        )  # fmt: skip
        loader._session.placement = hosts
        for turn in range(given.rounds + 1):
            share = share_of_line(loader, check, given.rate)
            if turn:
                shares.append(share)
        loader._iterator = None

    title = f"{given.round_trip * 1e3:g} ms and {given.rate / 1e9:g} Gbit/s, batches of 38.5 MB"
    rows = [results.Row("1 worker", {results.OURS: shares, "the line": [1.0] * len(shares)})]
    table = results.Table(title, "share of the line", rows, CHECKED, base="the line")
    results.show(table)
    results.write(given.json, [table])


if __name__ == "__main__":
    main()
