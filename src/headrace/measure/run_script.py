"""Runs a training script as Python would run it."""

from __future__ import annotations

import runpy
import sys
import types
from collections.abc import Sequence
from pathlib import Path


def run_script(target: str, arguments: Sequence[str], *, as_module: bool = False) -> None:
    """Runs a script file (or a module) as `python` would: as `__main__`, with its `sys.argv` and `sys.path[0]`.

    Raises what the script raises, `SystemExit` included.
    """
    if as_module:
        sys.path.insert(0, str(Path.cwd()))
        sys.argv = [target, *arguments]
        runpy.run_module(target, run_name="__main__", alter_sys=True)
        return

    path = Path(target)
    code = compile(path.read_bytes(), str(path), "exec")
    sys.argv = [target, *arguments]
    sys.path.insert(0, str(path.resolve().parent))
    # The module stays in place after the end: exit handlers of the script may need its names.
    main = types.ModuleType("__main__")
    main.__dict__.update(__file__=str(path), __builtins__=__builtins__)
    sys.modules["__main__"] = main
    exec(code, main.__dict__)
