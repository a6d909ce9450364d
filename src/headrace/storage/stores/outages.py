"""Says that a server does not answer and is asked again, and when it answers again: once each, however many ask."""

from __future__ import annotations

import logging
import math
import threading
import time

LOGGER = logging.getLogger("headrace")

AFTER = 3.0
"""Seconds for which a request has failed before anything is said: most failures pass in less."""


class Outage:
    """What was said of one store. Any thread may call it."""

    def __init__(self, place: str) -> None:
        """place: of the store, without secrets."""
        self._place = place
        self._lock = threading.Lock()
        self._since: float | None = None
        self._answered = -math.inf

    def failed(self, what: str, spent: float, limit: float, asked: float) -> None:
        """Says that a request failed and is made again.

        what: the failure in words. spent: seconds since the first attempt. limit: seconds after which it is given up.
        asked: when the failed attempt began, by `time.monotonic`.
        """
        if spent < AFTER:
            return

        with self._lock:
            # A failure that was on its way when another request was answered is of the outage that is over.
            if self._since is not None or asked < self._answered:
                return
            self._since = time.monotonic() - spent

        LOGGER.warning(
            "%s has not answered for %.0f s (%s). It is asked again, for %.0f s more at most; "
            "retry_timeout in options= sets the limit.",
            self._place,
            spent,
            what,
            max(limit - spent, 0),
        )

    def answered(self) -> None:
        """Says that a request that had failed was answered."""
        # Two requests may be answered at once: one of them says so.
        with self._lock:
            since = self._since
            self._since = None
            self._answered = time.monotonic()

        if since is not None:
            LOGGER.warning("%s answers again, after %.0f s.", self._place, time.monotonic() - since)

    def given_up(self) -> None:
        """Says that a request is not made again: an error tells the rest."""
        with self._lock:
            self._since = None
