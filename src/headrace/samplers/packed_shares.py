"""Whether a mixture of tokens counts the tokens that are trained on, where documents are cut or left out."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from headrace.core.errors import explain, warn
from headrace.samplers.lengths import AT_ONCE, Column
from headrace.samplers.sampler import Keys
from headrace.samplers.sources import Sources

ALIKE = 0.01
"""By how much of it a mean may be off: means are often rounded."""


def warn_of_other_shares(sources: Sources, edges: Keys, columns: Sequence[Column], too_long: str) -> None:
    """Warns if weights are of tokens, and the mean length of some source is not that of what is trained on.

    edges: where the sources begin among the documents, and the last one ends. columns: the lengths of the documents,
    those in tokens first. too_long: whether what is longer than a budget is cut or skipped.
    """
    if sources.unit != "tokens":
        return

    off: dict[int, tuple[float, float]] = {}
    for number in np.flatnonzero(sources.samples).tolist():
        given = float(sources.costs[number])
        trained = _mean_of(columns, int(edges[number]), int(edges[number + 1]), too_long)
        if abs(given - trained) > ALIKE * given:
            off[number] = given, trained
    if not off:
        return

    worst = max(off, key=lambda number: abs(off[number][0] - off[number][1]) / off[number][0])
    given, trained = off[worst]
    lengths = "np.minimum(lengths, budget)"
    done = "cut"
    if too_long == "skip":
        lengths = "np.where(lengths > budget, 0, lengths)"
        done = "left out"
    warn(
        explain(
            "the shares of tokens are not those of the weights: "
            f"documents are {done}, and the mixture counts other lengths",
            place=f"the source {sources.keys()[worst]!r}, of {len(off):,} such sources",
            found=f"a mean length of {given:,.1f} in lengths= of MixtureSampler",
            expected=f"{trained:,.1f}, the mean of the tokens that are trained on",
            fix=f"give MixtureSampler lengths={lengths} for each source",
        )
    )


def _mean_of(columns: Sequence[Column], start: int, stop: int, too_long: str) -> float:
    """Returns how many tokens of a document are trained on, on average over some documents, at least one."""
    total = 0
    for begin in range(start, stop, AT_ONCE):
        some = slice(begin, min(begin + AT_ONCE, stop))
        tokens = columns[0].lengths[some]
        if too_long == "cut":
            tokens = np.minimum(tokens, columns[0].most)
        else:
            fitting = np.all([column.lengths[some] <= column.most for column in columns], axis=0)
            tokens = tokens[fitting]
        total += int(tokens.sum(dtype=np.int64))
    return total / (stop - start)
