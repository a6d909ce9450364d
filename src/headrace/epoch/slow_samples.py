"""What is known of the time that samples take: from the second epoch on, slow ones can be begun earlier.

Samples are known by their keys. Where a key stands for another sample in the next epoch, the wrong one is begun early,
which changes no batch.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Sequence
from typing import Any

MOST = 1 << 16
"""Keys that are kept: those that were slow last."""

KEYS = (int, str)
"""Types of keys by which samples are known."""

FORGET = 0.9
"""Share of the older batches in the mean, when another one comes."""


class SlowSamples:
    """What a loader and its iterators know. `splits`: whether batches of its dataset can be joined from parts."""

    def __init__(self) -> None:
        self.splits = True
        self.usual = 0.0
        """Seconds that a sample usually takes; 0: nobody knows."""
        self._seconds: OrderedDict[Any, float] = OrderedDict()
        self._all = 0.0
        self._slow = 0.0

    def __bool__(self) -> bool:
        return bool(self._seconds)

    def __contains__(self, key: object) -> bool:
        return isinstance(key, KEYS) and key in self._seconds

    def rows_in(self, keys: Sequence[Any]) -> list[int]:
        """Returns the places of slow samples among some keys."""
        known = self._seconds
        return [row for row, key in enumerate(keys) if isinstance(key, KEYS) and key in known]

    @property
    def longest(self) -> float:
        """Seconds of the slowest sample that is known."""
        return max(self._seconds.values(), default=0.0)

    @property
    def share(self) -> float:
        """The share of all work that slow samples are."""
        return self._slow / max(self._all, self._slow, 1e-9)

    def note(self, keys: Sequence[Any], seconds: float, slow: Sequence[tuple[int, float]]) -> None:
        """Notes that the samples of some keys took so long together, and which of them were slow."""
        late = sum(each for _, each in slow)
        self._all += seconds
        self._slow += late
        if len(keys) > len(slow) and len(keys) > 1:
            usual = max(seconds - late, 1e-9) / (len(keys) - len(slow))
            self.usual = usual if not self.usual else FORGET * self.usual + (1 - FORGET) * usual
        for place, each in slow:
            self._note_one(keys[place], each)

    def note_alone(self, key: object, seconds: float) -> None:
        """Notes that the sample of a key, which was begun early, took so long."""
        self._all += seconds
        if seconds > 2 * self.usual:
            self._slow += seconds
            self._note_one(key, seconds)
        elif key in self:
            del self._seconds[key]

    def _note_one(self, key: object, seconds: float) -> None:
        if not isinstance(key, KEYS):
            return
        self._seconds[key] = seconds
        self._seconds.move_to_end(key)
        if len(self._seconds) > MOST:
            self._seconds.popitem(last=False)
