"""Errors and warnings: one class per thing the user must do, and one shape for every message.

A message gives the place, what was found, what was expected and the fix, each on a line of its own:

    cannot decode an image
      place:    photos/cat/0012.jpg
      found:    image file is truncated (12 bytes not processed)
      expected: an image that Pillow can decode
      fix:      delete or restore the file

`SampleError.about("cannot decode an image", place=path, found=error, ...)` builds an error with such a message;
`wrong_argument` words what is wrong with an argument. Every class can also be built from one string alone, because
torch rebuilds a worker's exception in the parent that way.
"""

from __future__ import annotations

import warnings
from typing import Any, Self, get_args

from headrace.core.callers import calling_frame, users_frame
from headrace.core.text.printable import printable
from headrace.core.text.secrets import hide_secrets


class HeadraceError(Exception):
    """Root of all errors that headrace itself raises.

    Examples:
        >>> try:
        ...     headrace.DataLoader([1, 2, 3], backend="gpu")
        ... except headrace.errors.HeadraceError as error:
        ...     print(type(error).__name__)
        UsageError
    """

    @classmethod
    def about(
        cls,
        what: str,
        *,
        place: object = None,
        found: object = None,
        expected: object = None,
        fix: str | None = None,
    ) -> Self:
        """Returns an error of this class whose message `explain` words."""
        return cls(explain(what, place=place, found=found, expected=expected, fix=fix))


class UsageError(HeadraceError, ValueError):
    """A command was called wrongly: correct the call.

    Examples:
        >>> headrace.Shard(rank=2, world=2)
        Traceback (most recent call last):
        headrace.core.errors.UsageError: no such shard
        ...
    """


class DatasetError(HeadraceError, ValueError):
    """A dataset as a whole cannot be used: fix its location or its layout.

    Examples:
        >>> try:
        ...     headrace.ImageFolder("photos")
        ... except headrace.errors.DatasetError as error:
        ...     print(type(error).__name__)
        DatasetNotFoundError
    """


class DatasetNotFoundError(DatasetError, FileNotFoundError):
    """A dataset, or all of a class's files, is not where it was looked for; a FileNotFoundError too.

    Examples:
        >>> try:
        ...     headrace.open("train.parquet")
        ... except FileNotFoundError as error:
        ...     print(type(error).__name__)
        DatasetNotFoundError
    """


class StaleCacheError(DatasetError):
    """A cache was made from other data or by other steps: delete it, or have it made anew.

    Examples:
        >>> kept = headrace.Staged([1, 2, 3], str, cache="kept")
        >>> try:
        ...     headrace.Staged([1, 2, 3], float, cache="kept")
        ... except headrace.errors.StaleCacheError:
        ...     data = headrace.Staged([1, 2, 3], float, cache="kept", stale="rebuild")
    """


class SampleError(HeadraceError, ValueError):
    """One sample cannot be read or decoded: fix or remove that sample.

    Examples:
        >>> try:
        ...     headrace.transforms.decode(b"no image")
        ... except headrace.errors.SampleError as error:
        ...     print(type(error).__name__)
        SampleError
    """


class RanksDifferError(DatasetError):
    """Ranks that must keep in step have different numbers of batches: give them the same data, or the same length.

    Examples:
        >>> issubclass(headrace.errors.RanksDifferError, headrace.errors.DatasetError)
        True
    """


class TooManyBadSamplesError(DatasetError):
    """More samples of an epoch are bad than `OnError(max_count=, max_rate=)` allows: fix the data, or raise the limit.

    Examples:
        >>> from headrace.testing import Faulty, Raise
        >>> dataset = Faulty([1, 2, 3], {1: Raise(ValueError("broken"))})
        >>> try:
        ...     list(headrace.DataLoader(dataset, on_error=headrace.OnError("skip", max_count=0)))
        ... except headrace.errors.TooManyBadSamplesError as error:
        ...     print(type(error).__name__)
        TooManyBadSamplesError
    """


class WorkerDiedError(HeadraceError, RuntimeError):
    """A worker process ended, or hung and was ended, while it loaded a sample: fix or exclude that sample.

    Examples:
        >>> def train(loader: headrace.DataLoader) -> None:
        ...     try:
        ...         batches = list(loader)
        ...     except headrace.errors.WorkerDiedError as error:
        ...         print(error)  # names the sample
    """


class SampleTimeoutError(HeadraceError, TimeoutError):
    """One sample took longer than `OnError(timeout=)`: fix what it waits for, or raise the limit.

    Examples:
        >>> from headrace.testing import Faulty, Hang
        >>> dataset = Faulty([1, 2, 3], {1: Hang()})
        >>> try:
        ...     list(headrace.DataLoader(dataset, on_error=headrace.OnError(timeout=0.05)))
        ... except headrace.errors.SampleTimeoutError as error:
        ...     print(type(error).__name__)
        SampleTimeoutError
    """


