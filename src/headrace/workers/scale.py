"""How many workers there shall be."""

from __future__ import annotations

from dataclasses import dataclass

from headrace.epoch.spec import LoaderSpec


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


def asked_scale(spec: LoaderSpec) -> Scale:
    """Returns what a loader asks for. Raises torch's error for a `prefetch_factor` that is not positive."""
    prefetch = spec.prefetch_factor or 0
    if prefetch <= 0:
        raise AssertionError("prefetch_factor must be greater than 0 for MultiProcessingDataLoaderIter")
    return Scale(spec.num_workers, prefetch, most=spec.num_workers)
