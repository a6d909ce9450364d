"""Optional libraries: imported where they are used; a missing one says which extra to install."""

from __future__ import annotations

import importlib
import importlib.util
from typing import Any

from headrace.core.errors import MissingExtraError


def extra(module: str, name: str) -> Any:
    """Returns a module. Raises `MissingExtraError` that names the extra."""
    try:
        return importlib.import_module(module)
    except ImportError as error:
        raise _missing(module, name, str(error)) from error


def require(module: str, name: str) -> None:
    """Raises `MissingExtraError` that names the extra if a module is not there, which another process will import."""
    if not has(module):
        raise _missing(module, name, f"No module named {module!r}")


def has(module: str) -> bool:
    """Returns whether a module is there; it is not imported."""
    return importlib.util.find_spec(module) is not None


def _missing(module: str, name: str, found: str) -> MissingExtraError:
    fix = f"pip install 'headrace[{name}]'"
    return MissingExtraError.about(f"this needs the package {module}", found=found, fix=fix)
