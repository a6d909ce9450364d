"""Figures as people read them: times, sizes, shares, gains, and nouns behind numbers."""

from __future__ import annotations

import math
from collections.abc import Mapping

UNKNOWN = "\u2013"
"""What stands where a figure is not known."""


def seconds(value: float) -> str:
    """Returns a time: "410 µs", "12.3 ms", "1.24 s", "2 min 05 s", "3 h 10 min", "2 d 4 h"."""
    if not math.isfinite(value):
        return UNKNOWN
    if value < 0:
        return f"-{seconds(-value)}"

    if value == 0:
        return "0 s"

    # Limits lie half a digit below the round figure: 0.9996 s is shown as "1.00 s", since "1,000 ms" has four digits.
    if value < 0.9995e-3:
        return f"{digits(value / 1e-6)} µs"
    if value < 0.9995:
        return f"{digits(value / 1e-3)} ms"
    if value < 59.95:
        return f"{digits(value)} s"

    whole = round(value)
    if whole < 3600:
        return f"{whole // 60} min {whole % 60:02} s"
    if whole < 86400:
        return f"{whole // 3600} h {whole % 3600 // 60:02} min"
    return f"{whole // 86400} d {whole % 86400 // 3600} h"


def size(value: float) -> str:
    """Returns bytes with a decimal unit: "1.2 GB"."""
    if not math.isfinite(value):
        return UNKNOWN

    for unit, scale in (("TB", 1e12), ("GB", 1e9), ("MB", 1e6), ("kB", 1e3)):
        if abs(value) >= 0.9995 * scale:
            return f"{digits(value / scale)} {unit}"

    return f"{value:.0f} B"


def digits(value: float) -> str:
    """Returns it with three digits that count, and a comma every three: "0.12", "1.24", "12.4", "1,240"."""
    if not math.isfinite(value):
        return UNKNOWN
    if abs(value) >= 99.95:
        return f"{value:,.0f}"
    if abs(value) >= 9.995:
        return f"{value:.1f}"
    return f"{value:.2f}"


def count(value: float) -> str:
    """Returns a whole number: "12,345"."""
    if math.isfinite(value):
        return f"{value:,.0f}"
    return UNKNOWN


def percent(share: float) -> str:
    """Returns a share of 0 to 1: "41%", "0.4%", "under 0.1%"."""
    if not math.isfinite(share):
        return UNKNOWN
    if 0 < share < 0.0005:
        return "under 0.1%"
    if 0 < share < 0.0995:
        return f"{share:.1%}"
    return f"{share:.0%}"


def times(gain: float) -> str:
    """Returns how many times as fast: "1.8x", "1.02x", "12x"."""
    if not math.isfinite(gain):
        return UNKNOWN
    if gain >= 9.95:
        return f"{gain:.0f}x"
    if gain < 1.1:
        return f"{gain:.2f}x"
    return f"{gain:.1f}x"


def gain_in_words(gain: float, interval: tuple[float, float] | None) -> str:
    """Returns a gain with its interval: "1.8x (1.6x to 2.0x)"; without it where both ends read the same."""
    if interval is None:
        return times(gain)

    low, high = map(times, interval)
    if low == high:
        return times(gain)
    return f"{times(gain)} ({low} to {high})"


def some(number: int, noun: str, plural: str = "") -> str:
    """Returns a number with its noun: "1 batch", "1,200 batches" (`plural`; otherwise with an s)."""
    if number == 1:
        return f"{number:,} {noun}"
    if plural:
        return f"{number:,} {plural}"
    return f"{number:,} {noun}s"


def as_arguments(values: Mapping[str, object]) -> str:
    """Returns values as a call has them: "num_workers=4, in_order=False"."""
    return ", ".join(f"{name}={value!r}" for name, value in values.items())
