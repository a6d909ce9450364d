"""One bad sample, as the user's function sees it and as it is written down."""

from __future__ import annotations

import contextlib
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from typing import Any, Literal

import numpy as np

from headrace.core.protocols import answers

Action = Literal["raise", "skip", "replace"]
Stage = Literal["load", "collate"]
Outcome = Literal["raise", "skip", "replace", "retry"]

LONGEST_ERROR = 2000
"""Characters of an exception's text that are written down."""

LONGEST_NESTING = 16
"""Datasets within datasets that are looked into; one that holds itself would be without end."""


@dataclass(frozen=True)
class BadSample:
    """A sample that could not be loaded or collated.

    Attributes:
        key: the sampler's key; for an iterable dataset, the number of the sample in its worker's stream.
        path: the sample's file; None: not known.
        stage: where it failed: `load` or `collate`.
        error: the exception's type and text.
        epoch: in which it came.
        worker: that loaded it; None: made without workers.
        rank: of the process.
        action: what happened to the sample. `raise`: it ended the epoch. `retry`: a later try succeeded; nothing was
            lost.
        replacement: the key of the sample that took its place.
        exception: the exception itself, only while an `on_error` function runs.

    Examples:
        >>> from headrace.testing import Faulty, Raise
        >>> dataset = Faulty([1, 2, 3], {1: Raise(ValueError("broken"))})
        >>> def decide(bad: headrace.types.BadSample) -> str:
        ...     return "skip" if bad.stage == "load" else "raise"
        >>> list(headrace.DataLoader(dataset, batch_size=3, on_error=decide))
        [tensor([1, 3])]
    """

    key: Any
    path: str | None
    stage: Stage
    error: str
    epoch: int
    worker: int | None = None
    rank: int = 0
    action: Outcome = "skip"
    replacement: Any = None
    exception: BaseException | None = field(default=None, compare=False, repr=False)

    def settled(self, action: Outcome, replacement: object = None) -> BadSample:
        """Returns a record of what happened to the sample, without the exception."""
        return replace(self, action=action, replacement=replacement, exception=None)

    def as_json(self) -> dict[str, Any]:
        """Returns the record as values for JSON; a key without a JSON type becomes its `repr`."""
        return {
            "key": plain(self.key),
            "path": self.path,
            "stage": self.stage,
            "error": self.error,
            "epoch": self.epoch,
            "worker": self.worker,
            "rank": self.rank,
            "action": self.action,
            "replacement": plain(self.replacement),
        }

    @classmethod
    def from_json(cls, values: Mapping[str, Any]) -> BadSample:
        """Returns the record that `as_json` wrote. Raises KeyError and TypeError for anything else."""
        return cls(
            key=values["key"],
            path=values["path"],
            stage=values["stage"],
            error=values["error"],
            epoch=int(values["epoch"]),
            worker=values.get("worker"),
            rank=int(values.get("rank", 0)),
            action=values.get("action", "skip"),
            replacement=values.get("replacement"),
        )


def plain(key: object) -> object:
    """Returns a key as JSON knows it."""
    if isinstance(key, np.integer):
        return int(key)
    if isinstance(key, (tuple, list)):
        return list(map(plain, key))
    if key is None or isinstance(key, (bool, int, float, str)):
        return key
    return repr(key)


def text_of(error: BaseException) -> str:
    """Returns the type and the text of an exception, with its notes, cut to a length."""
    first = type(error).__name__
    if str(error):
        first += f": {error}"

    text = "\n".join([first, *getattr(error, "__notes__", [])])
    if len(text) <= LONGEST_ERROR:
        return text
    return text[: LONGEST_ERROR - 4] + " ..."


def path_of(dataset: object, key: Any, error: BaseException | None = None) -> str | None:
    """Returns the file of a sample: what the exception names, else what the dataset lists; None if neither does.

    A dataset lists its files as `samples` or `imgs`, pairs that begin with a path, as torchvision's folders do; or it
    has a method `path_of_sample`. Never raises: it is asked for a word beside an error that matters.
    """
    named = getattr(error, "filename", None)
    if isinstance(named, (str, bytes)):
        if isinstance(named, str):
            return named
        return named.decode(errors="backslashreplace")

    with contextlib.suppress(Exception):  # raised by the dataset
        return _path_in(dataset, key)
    return None


def _path_in(dataset: object, key: Any) -> str | None:
    # A `Subset` has `dataset` and `indices`, our own wrappers have `source`: the key is followed down to the dataset
    # that lists files.
    for _ in range(LONGEST_NESTING):
        if answers(dataset, "path_of_sample", 1):
            path = dataset.path_of_sample(key)  # type: ignore[attr-defined]  # `answers` has looked
            return path if isinstance(path, str) else None
        listed = getattr(dataset, "samples", None)
        if listed is None:
            listed = getattr(dataset, "imgs", None)
        if listed is not None:
            return _listed(listed, key)
        inner = getattr(dataset, "dataset", None)
        indices = getattr(dataset, "indices", None)
        if inner is None:
            inner = getattr(dataset, "source", None)
        if inner is None:
            return None
        if indices is not None:
            try:
                key = indices[key]
            except (TypeError, IndexError, KeyError):
                return None

        dataset = inner

    return None


def _listed(listed: Any, key: object) -> str | None:
    try:
        entry = listed[key]
    except (TypeError, IndexError, KeyError):
        return None

    if isinstance(entry, (tuple, list)) and entry:
        first = entry[0]
    else:
        first = entry

    if isinstance(first, str):
        return first
    return None
