"""Optional libraries: imported where they are used; a missing one says which extra to install."""

from __future__ import annotations

import importlib
from typing import Any

from headrace.core.errors import MissingExtraError, explain


def extra(module: str, name: str) -> Any:
    """Returns a module. Raises `MissingExtraError` that names the extra."""
    try:
        return importlib.import_module(module)
    except ImportError as error:
        cure = f"pip install 'headrace[{name}]'"
        raise MissingExtraError(explain(f"this needs the package {module}", found=str(error), cure=cure)) from error
