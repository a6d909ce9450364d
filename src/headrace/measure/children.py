"""The processes that a measured script starts: they get the same loader, and report back.

A launcher starts one process for each rank as `python train.py`. With headrace's loader in one of them only, the ranks
would disagree. So `headrace run` sets two environment variables for its children. `PYTHONPATH` leads every Python
process to `child_start/sitecustomize.py`, which waits until torch is imported, and then calls `join`. `HEADRACE_RUN`
says how the loader is replaced.
"""

from __future__ import annotations

import contextlib
import functools
import json
import math
import os
import random
import select
import sys
import time
from collections.abc import Iterator
from dataclasses import dataclass
from multiprocessing import util
from pathlib import Path
from typing import Any

import numpy as np
import torch

from headrace.core.files.atomic_file import write_atomically
from headrace.measure.child_environment import VARIABLE, environment
from headrace.measure.measurement import ChildMeasurement, Measurement

IN_USE = ".in-use"
"""Ending of the file by which a child says that it uses a loader."""

PATIENCE = 5.0
"""Seconds for which children that outlive the script are waited for."""

CHILD_START = Path(__file__).parent / "child_start"


@dataclass(frozen=True)
class ChildPlan:
    """How children replace their loaders, and where they leave their figures."""

    replacement: tuple[bool, ...]
    """The fields of `Replacement`."""
    defaults: dict[str, Any]
    folder: str = ""
    """Where children leave their figures; empty: nobody asks for any."""
    seconds_left: float | None = None
    """Until the script is ended, counted from `at`; None: it is not ended."""
    at: float = 0.0
    """Seconds of the epoch (`time.time`)."""
    seed: int | None = None
    """What `random`, NumPy and torch are seeded with before a script begins; None: they are not."""

    def as_json(self) -> str:
        """Returns it as the environment holds it."""
        return json.dumps(vars(self), default=str)


@contextlib.contextmanager
def measured_too(plan: ChildPlan) -> Iterator[None]:
    """Has the Python processes that are started meanwhile measured as well."""
    path = os.pathsep.join(filter(None, (str(CHILD_START), os.environ.get("PYTHONPATH"))))
    with environment({VARIABLE: plan.as_json(), "PYTHONPATH": path}):
        yield


def join() -> None:
    """Replaces the loader in this process, a child of a measured script. `child_start/sitecustomize.py` calls it."""
    from headrace.measure.loader_replacement import Replacement, replace_loader

    given = json.loads(os.environ[VARIABLE])
    if hasattr(sys, "argv"):
        script = sys.argv[0]
    else:
        script = ""

    measurement = Measurement(script, is_kept=bool(given["folder"]))
    began = time.perf_counter()
    if given["seconds_left"] is not None:
        measurement.deadline = began + given["seconds_left"] - (time.time() - given["at"])

    replace_loader(measurement, Replacement(*given["replacement"]), given["defaults"])
    if given["seed"] is not None:
        seed_globals(given["seed"])
    if not measurement.is_kept:
        return

    mark = Path(given["folder"]) / f"{os.getpid()}{IN_USE}"
    measurement.on_first_loader = functools.partial(_leave_mark, mark)
    # `Finalize` runs at the end of processes that multiprocessing starts, too, where `atexit` does not.
    leave = functools.partial(_leave_figures, measurement, Path(given["folder"]), began, os.getpid())
    util.Finalize(None, leave, exitpriority=0)


def seed_globals(seed: int) -> None:
    """Seeds the generators that scripts draw from: `random`, NumPy's and torch's."""
    random.seed(seed)
    np.random.seed(seed)
    torch.manual_seed(seed)


def _leave_mark(mark: Path) -> None:
    """Says that this process uses a loader, so that its figures are waited for."""
    # The measured run may be over already, and its folder gone.
    with contextlib.suppress(OSError):
        mark.touch()


def _leave_figures(measurement: Measurement, folder: Path, began: float, pid: int) -> None:
    """Writes what this process measured, at its end, for the process that started the script."""
    if os.getpid() != pid:
        return  # a fork of the process, which has the same finalizers

    measurement.settle()
    used = []
    for record in measurement.loaders:
        if record.epochs:
            used.append(record)

    loaders = tuple(used)
    if not loaders:
        return

    rank = os.environ.get("RANK") or os.environ.get("LOCAL_RANK")
    if rank is not None and rank.isdecimal():
        number = int(rank)
    else:
        number = None

    child = ChildMeasurement(pid, number, time.perf_counter() - began, loaders)
    # The measured run may be over already, or the disk be full. A training process must not fail for its figures.
    with contextlib.suppress(OSError):
        write_atomically(folder / f"{pid}.json", json.dumps(child.as_dict()).encode())


def children_of(folder: Path, patience: float = PATIENCE) -> list[ChildMeasurement]:
    """Returns what the children left, in the order of their ranks.

    Launchers may end before their ranks do. So children that used a loader and still run are waited for, `patience`
    seconds in all; what they leave after that is lost.
    """
    deadline = time.monotonic() + patience
    for mark in folder.glob(f"*{IN_USE}"):
        pid = int(mark.name.removesuffix(IN_USE))
        if not (folder / f"{pid}.json").exists():
            _wait_for_end(pid, deadline)

    found = []
    for file in folder.glob("*.json"):
        found.append(ChildMeasurement.from_dict(json.loads(file.read_text())))

    return sorted(found, key=_rank_and_pid)


def _rank_and_pid(child: ChildMeasurement) -> tuple[float, int]:
    """Returns what sorts children: by rank, those without one behind the others, in the order of their starts."""
    if child.rank is None:
        return math.inf, child.pid
    return child.rank, child.pid


def _wait_for_end(pid: int, deadline: float) -> None:
    """Waits until a process has ended; until `deadline` (`time.monotonic`) at most."""
    if not hasattr(os, "pidfd_open"):
        return

    try:
        end = os.pidfd_open(pid)
    except OSError:
        return  # it has ended

    try:
        poll = select.poll()
        poll.register(end, select.POLLIN)
        poll.poll(max(deadline - time.monotonic(), 0) * 1000)
    finally:
        os.close(end)
