"""Batches on their way to a device: all tensors of one in one transfer, on a stream of the loader's own.

    host:    | slot: images ........ | labels | lengths |        one range of page-locked memory
    copy:    ------------------------------------------->        one transfer
    device:  | block: images ....... | labels | lengths |   | block: labels | lengths |

Three waits make that right, whoever does what when. The copy waits for what was asked of the user's stream before,
since a block may be memory that the stream still uses. The user's stream waits for the copy before it gets the batch.
And a block that is never handed over is kept until its copy is done.

Small tensors get a block of their own on the device, so that whoever keeps the labels of an epoch keeps no images.
"""

from __future__ import annotations

import ctypes
from collections import deque
from dataclasses import dataclass
from typing import Any, NamedTuple

import torch

from headrace.core.accelerator import Accelerator, DeviceEvent, DeviceStream
from headrace.core.batch_memory import BatchMemory
from headrace.core.plain_tensors import DTYPES
from headrace.core.process import this_process
from headrace.device.containers import changed
from headrace.device.copy_times import CopyTimes
from headrace.shared_memory.memory import address_of
from headrace.shared_memory.page_lock import LockedRange, PageLock
from headrace.shared_memory.plain_batches import UnopenedBatch, rebuild
from headrace.shared_memory.writer_memory import ALIGNED, SMALL, aligned

GATHERED = 64 << 10
"""Neighbours of fewer bytes are copied to other ones, where a batch has several: sooner than a call of the driver."""

PLANS = 64
"""Layouts of batches that are remembered."""

_DTYPES = frozenset(DTYPES)

_left_behind: list[torch.Tensor] = []
"""Blocks whose copies could not be waited for, since a stream recorded a graph when the loader went."""


class _TensorPart(NamedTuple):
    """A tensor of a batch: its address and bytes, and how its numbers lie."""

    address: int
    nbytes: int
    dtype: torch.dtype
    shape: tuple[int, ...]
    stride: tuple[int, ...]

    @property
    def is_image(self) -> bool:
        """Whether it looks like images or videos, as 32-bit floats."""
        return self.dtype is torch.float32 and len(self.shape) in (4, 5)


@dataclass
class _Group:
    """Parts of a batch that lie side by side in [start, stop), by their numbers."""

    start: int
    stop: int
    numbers: list[int]

    @property
    def nbytes(self) -> int:
        return self.stop - self.start


class _Span(NamedTuple):
    """Neighbours in memory that go to the device together: [start, stop) here, and from `place` on in the block."""

    start: int
    stop: int
    place: int
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


class _Entry(NamedTuple):
    """A tensor on the device: in which block, at which element of its type, and how its numbers lie."""

    dtype: torch.dtype
    block: int
    offset: int
    shape: tuple[int, ...]
    stride: tuple[int, ...]


class _Plan(NamedTuple):
    """How a batch lies on the device."""

    small: tuple[int, int] | None
    """The range of the block that is copied to one of its own; None: nothing is."""
    image_bytes: int
    entries: list[_Entry]

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


class _UnderWay(NamedTuple):
    """Blocks that are written to: when that began and ends on the device, and how many bytes come."""

    began: DeviceEvent | None
    ended: DeviceEvent
    nbytes: int
    blocks: list[torch.Tensor]


class Transfer:
    """A batch on its way. `batch` is it, on the device, for whoever has waited by `Transfers.finish`."""

    def __init__(
        self, batch: Any, stream: DeviceStream, blocks: list[torch.Tensor], arrived: DeviceEvent | None, *, movers: bool
    ) -> None:
        """blocks: of device memory, which belong to `stream`. arrived: None: there was nothing to copy. movers: whether
        there are objects in it that move themselves, and have not."""
        self.batch = batch
        self.stream = stream
        self.blocks = blocks
        self.arrived = arrived
        self.movers = movers
        self.is_delivered = False
        """Whether nothing is left to be done with it."""


