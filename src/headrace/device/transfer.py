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
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, NamedTuple

import torch

from headrace.core.accelerator import Accelerator, DeviceEvent, DeviceStream
from headrace.core.plain_tensors import DTYPES
from headrace.core.process import this_process
from headrace.device.containers import changed
from headrace.device.copy_times import CopyTimes
from headrace.shared_memory.page_lock import LockedRange, PageLock
from headrace.shared_memory.writer_memory import ALIGNED, SMALL, aligned

GATHERED = 64 << 10
"""Neighbours of fewer bytes are copied to other ones, where a batch has several: sooner than a call of the driver."""

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
        staging: Callable[[int], torch.Tensor],
        name: str = "",
    ) -> None:
        """staging: gives page-locked memory, uint8 [n], for what does not lie in any. name: of the device, as users
        call it."""
        self.accelerator = accelerator
        self.copies = 0
        """Copies over the bus that took them there."""
        self._lock = lock
        self._staging = staging
        self._stream = accelerator.stream(new=True)
        self._under_way: deque[_UnderWay] = deque()
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
        tensors: list[torch.Tensor] = []
        movers = False

        def note(part: Any) -> Any:
            nonlocal movers
            if _travels_as_bytes(part):
                tensors.append(part)
            else:
                movers = True
            return part

        changed(batch, note)
        stream = self.accelerator.stream()
        if not tensors:
            return Transfer(batch, stream, [], None, movers=movers)

        arrived, blocks, sent = self._send([_part_of(tensor) for tensor in tensors], tensors, stream)
        found = iter(sent)
        moved = changed(batch, lambda part: next(found) if _travels_as_bytes(part) else part)
        return Transfer(moved, stream, blocks, arrived, movers=movers)

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

    def _send(
        self, parts: list[_TensorPart], tensors: list[torch.Tensor], stream: DeviceStream
    ) -> tuple[DeviceEvent, list[torch.Tensor], list[torch.Tensor]]:
        """Sends tensors; returns when they will have arrived, the device memory, and the tensors in it."""
        places, spans = self._laid_out(parts, tensors)
        size = spans[-1].place + spans[-1].nbytes
        small = _range_of_small(parts, places)
        block = self.accelerator.empty(size)
        blocks = [block]
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
        nbytes = sum(span.nbytes for span in spans)
        self.times.sent(nbytes, sum(part.nbytes for part in parts if part.is_image))
        self._under_way.append(_UnderWay(began, arrived, nbytes, blocks))
        sent = []
        for part, place in zip(parts, places, strict=True):
            if small is not None and part.nbytes < SMALL:
                sent.append(_tensor_in(blocks[1], part, place - small[0]))
            else:
                sent.append(_tensor_in(block, part, place))
        return arrived, blocks, sent

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
        staged = self._staging(size)
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


def _tensor_in(block: torch.Tensor, part: _TensorPart, place: int) -> torch.Tensor:
    """Returns a tensor over a piece of a block.

    It is no view of another tensor, so that a change in place counts as a change of this tensor alone.
    """
    tensor = torch.empty(0, dtype=part.dtype, device=block.device)
    return tensor.set_(block.untyped_storage(), place // part.dtype.itemsize, part.shape, part.stride)
