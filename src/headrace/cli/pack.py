"""`headrace pack`: what it prints."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import asdict, dataclass, field
from typing import Any

from headrace.core.errors import UsageError
from headrace.core.text.urls import shown_url
from headrace.data.building.pool import On
from headrace.data.convert.pack import pack
from headrace.data.convert.plan import PackOptions
from headrace.data.live.follow import follow
from headrace.data.live.schemes import is_log
from headrace.telemetry.progress import samples_bar
from headrace.telemetry.terminal import Terminal


@dataclass(frozen=True)
class LogWay:
    """What is packed of a source that never ends."""

    until: str | None = None
    decode: str = "json"

    def opened(self, source: str, options: Mapping[str, object]) -> Any:
        """Returns the dataset of such a source. Raises `UsageError`, `MissingExtraError`."""
        if self.until is None:
            what = "a source that never ends cannot be packed"
            fix = "say where to stop: --until now, --until 100000, or --until 2026-11-01T12:00"
            raise UsageError.about(what, place="headrace pack", found=shown_url(source), fix=fix)

        until: str | int = self.until
        if self.until.isdigit():
            until = int(self.until)
        return follow(source, decode=self.decode, until=until, options=options or None)  # type: ignore[arg-type]


@dataclass(frozen=True)
class PackWay:
    """How a conversion is done, whatever it makes."""

    workers: int
    trust: bool
    source_options: Mapping[str, object] = field(repr=False)
    target_options: Mapping[str, object] = field(repr=False)
    rows: Mapping[str, str | None] = field(default_factory=dict)
    """Of a database: query, table and key."""
    log: LogWay = LogWay()
    on: On = "local"


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
    given: Any = source
    if is_log(source):
        given = way.log.opened(source, way.source_options)
    with samples_bar("packing") as report:
        made = pack(
            given,
            target,
            options,
            workers=way.workers,
            trust=way.trust,
            report=report,
            source_options=way.source_options,
            target_options=way.target_options,
            query=way.rows.get("query"),
            table=way.rows.get("table"),
            key=way.rows.get("key"),
            on=way.on,
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
