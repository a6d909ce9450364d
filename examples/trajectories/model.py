"""A small network that reads the letters of a word off a swipe."""

from __future__ import annotations

from typing import Any

import torch
from features import COLUMNS
from keyboard import LETTERS
from torch import nn
from torch.nn import functional

LONGEST = 16
"""Letters of a word that are read; the places after its end are 0, no letter."""

SCALES = torch.tensor([0.2, 1, 1, 0.1, 0.1, 0.01, 0.01, 0.1, 1])
"""Brings each feature to about 1."""


class Reader(nn.Module):
    """Convolutions along the swipe; then each place of the word looks where on the swipe its letter is.

    Takes features [batch, points, 9], keys [batch, points] and lengths [batch]; returns logits [batch, 16, 27].
    """

    def __init__(self, width: int = 48) -> None:
        super().__init__()
        self.register_buffer("scales", SCALES)
        self.embed = nn.Embedding(LETTERS + 1, 16)
        self.read = nn.Sequential(
            nn.Conv1d(len(COLUMNS) + 16 + 1, width, 5, padding=2),
            nn.GELU(),
            nn.Conv1d(width, width, 5, padding=2),
            nn.GELU(),
        )
        self.look = nn.Conv1d(width + 1, LONGEST, 1)
        self.name = nn.Linear(width, LETTERS + 1)

    def forward(self, features: torch.Tensor, keys: torch.Tensor, lengths: torch.Tensor) -> torch.Tensor:
        places = torch.arange(features.shape[1])
        along = (places / lengths[:, None])[:, :, None]
        swipe = torch.cat([features * self.scales, self.embed(keys.int()), along], 2).transpose(1, 2)
        read = self.read(swipe)
        looks = self.look(torch.cat([read, along.transpose(1, 2)], 1))
        looks = looks.masked_fill((places >= lengths[:, None])[:, None], -1e9).softmax(2)
        return self.name(looks @ read.transpose(1, 2))


def loss_of(model: Reader, batch: dict[str, Any]) -> tuple[torch.Tensor, torch.Tensor]:
    """Returns the mean cross-entropy of all places, and the share of the words' letters that are right."""
    (features, lengths), (keys, _), (target, _) = batch["features"], batch["keys"], batch["target"]
    target = functional.pad(target[:, :LONGEST].long(), (0, max(LONGEST - target.shape[1], 0)))
    logits = model(features, keys, lengths)
    letters = target > 0
    right = (logits.argmax(2) == target)[letters].float().mean()
    return functional.cross_entropy(logits.transpose(1, 2), target), right
