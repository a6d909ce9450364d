"""What of the machine this process may use."""

from __future__ import annotations

import functools
import math
import os
from pathlib import Path


def cores() -> int:
    """Returns how many cores this process may use: those of its affinity, or fewer where a cgroup says so."""
    if hasattr(os, "sched_getaffinity"):
        own = len(os.sched_getaffinity(0))
    else:
        own = os.cpu_count() or 1

    quota = _quota()
    if math.isinf(quota):
        return own
    return max(min(own, math.ceil(quota)), 1)


@functools.cache
def _quota() -> float:
    """Returns how many cores' worth of time the cgroup may have; infinite if it does not say."""
    # Version 2 of cgroups has both figures in one file, version 1 a file for each. Without a limit the quota
    # reads "max", or -1.
    quota = "max"
    period = "100000"
    try:
        quota, period = Path("/sys/fs/cgroup/cpu.max").read_text().split()
    except (OSError, ValueError):
        try:
            quota = Path("/sys/fs/cgroup/cpu/cpu.cfs_quota_us").read_text().strip()
            period = Path("/sys/fs/cgroup/cpu/cpu.cfs_period_us").read_text().strip()
        except OSError:
            return math.inf

    if quota.isdigit() and int(period):
        return int(quota) / int(period)
    return math.inf
