"""What watching over workers and samples costs on a clean run: headrace's loader with and without it, interleaved.

The samples are those of transport.py: ready tensors in memory, so that nothing else takes time. `guarded` has a policy
for bad samples, a quarantine file, a limit and a timeout for each sample. Every batch of every epoch is checked.

    python benchmarks/faults.py [--batches 60] [--rounds 11]
"""

from __future__ import annotations

import argparse
import statistics
import tempfile
from pathlib import Path
from typing import Any

import torch

import headrace
from transport import BATCH, ReadySamples, epoch


def compare(dataset: ReadySamples, rounds: int, folder: Path, options: dict[str, Any]) -> tuple[float, float, float]:
    """Returns the median rates without and with the guards in GB/s, and the median of the ratios of the rounds."""
    guards = {
        "on_error": "replace",
        "quarantine": folder / "bad.jsonl",
        "max_errors": 0.01,
        "sample_timeout": 60.0,
    }
    loaders = [headrace.DataLoader(dataset, batch_size=BATCH, **options, **more) for more in ({}, guards)]
    for loader in loaders:
        epoch(loader, dataset, dataset.check_fully)
    pairs = []
    for turn in range(rounds):
        order = loaders if turn % 2 == 0 else loaders[::-1]
        timed = [epoch(loader, dataset, dataset.check).rate for loader in order]
        pairs.append(timed if turn % 2 == 0 else timed[::-1])
    assert loaders[1].faults.bad == 0
    plain, guarded = (statistics.median(rates) for rates in zip(*pairs, strict=True))
    return plain, guarded, statistics.median(guarded / plain for plain, guarded in pairs)


def main() -> None:
    """Runs all settings and prints the table."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--batches", type=int, default=60, help="batches of 38.5 MB in an epoch")
    parser.add_argument("--rounds", type=int, default=11, help="timed epochs of each loader")
    given = parser.parse_args()
    torch.set_num_threads(1)
    dataset = ReadySamples(given.batches * BATCH)
    settings: list[tuple[str, dict[str, Any]]] = [
        ("2 workers, kept between epochs", {"num_workers": 2, "persistent_workers": True}),
        ("2 workers, new in each epoch", {"num_workers": 2}),
        ("2 threads", {"num_workers": 2, "backend": "thread"}),
        ("no workers", {}),
    ]
    print(f"{'64x3x224x224 float32':<32} {'plain GB/s':>12} {'guarded GB/s':>13} {'ratio':>7}")
    with tempfile.TemporaryDirectory() as folder:
        for title, options in settings:
            plain, guarded, ratio = compare(dataset, given.rounds, Path(folder), options)
            print(f"{title:<32} {plain:>12.2f} {guarded:>13.2f} {ratio:>7.3f}")
    print("every batch of every epoch was checked")


if __name__ == "__main__":
    main()
