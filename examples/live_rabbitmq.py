"""Trains on a queue of RabbitMQ. Started again, it resumes after the last checkpoint.

    export RABBITMQ_URL=amqp://user:password@localhost/rollouts
    python examples/live_rabbitmq.py --samples 5000

A message is JSON, such as {"state": [0.1, 0.7], "reward": 1.5}. What was received lies in a folder, the journal, until
a checkpoint is behind it: a queue delivers a message once.
"""

from __future__ import annotations

import argparse
import os
from pathlib import Path

import torch
from torch import nn

import headrace

BATCH = 50


def train(url: str, samples: int, checkpoint: Path, journal: Path) -> None:
    """Trains on so many further samples, and waits for those that are not there yet."""
    rollouts = headrace.follow(url, decode="json", journal=journal, journal_bytes="1GB", span=500, linger=1.0)
    loader = headrace.DataLoader(
        rollouts, batch_size=BATCH, shuffle=True, num_workers=1, seed=0, batches_per_epoch=samples // BATCH
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
        loss = nn.functional.mse_loss(model(batch["state"])[:, 0], batch["reward"])
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        step += 1
        if step % 20 == 0:
            print(f"step {step}: loss {loss.item():.4f}")

    state = loader.state_dict()
    unfinished = checkpoint.with_suffix(".new")
    torch.save({"loader": state, "model": model.state_dict(), "step": step}, unfinished)
    unfinished.replace(checkpoint)  # the whole file or none
    loader.commit(state)  # frees what the journal holds of it
    print(f"saved step {step}")


def main() -> None:
    """Reads the arguments."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    # Other users of the machine see what stands on a command line.
    parser.add_argument("--url", default=os.environ.get("RABBITMQ_URL", "amqp://localhost/rollouts"))
    parser.add_argument("--samples", type=int, default=1000, help="to train on in this run (%(default)s)")
    parser.add_argument("--checkpoint", type=Path, default=Path("live_rabbitmq.pt"))
    parser.add_argument("--journal", type=Path, default=Path("live_rabbitmq.journal"))
    given = parser.parse_args()
    train(given.url, given.samples, given.checkpoint, given.journal)


if __name__ == "__main__":
    main()
