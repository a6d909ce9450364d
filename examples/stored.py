"""Data in one form, packed into another, opened, checked, trained on.

    python examples/stored.py

Writes a table of 20,000 rows as CSV, packs it into memory-mapped columns, compares both, and fits a line through it.
"""

from __future__ import annotations

import csv
import tempfile
from pathlib import Path

import numpy as np
import torch

import headrace
from headrace import PackOptions, pack, verify

ROWS = 20_000


def write_table(path: Path) -> None:
    """Writes y = 3 x - 1, with a little noise."""
    rng = np.random.default_rng(0)
    xs = rng.normal(size=ROWS)
    with path.open("w", newline="") as file:
        rows = csv.writer(file)
        rows.writerow(["x", "y", "remark"])
        rows.writerows((x, 3 * x - 1 + noise, "none") for x, noise in zip(xs, rng.normal(size=ROWS) / 100, strict=True))


def fit(loader: headrace.DataLoader) -> tuple[float, float]:
    """Returns slope and intercept after three epochs."""
    line = torch.nn.Linear(1, 1)
    optimizer = torch.optim.SGD(line.parameters(), lr=0.1)
    for _ in range(3):
        for batch in loader:
            optimizer.zero_grad()
            loss = (line(batch["x"][:, None])[:, 0] - batch["y"]).square().mean()
            loss.backward()
            optimizer.step()
    return line.weight.item(), line.bias.item()


def main() -> None:
    with tempfile.TemporaryDirectory() as folder:
        source, target = Path(folder, "table.csv"), Path(folder, "table")
        write_table(source)
        made = pack(str(source), str(target), PackOptions(format="memmap", columns=("x", "y")))
        print(f"{made.samples} rows packed as {made.format}; sound: {verify(str(target)).sound}")
        parsed, mapped = headrace.open(source), headrace.open(target)
        same = all(parsed[row]["x"] == mapped[row]["x"] for row in range(0, ROWS, 100))
        print(f"the same rows: {same}")
        loader = headrace.DataLoader(mapped.astype(torch.float32), batch_size=256, shuffle=True, seed=0)
        slope, intercept = fit(loader)
        print(f"y = {slope:.1f} x {intercept:+.1f}")


if __name__ == "__main__":
    main()
