"""The environment variables by which a measured script tells its children that they are measured, too."""

from __future__ import annotations

import contextlib
import os
from collections.abc import Iterator
from typing import Any

import torch.utils.data

VARIABLE = "HEADRACE_RUN"
"""Of the environment: the plan of a run, as JSON. `child_start/sitecustomize.py` knows the name, too."""


@contextlib.contextmanager
def not_measured_if_spawned(loader: torch.utils.data.DataLoader[Any]) -> Iterator[None]:
    """Leaves out the worker processes that a loader spawns meanwhile: they make batches and iterate over none."""
    if not loader.num_workers or VARIABLE not in os.environ:
        yield
        return
    with environment({VARIABLE: None}):
        yield


@contextlib.contextmanager
def environment(changes: dict[str, str | None]) -> Iterator[None]:
    """Sets environment variables (None: takes them away), and afterwards puts back what was there."""
    before = {name: os.environ.get(name) for name in changes}
    _set(changes)
    try:
        yield
    finally:
        _set(before)


def _set(variables: dict[str, str | None]) -> None:
    for name, value in variables.items():
        if value is None:
            os.environ.pop(name, None)
        else:
            os.environ[name] = value
