"""What a reference of headrace shows: the public objects, as users know them and as documentation tools read them.

A reference shows each public name, and of a class each method and property that has no underscore in front. Those that
only other parts of headrace call are listed in `OF_HEADRACE`, and a reference leaves them out. So what is added is
shown, and has to be documented, unless somebody says here that it is no user's.
"""

from __future__ import annotations

import ast
import functools
import importlib
import inspect
from collections.abc import Iterator
from dataclasses import dataclass
from types import ModuleType
from typing import Any

import griffe
import torch.utils.data

import headrace

from .pages import ROOT

MODULES = ("headrace.errors", "headrace.samplers", "headrace.transforms", "headrace.types", "headrace.testing")

OF_FSSPEC = {
    "created", "modified", "ls", "info", "mkdir", "makedirs", "rmdir", "rm", "rm_file", "cp_file", "invalidate_cache",
    "before", "after",
}  # fmt: skip

OF_HEADRACE: dict[str, set[str]] = {
    "Auto": {"nbytes"},
    "BadSample": {"settled", "as_json", "from_json"},
    "Blobs": {"pin_memory"},
    "Block": {"place_of", "numbered", "only"},
    "BlockShuffleSampler": {"keys_at"},
    "WindowedBatchSampler": {"follow"},
    "ChatTemplate": {"fingerprint"},
    "ClassBalancedSampler": {"keys_at"},
    "AskedArguments": {"check_worker_number_rationality"},
    "PackedBatch": {"has_part"},
    "PackedBatchSampler": {"adopt_world", "check_state", "load_state_dict", "order_key", "set_epoch", "upcoming"},
    "PackedStream": {"lies_elsewhere", "set_epoch", "sizes"},
    "CutPlan": {"show", "tables"},
    "DataLoader": {"recorder"},
    "DecodeJpegs": {"forward", "extra_repr"},
    "ElasticSampler": {
        "adopt_world", "begin_change", "check_state", "checkpoint", "follow", "is_last", "order_key",
        "others_go_on", "state_at", "upcoming",
    },
    "EvalImages": {"into"},
    "FaultyStream": {"meet"},
    "Field": {"to_json"},
    "FlakyFileSystem": {"before"},
    "Fluent": {"encoded"},
    "FluentStream": {"encoded", "cache", "select", "split"},
    "HeadraceError": {"about"},
    "ImageFolder": {"draws", "encoded"},
    "IntoArray": {"into", "shape", "dtype"},
    "LogDataset": {"commit", "endless", "live_sampler", "path_of_sample"},
    "MixtureSampler": {
        "begin_change", "check_state", "checkpoint", "follow", "is_planned_for", "keys_at", "load_state_dict",
        "order_key", "set_epoch", "state_at", "state_before", "upcoming",
    },
    "MixedStream": {"encoded", "lies_elsewhere", "set_epoch"},
    "Observed": {"recorder"},
    "OnError": {"of", "is_plain"},
    "PositionalSampler": {
        "checkpoint", "follow", "key_arrays", "key_lists", "positions_of", "state_at", "state_before", "upcoming",
    },
    "Ragged": {"check", "is_packed", "pieces"},
    "Ray": {"needs"},
    "Schema": {"from_json", "to_json"},
    "SimulatedAccelerator": {
        "another", "capturing", "copy", "devices", "empty", "event", "lend", "moved", "read_locked", "register", "seen",
        "stream", "synchronize", "unregister", "using", "write",
    },
    "SlowFileSystem": {"before", "after"},
    "SplitOverRanks": {"num_replicas", "rank"},
    "Staged": {
        "as_source", "before_steps", "byte_ranges", "draws", "fetch_batch", "fingerprint", "lies_elsewhere",
        "lies_in_memory", "load", "of", "pipeline", "place", "prepare", "streams", "with_cache", "with_cut",
        "with_step",
    },
    "StoredDataset": {
        "block", "block_schema", "byte_ranges", "checked", "collate", "draws", "encoded", "fetch_batch", "fingerprint",
        "lies_elsewhere", "lies_in_memory", "path_of_sample", "ragged", "reader", "sample", "stored_names",
    },
    "StoredStream": {"encoded", "lies_elsewhere"},
    "Tokenize": {"fingerprint"},
    "TokenWindows": {"byte_ranges", "fetch_batch", "fingerprint", "lies_elsewhere", "lies_in_memory"},
    "TrainImages": {"into"},
    "Verified": {"add"},
    "WeightedSampler": {"keys_at"},
    "WholeSampler": {"keys_at", "positions_of"},
    "_Around": OF_FSSPEC,
}  # fmt: skip
"""The methods that parts of headrace, torch and fsspec call, and users need not, by the class that has them."""


