"""headrace: a drop-in superset of `torch.utils.data`.

It has every public name of `torch.utils.data`, too: one import stands for both. `headrace.open` is left out of
`from headrace import *`, which would hide Python's own.

Names are loaded when they are first used: `import headrace` itself imports neither torch nor anything else that is
large, so that the command line starts at once and a program pays for the parts that it uses.
"""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any

from headrace.core.text.printable import guard_log
from headrace.version import __version__

if TYPE_CHECKING:
    from torch.utils.data import (
        BatchSampler,
        ChainDataset,
        ConcatDataset,
        DataChunk,
        Dataset,
        DFIterDataPipe,
        DistributedSampler,
        IterableDataset,
        IterDataPipe,
        MapDataPipe,
        RandomSampler,
        Sampler,
        SequentialSampler,
        StackDataset,
        Subset,
        SubsetRandomSampler,
        TensorDataset,
        WeightedRandomSampler,
        _DatasetKind,
        argument_validation,
        default_collate,
        default_convert,
        functional_datapipe,
        get_worker_info,
        guaranteed_datapipes_determinism,
        non_deterministic,
        random_split,
        runtime_validation,
        runtime_validation_disabled,
    )

    from headrace import samplers, transforms
    from headrace.cluster.options import Ray
    from headrace.core.errors import (
        ClusterError,
        DatasetError,
        DatasetNotFoundError,
        FormatError,
        HeadraceError,
        MachineError,
        MissingExtraError,
        ObjectChangedError,
        ObjectNotFoundError,
        RanksDifferError,
        RecordsLostError,
        SampleError,
        SampleTimeoutError,
        StaleCacheError,
        StateError,
        StorageError,
        TooManyBadSamplesError,
        TransportError,
        UsageError,
        WorkerDiedError,
    )
    from headrace.core.randomness.rng import rng
    from headrace.core.sharding import shard
    from headrace.core.world import Shard
    from headrace.data.blobs import Blobs
    from headrace.data.compact import compact
    from headrace.data.convert.pack import pack
    from headrace.data.convert.plan import PackOptions
    from headrace.data.convert.verify import verify
    from headrace.data.formats.columns import Block, Field, Ragged, Schema
    from headrace.data.formats.registry import open_writer
    from headrace.data.gather import Padded
    from headrace.data.image_folder import ImageFolder
    from headrace.data.opening import open  # noqa: F401 - public, but `import *` must not bring it
    from headrace.data.staged.staged import Staged
    from headrace.data.staged.steps import step
    from headrace.faults.bad_sample import BadSample
    from headrace.faults.counts import Faults
    from headrace.faults.policy import OnError
    from headrace.faults.quarantine import load_quarantine
    from headrace.loader.dataloader import DataLoader
    from headrace.loader.loader_state import LoaderState
    from headrace.loader.options import Auto
    from headrace.loader.rank_files import merge_states, save_state
    from headrace.loader.reporting import Report
    from headrace.observe.chrome_trace import write_trace
    from headrace.observe.diagnosis.finding import Diagnosis
    from headrace.observe.stats import LoaderStats
    from headrace.observe.writers import OpenMetricsWriter, TensorBoardWriter
    from headrace.telemetry.recording import Recording, Setting

__all__ = [
    "Auto",
    "BadSample",
    "BatchSampler",
    "Blobs",
    "Block",
    "ChainDataset",
    "ClusterError",
    "ConcatDataset",
    "DFIterDataPipe",
    "DataChunk",
    "DataLoader",
    "Dataset",
    "DatasetError",
    "DatasetNotFoundError",
    "Diagnosis",
    "DistributedSampler",
    "Faults",
    "Field",
    "FormatError",
    "HeadraceError",
    "ImageFolder",
    "IterDataPipe",
    "IterableDataset",
    "LoaderState",
    "LoaderStats",
    "MachineError",
    "MapDataPipe",
    "MissingExtraError",
    "ObjectChangedError",
    "ObjectNotFoundError",
    "OnError",
    "OpenMetricsWriter",
    "PackOptions",
    "Padded",
    "Ragged",
    "RandomSampler",
    "RanksDifferError",
    "Ray",
    "Recording",
    "RecordsLostError",
    "Report",
    "SampleError",
    "SampleTimeoutError",
    "Sampler",
    "Schema",
    "SequentialSampler",
    "Setting",
    "Shard",
    "StackDataset",
    "Staged",
    "StaleCacheError",
    "StateError",
    "StorageError",
    "Subset",
    "SubsetRandomSampler",
    "TensorBoardWriter",
    "TensorDataset",
    "TooManyBadSamplesError",
    "TransportError",
    "UsageError",
    "WeightedRandomSampler",
    "WorkerDiedError",
    "_DatasetKind",
    "__version__",
    "argument_validation",
    "compact",
    "default_collate",
    "default_convert",
    "functional_datapipe",
    "get_worker_info",
    "guaranteed_datapipes_determinism",
    "load_quarantine",
    "merge_states",
    "non_deterministic",
    "open_writer",
    "pack",
    "random_split",
    "rng",
    "runtime_validation",
    "runtime_validation_disabled",
    "samplers",
    "save_state",
    "shard",
    "step",
    "transforms",
    "verify",
    "write_trace",
]

