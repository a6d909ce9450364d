"""What a look at stored data has found."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable
from dataclasses import dataclass

Report = Callable[[int, int], None]
"""Called with (samples done, samples in all)."""

MOST = 1000
"""Problems that are listed; further ones are counted."""


@dataclass
class Verified:
    """What `headrace.verify` has found.

    Attributes:
        place: where the data lie.
        format: its name.
        samples: that were read.
        files: how many there are.
        checksums: that were compared.
        images: that were decoded.
        duplicates: samples that are the same as an earlier one, byte for byte, in all columns.
        recorded: samples that a manifest counts, and that were not decoded: their objects were compared with its
            checksums.
        not_finite: how many samples of a column hold infinite values or NaN.
        problems: the first 1,000, in words.
        more_problems: how many came behind these.

    Examples:
        >>> np.save("x.npy", np.array([1.0, np.nan]))
        >>> headrace.verify("x.npy").not_finite
        {'data': 1}
    """

    place: str
    format: str
    samples: int = 0
    files: int = 0
    checksums: int = 0
    images: int = 0
    duplicates: int = 0
    recorded: int = 0
    not_finite: dict[str, int] = dataclasses.field(default_factory=dict)
    problems: list[str] = dataclasses.field(default_factory=list)
    more_problems: int = 0

    def add(self, problem: str) -> None:
        """Notes a problem."""
        if len(self.problems) < MOST:
            self.problems.append(problem)
        else:
            self.more_problems += 1

    @property
    def sound(self) -> bool:
        """Whether there are no problems; duplicates and values that are not finite may be meant."""
        return not self.problems
