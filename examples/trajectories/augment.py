"""Small random changes of the coordinates, for one sample and for a whole block of them.

Such a step belongs after the cache point: stored, it would be the same noise in every epoch. Steps declared with
`random=True` are never cached unless it is asked for. Both functions draw from `headrace.rng()`, anew in each call:
under `DataLoader(seed=)` its numbers depend on the seed, the epoch and the sample's position (for a block: that of
its first sample), whatever workers there are.
"""

from __future__ import annotations

from typing import Any

import numpy as np
from features import X, Y

import headrace

STRENGTH = np.float32(0.05)
"""Standard deviation of the noise, in key widths."""


def noise(sample: dict[str, Any]) -> dict[str, Any]:
    """Moves each point a little, in place; velocities stay as they are."""
    features = sample["features"]
    features[:, X : Y + 1] += headrace.rng().standard_normal((len(features), 2), np.float32) * STRENGTH
    return sample


def noise_all(block: dict[str, Any]) -> dict[str, Any]:
    """`noise` of each sample of a block: from one stream, the same numbers as for one sample after the other."""
    features = block["features"].values
    moved = headrace.rng().standard_normal((len(features), 2), np.float32) * STRENGTH
    features[:, X] += moved[:, 0]  # one column after the other: NumPy is slow along an axis of two
    features[:, Y] += moved[:, 1]
    return block
