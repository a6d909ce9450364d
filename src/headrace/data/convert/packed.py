"""What was made by packing."""

from __future__ import annotations

from dataclasses import dataclass

NAMED = 20
"""Bad images that are named; all are counted."""


@dataclass(frozen=True)
class Packed:
    """What was made. `kept`: pieces that an earlier run had left."""

    target: str
    format: str
    samples: int
    bytes: int
    files: int
    kept: int
    pieces: int
    seconds: float
    bad: int = 0
    """Images that cannot be decoded. They were packed as they are."""
    bad_samples: tuple[str, ...] = ()
    """The first of them: number and fault, at most `NAMED`."""
