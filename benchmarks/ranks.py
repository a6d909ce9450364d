"""The five forms of `forms.py` trained by 1, 2 and 4 ranks: on one node, and on two with a line between them.

torchrun runs this module in each rank: python -m benchmarks.ranks FOLDER ROUNDS RESULT
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch
import torch.distributed as dist
from tests.servers.networks import inside, torchrun_of_node, two_nodes
from torch.nn.parallel import DistributedDataParallel
from torch.utils.data import DataLoader, DistributedSampler

import headrace
from benchmarks.forms import BATCH, Form, Model, checksum, generated, read_forms, train, write_forms
from benchmarks.harness.table import OURS, Row, Table
from benchmarks.harness.turns import fail

PORT = 29600
"""The rendezvous of the first layout has this port within its network, the next one the next."""


@dataclass(frozen=True)
class Layout:
    """How ranks are spread."""

    title: str
    ranks: int
    """On each node."""
    nodes: int = 1


LAYOUTS = (
    Layout("1 rank", 1),
    Layout("2 ranks", 2),
    Layout("4 ranks", 4),
    Layout("2 nodes, 1 rank each", 1, 2),
    Layout("2 nodes, 2 ranks each", 2, 2),
)
TITLES = tuple(layout.title for layout in LAYOUTS)

# -- what each rank does -----------------------------------------------------------------------------------------------


def loader_of(form: Form, whose: str, epoch: int) -> Iterable[Any]:
    """Returns this rank's loader of a form."""
    size = BATCH // dist.get_world_size()
    if whose == OURS:
        return headrace.DataLoader(form.ours, size, shuffle=True, seed=epoch, shard="auto", collate_fn=form.own_collate)
    sampler: DistributedSampler[Any] = DistributedSampler(form.theirs, shuffle=True, seed=0)
    sampler.set_epoch(epoch)
    return DataLoader(form.theirs, size, sampler=sampler, collate_fn=form.collate)


class Kept:
    """A loader whose batches are kept, to be compared after the epoch."""

    def __init__(self, loader: Iterable[Any]) -> None:
        self.loader = loader
        self.batches: list[Any] = []

    def __iter__(self) -> Any:
        for batch in self.loader:
            yield batch
            self.batches.append(batch)

    def compare(self, expected: list[int], what: str) -> None:
        """Ends the program unless what all ranks got together is the dataset."""
        count = sum(len(batch["label"]) for batch in self.batches)
        found = torch.tensor([count, sum(checksum(batch["image"], batch["label"]) for batch in self.batches)])
        dist.all_reduce(found)
        if found.tolist() != expected:
            fail(f"{what}: the ranks got {found.tolist()} instead of {expected}")


def seconds_of(loader: Kept, shape: tuple[int, ...]) -> float:
    """Trains for an epoch. Returns the seconds that all ranks took."""
    # The network goes with this call: one that outlives the process group can keep a rank from ending.
    torch.manual_seed(0)
    model = DistributedDataParallel(Model(shape))
    dist.barrier()
    began = time.perf_counter()
    train(loader, model)
    dist.barrier()
    return time.perf_counter() - began


def run_rank(folder: Path, rounds: int, result: Path) -> None:
    """Trains on all forms in the folder. Rank 0 writes the rates, by form and loader."""
    dist.init_process_group("gloo")
    with np.load(folder / "p.npz") as stored:
        pixels, labels = stored["image"], stored["label"]

    expected = [len(labels), checksum(torch.from_numpy(pixels), torch.from_numpy(labels))]
    rates: dict[str, dict[str, list[float]]] = {}
    forms = read_forms(folder, pixels, labels)
    for turn in range(rounds + 1):
        for name, form in forms.items():
            for whose in ("torch", OURS):
                loader = Kept(loader_of(form, whose, turn))
                seconds = seconds_of(loader, pixels.shape[1:])
                loader.compare(expected, f"{name}, {whose}")
                if turn:
                    rates.setdefault(name, {}).setdefault(whose, []).append(len(labels) / seconds)

    if dist.get_rank() == 0:
        result.write_text(json.dumps(rates))
    dist.destroy_process_group()


# -- who starts them ---------------------------------------------------------------------------------------------------


def run_layout(layout: Layout, names: tuple[str, str], port: int, words: list[str]) -> None:
    """Runs the ranks of a layout to their end."""
    started = []
    for number in range(layout.nodes):
        prefix: tuple[str, ...] = ()
        options = ["--standalone", "--local-addr=127.0.0.1"]
        interface = "lo"
        if layout.nodes > 1:
            interface = names[number]
            prefix, options = inside(interface), torchrun_of_node(number, port)

        command = [
            *prefix, sys.executable, "-m", "torch.distributed.run", *options, f"--nproc-per-node={layout.ranks}",
            "-m", "benchmarks.ranks", *words,
        ]  # fmt: skip
        environment = {**os.environ, "OMP_NUM_THREADS": "1", "GLOO_SOCKET_IFNAME": interface}
        started.append(subprocess.Popen(command, env=environment))

    codes = [process.wait() for process in started]
    if any(codes):
        fail(f"{layout.title}: torchrun ended with {codes}")


def ranks(rounds: int = 3, share: float = 0.15, layouts: tuple[str, ...] = TITLES) -> list[Table]:
    """The five forms of `forms` trained by 1, 2 and 4 ranks: on one node, and on two with a line between them.

    torchrun starts the ranks, which train with DistributedDataParallel over gloo. The second node is a network
    namespace of this machine, joined to the first by a virtual line; both read the same folder, as nodes do that share
    a file system. So two nodes have no more cores than one: what counts here is how the loaders compare, not how they
    scale. The global batch has 64 samples, whatever the number of ranks. torch's loader is given a DistributedSampler,
    headrace's `shard="auto"`. Both train an epoch in turn, in the same ranks. Figures are samples a second of all ranks
    together. After each epoch the ranks' checksums together are compared with those of the whole dataset: each sample
    has come once. share: of the data of `forms`.
    """
    chosen = [layout for layout in LAYOUTS if layout.title in layouts]
    tables = []
    for name, (pixels, labels) in generated(share).items():
        whole = len(labels) // BATCH * BATCH
        rates = []
        with tempfile.TemporaryDirectory() as made, two_nodes() as names:
            folder, result = Path(made), Path(made) / "result.json"
            write_forms(folder, pixels[:whole], labels[:whole])
            for number, layout in enumerate(chosen):
                run_layout(layout, names, PORT + number, [str(folder), str(rounds), str(result)])
                rates.append(json.loads(result.read_text()))

        rows = [
            Row(f"{form}: {layout.title}", found[form])
            for form in rates[0]
            for layout, found in zip(chosen, rates, strict=True)
        ]
        checked = "After each epoch, checksums over all ranks were compared with those of the whole dataset."
        tables.append(Table(f"{name}, trained, {whole} samples", "samples/s", rows, checked))
    return tables


if __name__ == "__main__":
    run_rank(Path(sys.argv[1]), int(sys.argv[2]), Path(sys.argv[3]))
