"""Sizes as users write them: "200GB", "1.5TiB", or a number of bytes."""

from __future__ import annotations

import math
import re
from numbers import Integral

from headrace.core.errors import wrong_argument

SIZE = re.compile(r"\s*(\d+(?:\.\d+)?|\.\d+)\s*(?:([KMGTP])(i?))?B?\s*", re.IGNORECASE)
EXPONENTS = {"": 0, "K": 1, "M": 2, "G": 3, "T": 4, "P": 5}


def bytes_in(value: int | str, name: str, *, place: str | None = None) -> int:
    """Returns a size in bytes: 200_000_000_000 for "200GB" or "200 gb", 1_649_267_441_664 for "1.5TiB".

    name: of the argument, as in the signature; place: the function that was called. Raises `UsageError` for anything
    that is not a size above zero.
    """
    expected = 'bytes as a whole number above 0, or a text such as "200GB" or "1.5TiB"'
    if isinstance(value, bool) or not isinstance(value, (Integral, str)):
        raise wrong_argument(name, value, expected, place=place)

    nbytes = _parsed(value)
    if nbytes < 1:
        raise wrong_argument(name, value, expected, place=place)
    return nbytes


def _parsed(value: int | str) -> int:
    """Returns the bytes; 0 for a text that is no size."""
    if not isinstance(value, str):
        return int(value)

    match = SIZE.fullmatch(value)
    if match is None:
        return 0

    number, unit, binary = match.groups()
    base = 1000
    if binary:
        base = 1024
    nbytes = float(number) * base ** EXPONENTS[(unit or "").upper()]
    if not math.isfinite(nbytes):
        return 0
    return int(nbytes)
