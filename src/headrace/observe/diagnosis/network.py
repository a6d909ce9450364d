"""The finding about workers on other machines: whether they or the line to them limit the loop."""

from __future__ import annotations

from collections.abc import Iterator
from typing import NamedTuple

import numpy as np

from headrace.observe.diagnosis.case import Case
from headrace.observe.diagnosis.finding import Finding
from headrace.telemetry.formatting import seconds, size

WAITS = 0.1
"""Share of its time that the loop must wait for batches before somebody is to blame."""

FEWEST = 8
"""Batches of other machines from which something can be told."""


class RemoteFigures(NamedTuple):
    """How long batches of other machines take, as medians in seconds, and how many bytes of them come each second."""

    made: float
    on_their_way: float
    rate: float


def way_of(case: Case) -> RemoteFigures | None:
    """Returns how batches of other machines come; None where the loop hardly waits, or too few have come."""
    batches = case.recording.batches
    rows = batches[np.isin(batches["worker"], list(case.recording.hosts))]
    if case.wait_share < WAITS or len(rows) < FEWEST:
        return None

    made = float(np.median(rows["sent"] - rows["begun"]))
    on_their_way = float(np.median(rows["arrived"] - rows["sent"]))
    took = float(rows["arrived"].max() - rows["arrived"].min())
    return RemoteFigures(made, on_their_way, float(rows["bytes"][1:].sum()) / max(took, 1e-9))


def line_is_full(case: Case) -> bool:
    """Tells whether batches of other machines are longer on their way than in the making: more workers do not help."""
    way = way_of(case)
    return way is not None and way.on_their_way > way.made


def network_findings(case: Case) -> Iterator[Finding]:
    """Yields that the line is the limit."""
    way = way_of(case)
    if way is None or not line_is_full(case):
        return

    yield Finding(
        "line-limits",
        "transport",
        f"Batches of other machines take {seconds(way.made)} to make and {seconds(way.on_their_way)} on their way; "
        f"they come with {size(way.rate)} a second. The network is the limit, not the workers.",
        "Send fewer bytes: leave images as uint8 and cast them on the accelerator (a quarter of float32), crop before "
        "the batch is made, or run more of the workers on this machine (headrace.Ray(local=...)).",
    )
