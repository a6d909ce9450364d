"""How much memory data of strangers may ask for: one rule for all that unfolds, and the error that it ends in.

Whatever is compressed, or says in a header how large it is, may take `FREE` bytes, and beyond that `RATIO` times the
bytes it is stored in. Text shrinks to a third or a tenth, masks to a hundredth; a bomb to a thousandth or less
(deflate's limit is 1,032). With `trust=True` the rule does not hold.
"""

from __future__ import annotations

import os
from collections.abc import Iterable

from headrace.core.errors import FormatError

FREE = 512 << 20
"""Bytes that anything may unfold to."""

RATIO = 200
"""How many times its stored bytes something larger may unfold to."""

COLUMNS = 100_000
"""Columns of a table of text; each of them takes some kilobytes while it is parsed."""

DEPTH = 1000
"""Levels of lists and objects in a line of JSON."""


def allowed(stored: int) -> int:
    """Returns how many bytes may come of so many stored ones."""
    return max(FREE, RATIO * stored)


def check_unfolding(place: object, what: str, size: int, stored: int, trust: bool = False) -> None:
    """Raises `FormatError` for `what` (a noun) that would take more bytes than `stored` ones may; not with `trust`."""
    if size > allowed(stored) and not trust:
        expected = f"{allowed(stored):,} bytes at most ({FREE:,}, or {RATIO} times what is stored)"
        fix = "if you trust the author, open it with trust=True; otherwise delete it"
        raise too_large(place, f"{what} of {stored:,} bytes that would take {size:,}", expected, fix)


def too_large(place: object, found: str, expected: str, fix: str = "delete it, or make it again") -> FormatError:
    """Returns the error for data that ask for far more than they hold."""
    what = "this asks for far more than it holds"
    return FormatError.about(what, place=place, found=found, expected=expected, fix=fix)


def stored_size(files: Iterable[str | os.PathLike[str]]) -> int:
    """Returns the bytes that files have together."""
    return sum(os.stat(file).st_size for file in files)  # noqa: PTH116 - also for paths of text, at no cost
