"""Page-locked batches."""

from __future__ import annotations

from typing import Any

from headrace.core.torch_internals import torch_pin_memory


def pin(batch: Any, device: str | None) -> Any:
    """Returns a copy of a batch in page-locked memory, made by torch's own rules for containers and custom types.

    `device` is the accelerator's type, or None where there is none or it cannot pin; the batch then passes through.
    """
    return torch_pin_memory(batch, device) if device is not None else batch
