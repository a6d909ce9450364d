"""The bad-samples log: one line of JSON for each bad sample, so that nothing is lost without a trace."""

from __future__ import annotations

import json
import os
from collections.abc import Iterable
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import torch

from headrace.core.errors import DatasetNotFoundError, FormatError, UsageError, wrong_argument
from headrace.faults.bad_sample import BadSample

CUT_OFF = '{"key":'
"""How a line begins that is one of ours, whole or not."""

MAY_BE_EXCLUDED = "numbers of samples, what headrace.load_quarantine returns, or the path of a bad-samples log"

Excluded = str | os.PathLike[str] | Iterable[Any]


def append(path: Path, records: Iterable[BadSample]) -> None:
    """Writes records to the end of a bad-samples log, each line at once, so that several processes may write to it."""
    lines = ""
    for record in records:
        lines += json.dumps(record.as_json(), ensure_ascii=False) + "\n"

    # With O_APPEND the system writes each call at the end of the file, whatever other processes have written meanwhile:
    # lines of several ranks never mix.
    descriptor = os.open(path, os.O_RDWR | os.O_APPEND | os.O_CREAT | os.O_CLOEXEC, 0o666)
    try:
        data = lines.encode("utf-8", errors="backslashreplace")
        size = os.fstat(descriptor).st_size
        # The last line was cut off when a machine went down; what follows must not become a part of it.
        if data and size and os.pread(descriptor, 1, size - 1) != b"\n":
            data = b"\n" + data
        while data:
            data = data[os.write(descriptor, data) :]
    finally:
        os.close(descriptor)


def checked_path(path: str | os.PathLike[str]) -> Path:
    """Returns the path of a bad-samples log that can be written. Raises `UsageError` if it cannot."""
    if not isinstance(path, (str, os.PathLike)):
        raise wrong_argument("log", path, "a path, or None", place="OnError")

    found = Path(path)
    try:
        append(found, ())
    except (OSError, ValueError) as error:
        raise UsageError.about(
            "cannot write the bad-samples log",
            place=str(found).encode("unicode_escape").decode(),
            found=getattr(error, "strerror", None) or error,
            expected="a file that can be made or written in a folder that exists",
            fix="make the folder, or give another path",
        ) from error

    return found


def load_quarantine(path: str | os.PathLike[str]) -> list[BadSample]:
    """Reads the bad samples in a bad-samples log.

    Args:
        path: what `headrace.OnError(log=)` was given.

    Returns:
        The latest record of each key, for `headrace.OnError(exclude=)` too. A line that was cut off is left out.

    Raises:
        DatasetNotFoundError: there is no such file.
        FormatError: the file holds anything else.

    Examples:
        >>> from headrace.testing import Faulty, Raise
        >>> dataset = Faulty([1, 2, 3], {1: Raise(ValueError("broken"))})
        >>> done = list(headrace.DataLoader(dataset, on_error=headrace.OnError("skip", log="bad.jsonl")))
        >>> [sample.key for sample in headrace.load_quarantine("bad.jsonl")]
        [1]
    """
    try:
        lines = Path(path).read_text(encoding="utf-8", errors="backslashreplace").split("\n")
    except FileNotFoundError as error:
        raise DatasetNotFoundError.about(
            "there is no bad-samples log", place=path, fix="give the path that OnError(log=) had"
        ) from error
    except OSError as error:
        raise FormatError.about("cannot read the bad-samples log", place=path, found=error.strerror) from error

    found: dict[str, BadSample] = {}
    for number, line in enumerate(lines, 1):
        if not line:
            continue
        try:
            bad = BadSample.from_json(json.loads(line))
        except (ValueError, KeyError, TypeError, AttributeError) as error:
            # Written while a machine went down.
            if line.startswith(CUT_OFF):
                continue
            raise FormatError.about(
                "this is no bad-samples log",
                place=f"{path}, line {number}",
                found=line[:80],
                expected="JSON with key, path, stage, error, epoch, worker",
                fix="delete the line, or give the path that OnError(log=) had",
            ) from error

        # Popped first, so that the key moves to the end: the list is in order of when each was seen last.
        found.pop(repr(bad.key), None)
        found[repr(bad.key)] = bad

    return list(found.values())


def excluded_numbers(exclude: Excluded, length: int) -> npt.NDArray[np.int64]:
    """Returns which of the numbers below `length` are to be left out, ascending, each once.

    exclude: keys, what `load_quarantine` returns, or the path of a bad-samples log. Keys beyond the length are left
    alone: the data may have become shorter. Raises `UsageError` for keys that are no whole numbers.
    """
    entries: list[Any]
    if isinstance(exclude, (str, os.PathLike)):
        entries = load_quarantine(exclude)
    else:
        entries = listed(exclude)

    keys = []
    for entry in entries:
        if isinstance(entry, BadSample):
            key = entry.key
        else:
            key = entry

        if isinstance(key, bool) or not isinstance(key, (int, np.integer)) or key < 0:
            raise wrong_argument("exclude", key, MAY_BE_EXCLUDED)
        keys.append(key)

    numbers = np.unique(np.asarray(keys, np.int64))
    left = numbers[numbers < length]
    if len(left) == length and length:
        found = f"all {length} samples"
        raise UsageError.about("nothing is left to load", place="exclude=", found=found, fix="exclude fewer")

    return left


def listed(exclude: Iterable[Any]) -> list[Any]:
    """Returns keys as a list. Raises `UsageError` for what has none."""
    if isinstance(exclude, (np.ndarray, torch.Tensor)):
        exclude = exclude.tolist()

    try:
        return list(exclude)
    except TypeError as error:
        raise wrong_argument("exclude", exclude, MAY_BE_EXCLUDED) from error
