"""How the tensors of a batch lie: here, in memory that a device reads, and side by side on the device."""

from __future__ import annotations

import ctypes
from dataclasses import dataclass
from typing import Any, NamedTuple

import torch

from headrace.core.batch_memory import BatchMemory
from headrace.core.plain_tensors import DTYPES
from headrace.shared_memory.memory import address_of
from headrace.shared_memory.page_lock import LockedRange, PageLock
from headrace.shared_memory.plain_batches import UnopenedBatch
from headrace.shared_memory.writer_memory import ALIGNED, SMALL, aligned

GATHERED = 64 << 10
"""Neighbours of fewer bytes are copied to other ones, where a batch has several: sooner than a call of the driver."""

_DTYPES = frozenset(DTYPES)


class TensorPart(NamedTuple):
    """A tensor of a batch: its address and bytes, and how its numbers lie."""

    address: int
    nbytes: int
    dtype: torch.dtype
    shape: tuple[int, ...]
    stride: tuple[int, ...]

    @classmethod
    def of(cls, tensor: torch.Tensor) -> TensorPart:
        return cls(tensor.data_ptr(), tensor.nbytes, tensor.dtype, tuple(tensor.shape), tensor.stride())

    @property
    def is_image(self) -> bool:
        """Whether it looks like images or videos, as 32-bit floats."""
        return self.dtype is torch.float32 and len(self.shape) in (4, 5)


class HostSpan(NamedTuple):
    """Neighbours in memory that go to the device together: [start, stop) here, and from `place` on in the block."""

    start: int
    stop: int
    place: int = 0
    staged: torch.Tensor | None = None
    """Where it is memory that was taken for the transfer, uint8 [stop - start]."""

    @property
    def nbytes(self) -> int:
        return self.stop - self.start

    def source(self) -> torch.Tensor:
        """Returns the memory, uint8 [nbytes], which the caller keeps alive."""
        if self.staged is not None:
            return self.staged
        return torch.frombuffer((ctypes.c_ubyte * self.nbytes).from_address(self.start), dtype=torch.uint8)


class _DeviceTensor(NamedTuple):
    """A tensor on the device: in which block, at which element of its type, and how its numbers lie."""

    dtype: torch.dtype
    block: int
    offset: int
    shape: tuple[int, ...]
    stride: tuple[int, ...]


