"""Waits of the main thread, in which it still notices what no system call is interrupted for."""

from __future__ import annotations

import time
from collections.abc import Iterator

from headrace.core.torch_internals import MP_STATUS_CHECK_INTERVAL


def slices(timeout: float | None) -> Iterator[float]:
    """Yields for how many seconds to wait at a time, in a wait of `timeout` seconds (None: for ever).

    A signal ends a system call. `_thread.interrupt_main()`, by which notebooks and debuggers stop a program, does not:
    Python sees it when the call is over. So no call takes longer than one of torch's.
    """
    if timeout is None:
        while True:
            yield MP_STATUS_CHECK_INTERVAL

    deadline = time.monotonic() + timeout
    yield min(timeout, MP_STATUS_CHECK_INTERVAL)
    while (left := deadline - time.monotonic()) > 0:
        yield min(left, MP_STATUS_CHECK_INTERVAL)
