"""What somebody is going to read, in its order: announced to an endpoint, and dropped with whoever made it."""

from __future__ import annotations

import itertools
import os
import weakref
from collections.abc import Sequence

from headrace.core.process import this_process
from headrace.storage.fetching.endpoint import Endpoint
from headrace.storage.fetching.ranges import ByteRange, PlannedRead

_NUMBERS = itertools.count(1)
"""Of the plans of this process. Several processes may tell one endpoint of theirs."""


class Plan:
    """Ranges in the order in which they will be read. What was fetched for it is dropped when nobody holds it."""

    def __init__(self, endpoint: Endpoint) -> None:
        self._endpoint = endpoint
        self.process = this_process.current
        """The process that has made it. A forked child, whose endpoint is another one, needs a plan of its own."""

        self._number = (os.getpid() << 32) + next(_NUMBERS)
        self._untold: list[PlannedRead] = []

        # At exit the endpoint goes as well.
        self._end = weakref.finalize(self, _abandon, endpoint, self._number, self.process)
        self._end.atexit = False

    def announce(self, position: int, ranges: Sequence[ByteRange], next_uses: Sequence[int] | None = None) -> None:
        """Notes what will be read at a position: the endpoint is told of it by `tell`. See `PlannedRead`."""
        self._untold.append(PlannedRead(position, ranges, next_uses))

    def tell(self) -> None:
        """Tells the endpoint what was announced since the last time."""
        if self._untold:
            untold = self._untold
            self._untold = []
            self._endpoint.announce(self._number, untold)

    def passed(self, position: int) -> None:
        self._endpoint.passed(self._number, position)


def _abandon(endpoint: Endpoint, number: int, owner: this_process.Process) -> None:
    # A forked child inherits the finalizer. What its parent has announced is none of its business.
    if owner is this_process.current:
        endpoint.abandon(number)
