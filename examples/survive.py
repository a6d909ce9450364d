"""Goes through an epoch of corrupt files, a sample that kills its worker and one that hangs, and loses nothing else.

    python examples/survive.py

What is bad is written to a file, which the next epoch leaves out.
"""

from __future__ import annotations

import logging
import os
import tempfile
import time
from pathlib import Path

import torch
from torch import Tensor
from torch.utils.data import Dataset

import headrace


class Recordings(Dataset[Tensor]):
    """Small files of 16 numbers each: number k holds k. Some of them are not what they should be."""

    def __init__(self, folder: Path, length: int) -> None:
        self.folder, self.length = folder, length
        for key in range(length):
            size = 7 if key % 100 == 13 else 16  # one in a hundred was cut off
            (folder / f"{key}.bin").write_bytes(bytes([key % 256]) * size)

    def __len__(self) -> int:
        return self.length

    def __getitem__(self, key: int) -> Tensor:
        if key == 250:
            os.abort()  # as a decoder does that trips over a broken file
        if key == 333:
            time.sleep(3600)  # as a file server does
        data = (self.folder / f"{key}.bin").read_bytes()
        return torch.frombuffer(bytearray(data), dtype=torch.uint8).reshape(16)


def main() -> None:
    """Runs one epoch that survives everything, and one that leaves it out."""
    logging.getLogger("headrace").setLevel(logging.ERROR)  # leave this out to read what happens
    with tempfile.TemporaryDirectory() as folder:
        bad = Path(folder) / "bad.jsonl"
        data = Recordings(Path(folder), 500)
        loader = headrace.DataLoader(
            data,
            batch_size=20,
            shuffle=True,
            num_workers=2,
            seed=0,
            on_error=headrace.OnError("replace", log=bad, timeout=1.0),
        )
        sizes = {len(batch) for batch in loader}
        faults = loader.faults
        print(f"{len(loader)} batches of {sizes}; {faults.bad} bad samples and {faults.restarts} workers replaced")
        for record in sorted(headrace.load_quarantine(bad), key=lambda record: record.key):
            print(f"  {record.key}: {record.error.splitlines()[0][:70]}")
        again = headrace.DataLoader(
            data, batch_size=20, shuffle=True, num_workers=2, seed=0, on_error=headrace.OnError(exclude=bad)
        )
        print(f"without them: {sum(len(batch) for batch in again)} samples, {again.faults.bad} bad ones")


if __name__ == "__main__":
    main()
