"""Photos that workers on several machines decode: which share each machine takes, and what that costs the trainer.

The loaders make uint8 batches [64, 3, 224, 224] of JPEGs with Pillow. The setups take turns: headrace with 2 local
workers, with 2 workers on each of two other machines, and with all of these together; torch with 2 workers. Workers are
kept from epoch to epoch. The other machines, host one and host two, are network namespaces; a pair of virtual links
joins each to the trainer. A training step sleeps.

All machines are in truth this one. They share its cores and its disk, so remote workers cannot make the rate grow here:
it is not the rate of a cluster. The figures show the share of the work that each machine takes, and the CPU time that
remote workers cost on the trainer's machine: that of the trainer, and of the proxies that stand for remote workers.

Every batch of every epoch is compared with that of the 2 local workers, bit by bit. The CPU time of that does not count
as the trainer's. Printed are medians over the rounds. Namespaces need root, and the programs `ip` and `tc`.

    python benchmarks/remote_decoding.py [--photos 2000] [--rounds 5] [--step 0.02]
"""

from __future__ import annotations

import argparse
import contextlib
import os
import statistics
import sys
import tempfile
import time
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from PIL import Image
from torch.utils.data import DataLoader as TorchLoader
from torch.utils.data import Dataset

sys.path.insert(0, str(Path(__file__).parents[1]))  # where `examples` and `tests` are

from examples.photos import make_photo_folder
from tests.servers.hosts import HostsHere, Machine, placed_on
from tests.servers.networks import networks

import headrace
from headrace.core.process.memory import process_tree

BATCH = 64
SIZE = 224
LOCAL = 2
REMOTE = 4
PARTIES = ("trainer", "local workers", "proxies", "host one", "host two")
PATIENCE = 120.0
"""Seconds that all hosts of a setup may take to come."""


class Photos(Dataset[torch.Tensor]):
    """JPEGs, decoded and resized to uint8 [3, SIZE, SIZE]."""

    def __init__(self, paths: list[str]) -> None:
        self.paths = paths

    def __len__(self) -> int:
        return len(self.paths)

    def __getitem__(self, index: int) -> torch.Tensor:
        with Image.open(self.paths[index]) as image:
            pixels = image.convert("RGB").resize((SIZE, SIZE), Image.Resampling.BILINEAR)
        return torch.from_numpy(np.ascontiguousarray(np.asarray(pixels).transpose(2, 0, 1)))


@dataclass
class Setup:
    """A loader, and the hosts on which its remote workers run."""

    name: str
    loader: Any
    hosts: HostsHere | None = None

    @property
    def is_complete(self) -> bool:
        """Whether all remote workers have a host."""
        return self.hosts is None or len(self.loader.recorder.hosts) == REMOTE

    def processes(self, names: tuple[str, ...]) -> dict[str, list[int]]:
        """Returns the processes of each party but the trainer. names: of the machines."""
        found: dict[str, list[int]] = {party: [] for party in PARTIES[1:]}
        for number, worker in enumerate(self.loader._iterator._workers):
            if self.hosts is not None and number >= self.hosts.local:
                found["proxies"] += process_tree(worker.pid)
            else:
                found["local workers"] += process_tree(worker.pid)

        if self.hosts is not None:
            for host in self.hosts.hosts:
                party = PARTIES[3 + names.index(host.name)]
                found[party] += process_tree(host.pid)
        return found


@dataclass(frozen=True)
class Epoch:
    """What was measured of one epoch. `cpu`: seconds by party for 1000 photos."""

    rate: float
    wait_share: float
    cpu: dict[str, float]


class Check:
    """Compares batches with those of the first epoch that it sees."""

    def __init__(self, count: int) -> None:
        self.cpu = 0.0
        self._count = count
        self._expected: list[torch.Tensor] = []

    def __call__(self, number: int, images: torch.Tensor) -> None:
        began = time.thread_time()
        if number == len(self._expected) < self._count:
            self._expected.append(images.clone())
        if not torch.equal(images, self._expected[number]):
            raise SystemExit(f"batch {number} differs")
        self.cpu += time.thread_time() - began


def run_epoch(loader: Any, step: float, check: Check) -> tuple[float, float]:
    """Runs an epoch, and returns its seconds, and those that the loop waited for data."""
    waited = 0.0
    count = 0
    began = asked = time.perf_counter()
    for number, images in enumerate(loader):
        waited += time.perf_counter() - asked
        check(number, images)
        time.sleep(step)
        count += 1
        asked = time.perf_counter()

    ended = time.perf_counter()
    if count != len(loader):
        raise SystemExit(f"{count} batches came instead of {len(loader)}")
    return ended - began, waited + ended - asked


