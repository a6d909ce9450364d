"""How the memory allocator treats what samples and batches are made in."""

from __future__ import annotations

import numpy as np

KEPT = 16 << 20
"""Bytes up to which memory is taken from the heap. Twice as many stay with the process once they are free."""


def keep_freed_memory() -> None:
    """Has this process reuse the memory of a batch that is gone, instead of giving it back to the kernel.

    The allocator of glibc gives free memory at the end of the heap back from 128 KiB on, and the samples of the next
    batch fault all of it in again: samples of 100 KB came at a third of the speed. It raises that limit by itself, to
    twice the size of the largest block that was ever mapped and freed, up to 64 MiB. So one such block is enough; no
    page of it is touched. Limits that the user sets (`MALLOC_TRIM_THRESHOLD_`) stay, as do other allocators.

    Source: `mallopt(3)`, M_MMAP_THRESHOLD and M_TRIM_THRESHOLD.
    """
    np.empty(KEPT, np.uint8)
