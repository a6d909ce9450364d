"""Scene: an `.npz` of small images, shuffled, without workers."""

from __future__ import annotations

import tempfile
import time
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor
from torch.utils.data import Dataset

from headrace.demo.party import Tell, run
from headrace.demo.scene import Scene, SceneResult

SAMPLES, BATCH = 60_000, 128
EPOCHS = 3


class Images(Dataset[tuple[Tensor, Tensor]]):
    """The dataset that everyone writes: 60,000 images of 28 x 28."""

    def __init__(self, file: str) -> None:
        arrays = np.load(file)
        self.images = torch.from_numpy(arrays["image"])
        self.labels = torch.from_numpy(arrays["label"])

    def __len__(self) -> int:
        return len(self.labels)

    def __getitem__(self, index: int) -> tuple[Tensor, Tensor]:
        return self.images[index], self.labels[index]


def load(tell: Tell, kind: str, file: str) -> dict[str, Any]:
    """Returns the rate of the quickest epoch, and a sum of all that came."""
    import headrace

    torch.set_num_threads(1)
    torch.manual_seed(0)
    arguments: dict[str, Any] = {"batch_size": BATCH, "shuffle": True}
    if kind == "torch":
        loader: Any = torch.utils.data.DataLoader(Images(file), **arguments)
    elif kind == "same Dataset":
        loader = headrace.DataLoader(Images(file), **arguments)
    else:
        loader = headrace.DataLoader(headrace.open(file), **arguments)

    rates = []
    total = 0
    for _ in range(EPOCHS):
        began = time.perf_counter()
        count = 0
        for batch in loader:
            images, labels = batch.values() if isinstance(batch, dict) else batch
            count += len(labels)
            if count % (50 * BATCH) == 0:
                total += int(images.sum()) * int(labels.sum() + 1)
        rates.append(count / (time.perf_counter() - began))
    return {"rate": max(rates), "sum": total}


def show() -> SceneResult:
    """Goes through the file with each loader."""
    shown = SceneResult()
    with tempfile.TemporaryDirectory(prefix="headrace-demo-") as folder:
        file = str(Path(folder) / "images.npz")
        rng = np.random.default_rng(0)
        np.savez(
            file,
            image=rng.integers(0, 255, (SAMPLES, 28, 28), np.uint8),
            label=rng.integers(0, 10, SAMPLES, np.int64),
        )
        for kind, party in (
            ("torch", "torch"),
            ("same Dataset", "headrace, same Dataset"),
            ("open", "headrace.open"),
        ):
            outcome = run(load, kind, file)
            rate = outcome.value["rate"]
            shown.add(
                party,
                f"{rate:11,.0f} samples/s, "
                f"{outcome.cpu_seconds / EPOCHS / SAMPLES * 1e6:5.2f} s of CPU time for a million",
                facts=outcome.value["sum"],
                figures={"samples_per_second": rate, "cpu_seconds": outcome.cpu_seconds},
            )
    return shown


SCENE = Scene("stored", "60,000 images of 28 x 28 in an .npz, shuffled, no workers", show)