def cpu_seconds(pids: list[int]) -> float:
    """Returns the CPU time that processes have used, to a hundredth of a second for each."""
    ticks = 0
    for pid in pids:
        # The name of a program may have spaces: fields are counted from behind it.
        fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
        ticks += int(fields[11]) + int(fields[12])
    return ticks / os.sysconf("SC_CLK_TCK")


def measure(setup: Setup, names: tuple[str, ...], step: float, check: Check) -> Epoch:
    """Measures one epoch, by the workers that an epoch before has started."""
    processes = setup.processes(names)
    before = {party: cpu_seconds(pids) for party, pids in processes.items()}
    own = time.process_time() - check.cpu
    seconds, waited = run_epoch(setup.loader, step, check)
    used = {"trainer": time.process_time() - check.cpu - own}
    if setup.processes(names) != processes:
        raise SystemExit(f"{setup.name}: a worker or a host was replaced")

    for party, pids in processes.items():
        used[party] = cpu_seconds(pids) - before[party]
    photos = len(setup.loader.dataset)
    return Epoch(photos / seconds, waited / seconds, {party: 1000 * used[party] / photos for party in PARTIES})


def start(setup: Setup, step: float, check: Check) -> None:
    """Runs epochs until all workers are there, at least one."""
    until = time.monotonic() + PATIENCE
    run_epoch(setup.loader, step, check)
    while not setup.is_complete:
        if time.monotonic() > until:
            raise SystemExit(f"{setup.name}: not all hosts came within {PATIENCE:g} s")
        run_epoch(setup.loader, step, check)


@contextlib.contextmanager
def setups(dataset: Photos, machines: tuple[Machine, ...]) -> Iterator[list[Setup]]:
    """Makes the setups. That of the local workers is the first."""
    words: dict[str, Any] = {"batch_size": BATCH, "persistent_workers": True}
    with contextlib.ExitStack() as stack:
        made = [Setup("headrace, 2 local", headrace.DataLoader(dataset, num_workers=LOCAL, **words))]
        for name, local in (("headrace, 4 remote", 0), ("headrace, 2 local, 4 remote", LOCAL)):
            hosts = HostsHere(machines)
            stack.callback(hosts.close)
            loader = headrace.DataLoader(dataset, num_workers=local + REMOTE, backend="ray", **words)
            stack.enter_context(placed_on(loader, hosts, local))
            made.append(Setup(name, loader, hosts))

        made.append(Setup("torch", TorchLoader(dataset, num_workers=LOCAL, **words)))
        yield made


def show(measured: dict[str, list[Epoch]]) -> None:
    """Prints a row for each setup."""
    heads = ("photos/s", "waited", *PARTIES)
    print("CPU seconds by party are for 1000 photos.")
    print(f"{'':<28}" + "".join(f"{head:>15}" for head in heads))
    for name, epochs in measured.items():
        rate = statistics.median(epoch.rate for epoch in epochs)
        waited = statistics.median(epoch.wait_share for epoch in epochs)
        cpu = (statistics.median(epoch.cpu[party] for epoch in epochs) for party in PARTIES)
        print(f"{name:<28}{rate:>15,.0f}{waited:>15.0%}" + "".join(f"{seconds:>15.2f}" for seconds in cpu))


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--photos", type=int, default=2000)
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--step", type=float, default=0.02, help="seconds that a training step sleeps")
    given = parser.parse_args()
    torch.set_num_threads(1)  # the check is to have all its CPU time in one thread
    with contextlib.ExitStack() as stack:
        root = Path(stack.enter_context(tempfile.TemporaryDirectory())) / "photos"
        make_photo_folder(root, given.photos)
        dataset = Photos(sorted(map(str, root.rglob("*.jpg"))))
        try:
            machines = tuple(network.machine for network in stack.enter_context(networks(2)))
        except pytest.skip.Exception as reason:
            raise SystemExit(str(reason)) from None

        names = tuple(machine.name for machine in machines)
        all_setups = stack.enter_context(setups(dataset, machines))
        check = Check(-(-given.photos // BATCH))
        for setup in all_setups:
            start(setup, given.step, check)

        measured: dict[str, list[Epoch]] = {setup.name: [] for setup in all_setups}
        for _ in range(given.rounds):
            for setup in all_setups:
                measured[setup.name].append(measure(setup, names, given.step, check))

    show(measured)
    print("Every batch was equal to that of the 2 local workers.")


if __name__ == "__main__":
    main()
