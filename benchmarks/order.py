"""What a shuffle costs: time to the first batch, memory, and a state that goes on, for ever larger datasets.

Each row is a fresh process that iterates `DataLoader(range(n), batch_size=256, shuffle=True)` for some batches: torch's
loader with its RandomSampler, and headrace's with seed=. Memory is what the peak of the process grew by. A size that
would not fit into this machine's memory is not tried (RandomSampler needs about 48 bytes a sample). For headrace the
state is saved in the middle, loaded into a new loader, and the batches after it are compared.

    python benchmarks/order.py [--sizes 1e6 1e8 1e9] [--rounds 3] [--json FILE]
"""

from __future__ import annotations

import argparse
import io
import json
import os
import resource
import statistics
import subprocess
import sys
import time
from typing import Any

import torch
from torch.utils.data import DataLoader as TorchLoader
from torch.utils.data import Dataset

import headrace
import results

BATCHES = 200
BYTES_PER_SAMPLE = 48
CHECKED = "No key came twice, and the three batches after a resume are those that would have come."
Found = dict[tuple[int, str], list[dict[str, float]]]
"""By number of samples and loader: what each process measured."""


class Keys(Dataset[int]):
    """Sample i is i, at no cost."""

    def __init__(self, length: int) -> None:
        self.length = length

    def __len__(self) -> int:
        return self.length

    def __getitem__(self, index: int) -> int:
        return index

    def __getitems__(self, keys: list[int]) -> list[int]:
        return keys


def peak() -> int:
    """The most memory that this process had, in bytes."""
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss << 10


def measure(name: str, length: int) -> dict[str, float]:
    """Iterates in this process: seconds to the first batch, samples per second after it, bytes of growth, state."""
    own: dict[str, Any] = {"seed": 1} if name == "headrace" else {}
    cls: Any = TorchLoader if name == "torch" else headrace.DataLoader

    def made() -> Any:
        return cls(Keys(length), batch_size=256, shuffle=True, **own)

    before, began = peak(), time.perf_counter()
    loader = made()
    iterator = iter(loader)
    batches = [next(iterator)]
    first = time.perf_counter() - began
    began = time.perf_counter()
    batches += [next(iterator) for _ in range(BATCHES)]
    seconds = time.perf_counter() - began
    result = {"first": first, "rate": BATCHES * 256 / seconds, "growth": float(peak() - before)}
    keys = torch.cat(batches)
    if keys.unique().numel() != keys.numel() or not 0 <= int(keys.min()) <= int(keys.max()) < length:
        raise SystemExit("a sample came twice, or there is no such sample")
    if name == "headrace":
        file = io.BytesIO()
        torch.save(loader.state_dict(), file)
        result["state"] = len(json.dumps(loader.state_dict()))
        file.seek(0)
        following = [next(iterator) for _ in range(3)]
        again = made()
        began = time.perf_counter()
        again.load_state_dict(torch.load(file, weights_only=True))
        resumed = iter(again)
        batches = [next(resumed)]
        result["load"] = time.perf_counter() - began
        if not torch.equal(torch.cat([*batches, next(resumed), next(resumed)]), torch.cat(following)):
            raise SystemExit("the order does not go on as it was")
    return result


def main() -> None:
    """Runs all sizes and prints the table."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--sizes", type=float, nargs="+", default=[1e6, 1e8, 1e9])
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--one", help=argparse.SUPPRESS)
    results.option(parser)
    given = parser.parse_args()
    if given.one:
        print(json.dumps(measure(given.one, int(given.sizes[0]))))
        return
    memory = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")
    print(f"shuffle, batches of 256, medians of {given.rounds} processes each; torch {torch.__version__}")
    print(
        f"{'samples':>14}  {'loader':<9}{'first batch ms':>15}{'growth MB':>11}{'samples/s':>12}{'state B':>9}", end=""
    )
    print(f"{'load + first batch ms':>23}")
    found: Found = {}
    for length in map(int, given.sizes):
        for name in ("torch", "headrace"):
            if name == "torch" and length * BYTES_PER_SAMPLE > memory * 0.7:
                print(f"{length:>14,}  {name:<9}  not tried: needs about {length * BYTES_PER_SAMPLE / 1e9:.0f} GB")
                continue
            command = [sys.executable, sys.argv[0], "--sizes", str(length), "--one", name]
            runs = [json.loads(subprocess.check_output(command)) for _ in range(given.rounds)]
            found[length, name] = runs
            median = {key: statistics.median(run[key] for run in runs) for key in runs[0]}
            print(f"{length:>14,}  {name:<9}{median['first'] * 1e3:>15,.1f}{median['growth'] / 1e6:>11,.1f}", end="")
            print(f"{median['rate']:>12,.0f}", end="")
            print(f"{median['state']:>9,.0f}{median['load'] * 1e3:>23.1f}" if "state" in median else "", flush=True)
    results.write(given.json, tables(found))


def tables(found: Found) -> list[results.Table]:
    """Returns what was measured as tables, one for each unit."""
    lengths = list(dict.fromkeys(length for length, _ in found))

    def table(title: str, unit: str, key: str, scale: float, better: Any = "less") -> results.Table:
        rows = []
        for length in lengths:
            figures = {name: [run[key] * scale for run in found[length, name]] for name in names(length, key)}
            missing = {} if "torch" in figures or key == "load" else {"torch": too_large(length)}
            rows.append(results.Row(f"{length:,} samples", figures, missing))
        return results.Table(title, unit, rows, CHECKED, better=better)

    def names(length: int, key: str) -> list[str]:
        return [name for name in ("torch", "headrace") if key in found.get((length, name), [{}])[0]]

    made = [
        table("shuffled, to the first batch of 256 keys", "ms", "first", 1e3),
        table("memory that the process grew by", "MB", "growth", 1e-6),
        table("keys after the first batch", "samples/s", "rate", 1.0, "more"),
        table("a saved state loaded, to the next batch", "ms", "load", 1e3),
    ]
    states = [run["state"] for runs in found.values() for run in runs if "state" in run]
    made[-1].notes.append(f"A state is {min(states):,.0f} to {max(states):,.0f} bytes of JSON.")
    return made


def too_large(length: int) -> str:
    """Returns why torch's loader was not tried."""
    return f"does not fit: about {length * BYTES_PER_SAMPLE / 1e9:.0f} GB"


if __name__ == "__main__":
    main()
