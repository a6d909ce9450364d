"""Equal batches have equal checksums, other batches others."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch

from headrace.telemetry.digest import extend_digest


def batch() -> dict[str, Any]:
    return {"x": torch.arange(5000.0).view(50, 100), "y": [np.arange(3), "name", torch.zeros(2, dtype=torch.bfloat16)]}


def test_equal_batches_have_equal_checksums() -> None:
    assert extend_digest(0, batch()) == extend_digest(0, batch())


@pytest.mark.parametrize(
    "change",
    [
        lambda b: b["x"].add_(1),
        lambda b: b.update(x=b["x"].view(100, 50)),
        lambda b: b["y"].__setitem__(1, "other"),
        lambda b: b["y"][0].__setitem__(0, 9),
        lambda b: b.update(z=1),
        lambda b: b.pop("y"),
    ],
)
def test_different_batches_have_different_checksums(change: Any) -> None:
    changed = batch()
    change(changed)
    assert extend_digest(0, changed) != extend_digest(0, batch())


def test_the_order_of_batches_counts() -> None:
    first, second = torch.zeros(3), torch.ones(3)
    assert extend_digest(extend_digest(0, first), second) != extend_digest(extend_digest(0, second), first)
