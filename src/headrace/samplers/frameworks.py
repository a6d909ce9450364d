"""Frameworks that split the samples of a loader over the ranks: what they look for in a sampler, and who reads it."""

from __future__ import annotations

from abc import abstractmethod
from typing import TYPE_CHECKING, Any

from torch.utils.data import DistributedSampler

from headrace.core.callers import calling_classes
from headrace.core.torch_internals import TorchIterator

if TYPE_CHECKING:
    from headrace.core.world import World


class SplitOverRanks(DistributedSampler[Any]):
    """A sampler that gives each rank its own samples, as torch's `DistributedSampler` does.

    Lightning, Fabric and Ray Train test for that class, and split the samples of any other one. Nothing of it is used.
    """

    @property
    @abstractmethod
    def world(self) -> World:
        """The rank, and the number of ranks."""

    @property
    def num_replicas(self) -> int:  # type: ignore[override]  # torch's is an attribute
        """How many ranks the samples are split over."""
        return self.world.size

    @property
    def rank(self) -> int:  # type: ignore[override]
        """Which of the ranks this one is."""
        return self.world.rank

    def __len__(self) -> int:
        """Raises `TypeError`, as for a class without this method: samplers that have a length say so themselves."""
        raise TypeError(f"object of type '{type(self).__name__}' has no len()")


def is_read_by_torch() -> bool:
    """Tells whether torch's own loader asks the calling sampler for batches now."""
    for kind in calling_classes():
        # headrace's iterators are torch's, too.
        if issubclass(kind, TorchIterator):
            return not kind.__module__.startswith("headrace.")
    return False


def split_by_lightning(sampler: object) -> object:
    """Returns the sampler whose keys a sampler of Lightning splits over the ranks; None: it is none of those."""
    if isinstance(sampler, DistributedSampler) and not isinstance(sampler, SplitOverRanks):
        return getattr(sampler.dataset, "_sampler", None)
    return None
