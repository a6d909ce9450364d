"""datasets: a table with a transform, in headrace's loader, goes on in mid-epoch."""

from __future__ import annotations

from typing import Any

import datasets
import torch
from resumed import SAMPLES, train_with

from headrace import DataLoader


def with_values(rows: dict[str, list[int]]) -> dict[str, list[Any]]:
    """Returns the samples of rows: without noise, which a table draws for a whole batch of a rank."""
    numbers = rows["number"]
    return {"values": [torch.full((4,), float(number)) for number in numbers], "number": numbers}


if __name__ == "__main__":
    table = datasets.Dataset.from_dict({"number": list(range(SAMPLES))}).with_transform(with_values)
    train_with(
        lambda size, workers: DataLoader(
            table, batch_size=size, shuffle=True, num_workers=workers, seed=3, shard="auto"
        ),
        lambda batch: (batch["values"], batch["number"]),
    )
