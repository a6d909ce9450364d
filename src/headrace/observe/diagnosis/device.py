"""What copying to a device costs: a word on whether anything is to be gained there."""

from __future__ import annotations

import math
from collections.abc import Iterator

import numpy as np

from headrace.observe.diagnosis.case import Case
from headrace.observe.diagnosis.finding import Finding
from headrace.telemetry.device_copies import DeviceCopies
from headrace.telemetry.formatting import digits, percent, seconds, size
from headrace.telemetry.recording import Recording

NOTABLE = 0.1
"""Share of a step from which on copying is worth a thought, although it goes on beside the step."""

FULL = 0.8
"""Share of a step from which on the bus is what the loop waits for."""

SMALLER = 1.5
"""How many times less must be sent for the change to be advised."""


def step_seconds(recording: Recording) -> float:
    """Returns how long a step takes, from one delivery to the next: a median; NaN: not known."""
    rows = recording.batches
    same = rows["epoch"][1:] == rows["epoch"][:-1]
    steps = np.diff(rows["delivered"])[same]
    if not len(steps):
        return math.nan
    return float(np.median(steps))


def copy_share(recording: Recording) -> float:
    """Returns the share of a step for which the bus copies, 0 to 1; NaN: not known."""
    copies = recording.copies
    if copies is None:
        return math.nan
    return copies.seconds_of_batch / step_seconds(recording)


def copies_line(recording: Recording) -> str:
    """Returns one line for a report; empty: nothing was copied to a device."""
    copies = recording.copies
    if copies is None or not copies.batches:
        return ""

    line = f"device: {copies.device}, {size(copies.bytes_of_batch)} a batch"
    if not math.isfinite(copies.rate):
        return line
    line = f"{line} in {seconds(copies.seconds_of_batch)} ({size(copies.rate)}/s)"
    share = copy_share(recording)
    if not math.isfinite(share):
        return line
    line = f"{line}: copying is {percent(share)} of a step"
    if share < NOTABLE:
        return f"{line}, nothing to gain"
    return line


def device_findings(case: Case) -> Iterator[Finding]:
    """Yields what is found of copies to a device that take a notable part of a step."""
    copies = case.recording.copies
    share = copy_share(case.recording)
    if copies is None or not share >= NOTABLE:
        return

    sentence = (
        f"Copying a batch of {size(copies.bytes_of_batch)} to the device takes {seconds(copies.seconds_of_batch)} "
        f"({size(copies.rate)}/s), {percent(share)} of a step"
    )
    if share >= FULL:
        sentence = f"{sentence}: the bus is what the loop waits for."
    else:
        sentence = f"{sentence}, which goes on beside it."
    yield Finding("copies", "delivery", sentence, _advice(copies))


def _advice(copies: DeviceCopies) -> str:
    less = copies.smaller_as_bytes
    if less < SMALLER:
        return ""
    return (
        f"Send images as uint8 and cast there (device_transform=): {digits(less)} times less, "
        f"{seconds(copies.seconds_of_batch / less)} a batch."
    )
