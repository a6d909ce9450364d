"""Functions that go wrong in some calls, and values that go wrong on their way to another process."""

from __future__ import annotations

from collections.abc import Callable, Collection
from dataclasses import dataclass, field
from typing import Any, Literal

from headrace.core.errors import UsageError
from headrace.testing.attempts import Attempts
from headrace.testing.faults import Fault, Raise


@dataclass(frozen=True)
class FaultyCall:
    """A function around another one in which a fault happens in some calls: for `collate_fn`, `worker_init_fn`, ...

    Give one of `calls`, `every` and `when`, or none of them: then all calls are meant. Calls are counted over all
    processes and threads. A fault that returns is followed by the call.

    Attributes:
        function: the other one; None: one that does nothing.
        fault: what happens.
        calls: the numbers of the calls in which it does, from 0.
        every: it does in each n-th call.
        when: it does in those for whose arguments this returns true.
        times: ends it after so many faults; None: never.
        attempts: `attempts.of("call")` calls were made, and `attempts.of("fault")` of them were those meant above.

    Raises:
        UsageError: more than one of `calls`, `every` and `when`.

    Examples:
        >>> from headrace.testing import FaultyCall, Raise
        >>> collate = FaultyCall(torch.tensor, Raise(MemoryError()), calls=[2])
        >>> collate([1, 2])
        tensor([1, 2])
    """

    function: Callable[..., Any] | None
    fault: Fault
    calls: Collection[int] | None = None
    every: int | None = None
    when: Callable[..., object] | None = None
    times: int | None = None
    attempts: Attempts = field(default_factory=Attempts)

    def __post_init__(self) -> None:
        chosen = []
        for name in ("calls", "every", "when"):
            if getattr(self, name) is not None:
                chosen.append(name)

        if len(chosen) > 1 or (self.every is not None and self.every < 1):
            raise UsageError.about(
                "it is not clear in which calls the fault is to happen",
                found=", ".join(f"{name}={getattr(self, name)!r}" for name in chosen),
                expected="one of calls, every (at least 1) and when; or none, for all calls",
            )

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        """Lets the fault happen if it is this call's turn, and calls the function."""
        number = self.attempts.count("call")
        if self._is_meant(number, args, kwargs):
            fault = self.attempts.count("fault")
            if self.times is None or fault < self.times:
                self.fault()

        if self.function is None:
            return None
        return self.function(*args, **kwargs)

    def _is_meant(self, number: int, args: tuple[Any, ...], kwargs: dict[str, Any]) -> bool:
        if self.calls is not None:
            return number in self.calls
        if self.every is not None:
            return number % self.every == self.every - 1
        return self.when is None or bool(self.when(*args, **kwargs))


def flaky(
    function: Callable[..., Any],
    *,
    every: int = 1,
    error: BaseException | None = None,
    times: int | None = 1,
) -> FaultyCall:
    """Makes a function that raises in each n-th call.

    For datasets that read paths themselves: `photos.read = flaky(photos.read, every=100, times=3)`.

    Args:
        function: what the other calls do.
        every: n.
        error: what is raised; by default the `ConnectionResetError` of a store that hung up.
        times: how often in all; None: for ever.

    Returns:
        The function, which can be pickled if the given one can.

    Examples:
        >>> from headrace.testing import flaky
        >>> read = flaky(str.upper, every=2, times=1)
        >>> read("a")
        'A'
        >>> read("b")
        Traceback (most recent call last):
        ConnectionResetError: ...
    """
    return FaultyCall(function, Raise(error or connection_reset()), every=every, times=times)


def connection_reset() -> ConnectionResetError:
    """Returns the error of a connection that the other side has closed."""
    import errno
    import os

    return ConnectionResetError(errno.ECONNRESET, os.strerror(errno.ECONNRESET))


@dataclass(frozen=True)
class FaultyPickle:
    """A value with which a fault happens when it is pickled or unpickled: a batch that cannot travel.

    If the fault returns, the other side gets an equal object.

    Attributes:
        value: what is inside.
        when: the fault happens when it is pickled ("pickle") or unpickled ("unpickle").
        fault: what happens.

    Examples:
        >>> import pickle
        >>> from headrace.testing import FaultyPickle, Raise
        >>> pickle.dumps(FaultyPickle(1, "pickle", Raise(ValueError("cannot travel"))))
        Traceback (most recent call last):
        ValueError: cannot travel
    """

    value: Any
    when: Literal["pickle", "unpickle"]
    fault: Fault

    def __reduce__(self) -> tuple[Callable[..., FaultyPickle], tuple[Any, ...]]:
        if self.when == "pickle":
            self.fault()
        return _arrived, (self.value, self.when, self.fault)


def _arrived(value: object, when: Literal["pickle", "unpickle"], fault: Fault) -> FaultyPickle:
    if when == "unpickle":
        fault()
    return FaultyPickle(value, when, fault)
