"""Accelerate: a loader that stays whole behind `prepare`, with its state in `save_state` and `load_state`."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from torch.utils.data import DistributedSampler

from headrace.core.errors import UsageError, wrong_argument
from headrace.core.extras import extra
from headrace.core.sharding import splits_itself
from headrace.loader.dataloader import DataLoader
from headrace.loader.loader_state import LoaderState

PLACE = "headrace.integrations.accelerate.prepare"


class PreparedLoader:
    """A loader as Accelerate's loops expect it: batches on the accelerator's device, and the end of an epoch told.

    All else is the loader's own: `prepared.state_dict()`, `prepared.report()`, `len(prepared)`.
    """

    def __init__(self, loader: DataLoader[Any], accelerator: Any, *, remainder: int = -1) -> None:
        """accelerator: an `accelerate.Accelerator`. remainder: how many samples of the last batch of all ranks
        count when they are gathered for metrics; -1: all.
        """
        self.loader = loader
        self.end_of_dataloader = False
        self.remainder = remainder
        self._accelerator = accelerator

    def __getattr__(self, name: str) -> Any:
        if name == "loader":  # while it is copied or unpickled
            raise AttributeError(name)
        return getattr(self.loader, name)

    def __len__(self) -> int:
        return len(self.loader)

    def __iter__(self) -> Iterator[Any]:
        """Yields the loader's batches. Accelerate is told of the last one: it then takes a step of the optimizer."""
        state = self._accelerator.gradient_state
        send = extra("accelerate.utils", "accelerate").send_to_device
        batches = iter(self.loader)
        left = self._batches_left()
        self.end_of_dataloader = False
        state._add_dataloader(self)
        try:
            for number, batch in enumerate(batches, 1):
                self.end_of_dataloader = number == left
                yield send(batch, self._accelerator.device, non_blocking=self._accelerator.non_blocking)
        finally:
            state._remove_dataloader(self)

    def _batches_left(self) -> int:
        """Returns how many batches are left in the epoch that has begun; 0 if the loader cannot say."""
        try:
            length = len(self.loader)
        except TypeError:
            return 0
        return length - int(self.loader.state_dict()["batches"])


def prepare(accelerator: Any, loader: DataLoader[Any]) -> PreparedLoader:
    """Prepares a loader for a loop with Accelerate, without building it anew.

    `accelerator.prepare(loader)` makes a loader of torch's class, which loses what torch does not know. This keeps the
    loader. Its batches go to the accelerator's device, gradient accumulation takes its step at the end of an epoch, and
    `accelerator.save_state()` and `load_state()` hold the states of all ranks: a run resumes after the last batch, also
    on another number of ranks. Do not skip batches then (`skip_first_batches`).

    Args:
        accelerator: An `accelerate.Accelerator`.
        loader: A `headrace.DataLoader`, with `shard="auto"` where there are several ranks.

    Returns:
        What the loop iterates over.

    Raises:
        UsageError: There are several ranks, and the loader gives all samples to each of them.

    Examples:
        >>> import torch, headrace
        >>> from accelerate import Accelerator
        >>> from headrace.integrations.accelerate import prepare
        >>> loader = prepare(Accelerator(cpu=True), headrace.DataLoader(torch.arange(4), batch_size=2, shard="auto"))
        >>> [batch.tolist() for batch in loader]
        [[0, 1], [2, 3]]
    """
    if not isinstance(loader, DataLoader):
        raise wrong_argument("loader", loader, "a headrace.DataLoader", place=PLACE)
    if accelerator.num_processes > 1 and not _splits(loader):
        raise UsageError.about(
            f"each of the {accelerator.num_processes} ranks would get all samples",
            place=PLACE,
            found="a loader that does not split its samples over ranks",
            fix="give it shard='auto'",
        )
    accelerator.register_for_checkpointing(LoaderState(loader))
    return PreparedLoader(loader, accelerator)


def _splits(loader: DataLoader[Any]) -> bool:
    """Tells whether each rank gets a part of the samples."""
    if loader.shard is not None or splits_itself(loader.dataset):
        return True
    return any(isinstance(sampler, DistributedSampler) for sampler in (loader.sampler, loader.batch_sampler))
