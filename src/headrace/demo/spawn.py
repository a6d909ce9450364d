"""Scene: a dataset in memory, and workers that start by spawn, as on macOS and Windows and wherever CUDA is in use."""

from __future__ import annotations

import time
from typing import Any

import numpy as np
import torch
from torch import Tensor
from torch.utils.data import Dataset

from headrace.demo.party import Tell, run
from headrace.demo.scene import Scene, SceneResult
from headrace.telemetry.digest import extend_digest

SAMPLES, EACH = 15_000, 10_000
MEGABYTES = SAMPLES * EACH // 1_000_000
WORKERS = 3
BATCHES = 30


class InMemory(Dataset[Tensor]):
    """Samples of 10 kB each."""

    def __init__(self) -> None:
        self.values = np.random.default_rng(0).integers(0, 255, (SAMPLES, EACH), np.uint8)

    def __len__(self) -> int:
        return SAMPLES

    def __getitem__(self, index: int) -> Tensor:
        return torch.from_numpy(self.values[index])


def load(tell: Tell, kind: str) -> dict[str, Any]:
    """Takes the first batches; returns the seconds to the first one and a checksum."""
    if kind == "torch":
        from torch.utils.data import DataLoader
    else:
        from headrace import DataLoader

    loader = DataLoader(InMemory(), batch_size=64, num_workers=WORKERS, multiprocessing_context="spawn")
    began = time.perf_counter()
    first = 0.0
    digest = 0
    for number, batch in enumerate(loader):
        first = first or time.perf_counter() - began
        digest = extend_digest(digest, batch)
        if number == BATCHES:
            break
    return {"first": first, "digest": digest}


def show() -> SceneResult:
    """Starts the workers of both loaders."""
    shown = SceneResult()
    for kind in ("torch", "headrace"):
        outcome = run(load, kind, memory=True)
        first, digest = outcome.value["first"], outcome.value["digest"]
        shown.add(
            kind,
            f"first batch after {first:4.1f} s, {outcome.peak_bytes / 1e9:.2f} GB, "
            f"{outcome.cpu_seconds:.1f} s of CPU time",
            facts=digest,
            figures={"first_batch": first, "peak_bytes": outcome.peak_bytes, "cpu_seconds": outcome.cpu_seconds},
        )
    return shown


SCENE = Scene(
    "spawn", f"a dataset of {MEGABYTES} MB in memory, {WORKERS} workers by spawn (macOS, Windows, CUDA)", show
)
