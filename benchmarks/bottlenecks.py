"""Loops, each with one planted bottleneck: what is found, the gain that is predicted, and the gain when it is done."""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch

import headrace
from benchmarks.datasets import Busy, Photos, Remote
from benchmarks.harness.table import Row, Table
from benchmarks.harness.turns import fail
from headrace.observe.diagnosis.finding import Diagnosis, Finding


def spread(length: int, count: int) -> tuple[int, ...]:
    """Returns so many keys by chance."""
    return tuple(np.random.default_rng(0).choice(length, count, replace=False).tolist())


def pad_in_python(batch: list[tuple[Any, int]]) -> tuple[torch.Tensor, torch.Tensor]:
    """Collates number by number."""
    rows = torch.zeros(len(batch), 1000)
    for row, (values, _) in zip(rows, batch, strict=True):
        for at in range(0, 1000, 4):
            row[at] = float(values[at])
    return rows, torch.tensor([key for _, key in batch])


def slow_to_start(worker: int) -> None:
    """What a worker does before its first batch: imports, connections, tables."""
    time.sleep(0.25)


@dataclass
class Plant:
    """A loop with a bottleneck: what is to be found, and how the advice is followed."""

    name: str
    """Of the finding that is expected."""
    data: Callable[[], Any]
    arguments: dict[str, Any]
    step: float = 0.002
    """Seconds of a training step per sample of `arguments["batch_size"]`, slept: an accelerator computes."""
    epochs: int = 1
    fixed_data: Callable[[], Any] | None = None
    fixed: Mapping[str, Any] | None = None
    """The arguments after the advice was followed; None: what the finding says."""
    ideal: bool = False
    """Whether the fix is a loader that costs nothing: one batch that is given again and again."""
    samples: int = 0
    """Of an epoch; 0: as many as the data have."""


PREDICTED = "headrace, predicted"
ONE = {"batch_size": 16, "num_workers": 1}
TWO = {"batch_size": 16, "num_workers": 2}

PLANTS = (
    Plant("slow-read", lambda: Remote(1600, 0.004), TWO, 0.006, fixed_data=lambda: Remote(1600, 0.0)),
    Plant(
        "slow-decode", lambda: Photos(800, size=640), ONE, 0.008,
        fixed_data=lambda: Photos(800, size=640, decoded=True),
    ),
    Plant(
        "slow-transform", lambda: Photos(800, size=128, blur=12.0), ONE, 0.008,
        fixed_data=lambda: Photos(800, size=128),
    ),
    Plant("slow-collate", lambda: Busy(1600, 0.0001), {**ONE, "collate_fn": pad_in_python}, 0.004, fixed=ONE),
    Plant("huge-batches", lambda: Busy(768, 0.002), {"batch_size": 256, "num_workers": 2}, 0.3, epochs=5),
    Plant(
        "stragglers", lambda: Busy(2400, wait=0.001, slow=tuple(range(100, 2400, 400)), times=100.0),
        {"batch_size": 8, "num_workers": 4}, 0.004,
    ),
    Plant(
        "stragglers", lambda: Busy(3200, wait=0.001, slow=spread(3200, 32), times=500.0),
        {"batch_size": 8, "num_workers": 8, "persistent_workers": True},
    ),
    Plant("too-few-workers", lambda: Busy(1200, 0.001), ONE, 0.009),
    Plant("too-many-workers", lambda: Busy(640, 0.0005), {"batch_size": 16, "num_workers": 12}, 0.006),
    Plant("workers-cost-more", lambda: Busy(40000), {"batch_size": 8, "num_workers": 4}, 0.0),
    Plant("training-limits", lambda: Busy(1600, 0.0002), ONE, 0.015, ideal=True),
    Plant("slow-start", lambda: Busy(320, 0.0005), {**TWO, "worker_init_fn": slow_to_start}, 0.006, epochs=5),
)  # fmt: skip


def train(plant: Plant, data: Any, arguments: Mapping[str, Any]) -> tuple[float, headrace.DataLoader[Any]]:
    """Trains, and returns the seconds that it took, and the loader."""
    loader: headrace.DataLoader[Any] = headrace.DataLoader(data, **arguments)
    usual = plant.arguments["batch_size"]
    seen, began = 0, time.perf_counter()
    for _ in range(plant.epochs):
        for _, keys in loader:
            seen += len(keys)
            time.sleep(plant.step * len(keys) / usual)
    seconds = time.perf_counter() - began
    if seen != plant.epochs * (plant.samples or len(data)):
        fail(f"{plant.name}: {seen} samples were delivered")
    return seconds, loader


def train_ideally(plant: Plant, batches: int) -> float:
    """Trains with the same batch again and again, and returns the seconds."""
    began = time.perf_counter()
    for _ in range(batches):
        time.sleep(plant.step)
    return time.perf_counter() - began


def play(plant: Plant, rounds: int) -> tuple[Diagnosis, Finding | None, list[float]]:
    """Runs a plant, follows the advice, and compares. Returns the gains, and what the first run's diagnosis says."""
    diagnosis: Diagnosis | None = None
    finding: Finding | None = None
    gains: list[float] = []
    for _ in range(rounds):
        slow, loader = train(plant, plant.data(), plant.arguments)
        diagnosis = diagnosis or loader.diagnose()
        finding = next((one for one in diagnosis.findings if one.name == plant.name), None)
        length = len(loader)
        del loader  # it reads the next epoch ahead already
        if plant.ideal:
            quick = train_ideally(plant, length * plant.epochs)
        else:
            data = (plant.fixed_data or plant.data)()
            fixed = plant.fixed if plant.fixed is not None else plant.arguments
            change = {} if finding is None or plant.fixed_data or plant.fixed is not None else finding.change
            quick, _ = train(plant, data, {**fixed, **change})
        gains.append(slow / quick)
    assert diagnosis is not None
    return diagnosis, finding, gains


def table_of(plants: Sequence[Plant], rounds: int, only: str) -> list[Table]:
    """Plays plants. Returns the gains that are predicted beside those that were measured."""
    rows, notes = [], []
    for plant in plants:
        if only not in plant.name:
            continue
        diagnosis, finding, gains = play(plant, rounds)
        predicted = finding.gain if finding is not None else None
        rows.append(Row(plant.name, {"measured": gains, PREDICTED: [predicted or diagnosis.ideal_gain or 1.0]}))

        first = diagnosis.findings[0].name if diagnosis.findings else "nothing"
        notes.append(f"{plant.name}: first of all {first}; ")
        if finding is None:
            notes[-1] += "it was not found"
        else:
            between = "{:.2f} to {:.2f}, ".format(*finding.interval) if finding.interval is not None else ""
            notes[-1] += f"found in {finding.stage}, {between}change {finding.change}: {finding.advice}"
    checked = "The samples of every epoch were counted."
    return [Table("gains, with the advice followed", "times as fast", rows, checked, base="measured", notes=notes)]


def bottlenecks(rounds: int = 3, only: str = "") -> list[Table]:
    """Loops, each with one planted bottleneck: what is found, the gain that is predicted, and the gain when it is done.

    The disk and the training step of an accelerator are imitated by sleeping, decoding and transforms are real. Every
    loop is run as it is, diagnosed from its own recording, and run again with the advice followed. On a machine where
    other programs run, the first finding is "machine-busy", and nothing is predicted: the table is for a quiet one.
    only: the plants whose names have this text.
    """
    torch.set_num_threads(1)
    return table_of(PLANTS, rounds, only)