class Transfers:
    """Sends batches to a device. Belongs to one loader, for its whole life, and to the thread that iterates."""

    def __init__(
        self,
        accelerator: Accelerator,
        lock: PageLock | None,
        memory: BatchMemory | None,
        name: str = "",
    ) -> None:
        """memory: page-locked, for what does not lie in such memory; None: torch's own. name: of the device, as users
        call it."""
        self.accelerator = accelerator
        self.copies = 0
        """Copies over the bus that took them there."""
        self._lock = lock
        self._memory = memory
        self._stream = accelerator.stream(new=True)
        self._under_way: deque[_UnderWay] = deque()
        self._plans: dict[Any, _Plan] = {}
        """By what the tensors of a batch are, and where they lie in its slot."""
        self._process = this_process.current
        self.times = CopyTimes(accelerator, self._stream, name)

    def settle(self) -> None:
        """Lets go of what has arrived."""
        while self._under_way and self._under_way[0].ended.query():
            done = self._under_way.popleft()
            self.times.done(done.began, done.ended, done.nbytes)

    def begin(self, batch: Any) -> Transfer:
        """Has a batch set out. Raises `torch.OutOfMemoryError`."""
        self.settle()
        if isinstance(batch, UnopenedBatch):
            sent = self._begin_unopened(batch)
            if sent is not None:
                return sent
            batch = batch.opened()

        tensors: list[torch.Tensor] = []
        travels: list[bool] = []

        def note(part: Any) -> Any:
            travels.append(_travels_as_bytes(part))
            if travels[-1]:
                tensors.append(part)
            return part

        changed(batch, note)
        stream = self.accelerator.stream()
        movers = not all(travels)
        if not tensors:
            return Transfer(batch, stream, [], None, movers=movers)

        parts = [_part_of(tensor) for tensor in tensors]
        places, spans = self._laid_out(parts, tensors)
        plan = _plan_of(parts, places)
        arrived, blocks = self._send(plan, spans, stream)
        moved = iter(plan.tensors(blocks))
        kinds = iter(travels)
        batch = changed(batch, lambda part: next(moved) if next(kinds) else part)
        return Transfer(batch, stream, blocks, arrived, movers=movers)

    def _begin_unopened(self, batch: UnopenedBatch) -> Transfer | None:
        """Has a batch set out that lies in one slot, without making its tensors here; None: it does not."""
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

        # Nearly always it is laid out as the one before.
        key = tuple(batch.told), tuple(batch.places)
        plan = self._plans.get(key)
        if plan is None:
            parts = []
            for (number, shape), (_, start, nbytes) in zip(batch.told, batch.places, strict=True):
                parts.append(_TensorPart(start, nbytes, DTYPES[number], shape, _contiguous(shape)))
            plan = _plan_of(parts, [part.address - first for part in parts])
            if len(self._plans) == PLANS:
                self._plans.clear()
            self._plans[key] = plan

        stream = self.accelerator.stream()
        arrived, blocks = self._send(plan, [_Span(base + first, base + stop, 0)], stream)
        made = rebuild(batch.node, iter(plan.tensors(blocks)))
        return Transfer(made, stream, blocks, arrived, movers=False)

    def finish(self, transfer: Transfer) -> Any:
        """Returns the batch, for the stream that the thread computes on now."""
        stream = self.accelerator.stream()
        if transfer.arrived is not None:
            stream.wait_event(transfer.arrived)
            transfer.arrived = None
        if stream != transfer.stream:
            for block in transfer.blocks:
                self.accelerator.lend(block, stream)
        transfer.blocks = []
        if transfer.movers:
            transfer.batch = changed(transfer.batch, self._moved_by_itself)
            transfer.movers = False
        return transfer.batch

    def _moved_by_itself(self, part: Any) -> Any:
        if isinstance(part, torch.Tensor) and part.device.type != "cpu":
            return part
        try:
            return part.to(self.accelerator.device, non_blocking=True)
        except TypeError:  # a `to` that knows no such word
            return part.to(self.accelerator.device)

    def _send(self, plan: _Plan, spans: list[_Span], stream: DeviceStream) -> tuple[DeviceEvent, list[torch.Tensor]]:
        """Sends what lies in spans; returns when it will have arrived, and the device memory."""
        nbytes = sum(span.nbytes for span in spans)
        block = self.accelerator.empty(spans[-1].place + spans[-1].nbytes)
        blocks = [block]
        small = plan.small
        if small is not None:
            blocks.append(self.accelerator.empty(small[1] - small[0]))

        # Only now: whoever freed the memory of these blocks had asked for its last use before.
        self._stream.wait_event(self._event(stream))
        began = self.times.begin(idle=not self._under_way)
        for span in spans:
            self.accelerator.copy(block[span.place : span.place + span.nbytes], span.source(), self._stream)
            self.copies += 1
        if small is not None:
            self.accelerator.copy(blocks[1], block[small[0] : small[1]], self._stream)

        arrived = self._event(self._stream, timed=True)
        self.times.sent(nbytes, plan.image_bytes)
        self._under_way.append(_UnderWay(began, arrived, nbytes, blocks))
        return arrived, blocks

    def _event(self, stream: DeviceStream, *, timed: bool = False) -> DeviceEvent:
        event = self.accelerator.event(stream, timed=timed)
        if event is None:
            raise RuntimeError("a batch cannot be sent to a device while a stream of it records a graph")
        return event

    def _laid_out(self, parts: list[_TensorPart], tensors: list[torch.Tensor]) -> tuple[list[int], list[_Span]]:
        """Returns where each part will lie in the block, and what is to be copied there."""
        groups, loose = self._neighbours(parts)
        if len(groups) + bool(loose) > 1:
            loose += [number for group in groups if group.nbytes < GATHERED for number in group.numbers]
            groups = [group for group in groups if group.nbytes >= GATHERED]

        spans: list[_Span] = []
        places = [0] * len(parts)
        end = 0
        for group in groups:
            spans.append(_Span(group.start, group.stop, end))
            for number in group.numbers:
                places[number] = end + parts[number].address - group.start
            end = aligned(end + group.nbytes)
        if loose:
            spans.append(self._gathered(parts, tensors, loose, end, places))
        return places, spans

    def _neighbours(self, parts: list[_TensorPart]) -> tuple[list[_Group], list[int]]:
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
        self, parts: list[_TensorPart], tensors: list[torch.Tensor], loose: list[int], place: int, places: list[int]
    ) -> _Span:
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
            staged[offset : offset + nbytes].copy_(_bytes_of(tensors[number]))
            places[number] = place + offset
            offset += aligned(nbytes)
        return _Span(staged.data_ptr(), staged.data_ptr() + size, place, staged)

    def __del__(self) -> None:
        """Waits for copies that nobody waited for: what they write to is memory that others get next."""
        # A forked child has copies of the parent's objects, and must not use its device.
        if vars(self).get("_process") is not this_process.current:
            return
        for under_way in self._under_way:
            if self.accelerator.event(self._stream) is None:
                _left_behind.extend(under_way.blocks)
            else:
                under_way.ended.synchronize()


