"""Batches at fixed addresses, as recorded graphs read them."""

from __future__ import annotations

from typing import Any, NamedTuple

import torch

from headrace.core.accelerator import Accelerator
from headrace.core.errors import UsageError
from headrace.device.containers import changed


class _Place(NamedTuple):
    """How a tensor lies at its address."""

    shape: tuple[int, ...]
    stride: tuple[int, ...]
    dtype: torch.dtype

    @classmethod
    def of(cls, tensor: torch.Tensor) -> _Place:
        return cls(tuple(tensor.shape), tensor.stride(), tensor.dtype)

    def __str__(self) -> str:
        return f"{str(self.dtype).removeprefix('torch.')} {list(self.shape)}"


class FixedAddresses:
    """Copies each batch to where the first one lies. The copy stays within the device."""

    def __init__(self, accelerator: Accelerator) -> None:
        self._accelerator = accelerator
        self._fixed: list[torch.Tensor] = []

    def deliver(self, batch: Any) -> Any:
        """Returns the batch, in the tensors of the first one. Raises `UsageError` where shapes or types differ."""
        tensors: list[torch.Tensor] = []
        changed(batch, lambda part: tensors.append(_checked(part)))
        if not self._fixed:
            self._fixed = tensors
            return batch

        found = list(map(_Place.of, tensors))
        expected = list(map(_Place.of, self._fixed))
        if found != expected:
            raise UsageError.about(
                "a batch does not fit where the first one lies",
                place="headrace.DataLoader(fixed_addresses=True)",
                found=", ".join(map(str, found)),
                expected=", ".join(map(str, expected)),
                cure="give all batches the same shapes (drop_last=True, padding to a fixed length), or leave "
                "fixed_addresses= out",
            )

        stream = self._accelerator.stream()
        for target, source in zip(self._fixed, tensors, strict=True):
            if target.numel():
                self._accelerator.copy(_bytes_in(target), _bytes_in(source), stream)
        places = iter(self._fixed)
        return changed(batch, lambda part: next(places))


def _checked(part: Any) -> torch.Tensor:
    if isinstance(part, torch.Tensor):
        return part
    raise UsageError.about(
        "only tensors can have fixed addresses",
        place="headrace.DataLoader(fixed_addresses=True)",
        found=f"a {type(part).__name__} that moves itself to the device",
        expected="tensors in containers",
        cure="have collate_fn return the tensors that the graph reads",
    )


def _bytes_in(tensor: torch.Tensor) -> torch.Tensor:
    """Returns the memory of a tensor without gaps, uint8 [bytes]."""
    start = tensor.storage_offset() * tensor.element_size()
    memory = torch.empty(0, dtype=torch.uint8, device=tensor.device)
    return memory.set_(tensor.untyped_storage(), start, (tensor.nbytes,), (1,))
