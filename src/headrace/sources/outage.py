"""How long to wait before a source that is away is tried again, and what is said meanwhile.

Reading that has begun is tried again for ever. Where an epoch begins, an answer is waited for a minute: a server may
take as long to start; after that its address is more likely to be wrong.
"""

from __future__ import annotations

import contextlib
import random
import threading
import time
from collections.abc import Callable, Iterator
from typing import TypeVar

from headrace.core.errors import StorageError
from headrace.core.outage import Outage
from headrace.storage.stores.retries import RetryLimits

T = TypeVar("T")

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


def no_answer(what: str, place: str, said: object, fix: str) -> NoAnswerError:
    """Returns the error of a server that does not answer; the caller raises it."""
    error = NoAnswerError.about(what, place=place, found=said, fix=fix)
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

    def __init__(self, place: str, until: str = "it answers") -> None:
        """place: of the source, without secrets. until: how long it is asked again, in words."""
        self._said = Outage(place)
        self._again = f"until {until}"
        self._failures = 0
        self._since = 0.0

    def wait_after(self, what: str) -> float:
        """Returns the seconds to wait after another failure. what: the failure in words."""
        if not self._failures:
            self._since = time.monotonic()
        self._failures += 1
        self._said.failed(what, self._since, self._again)
        return BACK_OFF.wait(min(self._failures, STEADY), _JITTER.random())

    @contextlib.contextmanager
    def noticed(self) -> Iterator[None]:
        """Says so if what runs inside takes long: a client library may wait for a server for ever."""
        asked = ("it does not answer", time.monotonic(), self._again)
        overdue = threading.Timer(OVERDUE, self._said.failed, asked)
        overdue.daemon = True
        overdue.start()
        try:
            yield
        finally:
            overdue.cancel()
        self._said.answered()

    def ended(self) -> None:
        """Tells that the source answers."""
        self._said.answered()
        self._failures = 0