class FormatError(HeadraceError, ValueError):
    """Stored data are damaged, or are not what a format can hold: restore the file, or choose another format.

    Examples:
        >>> from pathlib import Path
        >>> _ = Path("x.npy").write_bytes(b"no array")
        >>> try:
        ...     headrace.open("x.npy")
        ... except headrace.errors.FormatError as error:
        ...     print(type(error).__name__)
        FormatError
    """


class StorageError(HeadraceError, OSError):
    """An object store or a server did not give what was asked: fix the access, the network or the address.

    Examples:
        >>> issubclass(headrace.errors.StorageError, OSError)
        True
    """


class ObjectChangedError(StorageError):
    """An object was written anew while it was being read: begin again, or keep the data still.

    Examples:
        >>> issubclass(headrace.errors.ObjectChangedError, headrace.errors.StorageError)
        True
    """


class ObjectNotFoundError(StorageError, FileNotFoundError):
    """An object, or its bucket, is not where it was looked for; a FileNotFoundError too.

    Examples:
        >>> issubclass(headrace.errors.ObjectNotFoundError, FileNotFoundError)
        True
    """


class TransportError(HeadraceError, RuntimeError):
    """The memory or the pipe between processes failed: fix a limit of the machine.

    Examples:
        >>> issubclass(headrace.errors.TransportError, RuntimeError)
        True
    """


class MachineError(HeadraceError, RuntimeError):
    """The machine ran out of threads, memory, open files or disk: raise that limit. The data may be sound.

    Examples:
        >>> issubclass(headrace.errors.MachineError, RuntimeError)
        True
    """


class ClusterError(HeadraceError, RuntimeError):
    """Other machines cannot make batches: start them, connect them, or install the same versions on them.

    Examples:
        >>> issubclass(headrace.errors.ClusterError, RuntimeError)
        True
    """


class StateError(HeadraceError, ValueError):
    """A state cannot be taken, or a saved one does not belong to what it is loaded into.

    Load it where it was saved, or begin anew.

    Examples:
        >>> state = headrace.DataLoader([1, 2, 3, 4], seed=0).state_dict()
        >>> try:
        ...     headrace.DataLoader([1, 2, 3, 4], seed=1).load_state_dict(state)
        ... except headrace.errors.StateError as error:
        ...     print(type(error).__name__)
        StateError
    """


class RecordsLostError(StateError):
    """A log no longer has the records from which to continue: begin later, or have it keep its records longer.

    Attributes:
        partition: whose records are gone; -1: it is not known.
        earliest: the position of the first record that is still there; None: it is not known.

    Examples:
        >>> issubclass(headrace.errors.RecordsLostError, headrace.errors.StateError)
        True
    """

    partition: int = -1

    earliest: int | None = None


class MissingExtraError(HeadraceError, ImportError):
    """An optional library is not installed: install the extra that the message names.

    Examples:
        >>> issubclass(headrace.errors.MissingExtraError, ImportError)
        True
    """


def explain(
    what: str,
    *,
    place: object = None,
    found: object = None,
    expected: object = None,
    fix: str | None = None,
) -> str:
    """Returns `what` followed by one line for each of place, found, expected and fix that is given.

    The secrets of URLs in it are hidden; see `hide_secrets`.
    """
    # A file's name may have line breaks, which would look like further lines of the message.
    if place is not None:
        place = printable(str(place), kept="")

    lines = [printable(what)]
    for name, value in (("place", place), ("found", found), ("expected", expected), ("fix", fix)):
        if value is not None:
            lines.append(f"  {name + ':':<9} {printable(str(value))}")

    # What a user has mistyped is quoted, and may have a password in it.
    return hide_secrets("\n".join(lines))


def wrong_argument(
    name: str,
    value: object,
    expected: str,
    *,
    place: str | None = None,
    found: str | None = None,
    fix: str | None = None,
) -> UsageError:
    """Returns the error for an argument that a function cannot take; the caller raises it.

    name: of the argument, as in the signature. value: what was passed. expected: in words, what the function takes.
    place: the function or class that was called, such as "headrace.open". found: what is wrong with the value, in
    words, where its `repr` would not show that.
    """
    if place is None:
        where = f"{name}="
    else:
        where = f"{place}({name}=)"

    if found is None:
        found = repr(value)
    return UsageError.about("wrong argument", place=where, found=found, expected=expected, fix=fix)


def checked_word(name: str, value: object, words: Any, *, place: str | None = None) -> Any:
    """Returns `value` if it is one of the words of a `Literal`. Raises `UsageError` otherwise; see `wrong_argument`."""
    known = get_args(words)
    if isinstance(value, str) and value in known:
        return value
    raise wrong_argument(name, value, f"{', '.join(map(repr, known[:-1]))} or {known[-1]!r}", place=place)


def warn(message: str) -> None:
    """Gives a `UserWarning` that shows the line of the user's own code. The secrets of URLs in it are hidden."""
    frame = users_frame(calling_frame())
    warnings.warn_explicit(
        hide_secrets(message),
        UserWarning,
        filename=frame.f_code.co_filename,
        lineno=frame.f_lineno,
        module=frame.f_globals.get("__name__", "<unknown>"),
        registry=frame.f_globals.setdefault("__warningregistry__", {}),
    )
