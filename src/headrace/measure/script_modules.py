"""Acts around the import of a module, whenever that comes, without importing it."""

from __future__ import annotations

import importlib.abc
import importlib.util
import sys
from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager
from importlib.machinery import ModuleSpec
from types import ModuleType
from typing import Any

Around = Callable[[ModuleType], AbstractContextManager[None]]


def around_import(name: str, around: Around) -> Callable[[], None]:
    """Has the code of module `name` run within `around(module)`, once; at once, if the module is there already.

    Returns what has it imported as ever, if it has not been imported by then.
    """
    module = sys.modules.get(name)
    if module is not None:
        with around(module):
            return _nothing

    finder = _Finder(name, around)
    sys.meta_path.insert(0, finder)

    def undo() -> None:
        if finder in sys.meta_path:
            sys.meta_path.remove(finder)

    return undo


def _nothing() -> None:
    """Does nothing."""


class _Finder(importlib.abc.MetaPathFinder):
    """Finds one module as the other finders do, and wraps its loader."""

    def __init__(self, name: str, around: Around) -> None:
        self._name = name
        self._around = around

    def find_spec(
        self, fullname: str, path: Sequence[str] | None, target: ModuleType | None = None
    ) -> ModuleSpec | None:
        """Returns the spec of the one module, whose loader is wrapped; None for all others."""
        if fullname != self._name:
            return None

        # Removed first, so that the search asks the other finders only, and not this one again.
        sys.meta_path.remove(self)
        spec = importlib.util.find_spec(fullname)
        if spec is None or spec.loader is None:
            return spec

        loader: Any = spec.loader
        execute = loader.exec_module
        around = self._around

        def exec_module(module: ModuleType) -> None:
            with around(module):
                execute(module)

        loader.exec_module = exec_module
        return spec