@dataclass(frozen=True)
class PublicObject:
    """A function or a class, or a method or property of a class."""

    name: str
    """By which users know it, such as `headrace.DataLoader.state_dict`."""
    home: str
    """Where its source stands, such as `headrace.loader.reporting.Observed.report`."""
    value: Any

    @property
    def is_class(self) -> bool:
        return inspect.isclass(self.value)

    @property
    def is_property(self) -> bool:
        return isinstance(self.value, (property, functools.cached_property))

    @property
    def read(self) -> Any:
        """What Griffe reads of it."""
        return package()[self.home.removeprefix("headrace.")]

    @property
    def text(self) -> str:
        if self.read.docstring is None:
            return ""
        return str(self.read.docstring.value)


@functools.cache
def package() -> Any:
    """Returns what Griffe reads of the package; it runs none of it."""
    return griffe.load("headrace", search_paths=[ROOT / "src"])


@functools.cache
def public_objects() -> list[PublicObject]:
    """Returns all public objects of headrace's own, each once, and each class in front of its methods."""
    found = []
    for module in (headrace, *map(importlib.import_module, MODULES)):
        for name in names_of(module):
            value = getattr(module, name)
            known = PublicObject(f"{module.__name__}.{name}", home_of(value), value)
            found.append(known)
            if known.is_class:
                found.extend(members_of(known))

    return list({known.home: known for known in reversed(found)}.values())[::-1]


def names_of(module: ModuleType) -> list[str]:
    """Returns the names of a module that stand for functions and classes."""
    names = getattr(module, "__all__", None)
    if module is headrace:
        names = {*headrace.__all__, "open"} - set(torch.utils.data.__all__) | {"DataLoader"}
    if module is headrace.types:
        imports = [node for node in ast.walk(ast.parse(inspect.getsource(module))) if isinstance(node, ast.ImportFrom)]
        names = {alias.name for node in imports for alias in node.names}
    if names is None:
        names = vars(module)

    public = []
    for name in sorted(names):
        value = getattr(module, name)
        is_ours = getattr(value, "__module__", "").startswith("headrace.")
        if is_ours and not name.startswith("_") and (inspect.isclass(value) or inspect.isfunction(value)):
            public.append(name)

    return public


def members_of(known: PublicObject) -> Iterator[PublicObject]:
    """Yields the methods and properties of a class that a reference shows, inherited ones of headrace's too."""
    seen: set[str] = set()
    for kind in known.value.__mro__:
        if not kind.__module__.startswith("headrace."):
            continue

        left_out = OF_HEADRACE.get(kind.__name__, set())
        for name, value in vars(kind).items():
            if name.startswith("_") or name in seen:
                continue
            seen.add(name)
            if name not in left_out and is_method(value):
                yield PublicObject(f"{known.name}.{name}", f"{home_of(kind)}.{name}", value)


def is_method(value: object) -> bool:
    kinds = (property, functools.cached_property, classmethod, staticmethod)
    return inspect.isfunction(value) or isinstance(value, kinds)


def home_of(value: Any) -> str:
    return f"{value.__module__}.{value.__qualname__}"
