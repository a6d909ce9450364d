"""How actors share the cores of a machine."""

from __future__ import annotations

from collections.abc import Sequence
from operator import mul

STEPS = 20
"""By how many the common factor is found, at most."""


def paces_of(demands: Sequence[float], cores: int) -> list[float]:
    """Returns how fast actors come on that want so much of a core each, 0 to 1, where they share `cores` evenly.

    What an actor waits for goes on meanwhile: only its core part is stretched, by the same factor for all, such that
    all together take the cores that there are.
    """
    wanted = sum(demands)
    if wanted <= cores:
        return [1.0] * len(demands)

    # Who waits for something else in part is slowed down less, and then wants less of a core in a second. The factor is
    # found by steps: each corrects it by how far the cores are over- or underused.
    slow = wanted / cores
    for _ in range(STEPS):
        paces = [1.0 / (1.0 + min(demand, 1.0) * (slow - 1.0)) for demand in demands]
        taken = sum(map(mul, demands, paces)) / cores
        if abs(taken - 1.0) < 0.005:
            break
        slow *= taken

    return paces
