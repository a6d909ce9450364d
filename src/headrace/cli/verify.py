"""`headrace verify`: what it prints."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import asdict

from rich.console import Console

from headrace.core.errors import HeadraceError
from headrace.core.text.urls import is_url, shown_url
from headrace.data.convert.bad_images import one_line
from headrace.data.convert.verified import Verified
from headrace.data.convert.verify import verify
from headrace.telemetry.progress import samples_bar
from headrace.telemetry.terminal import Terminal

SHOWN = 20

BAR_AFTER = 1.0
"""Seconds behind which a bar is shown for a URL."""


def run_verify(
    uri: str, *, format: str | None, trust: bool, json_output: bool, options: Mapping[str, object] | None = None
) -> int:
    """Verifies, prints what was found, and returns 0 if all is sound, 1 otherwise. Raises what opening raises."""
    try:
        # At a URL, most is done before the first sample: the library shows bytes then.
        after = 0.0
        if is_url(uri):
            after = BAR_AFTER
        with samples_bar("verifying", after=after) as report:
            found = verify(uri, format=format, trust=trust, report=report, options=options)
    except HeadraceError as error:
        # Whoever reads JSON wants an answer for data that cannot be opened, too: they are not sound.
        if not json_output:
            raise
        found = Verified(shown_url(uri), format or "", problems=[one_line(error)])

    console = Terminal(highlight=False, markup=False, emoji=False, soft_wrap=True)
    if json_output:
        console.print_json(json.dumps(asdict(found) | {"sound": found.sound}))
    else:
        _print(console, found)

    if found.sound:
        return 0
    return 1


def _print(console: Console, found: Verified) -> None:
    samples = f"{found.samples:,} samples read"
    if found.recorded:
        samples = f"{found.recorded:,} samples by its manifest, not decoded"

    console.print(f"{found.place}: {found.format}, {samples}")
    if found.checksums:
        console.print(f"  {found.checksums:,} of {found.files:,} files compared with their checksums")
    else:
        console.print("  no checksums: this was not packed by headrace, so changed values cannot be told")

    if found.images:
        console.print(f"  {found.images:,} images decoded")
    if found.duplicates:
        console.print(f"  {found.duplicates:,} samples are the same as an earlier one, byte for byte")

    for name, count in found.not_finite.items():
        console.print(f"  {count:,} samples of column {name!r} hold infinite values or NaN")

    count = len(found.problems) + found.more_problems
    if not count:
        console.print("  sound", style="green")
        return

    if count > 1:
        plural = "s"
    else:
        plural = ""

    console.print(f"  {count:,} problem" + plural, style="red")
    for problem in found.problems[:SHOWN]:
        console.print(f"    {problem}")

    if count > SHOWN:
        console.print(f"    ... and {count - SHOWN:,} more; --json lists up to 1,000")
