"""What is said while a source is away, and how long to wait before it is tried again.

Reading that has begun is tried again for ever. Where an epoch begins, an answer is waited for a minute: a server may
take as long to start; after that its address is more likely to be wrong.
"""

from __future__ import annotations

import contextlib
import logging
import random
import threading
import time
from collections.abc import Callable, Iterator
from typing import TypeVar

from headrace.core.errors import StorageError
from headrace.storage.stores.retries import RetryLimits

T = TypeVar("T")

LOGGER = logging.getLogger("headrace")

SILENT = 3.0
"""Seconds for which a source may be away before anything is said: most outages pass in less."""

AWAY = 60.0
"""Seconds for which an answer is waited for where an epoch begins."""

BACK_OFF = RetryLimits(first_wait=0.1, longest_wait=5.0)
STEADY = 30
"""Failures behind which the wait is the longest one."""

OVERDUE = 10.0
"""Seconds for which a question may go without an answer before anything is said."""

_JITTER = random.Random()
"""Apart from the random numbers of the user's program."""


class NoAnswerError(StorageError):
    """The server of a source does not answer, which may pass by itself."""

    said = ""
    """What its client says, without secrets."""


def no_answer(what: str, place: str, said: object, cure: str) -> NoAnswerError:
    """Returns the error of a server that does not answer; the caller raises it."""
    error = NoAnswerError.about(what, place=place, found=said, cure=cure)
    error.said = str(said)
    return error


def answer_of(ask: Callable[[], T], place: str, pause: Callable[[float], bool]) -> T:
    """Returns what `ask` returns, which is called again while the server does not answer. Raises `NoAnswerError`.

    pause: waits so many seconds; tells whether to give up.
    """
    outage = SourceOutage(place, f"{AWAY:.0f} s are over")
    deadline = time.monotonic() + AWAY
    while True:
        try:
            answer = ask()
        except NoAnswerError as error:
            seconds = outage.wait_after(error.said)
            if time.monotonic() + seconds > deadline or pause(seconds):
                raise
        else:
            outage.ended()
            return answer


class SourceOutage:
    """For how long a source has been away, and what was said of it. One thread uses it."""

    def __init__(self, place: str, until: str = "it is back") -> None:
        """place: of the source, without secrets. until: how long it is tried again, in words."""
        self._place = place
        self._until = until
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
            text = "%s has been away for %.0f s (%s). It is tried again until %s."
            LOGGER.warning(text, self._place, spent, what, self._until)
        return BACK_OFF.wait(min(self._failures, STEADY), _JITTER.random())

    @contextlib.contextmanager
    def noticed(self) -> Iterator[None]:
        """Says so if what runs inside takes long: a client library may wait for a server for ever."""
        began = time.monotonic()
        said = threading.Event()

        def say() -> None:
            said.set()
            LOGGER.warning("%s has not answered for %.0f s. It is waited for.", self._place, OVERDUE)

        overdue = threading.Timer(OVERDUE, say)
        overdue.daemon = True
        overdue.start()
        try:
            yield
        finally:
            overdue.cancel()
        if said.is_set():
            LOGGER.warning("%s answers again, after %.0f s.", self._place, time.monotonic() - began)

    def ended(self) -> None:
        """Tells that the source answers."""
        if self._said:
            LOGGER.warning("%s is back, after %.0f s.", self._place, time.monotonic() - self._since)
        self._failures = 0
        self._said = False
