"""A training loop that asks its loader where the time goes, does what it says, and asks again.

python examples/observe.py
"""

from __future__ import annotations

import time
from typing import Any

import numpy as np
import torch
from torch.utils.data import Dataset

from headrace import DataLoader


class Spectrograms(Dataset[tuple[torch.Tensor, int]]):
    """Samples that come from a slow disk (imitated by sleeping) and are transformed."""

    def __len__(self) -> int:
        return 320

    def read_file(self, key: int) -> np.ndarray:
        """Returns 64x64 float32."""
        time.sleep(0.004)
        return np.random.default_rng(key).random((64, 64), np.float32)

    def transform(self, values: np.ndarray) -> torch.Tensor:
        """Returns the spectrum, 64x33 float32."""
        return torch.from_numpy(np.abs(np.fft.rfft(values)).astype(np.float32))

    def __getitem__(self, key: int) -> tuple[torch.Tensor, int]:
        return self.transform(self.read_file(key)), key


def train(**arguments: Any) -> DataLoader[Any]:
    """Trains one epoch; a step takes 4 ms."""
    loader: DataLoader[Any] = DataLoader(Spectrograms(), batch_size=16, **arguments)
    for _batch in loader:
        time.sleep(0.004)
    return loader


def main() -> None:
    """Trains with one worker, follows the advice for the number of workers, and compares."""
    before = train(num_workers=1)
    print(before.report())
    advice = next((one for one in before.diagnose().findings if "num_workers" in one.change), None)
    if advice is None or advice.gain is None:
        print("There is nothing to gain by another number of workers.")
        return
    after = train(**advice.change)
    gain = after.stats.samples_per_second / before.stats.samples_per_second
    print(f"{advice.change}: predicted {advice.gain:.1f} times as fast, measured {gain:.1f} times.")


if __name__ == "__main__":
    main()
