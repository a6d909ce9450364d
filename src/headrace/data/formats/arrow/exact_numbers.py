"""Arrow's times and decimals as numbers: each of one unit, whatever a file has them in, and none rounded in silence.

times       int64: microseconds since 1970 (UTC where there is a zone), of the day, or of a duration; days for dates
decimals    int64 without digits behind the point, otherwise the nearest float64
"""

from __future__ import annotations

import decimal

import numpy as np
import pyarrow as pa

from headrace.core.ragged import Array

EXACT = 1 << 53
"""Up to here each whole number is a float64."""

EXACT_POWER = 22
"""Up to here each power of ten is a float64, so that one division rounds as it should."""


def is_time(kind: pa.DataType) -> bool:
    """Tells whether a type is one of times, dates or durations."""
    types = pa.types
    return bool(types.is_timestamp(kind) or types.is_date(kind) or types.is_time(kind) or types.is_duration(kind))


def times(array: pa.Array) -> pa.Array:
    """Returns times as int64: microseconds, or days of dates. Raises `ArrowInvalid` where digits would be lost."""
    kind = array.type
    if pa.types.is_date(kind):
        return array.cast(pa.date32()).cast(pa.int32()).cast(pa.int64())

    if pa.types.is_timestamp(kind):
        fixed = pa.timestamp("us", kind.tz)
    elif pa.types.is_duration(kind):
        fixed = pa.duration("us")
    else:
        fixed = pa.time64("us")

    return array.cast(fixed).cast(pa.int64())


def are_as_stored(kind: pa.DataType) -> bool:
    """Tells whether `times` returns the numbers as they are stored, of 64 bits, for a type of times."""
    return kind.bit_width == 64 and not pa.types.is_date(kind) and kind.unit == "us"


def decimals(array: pa.Array) -> Array:
    """Returns decimals as int64 where their type has no digits behind the point, otherwise as float64; NaN for null.

    Raises `ValueError` for a whole number that 64 bits cannot hold.
    """
    kind = array.type
    if pa.types.is_decimal256(kind):
        array = array.cast(pa.decimal128(min(kind.precision, 38), kind.scale))

    # A decimal is its digits as one whole number, little-endian ("Decimal" of Arrow's Schema.fbs).
    words = array.type.bit_width // 64 or 1
    stored = np.frombuffer(array.buffers()[1] or b"", f"<i{min(array.type.bit_width // 8, 8)}")
    digits = stored.reshape(-1, words)[array.offset : array.offset + len(array)].astype(np.int64, copy=False)
    valid = np.asarray(array.is_valid())
    low = digits[:, 0]
    # The upper half is all sign where 64 bits hold the number.
    fits = (digits[:, -1] == low >> 63) | ~valid if words > 1 else np.ones(len(low), bool)
    if kind.scale == 0:
        if not fits.all():
            raise ValueError(f"{array[int(np.argmin(fits))]}, which is no whole number of 64 bits")
        if array.null_count:
            raise ValueError("empty places (null)")
        return np.ascontiguousarray(low)

    numbers = low / np.float64(10.0**kind.scale)
    inexact = valid & (~fits | (np.abs(low) > EXACT) | (abs(kind.scale) > EXACT_POWER))
    for row in np.flatnonzero(inexact).tolist():
        numbers[row] = float(decimal.Decimal(array[row].as_py()))

    numbers[~valid] = np.nan
    return numbers
