"""Photos that workers on several machines decode: which share each machine takes, and what that costs the trainer."""

from __future__ import annotations

import contextlib
import os
import statistics
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
from tests.servers.hosts import HostsHere, Machine, placed_on
from tests.servers.networks import networks
from torch.utils.data import DataLoader as TorchLoader
from torch.utils.data import Dataset

import headrace
from benchmarks.harness.table import Row, Table
from benchmarks.harness.turns import fail, in_turn
from headrace.core.process.memory import process_tree
from headrace.data.prepare.textures import make_textures

BATCH = 64
SIZE = 224
LOCAL = 2
REMOTE = 4
PARTIES = ("trainer", "local workers", "proxies", "host one", "host two")
PATIENCE = 120.0
"""Seconds that all hosts of a setup may take to come."""

TORCH = "torch, 2 workers"


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


class Check:
    """Compares batches with those of the first epoch that it sees."""

    def __init__(self) -> None:
        self.cpu = 0.0
        self._expected: dict[int, torch.Tensor] = {}

    def __call__(self, number: int, images: torch.Tensor) -> None:
        began = time.thread_time()
        if number not in self._expected:
            self._expected[number] = images.clone()
        if not torch.equal(images, self._expected[number]):
            fail(f"batch {number} differs")
        self.cpu += time.thread_time() - began


@dataclass
class Setup:
    """A loader, and the hosts on which its remote workers run."""

    loader: Any
    step: float
    check: Check
    hosts: HostsHere | None = None

    def epoch(self) -> tuple[float, float]:
        """Runs an epoch, and returns its seconds, and those that the loop waited for data."""
        waited = 0.0
        count = 0
        began = asked = time.perf_counter()
        for number, images in enumerate(self.loader):
            waited += time.perf_counter() - asked
            self.check(number, images)
            time.sleep(self.step)
            count += 1
            asked = time.perf_counter()

        ended = time.perf_counter()
        if count != len(self.loader):
            fail(f"{count} batches came instead of {len(self.loader)}")
        return ended - began, waited + ended - asked

    def start(self) -> None:
        """Runs epochs until all workers are there, at least one."""
        until = time.monotonic() + PATIENCE
        self.epoch()
        while self.hosts is not None and len(self.loader.recorder.hosts) != REMOTE:
            if time.monotonic() > until:
                fail(f"not all hosts came within {PATIENCE:g} s")
            self.epoch()

    def processes(self) -> dict[str, list[int]]:
        """Returns the processes of each party but the trainer."""
        found: dict[str, list[int]] = {party: [] for party in PARTIES[1:]}
        for number, worker in enumerate(self.loader._iterator._workers):
            is_proxy = self.hosts is not None and number >= self.hosts.local
            found["proxies" if is_proxy else "local workers"] += process_tree(worker.pid)

        hosts = self.hosts.hosts if self.hosts is not None else []
        names = sorted({host.name for host in hosts})
        for host in hosts:
            found[PARTIES[3 + names.index(host.name)]] += process_tree(host.pid)
        return found

    def measure(self) -> dict[str, float]:
        """Measures an epoch: photos a second, the percentage of waiting, CPU seconds for 1,000 of each party."""
        processes = self.processes()
        before = {party: cpu_seconds(pids) for party, pids in processes.items()}
        own = time.process_time() - self.check.cpu
        seconds, waited = self.epoch()
        used = {"trainer": time.process_time() - self.check.cpu - own}
        if self.processes() != processes:
            fail("a worker or a host was replaced")

        for party, pids in processes.items():
            if pids:
                used[party] = cpu_seconds(pids) - before[party]
        photos = len(self.loader.dataset)
        cpu = {party: 1000 * own_seconds / photos for party, own_seconds in used.items()}
        return {"photos/s": photos / seconds, "waiting": 100 * waited / seconds, **cpu}


