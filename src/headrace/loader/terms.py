"""The arguments of a loader as they are now, and the terms of an epoch."""

from __future__ import annotations

from typing import Any

from torch.utils.data import DataLoader as TorchDataLoader

from headrace.core.errors import warn
from headrace.core.lengths import known_length
from headrace.core.torch_internals import DatasetKind
from headrace.core.world import World
from headrace.epoch.draws import names_of_samplers
from headrace.epoch.record import Terms
from headrace.epoch.snapshot import Snapshot
from headrace.epoch.spec import LoaderSpec
from headrace.loader.options import Options
from headrace.loader.position import Position


def spec_of(loader: TorchDataLoader[Any], options: Options, prefetch_factor: int | None) -> LoaderSpec:
    """Returns the arguments of the loader as they are now."""
    sampler = None
    if loader.batch_sampler is not None and loader.sampler is not loader.batch_sampler:
        sampler = loader.sampler

    return LoaderSpec(
        dataset=loader.dataset,
        is_map=loader._dataset_kind == DatasetKind.Map,
        batched=loader._auto_collation,
        batch_size=loader.batch_size,
        drop_last=loader.drop_last,
        index_sampler=loader._index_sampler,
        sampler=sampler,
        collate_fn=loader.collate_fn,
        generator=loader.generator,
        worker_init_fn=loader.worker_init_fn,
        multiprocessing_context=loader.multiprocessing_context,
        num_workers=loader.num_workers,
        prefetch_factor=prefetch_factor,
        in_order=loader.in_order,
        persistent_workers=loader.persistent_workers,
        timeout=loader.timeout,
        seed=options.seed,
        sample_timeout=options.on_error.timeout,
        original_errors=options.on_error.original,
        defers=options.stragglers == "defer",
    )


def terms_of(
    loader: TorchDataLoader[Any], name: str, options: Options, position: Position, resume: Snapshot | None
) -> Terms:
    """Returns the terms of the next epoch, which goes on from `resume`. name: of the loader, the same on all ranks."""
    is_stream = loader._dataset_kind == DatasetKind.Iterable
    told = position.told
    if options.counts_epochs:
        told = position.beginning
    return Terms(
        loader=name,
        epoch=position.beginning,
        announce=position.announces or options.counts_epochs,
        told=told,
        seed=options.seed,
        world=options.world(is_stream=is_stream),
        deal=is_stream and bool(options.shard),
        in_order=loader.in_order,
        fingerprint=_fingerprint(loader, options),
        resume=resume,
        draws=position.draws,
        counts_epochs=options.counts_epochs,
    )


def _fingerprint(loader: TorchDataLoader[Any], options: Options) -> dict[str, Any]:
    """Returns what a saved state must agree with."""
    dataset = type(loader.dataset)
    length = None
    samplers: list[str] = []
    if loader._dataset_kind == DatasetKind.Map:
        length = known_length(loader.dataset)
        samplers = names_of_samplers(loader._index_sampler)

    return {
        "dataset": f"{dataset.__module__}.{dataset.__qualname__}",
        "length": length,
        "seed": options.seed,
        "batch_size": loader.batch_size,
        "samplers": samplers,
    }


def warn_of_whole_ranks(world: World) -> None:
    """Warns that each rank loads all samples in one order."""
    warn(
        f"seed= without shard='auto': each of the {world.size} ranks loads all samples in one order. "
        "Add shard='auto', or give a sampler of headrace.samplers."
    )
