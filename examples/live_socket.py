"""Trains on what clients send to a socket. Started again, it resumes after the last checkpoint.

    python examples/live_socket.py --url tcp://127.0.0.1:9000 --samples 5000

It listens there. A record is a line of three numbers, of which the last one is the target. In another terminal:

    seq 5000 | sed 's|.*|0.&,0.5,0.&|' | nc -N 127.0.0.1 9000
"""

from __future__ import annotations

import argparse
from pathlib import Path

import torch
from torch import Tensor, nn

import headrace

BATCH = 50


def decode(line: bytes) -> tuple[Tensor, float]:
    """Returns the sample of a line: numbers, and the target."""
    *numbers, target = map(float, line.split(b","))
    return torch.tensor(numbers), target


def train(url: str, samples: int, checkpoint: Path, journal: Path) -> None:
    """Trains on so many further samples, and waits for those that are not there yet."""
    lines = headrace.follow(url, decode=decode, listen=True, journal=journal, journal_bytes="1GB", span=500, linger=1.0)
    loader = headrace.DataLoader(
        lines, batch_size=BATCH, shuffle=True, num_workers=1, seed=0, batches_per_epoch=samples // BATCH
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

    print(f"listens at {url}")
    for inputs, targets in loader:
        loss = nn.functional.mse_loss(model(inputs)[:, 0], targets.float())
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        step += 1

    state = loader.state_dict()
    unfinished = checkpoint.with_suffix(".new")
    torch.save({"loader": state, "model": model.state_dict(), "step": step}, unfinished)
    unfinished.replace(checkpoint)  # the whole file or none
    loader.commit(state)  # frees what the journal holds of it
    print(f"saved step {step}")


def main() -> None:
    """Reads the arguments."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--url", default="tcp://127.0.0.1:9000")
    parser.add_argument("--samples", type=int, default=1000, help="to train on in this run (%(default)s)")
    parser.add_argument("--checkpoint", type=Path, default=Path("live_socket.pt"))
    parser.add_argument("--journal", type=Path, default=Path("live_socket.journal"))
    given = parser.parse_args()
    train(given.url, given.samples, given.checkpoint, given.journal)


if __name__ == "__main__":
    main()
