"""Epochs of a chosen number of batches, over data that may be shorter, longer or endless."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any


class EndlessBatches:
    """Passes over the data, one after the other, for all epochs of a loader.

    `delivered` counts the batches of the current epoch.
    """

    def __init__(self, begin_pass: Callable[[], Iterator[Any]], delivered: int = 0) -> None:
        self._begin_pass = begin_pass
        self._pass: Iterator[Any] | None = None
        self._resumed = delivered > 0
        self.delivered = delivered

    def begin_epoch(self) -> None:
        """Counts from zero, but in the first epoch after a resume."""
        if not self._resumed:
            self.delivered = 0
        self._resumed = False

    def next(self) -> Any:
        """Returns the next batch; at the end of the data it begins them anew. `StopIteration`: there are none."""
        if self._pass is None:
            self._pass = self._begin_pass()

        try:
            batch = next(self._pass)
        except StopIteration:
            self._pass = self._begin_pass()  # also where a state was saved behind the last batch of a pass
            batch = next(self._pass)

        self.delivered += 1
        return batch


class FixedLengthEpoch:
    """One epoch of `batches` batches. It goes on where the last one stopped."""

    def __init__(self, supply: EndlessBatches, batches: int) -> None:
        self._supply = supply
        self._batches = batches
        self._over = False
        supply.begin_epoch()

    def __iter__(self) -> FixedLengthEpoch:
        return self

    def __len__(self) -> int:
        return self._batches

    def __next__(self) -> Any:
        if self._over or self._supply.delivered >= self._batches:
            if not self._over:
                self._supply.delivered = 0
            self._over = True
            raise StopIteration

        return self._supply.next()
