"""The sampler of a loader: its own, or one that it is given: whether that fits, and its shard."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from torch.utils.data import Sampler

from headrace.batches.collate_packed import takes_packs
from headrace.core.errors import UsageError, wrong_argument
from headrace.core.lengths import known_length
from headrace.core.protocols import is_live
from headrace.core.world import ALONE, Shard, World
from headrace.loader.options import AskedShard, is_map, is_whole
from headrace.loader.session import LoaderSession
from headrace.samplers.distributed import DistributedSampler, WholeSampler
from headrace.samplers.kept import KeptSampler
from headrace.samplers.live import LiveSampler
from headrace.samplers.packed import PackedBatchSampler
from headrace.samplers.sampler import ElasticSampler
from headrace.samplers.windowed import WindowedBatchSampler


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


def check_samples(
    dataset: object, sampler: object, batch_sampler: object, collate: Callable[..., Any] | None = None
) -> None:
    """Raises `UsageError` if a sampler of headrace was made for more or fewer samples than the dataset has.

    With fewer lengths, labels or weights than samples, the rest would never come, without a word.
    """
    if is_live(dataset):
        _check_order_of_log(sampler, batch_sampler)
    _check_packs(batch_sampler, collate)
    if isinstance(sampler, WindowedBatchSampler):
        fix = "give it as batch_sampler=: it makes batches"
        found = f"a {sampler.name}"
        raise wrong_argument("sampler", sampler, "single keys", place="headrace.DataLoader", found=found, fix=fix)
    if batch_sampler is not None:
        given = batch_sampler
    else:
        given = sampler

    if is_map(dataset):
        length = known_length(dataset)
    else:
        length = None

    if length is None:
        return

    for one in (given, getattr(given, "sampler", None)):
        expected = getattr(one, "samples_of_dataset", None)
        if is_whole(expected) and expected != length:
            raise UsageError.about(
                "the sampler was made for another dataset",
                place=f"headrace.DataLoader, {type(one).__name__}",
                found=f"{expected:,} samples (as many lengths, labels or weights as it was given)",
                expected=f"{length:,}, as many as the dataset has",
                fix="give the sampler one length, label or weight for each sample of this dataset, in its order",
            )


def _check_packs(batch_sampler: object, collate: Callable[..., Any] | None) -> None:
    """Raises `UsageError` if documents are cut, and the collate function is not told where."""
    if not isinstance(batch_sampler, PackedBatchSampler) or not batch_sampler.cuts:
        return
    if collate is None or not takes_packs(collate):
        raise UsageError.about(
            "documents are cut, and the collate function does not ask where",
            place="headrace.DataLoader(collate_fn=)",
            found=getattr(collate, "__name__", None) or str(collate),
            expected="headrace.collate_packed, or a function with a parameter packs",
            fix="give collate_fn=headrace.collate_packed; a function that calls it has a parameter packs=None, and "
            "passes it on",
        )


def _check_order_of_log(sampler: object, batch_sampler: object) -> None:
    """Raises `UsageError` for an order of the user's over a log: its records have no numbers."""
    for name, given in (("sampler", sampler), ("batch_sampler", batch_sampler)):
        # A framework that builds a loader anew gives it the sampler of the old one.
        inner = getattr(given, "sampler", given)
        if given is not None and not isinstance(inner, LiveSampler):
            fix = "leave it out; shuffle=True shuffles span by span"
            expected = "nothing: a log never ends, and has an order of its own"
            raise wrong_argument(name, given, expected, place="headrace.DataLoader", fix=fix)
