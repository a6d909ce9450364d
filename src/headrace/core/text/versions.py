"""Versions of other packages, as numbers that compare."""

from __future__ import annotations

import re


def numbers_of(version: str) -> tuple[int, ...]:
    """Returns the first three numbers of a version: "2.5.0.post0" is (2, 5, 0)."""
    return tuple(int(number) for number in re.findall(r"\d+", version)[:3])
