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

import sys
from collections import deque
from dataclasses import dataclass
from typing import Any

import torch

from headrace.core.accelerator import Accelerator, DeviceEvent, DeviceStream
from headrace.core.batch_memory import BatchMemory
from headrace.core.process import this_process
from headrace.device.containers import changed
from headrace.device.copy_times import CopyTimes
from headrace.device.layout import DevicePlan, HostLayout, HostSpan, TensorPart, parts_of, travels_as_bytes
from headrace.shared_memory.page_lock import PageLock
from headrace.shared_memory.plain_batches import UnopenedBatch, rebuild

PLANS = 64
"""Layouts of batches that are remembered."""

_left_behind: list[torch.Tensor] = []
"""Blocks whose copies could not be waited for, since a stream recorded a graph when the loader went."""


@dataclass
class _UnderWay:
    """Blocks that are written to: when that began and ends on the device, and how many bytes come."""

    blocks: list[torch.Tensor]
    nbytes: int
    began: DeviceEvent | None = None
    ended: DeviceEvent | None = None
    """None: it is not known yet, or a signal handler raised before it was."""


class Transfer:
    """A batch on its way. `batch` is it, on the device, for whoever has waited by `Transfers.finish`."""

    def __init__(
        self,
        batch: Any,
        stream: DeviceStream,
        blocks: list[torch.Tensor] | None = None,
        arrived: DeviceEvent | None = None,
        *,
        movers: bool = False,
    ) -> None:
        """blocks: of device memory, which belong to `stream`. arrived: None: there was nothing to copy. movers: whether
        there are objects in it that move themselves, and have not."""
        self.batch = batch
        self.stream = stream
        self.blocks = blocks or []
        self.arrived = arrived
        self.movers = movers
        self.source: Any = None
        """The batch as it was here, for as long as it may have to set out once more."""
        self.is_touched = False
        """Whether a transform has begun to change it."""
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
        """Copies over the bus that took batches there."""
        self._layout = HostLayout(lock, memory)
        self._stream = accelerator.stream(new=True)
        self._under_way: deque[_UnderWay] = deque()
        self._plans: dict[Any, DevicePlan] = {}
        """By what the tensors of a batch are, and where they lie in its slot."""
        self._process = this_process.current
        self.times = CopyTimes(accelerator, self._stream, name)

    def settle(self) -> None:
        """Lets go of what has arrived."""
        while self._under_way:
            first = self._under_way[0]
            if first.ended is None:
                first.ended = self.accelerator.event(self._stream)
            if first.ended is None or not first.ended.query():
                return
            self._under_way.popleft()
            self.times.done(first.began, first.ended, first.nbytes)

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
            travels.append(travels_as_bytes(part))
            if travels[-1]:
                tensors.append(part)
            return part

        changed(batch, note)
        stream = self.accelerator.stream()
        movers = not all(travels)
        if not tensors:
            return Transfer(batch, stream, movers=movers)

        parts = list(map(TensorPart.of, tensors))
        places, spans = self._layout.spans(parts, tensors)
        plan = DevicePlan.of(parts, places)
        arrived, blocks = self._send(plan, spans, stream)
        moved = iter(plan.tensors(blocks))
        kinds = iter(travels)
        batch = changed(batch, lambda part: next(moved) if next(kinds) else part)
        return Transfer(batch, stream, blocks, arrived, movers=movers)

    def _begin_unopened(self, batch: UnopenedBatch) -> Transfer | None:
        """Has a batch set out that lies in one slot, without making its tensors here; None: it does not."""
        found = self._layout.span_of(batch)
        if found is None:
            return None

        # Nearly always it is laid out as the one before.
        first, span = found
        key = tuple(batch.told), tuple(batch.places)
        plan = self._plans.get(key)
        if plan is None:
            parts = parts_of(batch)
            plan = DevicePlan.of(parts, [part.address - first for part in parts])
            if len(self._plans) == PLANS:
                self._plans.clear()
            self._plans[key] = plan

        stream = self.accelerator.stream()
        arrived, blocks = self._send(plan, [span], stream)
        made = rebuild(batch.node, iter(plan.tensors(blocks)))
        return Transfer(made, stream, blocks, arrived)

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
        self, plan: DevicePlan, spans: list[HostSpan], stream: DeviceStream
    ) -> tuple[DeviceEvent, list[torch.Tensor]]:
        """Sends what lies in spans; returns when it will have arrived, and the device memory."""
        block = self.accelerator.empty(spans[-1].place + spans[-1].nbytes)
        blocks = [block]
        small = plan.small
        if small is not None:
            blocks.append(self.accelerator.empty(small[1] - small[0]))

        # Only now: whoever freed the memory of these blocks had asked for its last use before.
        self._stream.wait_event(self._event(stream))
        began = self.times.begin(idle=not self._under_way)
        # Noted before the copies are asked for, since a signal handler may raise in between.
        under_way = _UnderWay(blocks, sum(span.nbytes for span in spans), began)
        self._under_way.append(under_way)
        for span in spans:
            self.accelerator.copy(block[span.place : span.place + span.nbytes], span.source(), self._stream)
            self.copies += 1
        if small is not None:
            self.accelerator.copy(blocks[1], block[small[0] : small[1]], self._stream)

        arrived = under_way.ended = self._event(self._stream, timed=True)
        self.times.sent(under_way.nbytes, plan.image_bytes)
        return arrived, blocks

    def _event(self, stream: DeviceStream, *, timed: bool = False) -> DeviceEvent:
        event = self.accelerator.event(stream, timed=timed)
        if event is None:
            raise RuntimeError("a batch cannot be sent to a device while a stream of it records a graph")
        return event

    # Kept here, since the names of a module may be gone when Python exits.
    _exits = staticmethod(sys.is_finalizing)

    def __del__(self) -> None:
        """Waits for copies that nobody waited for: what they write to is memory that others get next."""
        if self._exits():
            return
        # A forked child has copies of the parent's objects, and must not use its device.
        if vars(self).get("_process") is not this_process.current or not self._under_way:
            return
        event = self.accelerator.event(self._stream)
        if event is not None:
            event.synchronize()
            return
        for under_way in self._under_way:
            _left_behind.extend(under_way.blocks)
