"""Trains on a table that others write to. Started again, it resumes after the last checkpoint.

    export DATABASE_URL=postgresql://user@localhost/train
    python examples/live_sql.py --samples 5000

The table is in the docstring of `train`. Rows to try it with:

    insert into points (x1, x2, y) select random(), random(), random() from generate_series(1, 5000)
"""

from __future__ import annotations

import argparse
import os
from pathlib import Path

import torch
from torch import nn

import headrace

BATCH = 50


def train(url: str, samples: int, checkpoint: Path) -> None:
    """Trains on so many further rows, and waits for those that are not there yet, of this table:

    create table points (id bigint generated always as identity primary key, x1 real not null, x2 real not null,
        y real not null)
    """
    # Rows wait for transactions that may still bring smaller keys: none that commits late is missed.
    columns = ["x1", "x2", "y"]
    points = headrace.follow(url, columns, table="points", key="id", span=1000, linger=1.0)
    loader = headrace.DataLoader(
        points, batch_size=BATCH, shuffle=True, num_workers=1, seed=0, batches_per_epoch=samples // BATCH
    )
    model = nn.Linear(2, 1)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    step = 0
    if checkpoint.exists():
        saved = torch.load(checkpoint)
        loader.load_state_dict(saved["loader"])
        model.load_state_dict(saved["model"])
        step = saved["step"]
        print(f"resumes after step {step}")

    for batch in loader:
        inputs = torch.stack([batch["x1"], batch["x2"]], dim=1)
        loss = nn.functional.mse_loss(model(inputs)[:, 0], batch["y"])
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        step += 1

    state = loader.state_dict()
    unfinished = checkpoint.with_suffix(".new")
    torch.save({"loader": state, "model": model.state_dict(), "step": step}, unfinished)
    unfinished.replace(checkpoint)  # the whole file or none
    loader.commit(state)  # a table needs none; it is here for the day on which the source is another one
    print(f"saved step {step}")


def main() -> None:
    """Reads the arguments."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    # Other users of the machine see what stands on a command line. PostgreSQL also takes PGPASSWORD.
    parser.add_argument("--url", default=os.environ.get("DATABASE_URL", "postgresql://localhost/train"))
    parser.add_argument("--samples", type=int, default=1000, help="to train on in this run (%(default)s)")
    parser.add_argument("--checkpoint", type=Path, default=Path("live_sql.pt"))
    given = parser.parse_args()
    train(given.url, given.samples, given.checkpoint)


if __name__ == "__main__":
    main()
