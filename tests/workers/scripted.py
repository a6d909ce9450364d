"""A tuner that changes its mind by a script, and a dataset that shows every difference that this could make."""

from __future__ import annotations

import random
from collections.abc import Sequence
from typing import Any

import numpy as np
import torch
from torch.utils.data import Dataset

import headrace
from headrace.telemetry.recording import Recording
from headrace.workers.auto.tuner import Choice, Limits, Taken, Tuner

ROOM = Limits(most=8, budget=10**12)


class Scripted(Tuner):
    """Goes to the next number of workers of its script at each `every`-th look."""

    def __init__(self, script: Sequence[int | Choice], every: int = 3, limits: Limits = ROOM, first: int = 1) -> None:
        super().__init__(limits, Choice(first, 2))
        self._script = [one if isinstance(one, Choice) else Choice(one, 2) for one in script]
        self._every, self._looks = every, 0
        self.reason = "the script says so"

    def look(self, now: float, recording: Recording, taken: Taken) -> Choice | None:
        """See `Tuner.look`."""
        self._looks += 1
        if self._looks % self._every or not self._script:
            return None
        choice = self._script.pop(0)
        return self._go(choice, self.reason)


class Drawing(Dataset[torch.Tensor]):
    """Draws from all generators; a sample is large enough for leased memory."""

    def __init__(self, length: int = 160) -> None:
        self.length = length

    def __len__(self) -> int:
        return self.length

    def __getitem__(self, key: int) -> torch.Tensor:
        drawn = [key, random.random(), float(np.random.rand()), float(torch.rand(())), float(headrace.rng().random())]
        return torch.tensor(drawn, dtype=torch.float64).repeat(200)


def scripted(loader: Any, script: Sequence[int | Choice], every: int = 3) -> Any:
    """Returns a loader with `num_workers="auto"` whose workers come and go by a script."""
    loader._session.tuner = Scripted(script, every)
    return loader
