"""datasets: a stream of four shards, in headrace's loader, goes on in mid-epoch from its own state."""

from __future__ import annotations

from typing import Any

import datasets
from resumed import SAMPLES, Noisy, stream_with

from headrace import DataLoader


def with_noise(row: dict[str, int]) -> dict[str, Any]:
    """Returns the sample of a row."""
    values, number = Noisy()[row["number"]]
    return {"values": values, "number": number}


if __name__ == "__main__":
    table = datasets.Dataset.from_dict({"number": list(range(SAMPLES))})
    stream = table.to_iterable_dataset(num_shards=4).map(with_noise).with_format("torch")
    stream_with(
        lambda size, workers: DataLoader(stream, batch_size=size, num_workers=workers, seed=3),
        lambda batch: (batch["values"], batch["number"]),
    )
