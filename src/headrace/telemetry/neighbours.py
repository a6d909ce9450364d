"""How much of the machine's cores other processes take, while a loader is iterated.

The kernel counts how long each core was busy (`/proc/stat`), and how long each process ran (`/proc/PID/stat`). Other
processes took what is left of the first without this process and its descendants. Both count in ticks of 10 ms, so
spans of less than `LEAST` seconds are not looked at. Time that a hypervisor gave to other machines counts as theirs.
"""

from __future__ import annotations

import math
import os
import time
from pathlib import Path
from typing import NamedTuple

from headrace.core.process.memory import process_tree

OTHERS = 0.3
"""Cores that other processes take, below which they do not count."""

LEAST = 0.5
"""Seconds between two looks, at least."""

SHARE = 0.001
"""Share of a core that looking may take."""

PAUSE = 2.0
"""Seconds without a look behind which an epoch begins a span of its own: what lay between was not the loop's."""

BUSY_FIELDS = (1, 2, 3, 6, 7, 8)
"""Of a core's line in `/proc/stat`: user, nice, system, irq, softirq, steal. The first word is the core's name."""

OWN_FIELDS = slice(11, 15)
"""Of `/proc/PID/stat` behind the name: user and system time, and those of its children that were waited for."""


class CoreSeconds(NamedTuple):
    """What the cores that this process may use have done since the machine was started, in seconds."""

    busy: float
    """For whomever."""
    own: float
    """For this process and its descendants."""


class Neighbours:
    """Sums up what other processes took of the cores. Looks are rare enough to take a thousandth of the time."""

    def __init__(self) -> None:
        self.seconds = 0.0
        """For how long it was looked at."""
        self.own = 0.0
        """Core seconds of this process and its descendants in that time."""
        self.others = 0.0
        """Core seconds of all others."""
        self._last: CoreSeconds | None = None
        self._at = -math.inf
        self._due = -math.inf

    def begin(self) -> None:
        """An epoch begins: what came before a pause does not count."""
        now = time.perf_counter()
        if now >= self._at + PAUSE and now >= self._due:
            self._last = None
            self._look(now)

    def look(self) -> None:
        """Adds what happened since the last look, if that is long enough ago."""
        now = time.perf_counter()
        if now >= self._due:
            self._look(now)

    def _look(self, began: float) -> None:
        # The cost is CPU time. By the clock, looks would become rare on a busy machine, which is where they matter.
        cpu = time.thread_time()
        seen = core_seconds()
        cost = time.thread_time() - cpu
        if seen is not None and self._last is not None:
            own = max(seen.own - self._last.own, 0.0)
            self.seconds += began - self._at
            self.own += own
            self.others += max(seen.busy - self._last.busy - own, 0.0)

        self._last = seen
        self._at = began
        self._due = began + max(LEAST, cost / SHARE)

    @property
    def other_cores(self) -> float:
        """How many cores other processes took, on average; 0 where nothing was seen."""
        if not self.seconds:
            return 0.0
        return self.others / self.seconds

    def totals(self) -> dict[str, float]:
        """Returns the sums by the names that they have in a recording; nothing where nothing was seen."""
        if not self.seconds:
            return {}
        return {"looked": self.seconds, "own_cores": self.own, "other_cores": self.others}


def core_seconds() -> CoreSeconds | None:
    """Returns what the cores of this process have done so far; None where the machine does not tell."""
    try:
        lines = Path("/proc/stat").read_text().splitlines()
        allowed = {f"cpu{core}" for core in os.sched_getaffinity(0)}
    except (OSError, AttributeError):
        return None  # not Linux, or a sandbox without these files

    ticks = 0
    for line in lines:
        words = line.split()
        if words and words[0] in allowed:
            for field in BUSY_FIELDS:
                # Old kernels have fewer fields.
                if field < len(words):
                    ticks += int(words[field])

    own = sum(map(_own_ticks, process_tree(os.getpid())))
    if not ticks or not own:
        return None

    hertz = os.sysconf("SC_CLK_TCK")
    return CoreSeconds(ticks / hertz, own / hertz)


def _own_ticks(pid: int) -> int:
    """Returns the ticks that a process ran, with those of its children that it has waited for; 0 once it is gone."""
    try:
        account = Path(f"/proc/{pid}/stat").read_text()
    except OSError:
        return 0  # it ended, and its parent's account has its ticks

    # The name of a program may have spaces and parentheses: fields are counted from behind it.
    behind_name = account.rpartition(")")[2]
    return sum(map(int, behind_name.split()[OWN_FIELDS]))
