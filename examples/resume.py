"""Trains a small network, is stopped in mid-epoch, and goes on as if nothing had happened.

    python examples/resume.py

Run it as it is: it trains straight through, then once more with a stop after 37 steps and a fresh loader with other
workers, and compares the two networks bit for bit.
"""

from __future__ import annotations

import argparse
import tempfile
from pathlib import Path

import torch
from torch import Tensor, nn
from torch.utils.data import Dataset

import headrace


class NoisyPoints(Dataset[tuple[Tensor, int]]):
    """Points around two centres. The noise is an augmentation: other numbers in each epoch."""

    def __len__(self) -> int:
        return 2_000

    def __getitem__(self, index: int) -> tuple[Tensor, int]:
        label = index % 2
        noise = headrace.rng().normal(size=8).astype("float32")
        return torch.from_numpy(noise) + label, label


class Run:
    """Everything that a checkpoint must hold."""

    def __init__(self, num_workers: int) -> None:
        torch.manual_seed(0)
        self.loader = headrace.DataLoader(
            NoisyPoints(),
            batch_size=50,
            shuffle=True,
            num_workers=num_workers,
            seed=0,
            persistent_workers=num_workers > 0,
        )
        self.model = nn.Sequential(nn.Linear(8, 16), nn.ReLU(), nn.Linear(16, 2))
        self.optimizer = torch.optim.SGD(self.model.parameters(), lr=0.1, momentum=0.9)
        self.epoch = self.step = 0

    def save(self, path: Path) -> None:
        """Writes a checkpoint; the loader's state is a part of it like any other."""
        parts = {name: getattr(self, name).state_dict() for name in ("loader", "model", "optimizer")}
        torch.save({**parts, "epoch": self.epoch, "step": self.step}, path)

    def load(self, path: Path) -> None:
        """Goes on from a checkpoint."""
        checkpoint = torch.load(path, weights_only=True)
        for name in ("loader", "model", "optimizer"):
            getattr(self, name).load_state_dict(checkpoint[name])
        self.epoch, self.step = checkpoint["epoch"], checkpoint["step"]

    def train(self, epochs: int, checkpoint: Path | None = None, stop_after: int | None = None) -> None:
        """Trains up to so many epochs; with `stop_after` it saves after that many steps and returns."""
        while self.epoch < epochs:
            for points, labels in self.loader:
                loss = nn.functional.cross_entropy(self.model(points), labels)
                self.optimizer.zero_grad()
                loss.backward()
                self.optimizer.step()
                self.step += 1
                if checkpoint is not None and self.step == stop_after:
                    self.save(checkpoint)
                    return
            self.epoch += 1


def main() -> None:
    """Compares a straight run with one that was stopped."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--epochs", type=int, default=3)
    epochs = parser.parse_args().epochs
    straight = Run(num_workers=0)
    straight.train(epochs)
    with tempfile.TemporaryDirectory() as folder:
        checkpoint = Path(folder, "checkpoint.pt")
        stopped = Run(num_workers=2)
        stopped.train(epochs, checkpoint, stop_after=37)
        resumed = Run(num_workers=1)
        resumed.load(checkpoint)
        resumed.train(epochs)
    pairs = zip(straight.model.parameters(), resumed.model.parameters(), strict=True)
    same = all(torch.equal(one, other) for one, other in pairs)
    print(f"{straight.step} steps straight, {stopped.step} + {resumed.step - stopped.step} with a stop")
    print("the networks are the same, bit for bit" if same else "the networks DIFFER")
    raise SystemExit(not same)


if __name__ == "__main__":
    main()
