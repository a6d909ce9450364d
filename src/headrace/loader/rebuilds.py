"""Frameworks that build a loader anew from its attributes: what they find, and what they would lose."""

from __future__ import annotations

import contextlib
import sys
from collections.abc import Iterator
from dataclasses import replace
from typing import Any, NamedTuple, overload

import torch

from headrace.core.errors import UsageError
from headrace.core.sharding import splits_over_ranks
from headrace.core.world import Shard, current_world
from headrace.faults.policy import OnError
from headrace.loader.options import AskedArguments, Options, is_map
from headrace.samplers.frameworks import SplitOverRanks

SAVED_BY_LIGHTNING = "__pl_saved_args"
"""Where Lightning keeps the arguments of a loader that is made in one of its hooks, to build it anew.

It wraps the constructors of all loaders that exist when the hook begins. If ours is first asked for within the hook, it
keeps the arguments that torch's loader is given, which are not ours. Without any, it takes the attributes.
"""

PLAIN = {"backend": "process", "stragglers": "wait", "batches_per_epoch": None, "on_stats": None}
"""Arguments of which torch's loader knows nothing, and their defaults."""


class Framework(NamedTuple):
    """A framework that builds loaders anew with torch's arguments."""

    name: str
    place: str
    fix: str
    keeps_sampler: bool
    """Whether the new loader has the sampler of the old one."""
    splits_streams: bool
    """Whether it gives each rank a part of an iterable dataset."""


ACCELERATE = Framework(
    "Accelerate",
    "accelerator.prepare",
    "give the loader shard='auto', and use headrace.integrations.accelerate.prepare, which keeps the loader whole",
    keeps_sampler=True,
    splits_streams=True,
)
RAY_TRAIN = Framework(
    "Ray Train",
    "ray.train.torch.prepare_data_loader",
    "give the loader shard='auto': Ray Train then takes it as it is",
    keeps_sampler=False,
    splits_streams=False,
)
RAY_MODULES = {"ray.train.torch.train_loop_utils", "ray.train.v2.torch.train_loop_utils"}


@contextlib.contextmanager
def shown_to_frameworks(loader: AskedArguments[Any]) -> Iterator[None]:
    """Runs torch's constructor. Behind it, attributes are what frameworks understand that split or build loaders."""
    is_outermost = SAVED_BY_LIGHTNING not in vars(loader)
    yield
    if is_outermost:
        vars(loader).pop(SAVED_BY_LIGHTNING, None)

    # They look for a sampler that splits over ranks here, and would split its batches once more.
    if isinstance(loader.batch_sampler, SplitOverRanks):
        vars(loader)["sampler"] = loader.batch_sampler


class ReadByRay:
    """The argument `generator`: Ray Train reads it once it has decided to build a loader anew, and asks nothing else.

    Where that would lose other arguments, reading it there raises `UsageError`.
    """

    @overload
    def __get__(self, loader: None, owner: object) -> ReadByRay: ...
    @overload
    def __get__(self, loader: AskedArguments[Any], owner: object) -> torch.Generator | None: ...
    def __get__(self, loader: AskedArguments[Any] | None, owner: object) -> ReadByRay | torch.Generator | None:
        if loader is None:
            return self
        if sys._getframe(1).f_globals.get("__name__") in RAY_MODULES:
            refuse_rebuild(loader, RAY_TRAIN, loader._options)
        try:
            generator: torch.Generator | None = vars(loader)["generator"]
        except KeyError:
            raise AttributeError("generator") from None
        return generator

    def __set__(self, loader: AskedArguments[Any], generator: torch.Generator | None) -> None:
        vars(loader)["generator"] = generator


def _is_usual(on_error: OnError) -> bool:
    """Tells whether bad samples are treated as torch does; which samples there are does not count."""
    return replace(on_error, exclude=None) == OnError()


def refuse_rebuild(loader: AskedArguments[Any], framework: Framework, options: Options) -> None:
    """Raises `UsageError` if a framework that builds this loader anew with torch's arguments would lose what it does.

    The order is the sampler's, and may be kept; a seed decides on the random numbers of each sample, too. Also if it
    would split a stream over the ranks that has split itself: of two ranks' samples, half would never come.
    """
    splits = framework.splits_streams and not is_map(loader.dataset) and splits_over_ranks(loader.dataset)
    if splits and current_world().size > 1:
        raise UsageError.about(
            f"{framework.name} would split a stream over the ranks that splits itself already",
            place=framework.place,
            found=f"a {type(loader.dataset).__name__}, which calls headrace.shard",
            expected="a stream that is split once",
            fix="use headrace.integrations.accelerate.prepare, which keeps the loader whole",
        )
    given = {name: getattr(loader, name) for name, default in PLAIN.items() if getattr(loader, name) != default}
    if options.asked_seed is not None:
        given["seed"] = options.asked_seed
    if not _is_usual(options.on_error) or (options.exclude is not None and not framework.keeps_sampler):
        given["on_error"] = loader.on_error
    # What ranks get of a map-style dataset is a matter of the sampler.
    if isinstance(loader.shard, Shard) or (loader.shard and not is_map(loader.dataset)):
        given["shard"] = loader.shard
    if options.on_device is not None:
        given |= options.on_device.given

    if given:
        names = ", ".join(f"{name}=" for name in given)
        raise UsageError.about(
            f"{framework.name} would build a new loader, without some of its arguments",
            place=framework.place,
            found=", ".join(f"{name}={value!r}" for name, value in given.items()),
            expected="arguments that torch's loader has, too",
            fix=f"{framework.fix}; or leave out {names}",
        )
