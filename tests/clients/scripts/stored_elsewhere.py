"""What the scripts over URLs share: samples in a bucket, and a look at each of them."""

from __future__ import annotations

import os
from typing import Any

import torch

import headrace


def dataset() -> Any:
    """Returns the samples at SOURCE: number i has features of i. They are cached in CACHE."""
    return headrace.open(os.environ["SOURCE"], cache_dir=os.environ["CACHE"])


def features_of(batch: dict[str, torch.Tensor]) -> torch.Tensor:
    """Returns float32 [batch, 4]. Raises ValueError if a sample is not what was stored under its number."""
    features = batch["features"]
    if not torch.equal(features, batch["number"][:, None].float().expand(-1, 4)):
        raise ValueError("a sample has the features of another one")
    return features
