"""Runs first in every Python process that a script under `headrace run` starts.

It waits for the import of torch, and then has headrace replace torch's loader there, too. It imports nothing itself:
most of these processes never load a batch. A `sitecustomize` of the system's or the user's runs as well.
"""

from __future__ import annotations

import importlib.machinery
import importlib.util
import os
import sys
from types import ModuleType


class _AfterTorch:
    """Finds torch as the other finders do, and joins the measured run once torch's own code has run."""

    @classmethod
    def find_spec(
        cls, fullname: str, path: object = None, target: object = None
    ) -> importlib.machinery.ModuleSpec | None:
        """Returns the spec of torch, whose loader is wrapped; None for all other modules."""
        if fullname != "torch":
            return None

        sys.meta_path.remove(cls)  # so that the search below asks the others only
        spec = importlib.util.find_spec("torch")
        if spec is not None and spec.loader is not None:
            execute = spec.loader.exec_module

            def exec_module(module: ModuleType) -> None:
                execute(module)
                _join()

            setattr(spec.loader, "exec_module", exec_module)  # noqa: B010 - mypy takes it for a method that is fixed

        return spec


def _join() -> None:
    if "HEADRACE_RUN" not in os.environ:
        return

    try:
        from headrace.measure.children import join
    except ImportError:
        return  # another Python than that of the run, without headrace

    join()


def _run_the_other_sitecustomize() -> None:
    """Runs the module that this one hides, if there is one."""
    here = os.path.realpath(__file__).rpartition(os.sep)[0]
    others = []
    for entry in sys.path:
        if os.path.realpath(entry) != here:
            others.append(entry)

    spec = importlib.machinery.PathFinder.find_spec("sitecustomize", others)
    if spec is None or spec.loader is None:
        return

    module = importlib.util.module_from_spec(spec)
    sys.modules["sitecustomize"] = module
    spec.loader.exec_module(module)


if "HEADRACE_RUN" in os.environ:
    sys.meta_path.insert(0, _AfterTorch)
_run_the_other_sitecustomize()
