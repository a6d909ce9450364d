"""How many workers there shall be."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass
class Scale:
    """How many workers there shall be, and how many tasks for each."""

    workers: int
    prefetch: int
    most: int
    """How many workers there may ever be; each has its replica."""
    changes: bool = False
    """Whether any of this changes while an epoch runs."""

    @property
    def limit(self) -> int:
        """How many tasks may be out at a time."""
        return self.workers * self.prefetch

    @property
    def least(self) -> int:
        """How many tasks for a worker are worth a message: one that wakes it costs more than a batch may."""
        return max(self.prefetch // 2, 1)
