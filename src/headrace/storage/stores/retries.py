"""Requests made again: which failures pass, how long to wait, and when to give up."""

from __future__ import annotations

import random
import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import TypeVar

from headrace.core.outage import Outage

Result = TypeVar("Result")

THROTTLED = "throttled"
"""The server asks for fewer requests: status 429 or 503, or SlowDown."""

SERVER = "server error"
"""Status 500, 502, 504 and the like."""

CONNECTION = "connection"
"""Refused, reset or closed before the answer was complete."""

SHORT = "short answer"
"""Complete in form, but not as long as it should be."""

TIMEOUT = "timeout"
"""No connection, no first byte, or no further byte in time."""

KINDS = (THROTTLED, SERVER, CONNECTION, SHORT, TIMEOUT)

_JITTER = random.Random()
"""Apart from the random numbers of the user's program."""


@dataclass(frozen=True)
class RetryLimits:
    """When to give up, and how long to wait."""

    retries: int = 40
    """How often a request is made again at most."""

    seconds: float = 180.0
    """No request begins again later than this after the first one began."""

    first_wait: float = 0.1
    """Seconds before the first repetition; twice as long before each further one."""

    longest_wait: float = 10.0

    def wait(self, failures: int, jitter: float) -> float:
        """Returns the seconds to wait after so many failures. jitter: from 0 to 1."""
        longest = min(self.longest_wait, self.first_wait * 2.0 ** (failures - 1))

        # At least half of it, so that a server which asks for peace gets some.
        return longest * (0.5 + 0.5 * jitter)


class PassingFailure(Exception):
    """A request failed in a way that may pass."""

    def __init__(self, kind: str, what: str, seconds: float | None = None) -> None:
        super().__init__(what)
        self.kind = kind
        """One of `KINDS`."""

        self.what = what
        """In words, without secrets."""

        self.seconds = seconds
        """How long the server asks to wait, where it says so and the client tells."""


class GaveUp(Exception):
    """A request failed until a limit was reached."""

    def __init__(self, failure: PassingFailure, attempts: int, seconds: float) -> None:
        super().__init__(failure.what)
        self.failure = failure
        """The last one."""

        self.attempts = attempts
        self.seconds = seconds


def retried(
    request: Callable[[], Result],
    limits: RetryLimits,
    on_retry: Callable[[str], None] | None,
    sleep: Callable[[float], None] = time.sleep,
    outage: Outage | None = None,
) -> Result:
    """Returns what `request` returns. It is called again after each `PassingFailure`.

    outage: is told what a user should know when that takes long. Raises `GaveUp` when a limit is reached; other
    exceptions of `request` pass through.
    """
    began = time.monotonic()
    failures = 0
    while True:
        asked = time.monotonic()
        try:
            result = request()
        except PassingFailure as error:
            failure = error
        else:
            if failures and outage is not None:
                outage.answered()
            return result

        failures += 1
        spent = time.monotonic() - began
        left = limits.seconds - spent
        # The last time it is asked is when the time is up.
        wait = min(limits.wait(failures, _JITTER.random()), left)
        if failure.seconds is not None:
            wait = max(wait, failure.seconds)

        if failures > limits.retries or left <= 0 or wait > left:
            if outage is not None:
                outage.given_up()
            raise GaveUp(failure, failures, spent)

        if outage is not None:
            left = max(limits.seconds - spent, 0)
            again = f"for {left:.0f} s more at most; retry_timeout in options= sets the limit"
            outage.failed(failure.what, time.monotonic() - spent, again, asked)
        if on_retry is not None:
            on_retry(failure.kind)
        sleep(wait)
