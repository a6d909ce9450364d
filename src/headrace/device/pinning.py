"""`pin_memory=True`: batches in page-locked memory, by torch's own rules for containers and custom types."""

from __future__ import annotations

from typing import Any

import torch

from headrace.core.torch_internals import torch_pin_memory
from headrace.shared_memory.page_lock import PageLock
from headrace.shared_memory.plain_batches import VALUES


def pin(batch: Any, device: str | None, lock: PageLock | None = None) -> Any:
    """Returns a batch in page-locked memory. Tensors whose slots are page-locked stay where they are.

    device: the accelerator's type. None: torch's default, which is CUDA; torch 2.6 says nothing else. lock: what locks
    slots; None: nothing does.

    Call it only where torch says that batches are pinned. It raises what torch raises where memory cannot be pinned.
    """
    # Torch would ask the driver about each tensor, and copy each container with all checks.
    kind = type(batch)
    if kind is torch.Tensor and lock is not None and _lies_in_slot(batch, lock):
        return batch
    if kind in VALUES:
        return batch
    if kind is dict:
        return {key: pin(part, device, lock) for key, part in batch.items()}
    if kind is list:
        return [pin(part, device, lock) for part in batch]
    if kind is tuple:
        return tuple([pin(part, device, lock) for part in batch])
    return torch_pin_memory(batch, device)


def _lies_in_slot(tensor: torch.Tensor, lock: PageLock) -> bool:
    if tensor.layout is not torch.strided or tensor.is_nested:
        return False  # it has no memory of its own
    return lock.range_of(tensor.data_ptr(), 1) is not None
