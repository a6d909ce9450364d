"""What was made by packing."""

from __future__ import annotations

from dataclasses import dataclass

NAMED = 20
"""Bad images that are named; all are counted."""


@dataclass(frozen=True)
class Packed:
    """What `headrace.pack` has made.

    Attributes:
        target: where it lies.
        format: its name.
        samples: how many there are.
        bytes: of all files.
        files: how many there are.
        kept: pieces that an earlier run had left.
        pieces: in how many pieces it was made.
        seconds: that it took.
        bad: images that cannot be decoded. They were packed as they are.
        bad_samples: the first 20 of them: number and fault.

    Examples:
        >>> np.save("x.npy", np.arange(6))
        >>> headrace.pack("x.npy", "x.arrow").bad
        0
    """

    target: str
    format: str
    samples: int
    bytes: int
    files: int
    kept: int
    pieces: int
    seconds: float
    bad: int = 0
    bad_samples: tuple[str, ...] = ()
