"""Accelerate: a loader that stays whole behind `prepare`, with its state in `save_state` and `load_state`."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from torch.utils.data import DistributedSampler

from headrace.core.errors import UsageError, warn, wrong_argument
from headrace.core.extras import extra
from headrace.core.sharding import splits_itself
from headrace.loader.dataloader import DataLoader
from headrace.loader.loader_state import LoaderState
from headrace.samplers.sampler import PositionalSampler

PLACE = "headrace.integrations.accelerate.prepare"


class PreparedLoader:
    """A loader as Accelerate's loops expect it: batches on the accelerator's device, and the end of an epoch told.

    All else is the loader's own: `prepared.state_dict()`, `prepared.report()`, `len(prepared)`.
    """

    def __init__(self, loader: DataLoader[Any], accelerator: Any) -> None:
        """accelerator: an `accelerate.Accelerator`."""
        self.loader = loader
        self.end_of_dataloader = False
        self._accelerator = accelerator
        self._begun_at = 0
        self._last: Any = None

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
        before = self.loader.state_dict()
        self._begun_at = (before.get("sampler") or {}).get("position", 0)
        left = self._batches_left(before)
        self.end_of_dataloader = False
        state._add_dataloader(self)
        try:
            for number, batch in enumerate(batches, 1):
                self.end_of_dataloader = number == left
                self._last = batch if self.end_of_dataloader else None
                yield send(batch, self._accelerator.device, non_blocking=self._accelerator.non_blocking)
        finally:
            self._last = None
            state._remove_dataloader(self)

    @property
    def remainder(self) -> int:
        """How many samples of the last batches of all ranks `gather_for_metrics` keeps, from the first on; -1: all.

        Accelerate's own sampler repeats samples behind all others. With `shard="auto"` the last ranks may repeat a
        sample, so that all have the same number. Warns if what is repeated does not stand behind all others: then no
        such number is right.
        """
        split: Any = self.loader.batch_sampler
        if isinstance(split, _sampler_of_accelerate()):
            together = split.batch_size if split.split_batches else split.batch_size * split.num_processes
            return int(len(split.batch_sampler.sampler) % together)

        sampler = self.loader.sampler
        if not isinstance(sampler, PositionalSampler) or sampler.uneven != "pad":
            return -1
        ranks = self._accelerator.num_processes
        left = sampler.total - self._begun_at
        repeated = -left % ranks
        if repeated == 0 or self._last is None:
            return -1
        rows = extra("accelerate.utils", "accelerate").find_batch_size(self._last)
        if repeated == 1 or rows == 1:
            return int(ranks * rows - repeated)

        warn(
            f"gather_for_metrics() counts {repeated} samples twice: {left} samples do not divide evenly among {ranks} "
            "ranks. For exact metrics, give the loader batch_sampler=BatchSamplerShard(BatchSampler(sampler, "
            "batch_size, drop_last=False), accelerator.num_processes, accelerator.process_index) of "
            "accelerate.data_loader in place of shard='auto'."
        )
        return -1

    def _batches_left(self, state: dict[str, Any]) -> int:
        """Returns how many batches are left in the epoch that has begun; 0 if the loader cannot say.

        state: of the loader, when the epoch has begun.
        """
        try:
            length = len(self.loader)
        except TypeError:
            return 0
        return length - int(state["batches"])


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
    kinds = (DistributedSampler, _sampler_of_accelerate())
    return any(isinstance(sampler, kinds) for sampler in (loader.sampler, loader.batch_sampler))


def _sampler_of_accelerate() -> Any:
    """Returns the class by which Accelerate splits batches over ranks."""
    return extra("accelerate.data_loader", "accelerate").BatchSamplerShard
