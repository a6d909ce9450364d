"""What a loader is called in reports: the line of the user's own code that made it."""

from __future__ import annotations

import weakref
from types import FrameType
from typing import Any, NamedTuple

from headrace.core.callers import calling_frame, is_installed, name_of_file, users_frame

_labels: weakref.WeakKeyDictionary[Any, str] = weakref.WeakKeyDictionary()
"""Of the loaders that are alive."""


class Label(NamedTuple):
    """The name of a loader, as file:line, or in a notebook as In[cell]:line."""

    text: str
    is_rebuild: bool
    """Whether a framework built the loader anew from one that the user had made, whose label it keeps."""


def label_for(loader: object, dataset: object) -> Label:
    """Returns the label of a loader that is being made.

    A framework may replace a loader by another one over the same dataset: that one keeps the label of the first.
    """
    frame = calling_frame()
    label = Label(_line_of(users_frame(frame)), is_rebuild=False)
    if is_installed(frame):
        # The latest such loader: a framework may have rebuilt it once before.
        for other, text in _labels.items():
            if other is not loader and _dataset_of(other) is dataset:
                label = Label(text, is_rebuild=True)

    _labels[loader] = label.text
    return label


def caller() -> str:
    """Returns file:line of the innermost frame of the user's code; of a library's, if there is no other."""
    return _line_of(users_frame(calling_frame()))


def _line_of(frame: FrameType) -> str:
    return f"{name_of_file(frame.f_code.co_filename)}:{frame.f_lineno}"


def _dataset_of(loader: object) -> object:

    return vars(loader).get("dataset")
