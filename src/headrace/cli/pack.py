"""`headrace pack`: what it prints."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import asdict, dataclass, field

from headrace.data.convert.pack import pack
from headrace.data.convert.plan import PackOptions
from headrace.telemetry.progress import samples_bar
from headrace.telemetry.terminal import Terminal


@dataclass(frozen=True)
class PackWay:
    """How a conversion is done, whatever it makes."""

    workers: int
    trust: bool
    source_options: Mapping[str, object] = field(repr=False)
    target_options: Mapping[str, object] = field(repr=False)
    rows: Mapping[str, str | None] = field(default_factory=dict)
    """Of a database: query, table and key."""


def run_pack(
    source: str,
    target: str,
    options: PackOptions,
    *,
    way: PackWay,
    json_output: bool,
    allow_bad: bool,
) -> int:
    """Packs, prints what was made, and returns the exit status: 1 if images are bad. Raises what `pack` raises.

    allow_bad: the status is 0 all the same.
    """
    with samples_bar("packing") as report:
        made = pack(
            source,
            target,
            options,
            workers=way.workers,
            trust=way.trust,
            report=report,
            source_options=way.source_options,
            target_options=way.target_options,
            **way.rows,
        )

    console = Terminal(highlight=False, markup=False, emoji=False, soft_wrap=True)
    if made.bad and not allow_bad:
        status = 1
    else:
        status = 0

    if json_output:
        console.print_json(json.dumps(asdict(made)))
        return status

    rate = made.samples / max(made.seconds, 1e-9)
    if made.files != 1:
        plural = "s"
    else:
        plural = ""

    files = f"{made.files:,} file" + plural
    console.print(f"{made.target}: {made.samples:,} samples as {made.format}, {files}, {made.bytes / 1e6:,.1f} MB")
    if made.kept:
        resumed = f" ({made.kept} of {made.pieces} pieces were there from an earlier run)"
    else:
        resumed = ""

    console.print(f"{made.seconds:.1f} s, {rate:,.0f} samples/s{resumed}")
    if made.bad:
        console.print(f"{made.bad:,} of {made.samples:,} samples are bad, and were packed as they are:", style="red")
        for line in made.bad_samples:
            console.print(f"  {line}")
        if made.bad > len(made.bad_samples):
            console.print(f"  ... and {made.bad - len(made.bad_samples):,} more; `headrace verify` lists them")

    console.print(f'Open it with headrace.open("{made.target}").')
    return status
