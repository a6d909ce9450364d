"""Loops, each with one planted bottleneck: what is found, the gain that is predicted, and the gain when it is done.

The disk and the training step of an accelerator are imitated by sleeping, decoding and transforms are real. Every loop
is run as it is, diagnosed from its own recording, and run again with the advice followed; both are repeated in turn,
and the number of samples of every epoch is checked. On a machine where other programs run, the first finding is
"machine-busy", and nothing is predicted: the table is for a quiet one.

    python benchmarks/bottlenecks.py [--rounds 3] [--only slow-decode]
    python benchmarks/bottlenecks.py --network         data behind a slow line, for which nginx is needed
"""

from __future__ import annotations

import argparse
import io
import statistics
import time
import warnings
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import torch
from PIL import Image, ImageFilter
from torch.utils.data import Dataset

import headrace
from headrace.observe.diagnosis.finding import Diagnosis, Finding
from remote_bottlenecks import Backwards, Server, arguments, counted, serving, warmed


def spin(seconds: float) -> None:
    """Keeps one core busy for so long, by the CPU time of the calling thread."""
    ends = time.thread_time() + seconds
    while time.thread_time() < ends:
        pass


class Remote(Dataset[Any]):
    """Small files on a disk with a latency of some milliseconds."""

    def __init__(self, length: int, latency: float) -> None:
        self.length, self.latency = length, latency

    def __len__(self) -> int:
        return self.length

    def read_file(self, key: int) -> np.ndarray:
        """Returns what a file holds."""
        if self.latency:
            time.sleep(self.latency)
        return np.full(4000, key, np.float32)

    def __getitem__(self, key: int) -> tuple[Any, int]:
        return self.read_file(key), key


class Photos(Dataset[Any]):
    """JPEGs in memory, decoded at each access, or decoded before; `blur` is the radius of a slow transform."""

    def __init__(self, length: int, *, size: int, decoded: bool = False, blur: float = 0.0) -> None:
        generator = np.random.default_rng(0)
        coarse = generator.integers(0, 255, (16, 16, 3), np.uint8)
        image = Image.fromarray(coarse).resize((size, size), Image.Resampling.BICUBIC)
        file = io.BytesIO()
        image.save(file, "JPEG", quality=92)
        self.length, self.jpeg, self.blur = length, file.getvalue(), blur
        self.small = np.asarray(image.resize((64, 64))) if decoded else None

    def __len__(self) -> int:
        return self.length

    def decode(self) -> Image.Image:
        """Returns the pixels."""
        image = Image.open(io.BytesIO(self.jpeg))
        image.load()
        return image

    def transform(self, image: Image.Image) -> np.ndarray:
        """Returns what training wants."""
        if self.blur:
            image = image.filter(ImageFilter.GaussianBlur(self.blur))
        return np.asarray(image.resize((64, 64), Image.Resampling.NEAREST))

    def __getitem__(self, key: int) -> tuple[Any, int]:
        pixels = self.small if self.small is not None else self.transform(self.decode())
        return pixels, key


class Busy(Dataset[Any]):
    """Samples that take a core for a while; `slow` ones among them, each so many times as long."""

    def __init__(
        self, length: int, cpu: float = 0.0, *, wait: float = 0.0, slow: tuple[int, ...] = (), times: float = 1.0
    ):
        self.length, self.cpu, self.wait, self.slow, self.times = length, cpu, wait, frozenset(slow), times

    def __len__(self) -> int:
        return self.length

    def __getitem__(self, key: int) -> tuple[Any, int]:
        times = self.times if key in self.slow else 1.0
        if self.cpu:
            spin(self.cpu * times)
        if self.wait:
            time.sleep(self.wait * times)
        return np.full(1000, key, np.float32), key


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
    stage: str
    data: Callable[[], Dataset[Any]]
    arguments: dict[str, Any]
    step: float = 0.002
    """Seconds of a training step per sample of `arguments["batch_size"]`, slept: an accelerator computes."""
    busy: float = 0.0
    """Seconds of a core that a step takes."""
    epochs: int = 1
    cured_data: Callable[[], Dataset[Any]] | None = None
    cured: Mapping[str, Any] | None = None
    """The arguments after the advice was followed; None: what the finding says."""
    ideal: bool = False
    """Whether the cure is a loader that costs nothing: one batch that is given again and again."""
    samples: int = 0
    """Of an epoch; 0: as many as the data have."""
    extra: dict[str, Any] = field(default_factory=dict)


