"""The way of a loader's batches to a device: some of them ahead, each transformed there."""

from __future__ import annotations

from typing import Any

import torch

from headrace.core.accelerator import Accelerator
from headrace.core.errors import explain
from headrace.core.process import this_process
from headrace.core.process.signal_handlers import is_of_signal_handler
from headrace.core.text.log_once import LOGGER
from headrace.device.choice import page_lock_for
from headrace.device.containers import changed
from headrace.device.fixed_addresses import FixedAddresses
from headrace.device.options import OnDevice
from headrace.device.transfer import Transfer, Transfers
from headrace.device.transform import DeviceTransform
from headrace.shared_memory.locked_memory import LockedMemory
from headrace.shared_memory.plain_batches import UnopenedBatch
from headrace.telemetry.batch_size import batch_bytes
from headrace.telemetry.device_copies import DeviceCopies


class DeviceFeed:
    """Brings batches to a device. Belongs to one loader, for its whole life, and to the thread that iterates.

    Where the device is this machine's own memory, batches stay where they are, and are transformed all the same.
    """

    def __init__(self, accelerator: Accelerator, memory: LockedMemory | None, asked: OnDevice) -> None:
        """memory: page-locked, for what does not lie in such memory; None: torch's own."""
        self.accelerator = accelerator
        self.ahead = asked.ahead
        """How many batches are on their way while the loop has one."""
        self._asked = asked
        self.transfers: Transfers | None = None
        if accelerator.device.type != "cpu" or accelerator.driver is not None:
            self.transfers = Transfers(accelerator, page_lock_for(accelerator), memory, asked.name)
        self._transform = None
        if asked.transform is not None:
            self._transform = DeviceTransform(asked.transform, accelerator.device)
        self._fixed = FixedAddresses(accelerator) if asked.fixed_addresses else None
        self._process = this_process.current

    def serves(self, accelerator: Accelerator) -> bool:
        """Tells whether batches get to this device by it, in this process. A forked child needs one of its own."""
        return self.accelerator is accelerator and self._process is this_process.current

    def begin_early(self, batch: Any) -> Any:
        """Has a batch set out before its turn, and returns it on its way; or as it is, where that is not possible."""
        if self.transfers is None or self.ahead == 0 or isinstance(batch, Transfer):
            return batch
        try:
            return self._sent(self.transfers, batch)
        except torch.OutOfMemoryError:
            LOGGER.warning(
                "headrace: the device has no memory for %d batches ahead (%s): from here on each batch is sent when "
                "its turn comes.",
                self.ahead,
                _size_of(batch),
            )
            self.ahead = 0
        except Exception as error:  # what a user's container raises, it raises again when its turn comes
            if is_of_signal_handler(error):
                raise
        return batch

    def begin(self, batch: Any) -> Transfer:
        """Has a batch set out whose turn it is. Raises `torch.OutOfMemoryError` that says how large it is."""
        if isinstance(batch, Transfer) and batch.is_touched and not batch.is_delivered:
            batch = batch.source  # a signal handler has raised in the middle of the transform
        if isinstance(batch, Transfer):
            return batch
        if self.transfers is None:
            return self._stays(batch)
        try:
            return self._sent(self.transfers, batch)
        except torch.OutOfMemoryError as error:
            message = explain(
                "the device has no memory for a batch",
                place=f"headrace.DataLoader(device={self._asked.name!r})",
                found=f"a batch of {_size_of(batch)}, with {self.ahead} ahead; {error}",
                expected="memory for the batch that the loop has, the next one, and those ahead",
                fix="use a smaller batch_size, ahead=0, or a smaller model; the next batch comes at the next call",
            )
            raise torch.OutOfMemoryError(message) from error

    def _stays(self, batch: Any) -> Transfer:
        """Returns a batch that is on its device. A transform gets a copy, as of a batch that has travelled."""
        if isinstance(batch, UnopenedBatch):
            batch = batch.opened()
        transfer = Transfer(batch, self.accelerator.stream())
        if self._transform is not None:
            transfer.source = batch
            transfer.batch = changed(batch, _cloned)
        return transfer

    def _sent(self, transfers: Transfers, batch: Any) -> Transfer:
        transfer = transfers.begin(batch)
        if self._transform is not None:
            transfer.source = batch
        return transfer

    def finish(self, transfer: Transfer, key: int | None) -> Any:
        """Returns a batch on the device. key: of the random numbers of its transform; None: no seed was given.

        Called again, since a signal handler has raised behind it, it returns the same.
        """
        if transfer.is_delivered:
            return transfer.batch

        batch = transfer.batch
        if self.transfers is not None:
            batch = self.transfers.finish(transfer)
        if self._transform is not None:
            transfer.is_touched = True
            batch = self._transform(batch, key)
        if self._fixed is not None:
            batch = self._fixed.deliver(batch)
        transfer.batch = batch
        transfer.is_delivered = True
        transfer.source = None
        return batch

    def copies(self) -> DeviceCopies | None:
        """Returns what was copied so far; None: batches stay on this machine."""
        if self.transfers is None:
            return None
        self.transfers.settle()
        return self.transfers.times.copies()

    @property
    def transforms(self) -> bool:
        """Whether batches are transformed on the device."""
        return self._transform is not None


def _cloned(part: Any) -> Any:
    if isinstance(part, torch.Tensor):
        return part.clone()
    return part


def _size_of(batch: Any) -> str:
    if isinstance(batch, UnopenedBatch):
        batch = batch.opened()
    return f"{batch_bytes(batch) / 1e6:.1f} MB"
