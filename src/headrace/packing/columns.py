"""The columns of a document, by the names that models know."""

from __future__ import annotations

TOKENS = "input_ids"
LABELS = "labels"

IGNORED = -100
"""The label of a token that is not learned: `ignore_index` of `torch.nn.functional.cross_entropy`."""