def loop(plant: Plant, data: Dataset[Any], arguments: Mapping[str, Any]) -> tuple[float, headrace.DataLoader[Any]]:
    """Trains, and returns the seconds that it took, and the loader."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", UserWarning)  # more workers than cores: on purpose
        loader: headrace.DataLoader[Any] = headrace.DataLoader(data, **arguments)
        usual = plant.arguments["batch_size"]
        seen, began = 0, time.perf_counter()
        for _ in range(plant.epochs):
            for _, keys in loader:
                seen += len(keys)
                step(plant, len(keys) / usual)
        seconds = time.perf_counter() - began
    if seen != plant.epochs * (plant.samples or len(data)):  # type: ignore[arg-type]
        raise SystemExit(f"{plant.name}: {seen} samples were delivered")
    return seconds, loader


def step(plant: Plant, share: float) -> None:
    """One step of training, of a batch that is so many times as large as usual."""
    if plant.busy:
        spin(plant.busy * share)
    if plant.step:
        time.sleep(plant.step * share)


def ideal_loop(plant: Plant, batches: int) -> float:
    """Trains with the same batch again and again, and returns the seconds."""
    began = time.perf_counter()
    for _ in range(batches):
        step(plant, 1.0)
    return time.perf_counter() - began


PLANTS = (
    Plant(
        "slow-read", "read", lambda: Remote(1600, 0.004), {"batch_size": 16, "num_workers": 2}, 0.006,
        cured_data=lambda: Remote(1600, 0.0),
    ),
    Plant(
        "slow-decode", "decode", lambda: Photos(800, size=640), {"batch_size": 16, "num_workers": 1}, 0.008,
        cured_data=lambda: Photos(800, size=640, decoded=True),
    ),
    Plant(
        "slow-transform", "transform", lambda: Photos(800, size=128, blur=12.0), {"batch_size": 16, "num_workers": 1},
        0.008, cured_data=lambda: Photos(800, size=128),
    ),
    Plant(
        "slow-collate", "collate", lambda: Busy(1600, 0.0001), {"batch_size": 16, "num_workers": 1,
        "collate_fn": pad_in_python}, 0.004, cured={"batch_size": 16, "num_workers": 1},
    ),
    Plant("huge-batches", "batches", lambda: Busy(768, 0.002), {"batch_size": 256, "num_workers": 2}, 0.3, epochs=5),
    Plant(
        "stragglers", "stragglers", lambda: Busy(2400, wait=0.001, slow=tuple(range(100, 2400, 400)), times=100.0),
        {"batch_size": 8, "num_workers": 4}, 0.004,
    ),
    Plant(
        "stragglers", "stragglers", lambda: Busy(3200, wait=0.001, slow=spread(3200, 32), times=500.0),
        {"batch_size": 8, "num_workers": 8, "persistent_workers": True}, 0.002,
    ),
    Plant("too-few-workers", "workers", lambda: Busy(1200, 0.001), {"batch_size": 16, "num_workers": 1}, 0.009),
    Plant("too-many-workers", "workers", lambda: Busy(640, 0.0005), {"batch_size": 16, "num_workers": 12}, 0.006),
    Plant("workers-cost-more", "transport", lambda: Busy(40000), {"batch_size": 8, "num_workers": 4}, 0.0),
    Plant(
        "training-limits", "training", lambda: Busy(1600, 0.0002), {"batch_size": 16, "num_workers": 1}, 0.015,
        ideal=True,
    ),
    Plant(
        "slow-start", "start", lambda: Busy(320, 0.0005), {"batch_size": 16, "num_workers": 2,
        "worker_init_fn": slow_to_start}, 0.006, epochs=5,
    ),
)  # fmt: skip


def remote_plants(server: Server) -> tuple[Plant, ...]:
    """Returns the loops that read over a network."""
    large = f"{server.slow}/{server.put('large', 'folder', 600, 100_000)}"
    half = f"{server.slow}/{server.put('half', 'folder', 600, 50_000)}"
    small = f"{server.fast}/{server.put('small', 'folder', 12_000, 4_000)}"
    shards = f"{server.fast}/{server.put('shards', 'webdataset', 12_000, 4_000)}"
    alone = {"batch_size": 2, "num_workers": 0, "collate_fn": counted}
    ahead = {"batch_size": 2, "num_workers": 0, "collate_fn": counted, "shuffle": True, "seed": 0}

    def cached(limit: str | None) -> Dataset[Any]:
        return headrace.open(large, cache_dir=server.cache(), cache_limit=limit)

    return (
        Plant(
            "network-limits", "read", lambda: headrace.open(large), arguments(16), 0.01,
            cured_data=lambda: headrace.open(half),
        ),
        Plant(
            "network-limits", "read", lambda: headrace.open(large), arguments(16, persistent_workers=True), 0.01,
            epochs=4, cured_data=lambda: warmed(cached(None)),
        ),
        Plant(
            "latency-limits", "read", lambda: headrace.open(large), {**alone, "sampler": Backwards(600)}, 0.010,
            cured=ahead,
        ),
        Plant(
            "small-objects", "read", lambda: headrace.open(small), arguments(32), 0.005,
            cured_data=lambda: headrace.open(shards).stream(shuffle=1000), samples=12_000,
            cured={"batch_size": 32, "num_workers": 2, "collate_fn": counted},
        ),
        Plant(
            "cache-too-small", "read", lambda: cached("10MB"), arguments(16, persistent_workers=True), 0.01, epochs=4,
            cured_data=lambda: cached("75MB"),
        ),
    )  # fmt: skip


@dataclass
class Outcome:
    """What became of a plant."""

    plant: Plant
    diagnosis: Diagnosis
    finding: Finding | None
    measured: list[float]

    @property
    def gain(self) -> float:
        """The median of the gains that were measured."""
        return statistics.median(self.measured)


def play(plant: Plant, rounds: int) -> Outcome:
    """Runs a plant, follows the advice, and compares; the diagnosis is that of the first run."""
    diagnosis: Diagnosis | None = None
    finding: Finding | None = None
    gains: list[float] = []
    for _ in range(rounds):
        slow, loader = loop(plant, plant.data(), plant.arguments)
        if diagnosis is None:
            diagnosis = loader.diagnose()
            finding = next((one for one in diagnosis.findings if one.name == plant.name), None)
        length = len(loader)
        del loader  # it reads the next epoch ahead already
        if plant.ideal:
            quick = ideal_loop(plant, length * plant.epochs)
        else:
            data = (plant.cured_data or plant.data)()
            cured = plant.cured if plant.cured is not None else plant.arguments
            change = {} if finding is None or plant.cured_data or plant.cured is not None else finding.change
            quick, _ = loop(plant, data, {**cured, **change})
        gains.append(slow / quick)
    assert diagnosis is not None
    return Outcome(plant, diagnosis, finding, gains)


def main() -> None:
    """Plays all plants and prints a table."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rounds", type=int, default=3, help="how often each pair is run")
    parser.add_argument("--only", help="only the plant of this name")
    parser.add_argument("--reports", action="store_true", help="print the whole diagnosis of each")
    parser.add_argument("--network", action="store_true", help="play the loops that read over a network instead")
    given = parser.parse_args()
    torch.set_num_threads(1)
    if given.network:
        with serving() as server:
            table(remote_plants(server), given)
    else:
        table(PLANTS, given)


def table(plants: Sequence[Plant], given: argparse.Namespace) -> None:
    """Plays plants and prints a table."""
    print(f"{'planted':<18} {'found':<18} {'first finding':<18} {'predicted':>9} {'measured':>9} {'ratio':>6}")
    for plant in plants:
        if given.only and plant.name != given.only:
            continue
        outcome = play(plant, given.rounds)
        found, first = outcome.finding, outcome.diagnosis.findings[:1]
        predicted = (
            found.gain if found is not None and found.gain is not None else (outcome.diagnosis.ideal_gain or 1.0)
        )
        between = ""
        if found is not None and found.interval is not None:
            low, high = found.interval
            between = f"({low:.2f} to {high:.2f})"
        print(
            f"{plant.name:<18} {found.stage if found else '-':<18} {first[0].name if first else '-':<18} "
            f"{predicted:9.2f} {outcome.gain:9.2f} {predicted / outcome.gain:6.2f}  {between} "
            f"{found.change if found else ''} "
            f"{[round(one, 2) for one in outcome.measured]}"
        )
        if given.reports:
            for one in outcome.diagnosis.findings:
                print("   ", one.name, one.gain, one.sentence, one.advice)


if __name__ == "__main__":
    main()
