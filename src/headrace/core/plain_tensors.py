"""Plain tensors: ordinary ones, which are nothing but numbers that lie side by side in memory of this machine."""

from __future__ import annotations

import torch

DTYPES = (
    torch.bool,
    torch.uint8,
    torch.int8,
    torch.int16,
    torch.int32,
    torch.int64,
    torch.float16,
    torch.bfloat16,
    torch.float32,
    torch.float64,
    torch.complex64,
    torch.complex128,
)
"""Of plain tensors; torch lacks much for the others."""

_DTYPES = frozenset(DTYPES)


def is_plain(tensor: torch.Tensor) -> bool:
    """Tells whether type, shape and bytes say all of a tensor: it has no class, gradient, gaps or signs of its own."""
    if type(tensor) is not torch.Tensor or tensor.dtype not in _DTYPES or tensor.requires_grad:
        return False
    if tensor.layout is not torch.strided or tensor.device.type != "cpu" or not tensor.is_contiguous():
        return False
    return not (tensor.is_conj() or tensor.is_neg())
