"""Says that stored data are decoded whole before the first sample: in the log, and as a bar if it takes long."""

from __future__ import annotations

import contextlib
import logging
import time
from collections.abc import Callable, Iterator

from torch.utils.data import get_worker_info

LOGGER = logging.getLogger("headrace")

AFTER = 1.0
"""Seconds behind which a bar is shown, on a terminal."""

LARGE = 1 << 20
"""Bytes below which nothing is said: that is done in milliseconds."""


@contextlib.contextmanager
def decoding_whole(what: str, nbytes: int) -> Iterator[Callable[[int, int], None]]:
    """Logs how long the block takes; yields what is to be called with (samples that are decoded, in all).

    what: which data, such as "column 'x' of train.parquet". nbytes: their size. Workers draw no bar: several of them
    would draw over each other.
    """
    if nbytes < LARGE:
        yield lambda done, total: None
        return

    LOGGER.info("%s is decoded whole (%.0f MB) before the first sample", what, nbytes / 1e6)
    began = time.perf_counter()
    if get_worker_info() is None:
        from headrace.telemetry.progress import samples_bar

        with samples_bar("decoding", after=AFTER) as report:
            yield report
    else:
        yield lambda done, total: None

    LOGGER.info("%s was decoded in %.2g s", what, time.perf_counter() - began)
