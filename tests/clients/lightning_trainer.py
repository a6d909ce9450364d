"""PyTorch Lightning's trainer as the tests want it: on the CPU, and silent."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest


def trainer(folder: Path, steps: int) -> Any:
    """Returns a trainer that stops after so many steps. Skips the test where Lightning is not installed."""
    lightning = pytest.importorskip("lightning")
    return lightning.Trainer(
        max_steps=steps,
        accelerator="cpu",
        logger=False,
        default_root_dir=folder,
        enable_progress_bar=False,
        enable_model_summary=False,
    )