def _travels_as_bytes(part: Any) -> bool:
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


def _part_of(tensor: torch.Tensor) -> _TensorPart:
    return _TensorPart(tensor.data_ptr(), tensor.nbytes, tensor.dtype, tuple(tensor.shape), tensor.stride())


def _bytes_of(tensor: torch.Tensor) -> torch.Tensor:
    """Returns the memory of a tensor without gaps, uint8 [bytes]."""
    flat = tensor.as_strided((tensor.numel(),), (1,))
    if flat.dtype is torch.bool:
        flat = flat.view(torch.uint8)
    return flat.view(torch.uint8)


def _range_of_small(parts: list[_TensorPart], places: list[int]) -> tuple[int, int] | None:
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


def _contiguous(shape: tuple[int, ...]) -> tuple[int, ...]:
    """Returns the strides of a tensor without gaps."""
    strides = []
    step = 1
    for size in reversed(shape):
        strides.append(step)
        step *= size
    return tuple(reversed(strides))


def _plan_of(parts: list[_TensorPart], places: list[int]) -> _Plan:
    """Returns where tensors will lie on the device. places: in the block, in bytes."""
    small = _range_of_small(parts, places)
    entries = []
    for part, place in zip(parts, places, strict=True):
        block = 0
        if small is not None and part.nbytes < SMALL:
            block = 1
            place -= small[0]
        entries.append(_Entry(part.dtype, block, place // part.dtype.itemsize, part.shape, part.stride))
    return _Plan(small, sum(part.nbytes for part in parts if part.is_image), entries)