class DevicePlan(NamedTuple):
    """How a batch lies on the device."""

    small: tuple[int, int] | None
    """The range of the block that is copied to one of its own; None: nothing is."""
    image_bytes: int
    entries: list[_DeviceTensor]

    @classmethod
    def of(cls, parts: list[TensorPart], places: list[int]) -> DevicePlan:
        """Returns the plan for some tensors. places: in the block, in bytes."""
        small = _range_of_small(parts, places)
        entries = []
        for part, place in zip(parts, places, strict=True):
            block = 0
            if small is not None and part.nbytes < SMALL:
                block = 1
                place -= small[0]
            entries.append(_DeviceTensor(part.dtype, block, place // part.dtype.itemsize, part.shape, part.stride))
        return cls(small, sum(part.nbytes for part in parts if part.is_image), entries)

    def tensors(self, blocks: list[torch.Tensor]) -> list[torch.Tensor]:
        """Returns the tensors over their blocks.

        None is a view of another tensor, so that a change in place counts as a change of one tensor alone.
        """
        storages = [block.untyped_storage() for block in blocks]
        device = blocks[0].device
        empty = torch.empty
        made = []
        for dtype, block, offset, shape, stride in self.entries:
            made.append(empty(0, dtype=dtype, device=device).set_(storages[block], offset, shape, stride))
        return made


@dataclass
class _Group:
    """Parts of a batch that lie side by side in [start, stop), by their numbers."""

    start: int
    stop: int
    numbers: list[int]

    @property
    def nbytes(self) -> int:
        return self.stop - self.start


class HostLayout:
    """Finds what of a batch lies side by side in page-locked memory, and copies the rest there."""

    def __init__(self, lock: PageLock | None, memory: BatchMemory | None) -> None:
        """memory: page-locked, for what does not lie in such memory; None: torch's own."""
        self._lock = lock
        self._memory = memory

    def spans(self, parts: list[TensorPart], tensors: list[torch.Tensor]) -> tuple[list[int], list[HostSpan]]:
        """Returns where each part will lie in the block, and what is to be copied there."""
        groups, loose = self._neighbours(parts)
        if len(groups) + bool(loose) > 1:
            loose += [number for group in groups if group.nbytes < GATHERED for number in group.numbers]
            groups = [group for group in groups if group.nbytes >= GATHERED]

        spans: list[HostSpan] = []
        places = [0] * len(parts)
        end = 0
        for group in groups:
            spans.append(HostSpan(group.start, group.stop, end))
            for number in group.numbers:
                places[number] = end + parts[number].address - group.start
            end = aligned(end + group.nbytes)
        if loose:
            spans.append(self._gathered(parts, tensors, loose, end, places))
        return places, spans

    def span_of(self, batch: UnopenedBatch) -> tuple[int, HostSpan] | None:
        """Returns the one piece of page-locked memory that a batch lies in, and where in its slot it begins.

        None: it lies in several, or in other memory.
        """
        if self._lock is None or not batch.places:
            return None

        index, first, _ = batch.places[0]
        stop = 0
        for other, start, nbytes in batch.places:
            if other != index:
                return None
            first = min(first, start)
            stop = max(stop, start + nbytes)
        first = first // ALIGNED * ALIGNED
        base = address_of(batch.leases[index])
        if self._lock.range_of(base + first, stop - first) is None:
            return None
        return first, HostSpan(base + first, base + stop)

    def _neighbours(self, parts: list[TensorPart]) -> tuple[list[_Group], list[int]]:
        """Returns the parts that lie side by side in page-locked memory, and the numbers of those that do not."""
        groups: list[_Group] = []
        loose: list[int] = []
        last: LockedRange | None = None
        for number in sorted(range(len(parts)), key=lambda number: parts[number].address):
            part = parts[number]
            found = None if self._lock is None else self._lock.range_of(part.address, part.nbytes)
            if found is None:
                loose.append(number)
                continue
            if not groups or found is not last or part.address - groups[-1].stop >= ALIGNED:
                start = part.address // ALIGNED * ALIGNED
                groups.append(_Group(start, start, []))
            groups[-1].stop = max(groups[-1].stop, part.address + part.nbytes)
            groups[-1].numbers.append(number)
            last = found
        return groups, loose

    def _gathered(
        self, parts: list[TensorPart], tensors: list[torch.Tensor], loose: list[int], place: int, places: list[int]
    ) -> HostSpan:
        """Copies tensors that lie here and there into page-locked memory, side by side."""
        # Large ones first, so that the small ones are neighbours.
        loose.sort(key=lambda number: parts[number].nbytes < SMALL)
        size = sum(aligned(parts[number].nbytes) for number in loose)
        if self._memory is None:
            staged = torch.empty(size, dtype=torch.uint8, pin_memory=True)
        else:
            staged = self._memory.empty((size,), torch.uint8)

        offset = 0
        for number in loose:
            nbytes = parts[number].nbytes
            staged[offset : offset + nbytes].copy_(bytes_in(tensors[number]))
            places[number] = place + offset
            offset += aligned(nbytes)
        return HostSpan(staged.data_ptr(), staged.data_ptr() + size, place, staged)


def parts_of(batch: UnopenedBatch) -> list[TensorPart]:
    """Returns the tensors of a batch whose addresses count from the beginning of its slot."""
    parts = []
    for (number, shape), (_, start, nbytes) in zip(batch.told, batch.places, strict=True):
        parts.append(TensorPart(start, nbytes, DTYPES[number], shape, _contiguous(shape)))
    return parts


def travels_as_bytes(part: Any) -> bool:
    """Tells whether shape, type and bytes say all of a tensor, and it lies on this machine, without gaps."""
    if type(part) is not torch.Tensor or part.dtype not in _DTYPES or part.device.type != "cpu":
        return False
    if part.layout is not torch.strided or part.requires_grad or part.is_conj() or part.is_neg() or part.numel() == 0:
        return False
    return part.is_contiguous() or _is_channels_last(part)


def _is_channels_last(tensor: torch.Tensor) -> bool:
    if tensor.dim() == 4:
        return tensor.is_contiguous(memory_format=torch.channels_last)
    return tensor.dim() == 5 and tensor.is_contiguous(memory_format=torch.channels_last_3d)


def bytes_in(tensor: torch.Tensor) -> torch.Tensor:
    """Returns the memory of a tensor without gaps, uint8 [bytes]."""
    start = tensor.storage_offset() * tensor.element_size()
    memory = torch.empty(0, dtype=torch.uint8, device=tensor.device)
    return memory.set_(tensor.untyped_storage(), start, (tensor.nbytes,), (1,))


def _contiguous(shape: tuple[int, ...]) -> tuple[int, ...]:
    """Returns the strides of a tensor without gaps."""
    strides = []
    step = 1
    for size in reversed(shape):
        strides.append(step)
        step *= size
    return tuple(reversed(strides))


def _range_of_small(parts: list[TensorPart], places: list[int]) -> tuple[int, int] | None:
    """Returns the range of the block that holds all small tensors; None: they share the block with the large ones.

    None too where all are small, or where large ones lie between them.
    """
    small = [(place, part.nbytes) for part, place in zip(parts, places, strict=True) if part.nbytes < SMALL]
    if not small or len(small) == len(parts):
        return None

    start = min(place for place, _ in small)
    stop = max(place + nbytes for place, nbytes in small)
    if stop - start > 2 * sum(aligned(nbytes) for _, nbytes in small) + SMALL:
        return None
    return start, stop
