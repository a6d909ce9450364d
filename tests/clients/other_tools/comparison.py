"""One column that another tool has written, and what headrace makes of it.

A value is right if it is `equal` to what the form's own library reads, `refused` by an error that names the column or
its type, or `told`: a warning or a line in the log names the column. Anything else is a `fault`.
"""

from __future__ import annotations

import datetime
import decimal
import logging
import math
import re
import warnings
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Literal

import numpy as np

import headrace
from headrace.core.errors import HeadraceError

Result = Literal["equal", "refused", "told", "fault"]

COLUMN = "quality"
"""The name of the column that is looked at: no word of it is in a path, or in any message about other things."""

PARTS = ("place:", "found:", "expected:", "fix:")
"""What each error has."""

BLAME = re.compile(r"fix: +restore the (file|shard)(, or (pack the data|make it) again)?$", re.MULTILINE)
"""A fix that is none: all these files are sound."""


@dataclass(frozen=True)
class Written:
    """A file or folder. `values`: of its column, sample by sample, as the form's own library reads them."""

    kind: str
    path: Path
    values: Sequence[Any]
    column: str = COLUMN
    names: tuple[str, ...] = ()
    """Further words by which an error may name what it refuses: the type, or the file in an archive."""
    unit: str = "us"
    """Of times, which are whole numbers of it since 1970, since midnight, or of a duration. Dates have days."""
    options: Mapping[str, Any] = field(default_factory=dict)
    """For `headrace.open`."""
    url: str = ""
    """Where it is opened, if not at its path."""


@dataclass(frozen=True)
class Outcome:
    """What came of one column."""

    written: Written
    result: Result
    reason: str = ""

    def __str__(self) -> str:
        return f"{self.written.kind}: {self.reason}"


@contextmanager
def heard() -> Iterator[list[str]]:
    """Collects warnings, and lines of headrace's log from INFO on."""
    messages: list[str] = []
    handler = logging.Handler()
    handler.emit = lambda record: messages.append(record.getMessage())  # type: ignore[method-assign]
    logger = logging.getLogger("headrace")
    level = logger.level
    logger.setLevel(logging.INFO)
    logger.addHandler(handler)
    try:
        with warnings.catch_warnings(record=True) as caught:
            warnings.simplefilter("always")
            yield messages
            messages += [str(one.message) for one in caught]
    finally:
        logger.removeHandler(handler)
        logger.setLevel(level)


def judged(written: Written) -> Outcome:
    """Opens a file, and compares each value of its column."""
    with heard() as messages:
        try:
            dataset = headrace.open(written.url or written.path, **written.options)
            ours = [dataset[index] for index in range(len(dataset))]
            names = dataset.schema.names
            batch = _batch(dataset)
            streamed = list(dataset.stream())
        except HeadraceError as error:
            return judged_refusal(written, error)
        except Exception as error:  # noqa: BLE001 - whatever else comes out is the fault that is looked for
            return Outcome(written, "fault", f"raised {type(error).__name__}: {error}")

    difference = (
        _difference(written, names, ours)
        or _difference_of_batch(written, ours, batch)
        or _difference(written, names, streamed)
    )
    if difference is None:
        return Outcome(written, "equal")
    for message in messages:
        if names_it(written, message):
            return Outcome(written, "told", message)
    return Outcome(written, "fault", difference)


def judged_refusal(written: Written, error: HeadraceError) -> Outcome:
    """Tells whether an error says all that it should."""
    message = str(error)
    missing = [part for part in PARTS if part not in message]
    if missing:
        return Outcome(written, "fault", f"refused without {', '.join(missing)} {message}")
    if not names_it(written, message):
        return Outcome(written, "fault", f"refused without a name of column or type: {message}")
    if BLAME.search(message):
        return Outcome(written, "fault", f"a sound file is called damaged: {message}")
    return Outcome(written, "refused", message)


def names_it(written: Written, message: str) -> bool:
    """Tells whether a message names the column, or its type. The path does not count."""
    text = message.replace(str(written.path), "").replace(str(written.path.parent), "")
    return any(word in text for word in (written.column, *written.names))


def _difference(written: Written, names: Sequence[str], ours: Sequence[Mapping[str, Any]]) -> str | None:
    """Returns what differs first; None: nothing."""
    if written.column not in names:
        return f"no column {written.column!r} among {list(names)[:8]}, and no word of it"
    if len(ours) != len(written.values):
        return f"{len(ours)} samples instead of {len(written.values)}"
    for index, (row, theirs) in enumerate(zip(ours, written.values, strict=True)):
        if not same(row[written.column], theirs, written.unit):
            return f"sample {index}: {_shown(row[written.column])} instead of {_shown(theirs)}"
    return None


def _batch(dataset: Any) -> Mapping[str, Any]:
    """Returns all samples as one batch, which is made column by column."""
    if len(dataset) == 0:
        return {}
    batch: Mapping[str, Any] = next(iter(headrace.DataLoader(dataset, batch_size=len(dataset))))
    return batch


