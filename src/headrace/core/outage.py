"""Says that a server does not answer and is asked again, and when it answers again: once each, however many ask."""

from __future__ import annotations

import logging
import math
import threading
import time

LOGGER = logging.getLogger("headrace")

AFTER = 3.0
"""Seconds without an answer before anything is said: most failures pass in less."""


class Outage:
    """What was said of one server. Any thread may call it."""

    def __init__(self, place: str) -> None:
        """place: of the server, without secrets."""
        self._place = place
        self._lock = threading.Lock()
        self._since: float | None = None
        self._answered = -math.inf

    def failed(self, what: str, since: float, again: str, asked: float = math.inf) -> None:
        """Says that a question was not answered, and is asked again.

        what: the failure in words. since: when it was asked first. again: how long it will be asked, in words. asked:
        when the attempt that failed began, where several questions are under way at a time. All times are those of
        `time.monotonic`.
        """
        spent = time.monotonic() - since
        if spent < AFTER:
            return

        with self._lock:
            # A failure that was on its way when another question was answered is of the outage that is over.
            if self._since is not None or asked < self._answered:
                return
            self._since = since

        LOGGER.warning("%s has not answered for %.0f s (%s). It is asked again %s.", self._place, spent, what, again)

    def answered(self) -> None:
        """Says that the server answers, if it was said that it does not."""
        # Two questions may be answered at once: one of them says so.
        with self._lock:
            since = self._since
            self._since = None
            self._answered = time.monotonic()

        if since is not None:
            LOGGER.warning("%s answers again, after %.0f s.", self._place, time.monotonic() - since)

    def given_up(self) -> None:
        """Says that a question is not asked again: an error tells the rest."""
        with self._lock:
            self._since = None
