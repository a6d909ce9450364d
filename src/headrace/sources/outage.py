"""What is said while a source is away, and how long to wait before it is tried again. It is tried for ever."""

from __future__ import annotations

import logging
import random
import time

from headrace.storage.retrying import RetryLimits

LOGGER = logging.getLogger("headrace")

SILENT = 3.0
"""Seconds for which a source may be away before anything is said: most outages pass in less."""

BACK_OFF = RetryLimits(first_wait=0.1, longest_wait=5.0)
STEADY = 30
"""Failures behind which the wait is the longest one."""

_JITTER = random.Random()
"""Apart from the random numbers of the user's program."""


class SourceOutage:
    """For how long a source has been away, and what was said of it. One thread uses it."""

    def __init__(self, place: str) -> None:
        """place: of the source, without secrets."""
        self._place = place
        self._failures = 0
        self._since = 0.0
        self._said = False

    def wait_after(self, what: str) -> float:
        """Returns the seconds to wait after another failure. what: the failure in words."""
        if not self._failures:
            self._since = time.monotonic()
        self._failures += 1

        spent = time.monotonic() - self._since
        if spent > SILENT and not self._said:
            self._said = True
            text = "%s has been away for %.0f s (%s). It is tried again until it is back."
            LOGGER.warning(text, self._place, spent, what)
        return BACK_OFF.wait(min(self._failures, STEADY), _JITTER.random())

    def ended(self) -> None:
        """Tells that the source answers."""
        if self._said:
            LOGGER.warning("%s is back, after %.0f s.", self._place, time.monotonic() - self._since)
        self._failures = 0
        self._said = False