def cpu_seconds(pids: list[int]) -> float:
    """Returns the CPU time that processes have used, to a hundredth of a second for each."""
    ticks = 0
    for pid in pids:
        # The name of a program may have spaces: fields are counted from behind it.
        fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
        ticks += int(fields[11]) + int(fields[12])
    return ticks / os.sysconf("SC_CLK_TCK")


@contextlib.contextmanager
def setups(dataset: Photos, machines: tuple[Machine, ...], step: float) -> Iterator[dict[str, Setup]]:
    """Makes the setups. That of the local workers is the first, with which the others are compared."""
    words: dict[str, Any] = {"batch_size": BATCH, "persistent_workers": True}
    check = Check()
    with contextlib.ExitStack() as stack:
        made = {"headrace, 2 local": Setup(headrace.DataLoader(dataset, num_workers=LOCAL, **words), step, check)}
        for name, local in (("headrace, 4 remote", 0), ("headrace, 2 local and 4 remote", LOCAL)):
            hosts = HostsHere(machines)
            stack.callback(hosts.close)
            loader = headrace.DataLoader(dataset, num_workers=local + REMOTE, backend="ray", **words)
            stack.enter_context(placed_on(loader, hosts, local))
            made[name] = Setup(loader, step, check, hosts)

        made[TORCH] = Setup(TorchLoader(dataset, num_workers=LOCAL, **words), step, check)
        for setup in made.values():
            setup.start()
        yield made


def remote_decoding(photos: int = 2000, rounds: int = 5, step: float = 0.02) -> list[Table]:
    """Photos that workers on several machines decode: which share each machine takes, and what that costs the trainer.

    The loaders make uint8 batches [64, 3, 224, 224] of JPEGs with Pillow. The setups take turns: headrace with 2 local
    workers, with 2 workers on each of two other machines, and with all of these together; torch with 2 workers. Workers
    are kept from epoch to epoch. The other machines, host one and host two, are network namespaces; a pair of virtual
    links joins each to the trainer. A training step sleeps.

    All machines are in truth this one. They share its cores and its disk, so remote workers cannot make the rate grow
    here: it is not the rate of a cluster. The figures show the share of the work that each machine takes, and the CPU
    time that remote workers cost on the trainer's machine: that of the trainer, and of the proxies that stand for
    remote workers.

    Every batch of every epoch is compared with that of the 2 local workers, bit by bit. The CPU time of that does not
    count as the trainer's. Namespaces need root, and the programs `ip` and `tc`.
    """
    torch.set_num_threads(1)  # the check is to have all its CPU time in one thread
    with contextlib.ExitStack() as stack:
        root = Path(stack.enter_context(tempfile.TemporaryDirectory())) / "photos"
        make_textures(root, photos)
        dataset = Photos(sorted(map(str, root.rglob("*.jpg"))))
        try:
            machines = tuple(network.machine for network in stack.enter_context(networks(2)))
        except pytest.skip.Exception as reason:
            fail(str(reason))
        made = stack.enter_context(setups(dataset, machines, step))
        found = in_turn({name: setup.measure for name, setup in made.items()}, rounds, untimed=0)

    checked = "Every batch was equal to that of the 2 local workers, bit for bit."
    rates = {name: [one["photos/s"] for one in epochs] for name, epochs in found.items()}
    notes = [
        f"{name}: {statistics.median(one['waiting'] for one in epochs):.0f} % of the time is waiting"
        for name, epochs in found.items()
    ]
    cpu = [
        Row(party, {name: [one[party] for one in epochs] for name, epochs in found.items() if party in epochs[0]})
        for party in PARTIES
    ]
    title = f"{photos:,} photos, a step of {step * 1e3:g} ms"
    return [
        Table(title, "photos/s", [Row("", rates)], checked, base=TORCH, notes=notes),
        Table("CPU time for 1,000 photos", "s", cpu, checked, better="less", base=TORCH),
    ]
