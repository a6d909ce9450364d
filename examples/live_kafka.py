"""Trains on a topic of Kafka that never ends. Started again, it resumes after the last checkpoint.

    python examples/live_kafka.py --url kafka://localhost:9092/points --samples 5000

A message is JSON, such as {"x": [0.1, 0.7], "y": 1.5}. Messages to try it with:

    seq 5000 | sed 's|.*|{"x": [0.&, 0.5], "y": 0.&}|' | kcat -P -b localhost:9092 -t points
"""

from __future__ import annotations

import argparse
from pathlib import Path

import torch
from torch import nn

import headrace

BATCH = 50


def train(url: str, samples: int, checkpoint: Path) -> None:
    """Trains on so many further samples, and waits for those that are not there yet."""
    # For a broker that wants a password: options={"sasl.password": os.environ["KAFKA_PASSWORD"], ...}.
    points = headrace.follow(url, decode="json", span=1000, linger=1.0)
    loader = headrace.DataLoader(
        points, batch_size=BATCH, shuffle=True, num_workers=1, seed=0, batches_per_epoch=samples // BATCH
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
        if step % 20 == 0:
            print(f"step {step}: loss {loss.item():.4f}")

    state = loader.state_dict()
    unfinished = checkpoint.with_suffix(".new")
    torch.save({"loader": state, "model": model.state_dict(), "step": step}, unfinished)
    unfinished.replace(checkpoint)  # the whole file or none
    loader.commit(state)  # for the broker's own tools: the offsets of the group "headrace"
    print(f"saved step {step}")


def main() -> None:
    """Reads the arguments."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--url", default="kafka://localhost:9092/points")
    parser.add_argument("--samples", type=int, default=1000, help="to train on in this run (%(default)s)")
    parser.add_argument("--checkpoint", type=Path, default=Path("live_kafka.pt"))
    given = parser.parse_args()
    train(given.url, given.samples, given.checkpoint)


if __name__ == "__main__":
    main()
