"""What becomes of a bad sample."""

from __future__ import annotations

import threading
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any, Literal

from headrace.core.errors import UsageError, explain
from headrace.faults.bad_sample import Action, BadSample
from headrace.faults.replacements import Spares

OnError = Literal["raise", "skip", "replace"] | Callable[[BadSample], Action]

ACTIONS = ("raise", "skip", "replace")

RETRY_AFTER = (0.05, 0.2, 0.8)
"""Seconds to wait before each further try of what may be well a moment later."""


@dataclass(frozen=True)
class Policy:
    """What lanes do with bad samples; picklable if the user's function is."""

    on_error: OnError
    seed: int | None
    """None: replacements are other ones in each run, as the order is."""
    rank: int
    spares: Spares = field(default_factory=Spares)

    def decide(self, bad: BadSample) -> Action:
        """Returns what becomes of a bad sample. Raises `UsageError` if the user's function returns anything else."""
        if callable(self.on_error):
            action: Any = self.on_error(bad)
        else:
            action = self.on_error

        if action in ACTIONS:
            checked: Action = action
            return checked

        message = explain(
            "on_error must say what to do",
            place=_named(self.on_error),
            found=repr(action),
            expected=" or ".join(map(repr, ACTIONS)),
        )
        raise UsageError(message)


def _named(function: Any) -> str:
    code = getattr(function, "__code__", None)
    name = getattr(function, "__qualname__", repr(function))
    if code is not None:
        return f"{name}, {code.co_filename}:{code.co_firstlineno}"
    return name


def check_fault_arguments(*, on_error: Any, max_errors: Any, sample_timeout: Any) -> None:
    """Raises `UsageError` for values of a loader's arguments that make no sense."""
    number = isinstance(max_errors, (int, float)) and not isinstance(max_errors, bool)
    seconds = isinstance(sample_timeout, (int, float)) and not isinstance(sample_timeout, bool)
    share = number and isinstance(max_errors, float)
    rules = {
        "on_error": (callable(on_error) or on_error in ACTIONS, on_error, "'raise', 'skip', 'replace' or a function"),
        "max_errors": (
            max_errors is None or (number and 0 <= max_errors and (not share or max_errors <= 1)),
            max_errors,
            "a whole number, a share between 0.0 and 1.0, or None",
        ),
        "sample_timeout": (
            sample_timeout is None or (seconds and 0 < sample_timeout <= threading.TIMEOUT_MAX),
            sample_timeout,
            "seconds, more than 0, or None",
        ),
    }
    for name, (holds, value, expected) in rules.items():
        if not holds:
            found = f"{name}={value!r}"
            raise UsageError(explain("wrong argument", place="headrace.DataLoader", found=found, expected=expected))

    if max_errors is not None and isinstance(on_error, str) and on_error == "raise":
        cure = "add on_error='skip' or 'replace', or leave max_errors out"
        found = "on_error='raise', with which the first bad sample ends the epoch"
        raise UsageError(
            explain("max_errors has nothing to count", place="headrace.DataLoader", found=found, cure=cure)
        )
