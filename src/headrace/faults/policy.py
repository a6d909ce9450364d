"""What becomes of a bad sample."""

from __future__ import annotations

import os
import sys
import threading
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any, Literal

from headrace.core.errors import UsageError, wrong_argument
from headrace.faults.bad_sample import Action, BadSample
from headrace.faults.quarantine import Excluded, listed
from headrace.faults.replacements import Replacements

ErrorAction = Literal["raise", "skip", "replace"] | Callable[[BadSample], Action]

ACTIONS = ("raise", "skip", "replace")

RETRY_AFTER = (0.05, 0.2, 0.8)
"""Seconds to wait before each further try of what may be well a moment later."""


@dataclass(frozen=True)
class OnError:
    """What happens to samples that raise, and how many of them an epoch may have: for `DataLoader(on_error=)`.

    Attributes:
        action: `"raise"`; `"skip"` shortens the batch; `"replace"` takes another sample; a function gets a `BadSample`
            and returns one of these words.
        max_rate: the share of an epoch's samples, on this rank, that may be bad: 0.01 is one in a hundred.
        max_count: the number of an epoch's samples, on this rank, that may be bad. Give at most one of the two limits.
        log: the bad-samples log: one line of JSON is added for each bad sample. `headrace.load_quarantine` reads it.
        timeout: seconds that a sample may take (or a batch, if the dataset makes whole batches). Then its worker is
            killed and replaced; after a second timeout the sample counts as bad.
        original: whether an exception from a worker keeps its object with its attributes, instead of becoming torch's
            copy.
        exclude: samples to leave out: their numbers, what `headrace.load_quarantine` returns, or the path of a
            bad-samples log.

    Raises:
        UsageError: values that make no sense.

    Examples:
        >>> from headrace.testing import Faulty, Raise
        >>> dataset = Faulty([1, 2, 3], {1: Raise(ValueError("broken"))})
        >>> loader = headrace.DataLoader(dataset, batch_size=3, on_error=headrace.OnError("skip", max_count=10))
        >>> list(loader), loader.faults.skipped
        ([tensor([1, 3])], 1)
    """

    action: ErrorAction = "raise"
    max_rate: float | None = None
    max_count: int | None = None
    log: str | os.PathLike[str] | None = None
    timeout: float | None = None
    original: bool = False
    exclude: Excluded | None = None

    def __post_init__(self) -> None:
        check_on_error(self)
        if self.exclude is not None and not isinstance(self.exclude, (str, os.PathLike)):
            # What yields its keys only once may be asked for them by several loaders; and arrays compare to no truth.
            object.__setattr__(self, "exclude", listed(self.exclude))

    @classmethod
    def of(cls, given: ErrorAction | OnError) -> OnError:
        """Returns the value of `on_error=` as an `OnError`."""
        if isinstance(given, OnError):
            return given
        return cls(given)

    @property
    def is_plain(self) -> bool:
        """Whether bad samples raise and no log is written, as in torch's loader."""
        return self.action == "raise" and self.log is None


@dataclass(frozen=True)
class Policy:
    """What replicas do with bad samples; picklable if the user's function is."""

    on_error: ErrorAction
    seed: int | None
    """None: replacements are other ones in each run, as the order is."""
    rank: int
    replacements: Replacements = field(default_factory=Replacements)

    def decide(self, bad: BadSample) -> Action:
        """Returns what becomes of a bad sample. Raises `UsageError` if the user's function returns anything else."""
        if callable(self.on_error):
            action: Any = self.on_error(bad)
        else:
            action = self.on_error

        if action in ACTIONS:
            checked: Action = action
            return checked

        raise UsageError.about(
            "on_error must say what to do",
            place=_named(self.on_error),
            found=repr(action),
            expected=" or ".join(map(repr, ACTIONS)),
        )


def _named(function: object) -> str:
    code = getattr(function, "__code__", None)
    name = getattr(function, "__qualname__", repr(function))
    if code is not None:
        return f"{name}, {code.co_filename}:{code.co_firstlineno}"
    return name


def check_on_error(given: OnError) -> None:
    """Raises `UsageError` for values that make no sense."""
    rules = {
        "action": (callable(given.action) or given.action in ACTIONS, "'raise', 'skip', 'replace' or a function"),
        "max_rate": (_is_number(given.max_rate, float, 0, 1), "a share between 0.0 and 1.0, or None"),
        "max_count": (_is_number(given.max_count, int, 0, sys.maxsize), "a whole number, or None"),
        "timeout": (
            _is_number(given.timeout, (int, float), 0, threading.TIMEOUT_MAX) and given.timeout != 0,
            "seconds, more than 0, or None",
        ),
        "log": (given.log is None or isinstance(given.log, (str, os.PathLike)), "a path, or None"),
        "original": (isinstance(given.original, bool), "True or False"),
    }
    for name, (holds, expected) in rules.items():
        if not holds:
            raise wrong_argument(name, getattr(given, name), expected, place="headrace.OnError")

    is_limited = given.max_rate is not None or given.max_count is not None
    if is_limited and isinstance(given.action, str) and given.action == "raise":
        raise UsageError.about(
            "a limit has nothing to count",
            place="on_error of headrace.DataLoader",
            found="the action 'raise', with which the first bad sample ends the epoch",
            expected="'skip', 'replace' or a function",
            fix="give an action, or leave max_rate and max_count out",
        )

    if given.max_rate is not None and given.max_count is not None:
        expected = "None beside max_rate: give one of the two"
        raise wrong_argument("max_count", given.max_count, expected, place="headrace.OnError")


def _is_number(value: Any, kinds: type[float] | tuple[type[float], ...], least: float, most: float) -> bool:
    """Tells whether a value is None or a number of these kinds within these bounds."""
    # A bool is a number for Python; `max_count=True` is a slip. NaN fails the comparison.
    if value is None:
        return True
    return isinstance(value, kinds) and not isinstance(value, bool) and least <= value <= most
