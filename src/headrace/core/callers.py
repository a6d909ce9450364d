"""Whose code called: the user's own, or else that of a library beside torch and headrace."""

from __future__ import annotations

import sys
import sysconfig
from collections.abc import Iterator
from pathlib import Path
from types import FrameType

HEADRACE_AND_TORCH = {"torch", "torchdata", "headrace", "runpy"}

DEPTH = 64
"""Calls between a loader and what it reads, at most."""


def calling_classes() -> Iterator[type]:
    """Yields the classes in whose methods the running code was called, the innermost first."""
    frame: FrameType | None = sys._getframe(1)
    for _ in range(DEPTH):
        if frame is None:
            break
        # The argument `self` of a method, and of a generator that is one.
        if frame.f_code.co_varnames[:1] == ("self",):
            yield type(frame.f_locals["self"])
        frame = frame.f_back


def calling_frame() -> FrameType:
    """Returns the innermost frame that is neither torch's nor headrace's."""
    frame = sys._getframe(1)
    while frame.f_back is not None and _package_of(frame) in HEADRACE_AND_TORCH:
        frame = frame.f_back
    return frame


def users_frame(frame: FrameType) -> FrameType:
    """Returns the innermost frame, from this one outwards, that does not belong to an installed package.

    This one, if all do.
    """
    found: FrameType | None = frame
    while found is not None:
        if not is_installed(found) and _package_of(found) not in HEADRACE_AND_TORCH:
            return found
        found = found.f_back

    return frame


def _package_of(frame: FrameType) -> str:
    return str(frame.f_globals.get("__name__", "")).partition(".")[0]


def _installed_in() -> tuple[str, ...]:
    """Returns the folders of the standard library and of installed packages."""
    paths = sysconfig.get_paths()
    return tuple({paths[name] + "/" for name in ("stdlib", "platstdlib", "purelib", "platlib")})


_INSTALLED_IN = _installed_in()


def is_installed(frame: FrameType) -> bool:
    """Tells whether a frame belongs to the standard library or an installed package."""
    file = frame.f_code.co_filename
    return file.startswith((*_INSTALLED_IN, "<frozen")) or "/dist-packages/" in file


def name_of_file(path: str) -> str:
    """Returns what a reader calls the file of some code: its name, or, as IPython writes it, the cell of a notebook."""
    ipython = sys.modules.get("IPython")
    shell = ipython.get_ipython() if ipython is not None else None
    if shell is not None:
        # Older versions of IPython do not tell the cells apart.
        name_of = getattr(shell.compile, "format_code_name", None)
        cell = name_of(path) if name_of is not None else None
        if cell is not None:
            return str(cell[1])
    return Path(path).name
