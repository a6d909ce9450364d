"""`headrace pack`: what it prints."""

from __future__ import annotations

import json
from dataclasses import asdict

from rich.console import Console

from headrace.convert.pack import pack
from headrace.convert.plan import Options
from headrace.observe.progress import samples_bar


def run_pack(source: str, target: str, options: Options, *, workers: int, trust: bool, json_output: bool) -> int:
    """Packs, prints what was made, and returns the exit status. Raises what `pack` raises."""
    with samples_bar("packing") as report:
        made = pack(source, target, options, workers=workers, trust=trust, report=report)
    console = Console(highlight=False, markup=False, emoji=False, soft_wrap=True)
    if json_output:
        console.print_json(json.dumps(asdict(made)))
        return 0
    rate = made.samples / max(made.seconds, 1e-9)
    files = f"{made.files:,} file" + ("s" if made.files != 1 else "")
    console.print(f"{made.target}: {made.samples:,} samples as {made.format}, {files}, {made.bytes / 1e6:,.1f} MB")
    resumed = f" ({made.kept} of {made.pieces} pieces were there from an earlier run)" if made.kept else ""
    console.print(f"{made.seconds:.1f} s, {rate:,.0f} samples/s{resumed}")
    console.print(f'Open it with headrace.open("{made.target}").')
    return 0
