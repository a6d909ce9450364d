"""What a loader is called in reports: the line of the user's own code that made it."""

from __future__ import annotations

import sys
import sysconfig
import weakref
from pathlib import Path
from types import FrameType
from typing import Any, NamedTuple

HEADRACE_AND_TORCH = {"torch", "torchdata", "headrace", "runpy"}

_labels: weakref.WeakKeyDictionary[Any, str] = weakref.WeakKeyDictionary()
"""Of the loaders that are alive."""


class Label(NamedTuple):
    """The name of a loader, as file:line."""

    text: str
    is_rebuild: bool
    """Whether a framework built the loader anew from one that the user had made, whose label it keeps."""


def label_for(loader: object, dataset: object) -> Label:
    """Returns the label of a loader that is being made.

    A framework may replace a loader by another one over the same dataset: that one keeps the label of the first.
    """
    frame = _outside(sys._getframe(1))
    label = Label(_line_of(_users_frame(frame)), is_rebuild=False)
    if _is_installed(frame):
        # The latest such loader: a framework may have rebuilt it once before.
        for other, text in _labels.items():
            if other is not loader and _dataset_of(other) is dataset:
                label = Label(text, is_rebuild=True)

    _labels[loader] = label.text
    return label


def caller() -> str:
    """Returns file:line of the innermost frame of the user's code; of a library's, if there is no other."""
    return _line_of(_users_frame(_outside(sys._getframe(1))))


def _outside(frame: FrameType) -> FrameType:
    """Returns the innermost frame that is neither torch's nor headrace's."""
    while frame.f_back is not None and _package_of(frame) in HEADRACE_AND_TORCH:
        frame = frame.f_back
    return frame


def _users_frame(frame: FrameType) -> FrameType:
    """Returns the innermost frame, from this one outwards, that does not belong to an installed package."""
    found: FrameType | None = frame
    while found is not None:
        if not _is_installed(found) and _package_of(found) not in HEADRACE_AND_TORCH:
            return found
        found = found.f_back

    return frame


def _line_of(frame: FrameType) -> str:
    return f"{Path(frame.f_code.co_filename).name}:{frame.f_lineno}"


def _package_of(frame: FrameType) -> str:
    return str(frame.f_globals.get("__name__", "")).partition(".")[0]


def _installed_in() -> tuple[str, ...]:
    """Returns the folders of the standard library and of installed packages."""
    paths = sysconfig.get_paths()
    return tuple({paths[name] + "/" for name in ("stdlib", "platstdlib", "purelib", "platlib")})


_INSTALLED_IN = _installed_in()


def _is_installed(frame: FrameType) -> bool:
    file = frame.f_code.co_filename
    return file.startswith((*_INSTALLED_IN, "<frozen")) or "/dist-packages/" in file


def _dataset_of(loader: object) -> object:

    return vars(loader).get("dataset")
