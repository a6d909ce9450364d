"""Batches at fixed addresses, as recorded graphs read them."""

from __future__ import annotations

from typing import Any

import torch

from headrace.core.accelerator import Accelerator
from headrace.core.errors import UsageError
from headrace.device.containers import changed
from headrace.device.layout import bytes_in


class FixedAddresses:
    """Copies each batch to memory that is the same for all of them. The copy stays within the device."""

    def __init__(self, accelerator: Accelerator) -> None:
        self._accelerator = accelerator
        self._fixed: list[torch.Tensor] | None = None

    def deliver(self, batch: Any) -> Any:
        """Returns the batch, in tensors that lie where those of the first one did.

        Tensors with gaps come without. Raises `UsageError` where shapes or types differ.
        """
        tensors: list[torch.Tensor] = []
        changed(batch, lambda part: tensors.append(_checked(part)))
        # The first batch is copied as well: it may lie in memory of the dataset's, or of the transform's.
        if self._fixed is None:
            self._fixed = list(map(self._place_for, tensors))

        found = list(map(_kind_of, tensors))
        expected = list(map(_kind_of, self._fixed))
        if found != expected:
            raise UsageError.about(
                "a batch does not fit where the first one lies",
                place="headrace.DataLoader(fixed_addresses=True)",
                found=", ".join(found),
                expected=", ".join(expected),
                fix="give all batches the same shapes (drop_last=True, padding to a fixed length), or leave "
                "fixed_addresses= out",
            )

        stream = self._accelerator.stream()
        with torch.no_grad():
            for target, source in zip(self._fixed, tensors, strict=True):
                if target.numel():
                    self._accelerator.copy(bytes_in(target), bytes_in(_laid_out_as(target, source)), stream)
        places = iter(self._fixed)
        return changed(batch, lambda part: next(places))

    def _place_for(self, tensor: torch.Tensor) -> torch.Tensor:
        like = torch.empty_like(tensor, device="meta")  # its strides: of a tensor with gaps, as without
        memory = self._accelerator.empty(tensor.numel() * tensor.element_size())
        place = torch.empty(0, dtype=tensor.dtype, device=memory.device)
        place.set_(memory.untyped_storage(), 0, tensor.shape, like.stride())
        return place.requires_grad_(tensor.requires_grad)


def _kind_of(tensor: torch.Tensor) -> str:
    return f"{str(tensor.dtype).removeprefix('torch.')} {list(tensor.shape)}"


def _laid_out_as(target: torch.Tensor, source: torch.Tensor) -> torch.Tensor:
    """Returns a tensor whose numbers lie as those of `target` do, without gaps: the source itself, if they do."""
    if source.stride() == target.stride() and not source.is_conj() and not source.is_neg():
        return source
    return torch.empty_strided(target.shape, target.stride(), dtype=target.dtype, device=source.device).copy_(source)


def _checked(part: Any) -> torch.Tensor:
    if isinstance(part, torch.Tensor) and part.layout is torch.strided and not part.is_quantized:
        return part
    found = f"a {type(part).__name__} that moves itself to the device"
    if isinstance(part, torch.Tensor):
        found = f"a tensor of layout {part.layout}, dtype {part.dtype}"
    raise UsageError.about(
        "only plain tensors can have fixed addresses",
        place="headrace.DataLoader(fixed_addresses=True)",
        found=found,
        expected="strided tensors in containers",
        fix="have collate_fn return the tensors that the graph reads",
    )
