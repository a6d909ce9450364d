"""What runs in a process of Ray: one piece of a job, and an answer that the caller can read whatever happens.

Ray imports this module by its name on each machine; a user's classes come with the job, by value.
"""

from __future__ import annotations

import contextlib
import copy
import importlib
import io
import os
import pickle
import platform
import sys
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from headrace.cluster.code import versions
from headrace.core.errors import HeadraceError
from headrace.core.torch_internals import compute_with_one_thread, wrap_exception
from headrace.data.building.pool import Job, plain_copy


@dataclass(frozen=True)
class TaskTerms:
    """What holds for all tasks of a run."""

    run: str
    """A name of its own."""
    host: str
    """Where the caller runs."""
    seen: str
    """A file in the shared folder; "" without one."""
    folder: str
    """The current folder of the caller, to which relative paths belong."""
    versions: dict[str, str]


@dataclass(frozen=True)
class Failed:
    """The answer of a task that made no piece, for one of three reasons."""

    host: str
    error: bytes = b""
    """Pickled: an exception, or torch's form of one."""
    versions: dict[str, str] | None = None
    """Those of this machine, where they are not those of the caller."""
    unseen: str = ""
    """The shared folder, where this machine does not see it."""


_jobs: dict[str, Job] = {}
"""The job of the last run that this process took part in."""


def make_piece(pickled: list[Any], asked: TaskTerms, piece: int) -> bytes | Failed:
    """Makes one piece. Returns the pickled result, or why there is none. pickled: a reference to the job."""
    host = platform.node()
    if versions() != asked.versions:
        return Failed(host, versions=versions())

    # Where machines share their folders, relative paths mean here what they mean to the caller.
    with contextlib.suppress(OSError):
        os.chdir(asked.folder)
    if asked.seen and not Path(asked.seen).is_file():
        return Failed(host, unseen=str(Path(asked.seen).parent))

    try:
        return pickle.dumps(_job(pickled, asked.run).make(piece))
    except HeadraceError as error:
        if host != asked.host:
            error.add_note(f"on the machine {host}")
        return Failed(host, error=_by_name(plain_copy(error)))
    except OSError as error:
        # With its number and file, by which the caller knows a full disk.
        if _can_be_copied(error):
            return Failed(host, error=_by_name(error))
        failure = wrap_exception(error, "while building")
        failure.exc_type = RuntimeError
        return Failed(host, error=_by_name(failure))
    except Exception as error:  # noqa: BLE001 - raised again where the caller is
        return Failed(host, error=_by_name(wrap_exception(error, "while building")))


def _job(pickled: list[Any], run: str) -> Job:
    """Returns the job, which has begun: once in each process."""
    import ray

    if run not in _jobs:
        compute_with_one_thread()
        job: Job = ray.cloudpickle.loads(ray.get(pickled[0]))
        job.begin()
        _jobs.clear()
        _jobs[run] = job

    return _jobs[run]


# -- exceptions on their way back --------------------------------------------------------------------------------------


def _by_name(thing: Any) -> bytes:
    """Pickles an exception so that the caller finds its own classes in it, also those that came here by value."""
    file = io.BytesIO()
    _ByName(file).dump(thing)
    return file.getvalue()


class _ByName(pickle.Pickler):
    def reducer_override(self, obj: Any) -> Any:
        if isinstance(obj, type) and obj.__module__ != "builtins":
            return class_named, (obj.__module__, obj.__qualname__)
        return NotImplemented


def class_named(module: str, name: str) -> type:
    """Returns a class of this process; the caller's, when it reads an answer. `RuntimeError` if there is none."""
    # Modules of the user's are there; one of headrace's may not have been needed so far.
    with contextlib.suppress(ImportError):
        importlib.import_module(module)

    found: Any = sys.modules.get(module)
    for part in name.split("."):
        found = getattr(found, part, None)

    if isinstance(found, type):
        return found
    return RuntimeError


def _can_be_copied(error: Exception) -> bool:
    """Tells whether an exception can be made again from what it keeps."""
    again: Callable[[Exception], Exception] = copy.copy
    try:
        return type(again(error)) is type(error)
    except Exception:  # noqa: BLE001 - an exception of the user's may raise anything
        return False