_ERRORS = tuple(name for name in __all__ if name.endswith("Error") and name != "OnError")

_TORCH = (
    "BatchSampler",
    "ChainDataset",
    "ConcatDataset",
    "DFIterDataPipe",
    "DataChunk",
    "Dataset",
    "DistributedSampler",
    "IterDataPipe",
    "IterableDataset",
    "MapDataPipe",
    "RandomSampler",
    "Sampler",
    "SequentialSampler",
    "StackDataset",
    "Subset",
    "SubsetRandomSampler",
    "TensorDataset",
    "WeightedRandomSampler",
    "_DatasetKind",
    "argument_validation",
    "default_collate",
    "default_convert",
    "functional_datapipe",
    "get_worker_info",
    "guaranteed_datapipes_determinism",
    "non_deterministic",
    "random_split",
    "runtime_validation",
    "runtime_validation_disabled",
)
"""The other public names of `torch.utils.data`, so that one import stands for both."""

_HOMES = {
    **dict.fromkeys(_TORCH, "torch.utils.data"),
    "write_trace": "headrace.observe.chrome_trace",
    "Setting": "headrace.telemetry.recording",
    "Shard": "headrace.core.world",
    "Report": "headrace.loader.reporting",
    "Ray": "headrace.cluster.options",
    "Recording": "headrace.telemetry.recording",
    "Padded": "headrace.data.gather",
    "OnError": "headrace.faults.policy",
    "LoaderState": "headrace.loader.loader_state",
    "LoaderStats": "headrace.observe.stats",
    "Faults": "headrace.faults.counts",
    "Diagnosis": "headrace.observe.diagnosis.finding",
    "Blobs": "headrace.data.blobs",
    "BadSample": "headrace.faults.bad_sample",
    "Auto": "headrace.loader.options",
    "Block": "headrace.data.formats.columns",
    "DataLoader": "headrace.loader.dataloader",
    "Field": "headrace.data.formats.columns",
    "ImageFolder": "headrace.data.image_folder",
    "PackOptions": "headrace.data.convert.plan",
    "Ragged": "headrace.data.formats.columns",
    "Schema": "headrace.data.formats.columns",
    "Staged": "headrace.data.staged.staged",
    "compact": "headrace.data.compact",
    "load_quarantine": "headrace.faults.quarantine",
    "merge_states": "headrace.loader.rank_files",
    "open": "headrace.data.opening",
    "open_writer": "headrace.data.formats.registry",
    "pack": "headrace.data.convert.pack",
    "rng": "headrace.core.randomness.rng",
    "save_state": "headrace.loader.rank_files",
    "shard": "headrace.core.sharding",
    "step": "headrace.data.staged.steps",
    "verify": "headrace.data.convert.verify",
    "OpenMetricsWriter": "headrace.observe.writers",
    "TensorBoardWriter": "headrace.observe.writers",
    **dict.fromkeys(_ERRORS, "headrace.core.errors"),
}
"""The module of each public name."""

_MODULES = {"samplers", "transforms"}
"""Public names that are modules themselves."""


def __getattr__(name: str) -> Any:
    """Loads a public name when it is first used; after that it is a plain attribute of the package."""
    if name in _MODULES:
        return importlib.import_module(f"headrace.{name}")
    if name not in _HOMES:
        raise AttributeError(f"module 'headrace' has no attribute {name!r}")

    value = getattr(importlib.import_module(_HOMES[name]), name)
    globals()[name] = value
    return value


def __dir__() -> list[str]:
    return sorted({*__all__, "open", *(name for name in globals() if name.startswith("__"))})


guard_log()
