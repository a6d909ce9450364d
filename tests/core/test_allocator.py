"""The memory of a batch that is gone serves the next one."""

from __future__ import annotations

import platform
import resource
import subprocess
import sys

import pytest

PROGRAM = """
import resource

from headrace.core.process.allocator import keep_freed_memory

keep_freed_memory()

def batch():
    for sample in [bytearray(100_000) for _ in range(32)]:
        sample[:] = b"x" * len(sample)

batch()
before = resource.getrusage(resource.RUSAGE_SELF).ru_minflt
for _ in range(10):
    batch()
print(resource.getrusage(resource.RUSAGE_SELF).ru_minflt - before)
"""

PAGES = 10 * 32 * 100_000 // resource.getpagesize()
"""Of all batches but the first."""


def faults() -> int:
    """Returns how often the kernel gave a page to ten batches, in a new process."""
    done = subprocess.run([sys.executable, "-c", PROGRAM], capture_output=True, text=True, check=True, timeout=60)
    return int(done.stdout)


@pytest.mark.skipif(platform.libc_ver()[0] != "glibc", reason="the allocator is not that of glibc")
def test_the_next_batch_lies_where_the_last_one_lay() -> None:
    assert faults() < PAGES // 20
