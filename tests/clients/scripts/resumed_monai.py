"""MONAI: its own loader, which `headrace.use()` derives from headrace's, goes on in mid-epoch, its noise too."""

from __future__ import annotations

import headrace

headrace.use(seed=3, shard="auto")

from typing import Any

from monai.data import DataLoader, Dataset
from monai.transforms import Compose, MapTransform, RandomizableTransform
from resumed import SAMPLES, Noisy, train_with


class Load(MapTransform):
    """Reads a sample by its number."""

    def __call__(self, row: dict[str, Any]) -> dict[str, Any]:
        values, number = Noisy()[row["number"]]
        return {"values": values, "number": number}


class Shift(RandomizableTransform):
    """Adds noise of MONAI's own generators."""

    def __call__(self, row: dict[str, Any]) -> dict[str, Any]:
        return {**row, "values": row["values"] + self.R.random()}


if __name__ == "__main__":
    transform = Compose([Load("number"), Shift()])
    rows = Dataset([{"number": number} for number in range(SAMPLES)], transform=transform)
    train_with(
        lambda size, workers: DataLoader(rows, batch_size=size, shuffle=True, num_workers=workers),
        lambda batch: (batch["values"], batch["number"]),
    )
