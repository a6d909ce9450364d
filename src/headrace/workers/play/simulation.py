"""How long an epoch would take with other workers, another order of delivery or quicker stages: it is played through.

What was measured of each batch is split into what does not depend on who else runs: seconds of a core, and seconds of
waiting for something else (a disk, a server). Then the loader's rules are played with them (`play`).
"""

from __future__ import annotations

import numpy as np

from headrace.workers.play.play import Play
from headrace.workers.play.work import Rules, Work

COLD, WARM = 100e-6, 0.4
"""Seconds that a worker takes more for a batch than the main process would, since it slept before it (measured with
batches of 0.05 to 0.3 ms); and the share of its time that is left at least."""


def seconds_for(work: Work, rules: Rules) -> float:
    """Returns how long the epoch takes by these rules, in seconds."""
    if not len(work):
        return 0.0

    if rules.workers == 0:
        made = work.wait + work.cpu
        if work.in_workers:
            # A batch that mostly waits (for a disk, a server) waits as long in any process: its core seconds shrink.
            shrinks = np.where(work.wait > work.cpu, work.cpu, made)
            made = made - np.minimum(COLD, (1 - WARM) * shrinks)
        return float((made + work.pin + work.loop).sum())

    return Play(work, rules).run()
