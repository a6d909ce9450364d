"""Frameworks that split over the ranks what samplers and streams give: who asks for it now."""

from __future__ import annotations

import sys
from collections.abc import Iterable
from typing import NamedTuple

from headrace.core.callers import calling_classes
from headrace.core.errors import UsageError


class Splitter(NamedTuple):
    """What splits the keys or batches of a sampler over the ranks."""

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
"""Of samplers, by module and class."""

ONE_READS = {("accelerate.data_loader", "DataLoaderDispatcher")}
"""Where the first rank reads a stream for all."""
EACH_READS = {
    ("accelerate.data_loader", "IterableDatasetShard"),
    ("transformers.trainer_pt_utils", "IterableDatasetShard"),
}
"""Where each rank reads a whole stream, and keeps its part."""


def splitter() -> Splitter | None:
    """Returns what splits the keys of the calling sampler, and asks for them now; None: nothing does."""
    found = _who_asks(SPLITTERS)
    return None if found is None else SPLITTERS[found]


def one_rank_reads() -> bool:
    """Tells whether one rank reads the calling stream now, and a framework deals out to all what it gives.

    A worker process knows of it if it was forked.

    Raises:
        UsageError: each rank would read what it takes for its part, and keep a part of that.
    """
    if _who_asks(EACH_READS) is not None:
        raise UsageError.about(
            "a stream would be split over the ranks twice",
            place="accelerator.prepare, or the Trainer",
            found="an IterableDatasetShard, which reads a stream that calls headrace.shard on each rank",
            expected="a stream that is split once",
            fix="leave out dispatch_batches=False, or use headrace.integrations.accelerate.prepare",
        )
    return _who_asks(ONE_READS) is not None


def _who_asks(kinds: Iterable[tuple[str, str]]) -> tuple[str, str] | None:
    """Returns which of these classes asks for samples now."""
    if not any(module in sys.modules for module, _ in kinds):
        return None

    for kind in calling_classes():
        if (kind.__module__, kind.__name__) in kinds:
            return kind.__module__, kind.__name__
    return None