def _difference_of_batch(written: Written, ours: Sequence[Mapping[str, Any]], batch: Mapping[str, Any]) -> str | None:
    """Returns where a batch differs from its samples."""
    column = batch.get(written.column, [])
    if isinstance(column, headrace.types.Padded):
        column = [row[:length] for row, length in zip(column.values, column.lengths.tolist(), strict=True)]
    for index, (part, row) in enumerate(zip(column, ours, strict=bool(batch))):
        value = row[written.column]
        mine = part.numpy() if hasattr(part, "numpy") else part
        if (
            not same(mine, np.asarray(value))
            if isinstance(value, (np.ndarray, np.generic))
            else bytes_or(mine) != value
        ):
            return f"sample {index} of a batch: {_shown(mine)} instead of {_shown(value)}"
    return None


def bytes_or(value: Any) -> Any:
    """Returns a view of bytes as bytes, and all else as it is."""
    return bytes(value) if isinstance(value, memoryview) else value


def _shown(value: Any) -> str:
    return f"{repr(value)[:120]} ({getattr(value, 'dtype', type(value).__name__)})"


def same(ours: Any, theirs: Any, unit: str = "us") -> bool:
    """Compares a value of a sample with what another library reads, by the rules of docs/howto/formats.md."""
    if theirs is None:
        # An empty place among numbers of floating point is not a number, as in pandas.
        return isinstance(ours, (float, np.floating)) and math.isnan(ours)
    if isinstance(theirs, str):
        return isinstance(ours, str) and ours == theirs
    if isinstance(theirs, (bytes, bytearray, memoryview)):
        if isinstance(ours, np.ndarray):
            return ours.dtype == np.uint8 and ours.tobytes() == bytes(theirs)
        return isinstance(ours, bytes) and ours == bytes(theirs)
    if isinstance(theirs, np.ndarray) and theirs.ndim == 0:
        return same(ours, theirs[()], unit)
    if isinstance(theirs, (list, tuple, np.ndarray)):
        return _same_array(ours, theirs, unit)
    if isinstance(theirs, np.generic) and theirs.dtype.kind in "biuf":
        return _same_number(ours, theirs) and np.asarray(ours).dtype == theirs.dtype.newbyteorder("=")
    if isinstance(theirs, (bool, int, float)):
        return _same_number(ours, theirs)
    if isinstance(theirs, decimal.Decimal):
        return np.asarray(ours).dtype.kind in "iuf" and decimal.Decimal(repr(np.asarray(ours).item())) == theirs
    moment = _whole(theirs, unit)
    if moment is not None:
        return np.asarray(ours).dtype.kind == "i" and int(ours) == moment
    return type(ours) is type(theirs) and bool(ours == theirs)


def _same_number(ours: Any, theirs: Any) -> bool:
    array = np.asarray(ours)
    kind = np.asarray(theirs).dtype.kind
    allowed = {"b": "b", "i": "iu", "u": "iu", "f": "f"}[kind if kind != "O" else "i"]
    if array.ndim or array.dtype.kind not in allowed:
        return False
    if kind == "f" and math.isnan(theirs):
        return math.isnan(array.item())
    return bool(array.item() == theirs) and (kind != "f" or math.copysign(1, array.item()) == math.copysign(1, theirs))


def _same_array(ours: Any, theirs: Any, unit: str) -> bool:
    if not isinstance(ours, np.ndarray) or len(ours) != len(theirs):
        return False
    if isinstance(theirs, np.ndarray) and theirs.dtype.kind in "biuf":
        right = ours.dtype == theirs.dtype.newbyteorder("=") and ours.shape == theirs.shape
        return right and bool(np.array_equal(ours, theirs, equal_nan=theirs.dtype.kind == "f"))
    return all(same(mine, yours, unit) for mine, yours in zip(ours, theirs, strict=True))


def _whole(value: Any, unit: str) -> int | None:
    """Returns a date or time as a whole number of the unit; None for what is none, or has smaller parts."""
    if isinstance(value, datetime.time):
        midnight = datetime.datetime.combine(datetime.date(1970, 1, 1), value.replace(tzinfo=None))
        return _whole(midnight, unit)
    if isinstance(value, np.generic) and value.dtype.kind in "Mm":
        in_unit = value.astype(f"{value.dtype.kind}8[{unit}]")
        return int(in_unit.astype(np.int64)) if in_unit.astype(value.dtype) == value else None
    if hasattr(value, "to_datetime64"):
        return int(value.to_datetime64().astype(f"M8[{unit}]").astype(np.int64))
    if hasattr(value, "to_timedelta64"):
        return int(value.to_timedelta64().astype(f"m8[{unit}]").astype(np.int64))
    if isinstance(value, datetime.timedelta):
        return int(np.timedelta64(value).astype(f"m8[{unit}]").astype(np.int64))
    if isinstance(value, datetime.datetime) and value.tzinfo is not None:
        value = value.astimezone(datetime.UTC).replace(tzinfo=None)
    if isinstance(value, (datetime.datetime, datetime.date)):
        return int(np.datetime64(value).astype(f"M8[{unit}]").astype(np.int64))
    return None
