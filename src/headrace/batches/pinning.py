"""Page-locked batches."""

from __future__ import annotations

from typing import Any

from headrace.core.torch_internals import torch_pin_memory


def pin(batch: Any, device: str | None) -> Any:
    """Returns a copy of a batch in page-locked memory, made by torch's own rules for containers and custom types.

    device: the accelerator's type. None: torch's default, which is CUDA; torch 2.6 says nothing else.

    Call it only where torch says that batches are pinned. It raises what torch raises where memory cannot be pinned.
    """
    return torch_pin_memory(batch, device)
