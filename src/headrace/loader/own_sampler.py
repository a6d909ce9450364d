"""The sampler of a loader: its own where it is given none, and the shard for those that it is given."""

from __future__ import annotations

from typing import Any

from torch.utils.data import Sampler

from headrace.core.protocols import is_live
from headrace.core.world import ALONE, Shard, World
from headrace.loader.options import AskedShard
from headrace.loader.session import LoaderSession
from headrace.samplers.distributed import DistributedSampler, WholeSampler
from headrace.samplers.kept import KeptSampler
from headrace.samplers.sampler import ElasticSampler


def own_sampler(
    session: LoaderSession, dataset: Any, shuffle: bool, drop_last: bool, generator: Any
) -> Sampler[Any] | None:
    """Returns the sampler of a loader that is given none; None if torch's will do."""
    options = session.options
    excluded: Any = ()
    if options.exclude is not None:
        excluded = options.exclude

    if options.seed is None:
        if not len(excluded):
            return None
        return KeptSampler(len(dataset), excluded, shuffle=shuffle, generator=generator)

    session.alone = options.shard is None
    rank, size = rank_and_size(options.shard)
    if is_live(dataset):
        return dataset.live_sampler(  # type: ignore[no-any-return]  # see `NeverEnds`
            name=session.name, shuffle=shuffle, seed=options.seed, rank=rank, world_size=size,
            uneven="drop" if drop_last else "pad", alone=session.alone,
        )  # fmt: skip

    kind = WholeSampler if session.alone else DistributedSampler
    return kind(
        dataset, shuffle=shuffle, seed=options.seed, rank=rank, world_size=size,
        uneven="drop" if drop_last else "pad", exclude=excluded,
    )  # fmt: skip


def rank_and_size(shard: AskedShard | None) -> tuple[int | None, int | None]:
    """Returns rank and world size for a sampler; None: it takes them from `torch.distributed` or the launcher."""
    if isinstance(shard, Shard):
        return shard.rank, shard.world
    if shard is None:
        return ALONE
    return None, None


def adopt_shard(shard: object, sampler: object, batch_sampler: object) -> None:
    """Has the user's samplers split the data as a `Shard` says. Raises `UsageError` if they split it otherwise."""
    if not isinstance(shard, Shard):
        return

    for given in (sampler, batch_sampler, getattr(batch_sampler, "sampler", None)):
        if isinstance(given, ElasticSampler):
            given.adopt_world(World(shard.rank, shard.world))
