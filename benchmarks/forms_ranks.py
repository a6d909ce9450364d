"""The five forms of `forms.py` trained by 1, 2 and 4 ranks: on one node, and on two with a line between them.

    python benchmarks/forms_ranks.py [--share 0.15] [--rounds 3] [--json FILE]

torchrun starts the ranks, which train with DistributedDataParallel over gloo. The second node is a network namespace of
this machine, joined to the first by a virtual line; both read the same folder, as nodes do that share a file system. So
two nodes have no more cores than one: what counts here is how the loaders compare, not how they scale. The global batch
has 64 samples, whatever the number of ranks. torch's loader is given a DistributedSampler, headrace's `shard="auto"`.
Both train an epoch in turn, in the same ranks. Figures are samples a second of all ranks together. After each epoch the
ranks' checksums together are compared with those of the whole dataset: each sample has come once.
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch
import torch.distributed as dist
from torch import nn
from torch.nn.parallel import DistributedDataParallel
from torch.utils.data import DataLoader, DistributedSampler

import headrace
import results
from forms import BATCH, FORMS, Form, Model, generated, read_forms, write_forms

sys.path.insert(0, str(Path(__file__).parents[1]))
from tests.servers.networks import inside, torchrun_of_node, two_nodes

CHECKED = "After each epoch, checksums over all ranks were compared with those of the whole dataset."

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

# -- what each rank does -----------------------------------------------------------------------------------------------


def weighted(images: torch.Tensor, labels: torch.Tensor) -> int:
    """Returns a sum over samples in which an image counts by its label."""
    sums = images.double().flatten(1).sum(1).long()
    return int((sums * (labels.long() + 1)).sum())


class Checksum:
    """Counts what this rank has got."""

    def __init__(self, pixels: np.ndarray, labels: np.ndarray) -> None:
        images = torch.from_numpy(pixels).float()
        self._expected = [len(labels), weighted(images, torch.from_numpy(labels))]

    def check(self, kept: list[tuple[torch.Tensor, torch.Tensor]], what: str) -> None:
        """Compares what all ranks got in an epoch with the dataset."""
        found = torch.tensor([sum(len(labels) for _, labels in kept), sum(weighted(*pair) for pair in kept)])
        dist.all_reduce(found)
        if found.tolist() != self._expected:
            raise SystemExit(f"{what}: the ranks got {found.tolist()} instead of {self._expected}")


def theirs(form: Form, epoch: int) -> Iterable[Any]:
    sampler: DistributedSampler[Any] = DistributedSampler(form.theirs, shuffle=True, seed=0)
    sampler.set_epoch(epoch)
    return DataLoader(form.theirs, BATCH // dist.get_world_size(), sampler=sampler, collate_fn=form.collate)


def ours(form: Form, epoch: int) -> Iterable[Any]:
    return headrace.DataLoader(
        form.ours, BATCH // dist.get_world_size(), shuffle=True, seed=epoch, shard="auto", collate_fn=form.own_collate
    )


def train(loader: Iterable[Any], shape: tuple[int, ...]) -> tuple[float, list[tuple[torch.Tensor, torch.Tensor]]]:
    """Trains for an epoch. Returns the seconds that all ranks took, and what this one got."""
    torch.manual_seed(0)
    alone = Model(shape)
    alone(torch.zeros(1, *shape))
    model = DistributedDataParallel(alone)
    optimizer = torch.optim.SGD(model.parameters(), lr=1e-4)
    kept = []
    dist.barrier()
    began = time.perf_counter()
    for batch in loader:
        optimizer.zero_grad()
        loss = nn.functional.cross_entropy(model(batch["image"]), batch["label"].long())
        loss.backward()
        optimizer.step()
        kept.append((batch["image"], batch["label"]))

    dist.barrier()
    return time.perf_counter() - began, kept


def run_rank(folder: Path, rounds: int, result: Path) -> None:
    """Trains on all forms in the folder. Rank 0 writes the rates, by form and loader."""
    dist.init_process_group("gloo")
    with np.load(folder / "p.npz") as stored:
        pixels, labels = stored["image"], stored["label"]

    checksum = Checksum(pixels, labels)
    makers: dict[str, Callable[[Form, int], Iterable[Any]]] = {"torch": theirs, results.OURS: ours}
    rates: dict[str, dict[str, list[float]]] = {form: {name: [] for name in makers} for form in FORMS}
    forms = read_forms(folder, pixels, labels)
    for turn in range(rounds + 1):
        for name, form in forms.items():
            for whose, make in makers.items():
                seconds, kept = train(make(form, turn), pixels.shape[1:])
                checksum.check(kept, f"{name}, {whose}")
                if turn:
                    rates[name][whose].append(len(labels) / seconds)

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
            __file__, *words,
        ]  # fmt: skip
        environment = {**os.environ, "OMP_NUM_THREADS": "1", "GLOO_SOCKET_IFNAME": interface}
        started.append(subprocess.Popen(command, env=environment))

    codes = [process.wait() for process in started]
    if any(codes):
        raise SystemExit(f"{layout.title}: torchrun ended with {codes}")


def measure(folder: Path, title: str, rounds: int) -> results.Table:
    """Returns the rates of all forms of the dataset in this folder, for all layouts."""
    rows = []
    with two_nodes() as names:
        for number, layout in enumerate(LAYOUTS):
            result = folder / "result.json"
            run_layout(layout, names, PORT + number, ["--rank-of", str(folder), str(rounds), str(result)])
            rates = json.loads(result.read_text())
            rows += [results.Row(f"{form}: {layout.title}", rates[form]) for form in FORMS]

    rows.sort(key=lambda row: FORMS.index(row.title.partition(":")[0]))
    return results.Table(title, "samples/s", rows, CHECKED)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--share", type=float, default=0.15, help="of the data of `forms.py`")
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--rank-of", nargs=3, metavar=("FOLDER", "ROUNDS", "RESULT"), help=argparse.SUPPRESS)
    results.option(parser)
    given = parser.parse_args()
    if given.rank_of is not None:
        folder, rounds, result = given.rank_of
        run_rank(Path(folder), int(rounds), Path(result))
        return

    tables = []
    for name, (pixels, labels) in generated(given.share).items():
        whole = len(labels) // BATCH * BATCH
        with tempfile.TemporaryDirectory() as made:
            write_forms(Path(made), pixels[:whole], labels[:whole])
            tables.append(measure(Path(made), f"{name}, trained, {whole} samples", given.rounds))
        results.show(tables[-1])

    results.write(given.json, tables, ["tensordict", "pillow"])


if __name__ == "__main__":
    main()
