"""Frameworks that split the samples of a loader over the ranks: what they look for, and who asks."""

from __future__ import annotations

import sys
from abc import abstractmethod
from types import FrameType
from typing import TYPE_CHECKING, Any, NamedTuple

from torch.utils.data import DistributedSampler

from headrace.core.torch_internals import TorchIterator

if TYPE_CHECKING:
    from headrace.core.world import World


class Splitter(NamedTuple):
    """What splits the keys or batches of another sampler over the ranks."""

    framework: str
    joins: bool = False
    """Whether it joins the batches of all ranks and cuts them anew, into equal parts."""


SPLITTERS = {
    ("accelerate.data_loader", "BatchSamplerShard"): Splitter("Accelerate"),
    ("accelerate.data_loader", "DataLoaderDispatcher"): Splitter("Accelerate", joins=True),
    ("lightning.fabric.utilities.distributed", "DistributedSamplerWrapper"): Splitter("Lightning"),
    ("lightning_fabric.utilities.distributed", "DistributedSamplerWrapper"): Splitter("Lightning"),
    ("lightning.pytorch.overrides.distributed", "UnrepeatedDistributedSamplerWrapper"): Splitter("Lightning"),
    ("pytorch_lightning.overrides.distributed", "UnrepeatedDistributedSamplerWrapper"): Splitter("Lightning"),
}
"""By module and class."""

DEPTH = 24
"""Calls between such a class and the sampler that it asks, at most."""


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


def splitter() -> Splitter | None:
    """Returns what splits the keys of the calling sampler, and asks for them now; None: nothing does."""
    if not any(module in sys.modules for module, _ in SPLITTERS):
        return None

    for kind in _callers():
        if (found := SPLITTERS.get((kind.__module__, kind.__name__))) is not None:
            return found
    return None


def is_read_by_torch() -> bool:
    """Tells whether torch's own loader asks the calling sampler for batches now."""
    for kind in _callers():
        # headrace's iterators are torch's, too.
        if issubclass(kind, TorchIterator):
            return not kind.__module__.startswith("headrace.")
    return False


def _callers() -> list[type]:
    """Returns the classes whose methods the caller's caller runs in, the innermost first."""
    kinds = []
    frame: FrameType | None = sys._getframe(3)
    for _ in range(DEPTH):
        if frame is None:
            break
        # The argument `self` of a method, and of a generator that is one.
        if frame.f_code.co_varnames[:1] == ("self",):
            kinds.append(type(frame.f_locals["self"]))
        frame = frame.f_back
    return kinds


def split_by_lightning(sampler: object) -> object:
    """Returns the sampler whose keys a sampler of Lightning splits over the ranks; None: it is none of those."""
    if isinstance(sampler, DistributedSampler) and not isinstance(sampler, SplitOverRanks):
        return getattr(sampler.dataset, "_sampler", None)
    return None
