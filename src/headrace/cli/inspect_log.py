"""`headrace inspect` of a source that never ends: partitions, where they begin and end, and the first records."""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any

from rich.box import SIMPLE_HEAD
from rich.table import Table
from rich.text import Text

from headrace.core.errors import UsageError
from headrace.core.text.printable import printable
from headrace.data.live.schemes import source_of
from headrace.sources.journal.journal_log import JournalSource
from headrace.sources.log import Log, Records, count_records
from headrace.telemetry.terminal import Terminal

PATIENCE = 5.0
"""Seconds in which the first records must come."""

LONGEST = 200
"""Characters of a record that are shown."""

PARTITIONS = 20
"""That are shown; all are counted."""


def run_inspect_log(uri: str, *, samples: int, json_output: bool, options: Mapping[str, object] | None) -> int:
    """Prints what lies in a log, and returns the exit status 0. Nothing is committed. Raises `HeadraceError`."""
    source = source_of(uri, options)
    if isinstance(source, JournalSource):
        what = "to look at a queue or a socket would take its messages"
        fix = "read it with headrace.follow(..., journal=folder), which keeps them"
        raise UsageError.about(what, place="headrace inspect", found=source.place, fix=fix)

    log = source.open()
    try:
        about = _about(source.place, log, samples)
    finally:
        log.close()

    console = Terminal()
    if json_output:
        console.out(json.dumps(about, indent=2), highlight=False)
    else:
        _print(console, about)
    return 0


def _about(place: str, log: Log, samples: int) -> dict[str, Any]:
    first = log.resolve("earliest")
    ends = log.ends()
    partitions = [{"partition": number, "first": first[number], "end": ends[number]} for number in log.partitions()]
    records: list[dict[str, Any]] = []
    if samples:
        log.seek(first)
        for part in log.poll(PATIENCE, 1 << 16):
            records += _shown(part, samples - len(records))

    return {
        "place": place,
        "records": count_records(log, first, ends),
        "partitions": partitions,
        "first_records": records,
    }


def _shown(part: Records, most: int) -> list[dict[str, Any]]:
    shown = []
    for position, value in list(zip(part.positions, part.values, strict=False))[:most]:
        if not isinstance(value, bytes):
            break
        text = value[: 4 * LONGEST].decode(errors="backslashreplace")[:LONGEST]
        shown.append({"partition": part.partition, "position": int(position), "bytes": len(value), "begins": text})
    return shown


def _print(console: Terminal, about: Mapping[str, Any]) -> None:
    partitions = about["partitions"]
    count = f"{about['records']:,}"
    parts = f"{len(partitions):,} partitions"
    if len(partitions) == 1:
        parts = "1 partition"
    console.print(Text(f"{about['place']}: a log of {parts}, about {count} records"))
    table = Table("partition", "first", "end", box=SIMPLE_HEAD)
    for one in partitions[:PARTITIONS]:
        table.add_row(str(one["partition"]), f"{one['first']:,}", f"{one['end']:,}")
    console.print(table)
    if len(partitions) > PARTITIONS:
        console.print(f"... and {len(partitions) - PARTITIONS:,} more")

    if not about["first_records"]:
        return
    rows = Table("place", "bytes", "begins", box=SIMPLE_HEAD)
    for one in about["first_records"]:
        begins = Text(printable(one["begins"], kept=""))
        rows.add_row(f"{one['partition']}@{one['position']}", f"{one['bytes']:,}", begins)
    console.print(rows)
