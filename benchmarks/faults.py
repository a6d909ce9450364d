"""What watching over workers and samples costs on a clean run: headrace's loader with and without it, interleaved.

The samples are those of transport.py: ready tensors in memory, so that nothing else takes time. `guarded` has a policy
for bad samples, a quarantine file, a limit and a timeout for each sample. Every batch of every epoch is checked.

    python benchmarks/faults.py [--batches 60] [--rounds 11] [--json FILE]
"""

from __future__ import annotations

import argparse
import statistics
import tempfile
from pathlib import Path
from typing import Any

import torch

import headrace
import results
from transport import BATCH, CHECKED, ReadySamples, epoch

PLAIN, GUARDED = "headrace, not watched", "headrace"


def compare(dataset: ReadySamples, rounds: int, folder: Path, options: dict[str, Any]) -> list[tuple[float, float]]:
    """Returns the rates without and with the guards in GB/s, of each round."""
    guards = {"on_error": headrace.OnError("replace", max_rate=0.01, log=folder / "bad.jsonl", timeout=60.0)}
    loaders = [headrace.DataLoader(dataset, batch_size=BATCH, **options, **more) for more in ({}, guards)]
    for loader in loaders:
        epoch(loader, dataset, dataset.check_fully)
    pairs = []
    for turn in range(rounds):
        order = loaders if turn % 2 == 0 else loaders[::-1]
        timed = [epoch(loader, dataset, dataset.check).rate for loader in order]
        plain, guarded = timed if turn % 2 == 0 else timed[::-1]
        pairs.append((plain, guarded))
    assert loaders[1].faults.bad == 0
    return pairs


def main() -> None:
    """Runs all settings and prints the table."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--batches", type=int, default=60, help="batches of 38.5 MB in an epoch")
    parser.add_argument("--rounds", type=int, default=11, help="timed epochs of each loader")
    results.option(parser)
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
    rows = []
    with tempfile.TemporaryDirectory() as folder:
        for title, options in settings:
            pairs = compare(dataset, given.rounds, Path(folder), options)
            rows.append(results.Row(title, {PLAIN: [one for one, _ in pairs], GUARDED: [one for _, one in pairs]}))
            plain, guarded = (statistics.median(rates) for rates in zip(*pairs, strict=True))
            ratio = statistics.median(guarded / plain for plain, guarded in pairs)
            print(f"{title:<32} {plain:>12.2f} {guarded:>13.2f} {ratio:>7.3f}")
    print("every batch of every epoch was checked")
    title = "64x3x224x224 float32, watched over"
    results.write(given.json, [results.Table(title, "GB/s", rows, CHECKED, base=PLAIN)])


if __name__ == "__main__":
    main()
