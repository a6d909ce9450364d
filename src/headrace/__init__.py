"""headrace: a drop-in superset of `torch.utils.data`.

Names are loaded when they are first used: `import headrace` itself imports neither torch nor anything else that is
large, so that the command line starts at once and a program pays for the parts that it uses.
"""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any

from headrace.core.printable import guard_log
from headrace.version import __version__

if TYPE_CHECKING:
    from headrace import samplers, transforms
    from headrace.core.errors import (
        DatasetError,
        DatasetNotFoundError,
        FormatError,
        HeadraceError,
        MachineError,
        MissingExtraError,
        RanksDifferError,
        SampleError,
        SampleTimeoutError,
        StaleCacheError,
        StateError,
        TooManyBadSamplesError,
        TransportError,
        UsageError,
        WorkerDiedError,
    )
    from headrace.core.rng import rng
    from headrace.core.sharding import shard
    from headrace.data.compact import compact
    from headrace.data.formats.columns import Ragged
    from headrace.data.image_folder import ImageFolder
    from headrace.data.staged.staged import Staged
    from headrace.data.staged.steps import step
    from headrace.data.stored import open
    from headrace.epoch.snapshot import merge_states
    from headrace.faults.quarantine import load_quarantine
    from headrace.loader.dataloader import DataLoader
    from headrace.observe.writers import OpenMetricsWriter, TensorBoardWriter

__all__ = [
    "DataLoader",
    "DatasetError",
    "DatasetNotFoundError",
    "FormatError",
    "HeadraceError",
    "ImageFolder",
    "MachineError",
    "MissingExtraError",
    "OpenMetricsWriter",
    "Ragged",
    "RanksDifferError",
    "SampleError",
    "SampleTimeoutError",
    "Staged",
    "StaleCacheError",
    "StateError",
    "TensorBoardWriter",
    "TooManyBadSamplesError",
    "TransportError",
    "UsageError",
    "WorkerDiedError",
    "__version__",
    "compact",
    "load_quarantine",
    "merge_states",
    "open",
    "rng",
    "samplers",
    "shard",
    "step",
    "transforms",
]

_ERRORS = tuple(name for name in __all__ if name.endswith("Error"))

_HOMES = {
    "DataLoader": "headrace.loader.dataloader",
    "ImageFolder": "headrace.data.image_folder",
    "Ragged": "headrace.data.formats.columns",
    "Staged": "headrace.data.staged.staged",
    "compact": "headrace.data.compact",
    "load_quarantine": "headrace.faults.quarantine",
    "merge_states": "headrace.epoch.snapshot",
    "open": "headrace.data.stored",
    "rng": "headrace.core.rng",
    "shard": "headrace.core.sharding",
    "step": "headrace.data.staged.steps",
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
    return sorted({*globals(), *__all__})


guard_log()
