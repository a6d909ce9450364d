"""Trains on a stream of Redis. Started again, it resumes after the last checkpoint.

    export REDIS_URL=redis://user:password@localhost/readings
    python examples/live_redis.py --samples 5000

The field "data" of an entry is JSON. Entries to try it with:

    seq 5000 | sed "s|.*|XADD readings * data '{\\"x\\": [0.&, 0.5], \\"y\\": 0.&}'|" | redis-cli > redis.log
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
    """Trains on so many further samples; a bad one is left out, and its place is written down."""
    readings = headrace.follow(url, decode="json", span=1000, linger=1.0)
    loader = headrace.DataLoader(
        readings,
        batch_size=BATCH,
        shuffle=True,
        seed=0,
        batches_per_epoch=samples // BATCH,
        on_error=headrace.OnError("skip", log=checkpoint.with_suffix(".bad.jsonl")),
    )
    model = nn.Linear(2, 1, dtype=torch.float64)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    step = 0
    if checkpoint.exists():
        saved = torch.load(checkpoint)
        loader.load_state_dict(saved["loader"])
        model.load_state_dict(saved["model"])
        step = saved["step"]
        print(f"resumes after step {step}")

    for batch in loader:
        loss = nn.functional.mse_loss(model(batch["x"])[:, 0], batch["y"])
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        step += 1

    state = loader.state_dict()
    unfinished = checkpoint.with_suffix(".new")
    torch.save({"loader": state, "model": model.state_dict(), "step": step}, unfinished)
    unfinished.replace(checkpoint)  # the whole file or none
    loader.commit(state)  # `XINFO GROUPS readings` shows how far it is
    print(f"saved step {step}; {loader.faults.bad} bad samples")


def main() -> None:
    """Reads the arguments."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    # Other users of the machine see what stands on a command line.
    parser.add_argument("--url", default=os.environ.get("REDIS_URL", "redis://localhost/readings"))
    parser.add_argument("--samples", type=int, default=1000, help="to train on in this run (%(default)s)")
    parser.add_argument("--checkpoint", type=Path, default=Path("live_redis.pt"))
    given = parser.parse_args()
    train(given.url, given.samples, given.checkpoint)


if __name__ == "__main__":
    main()
