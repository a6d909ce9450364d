"""The program itself, which workers under spawn and forkserver import: what is defined in a notebook cannot be got."""

from __future__ import annotations

import re
import sys
from multiprocessing import spawn
from pathlib import Path

from headrace.core.errors import UsageError
from headrace.shared_memory.packed_object import first_of_main

MISSING = re.compile(r"Can't get attribute '([^']+)' on <module '__(?:mp_)?main__'")
"""What Python says where a program lacks a class or function once another process has imported it."""

IPYTHON = "ipython"
"""The name of a program that multiprocessing has no worker import."""


def refuse_program_without_file(method: str) -> None:
    """Raises `UsageError` for a program that multiprocessing would have each worker read from a file that is not there.

    method: the start method. Such a program comes from the standard input.
    """
    path = _file_for_workers()
    if path is None or Path(path).is_file():
        return

    raise UsageError.about(
        "workers cannot import this program",
        place=f"DataLoader, start method {method!r}",
        found=f"no file {path}: the program was read from somewhere else, such as the standard input",
        expected="a program in a file, which each worker imports",
        fix="write the program into a file, or pass multiprocessing_context='fork'",
    )


def refuse_objects_of_notebook(worker_spec: object, method: str) -> None:
    """Raises `UsageError` if what workers get is defined in a notebook, or in another program that has no file."""
    if _file_for_workers() is not None or getattr(sys.modules["__main__"], "__spec__", None) is not None:
        return

    name = first_of_main(worker_spec)
    if name is not None:
        raise missing_in_main(name, method)


def missing_in(text: str, method: str) -> UsageError | None:
    """Returns the error for a traceback that says that the program lacks something in workers; None for another one."""
    found = MISSING.search(text)
    if found is None:
        return None
    return missing_in_main(found[1], method)


def missing_in_main(name: str, method: str) -> UsageError:
    """Returns the error for a class or function that is not in the program when workers import it."""
    if _file_for_workers() is None:
        where = "in a notebook, or in a program without a file"
    else:
        where = "where workers do not come by, such as below `if __name__ == '__main__':`"

    return UsageError.about(
        "workers cannot get a class or function of this program",
        place=f"__main__.{name}, in a DataLoader with start method {method!r}",
        found=f"a definition {where}",
        expected="one in a module that workers can import",
        fix="put it into a module file and import it from there, or pass multiprocessing_context='fork'",
    )


def _file_for_workers() -> str | None:
    """Returns the file that multiprocessing has workers read as the program; None if it has them read none."""
    path: str | None = spawn.get_preparation_data("headrace").get("init_main_from_path")
    if path is not None and Path(path).stem == IPYTHON:
        return None
    return path
