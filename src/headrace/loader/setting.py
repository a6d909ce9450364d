"""How a loader is set up, in the words of its record."""

from __future__ import annotations

import functools
import sys
from typing import Any, Literal

import torch
from torch.utils.data import DataLoader as TorchDataLoader

from headrace.batches.whole_batches import makes_batches
from headrace.core.lengths import length_at_once
from headrace.core.process.machine import cores
from headrace.core.process.memory import machine_memory
from headrace.core.sharding import splits_itself
from headrace.core.torch_internals import DatasetKind, IterDataPipe, torch_default_collate
from headrace.loader.options import AskedArguments, as_ray
from headrace.telemetry.recording import Setting
from headrace.workers.auto.scaling import MOST_WORKERS

Backend = Literal["process", "thread", "inline"]


def asked_setting(loader: AskedArguments[Any], *, has_workers: bool) -> Setting:
    """Returns the setting of a loader that was not iterated yet: what the user asked for."""
    backend: Backend = "process"
    if not has_workers:
        backend = "inline"
    elif loader.backend == "thread":
        backend = "thread"

    return setting_of(loader, backend=backend, workers=loader.num_workers)


def setting_of(
    loader: TorchDataLoader[Any],
    *,
    backend: Backend,
    workers: int,
    prefetch_factor: int | None = None,
    free: bool = False,
    tuned: bool = False,
    kind: Literal["headrace", "torch"] = "headrace",
) -> Setting:
    """Returns how a loader works, be it ours or torch's own (`kind`)."""
    is_map = loader._dataset_kind == DatasetKind.Map
    ahead = 0
    if workers:
        ahead = prefetch_factor or loader.prefetch_factor or 0

    return Setting(
        loader=kind,
        backend=backend,
        num_workers=workers,
        prefetch_factor=ahead,
        batch_size=loader.batch_size,
        in_order=loader.in_order,
        free=free,
        persistent_workers=loader.persistent_workers,
        start_method=_start_method(loader) if backend == "process" else "",
        is_stream=not is_map,
        splits=is_map or _is_split(loader),
        length=length_at_once(loader._index_sampler) if is_map else None,
        pin_memory=loader.pin_memory,
        device=_device(loader),
        accelerator=_accelerator(),
        cores=cores(),
        remote_cores=_remote_cores(loader),
        memory=_machine_memory(),
        dataset=type(loader.dataset).__qualname__,
        makes_batches=kind == "headrace" and makes_batches(loader.dataset, loader.collate_fn),
        loads_together=hasattr(loader.dataset, "__getitems__"),
        seeded=kind == "headrace" and getattr(loader, "seed", None) is not None,
        own_collate=loader.collate_fn is not torch_default_collate and loader._auto_collation,
        tuned=tuned,
    )


def _remote_cores(loader: TorchDataLoader[Any]) -> int:
    """Returns how many cores workers on other machines may bring: each has the one that Ray gives it."""
    if as_ray(getattr(loader, "backend", "process")) is None:
        return 0
    return MOST_WORKERS


def _is_split(loader: TorchDataLoader[Any]) -> bool:
    """Tells whether an iterable dataset is split over the workers, as far as that shows."""
    is_dealt_out = bool(getattr(loader, "shard", None))
    return is_dealt_out or isinstance(loader.dataset, IterDataPipe) or splits_itself(loader.dataset)


def torch_setting(loader: TorchDataLoader[Any]) -> Setting:
    """Returns how a loader of torch's works."""
    if loader.num_workers:
        backend: Backend = "process"
    else:
        backend = "inline"
    return setting_of(loader, backend=backend, workers=loader.num_workers, kind="torch")


def _device(loader: TorchDataLoader[Any]) -> str:
    """Returns where batches go; empty: they stay on this machine."""
    if isinstance(loader, AskedArguments) and loader._options.on_device is not None:
        return loader._options.on_device.name
    return ""


def _start_method(loader: TorchDataLoader[Any]) -> str:
    context = loader.multiprocessing_context or torch.multiprocessing
    return str(context.get_start_method())


@functools.cache
def _machine_memory() -> int:
    return machine_memory()


def _accelerator() -> str:
    """Returns the kind of accelerator that there is; it is not initialised by that. Empty: none, or it is not known."""
    if not hasattr(torch, "accelerator"):
        if torch.cuda.is_available():
            return "cuda"
        return ""

    if not torch.accelerator.is_available():
        return ""

    kind = torch.accelerator.current_accelerator()
    if kind is None or sys.platform == "darwin":
        return ""
    return str(kind.type)
