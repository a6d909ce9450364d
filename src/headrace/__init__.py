"""headrace: a drop-in superset of `torch.utils.data`.

It has every public name of `torch.utils.data`, too: one import stands for both. Errors are in `headrace.errors`, and
what users are only given in `headrace.types`. `headrace.open` is left out of `from headrace import *`, which would hide
Python's own. Examples in docstrings begin behind `import headrace, torch` and `import numpy as np`.

Names are loaded when they are first used: `import headrace` itself imports neither torch nor anything else that is
large, so that the command line starts at once and a program pays for the parts that it uses.
"""

import ast
import importlib
from pathlib import Path
from typing import Any

from headrace.core.text.printable import guard_log
from headrace.version import __version__ as __version__

TORCH = "torch.utils.data"


def _homes() -> dict[str, str]:
    """Returns the module of each name of our own, as `__init__.pyi` has it; a module stands for itself."""
    homes = {}
    for node in ast.parse(Path(__file__).with_suffix(".pyi").read_text("utf-8")).body:
        if isinstance(node, ast.ImportFrom) and node.module is not None and node.module != TORCH:
            homes.update(dict.fromkeys((alias.name for alias in node.names), node.module))
    return homes


_HOMES = _homes()


def _public() -> list[str]:
    """Returns what `from headrace import *` brings. Imports torch, whose names are among them."""
    return sorted({*_HOMES, *importlib.import_module(TORCH).__all__} - {"open"})


def __getattr__(name: str) -> Any:
    """Loads a public name when it is first used; after that it is a plain attribute of the package."""
    if name == "__all__":
        return _public()
    if _HOMES.get(name) == __name__:
        return importlib.import_module(f"{__name__}.{name}")
    if name in _HOMES:
        value = getattr(importlib.import_module(_HOMES[name]), name)
    elif name.startswith("__") or name not in importlib.import_module(TORCH).__all__:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    else:
        value = getattr(importlib.import_module(TORCH), name)

    globals()[name] = value
    return value


def __dir__() -> list[str]:
    return sorted({*_public(), "open", *(name for name in globals() if name.startswith("__"))})


guard_log()
