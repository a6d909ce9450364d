"""Makes the tables and pictures of docs/benchmarks.md anew, one command for each.

    python benchmarks/tables.py --list                what there is, and how long it takes
    python benchmarks/tables.py transport tar         these; --all: all of them
    python benchmarks/tables.py --all --render-only   text and pictures from the figures that are there, nothing is run
    python benchmarks/tables.py order --quick --into FOLDER   small sizes, to try it; docs/ stays as it is

A table's scripts are run as they are, with their output on stderr. Their figures are kept in
benchmarks/results/NAME.json; the section between `<!-- begin NAME -->` and `<!-- end NAME -->` and the picture
docs/images/bench-NAME.svg are made from them. A script that fails leaves all of its table as it was.
"""

from __future__ import annotations

import argparse
import json
import os
import shlex
import shutil
import subprocess
import sys
import tempfile
import time
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pictures
import sections
from results import Table

SCRIPTS = Path(__file__).parent
ROOT = SCRIPTS.parent


@dataclass(frozen=True)
class Plan:
    """How a table is made: command lines without `python benchmarks/`, the same with small sizes, about how long."""

    commands: tuple[str, ...]
    quick: tuple[str, ...]
    minutes: float

    @property
    def missing(self) -> str | None:
        """A script that is not there."""
        names = (command.split()[0] for command in self.commands)
        return next((name for name in names if not (SCRIPTS / name).exists()), None)


PLANS = {
    "transport": Plan(("transport.py",), ("transport.py --batches 2 --rounds 2",), 2),
    "forms": Plan(("forms.py --epochs 2 --repeats 5",), ("forms.py --epochs 1 --repeats 2 --share 0.01",), 12),
    "ranks": Plan(("forms_ranks.py",), ("forms_ranks.py --rounds 1 --share 0.02",), 12),
    "trajectories": Plan(
        ("stages.py",),
        ("stages.py --trajectories 2000 --cut-trajectories 1500 --rounds 2 --batches 4",),
        15,
    ),
    "images": Plan(("images.py",), ("images.py --images 128 --rounds 2",), 15),
    "mapped": Plan(("stored.py images",), ("stored.py images --rounds 2 --share 0.05",), 1),
    "tokens": Plan(("stored.py tokens",), ("stored.py tokens --rounds 2 --share 0.01",), 1),
    "tar": Plan(("shards.py",), ("shards.py --rounds 2 --share 0.02",), 1),
    "table": Plan(("stored.py table",), ("stored.py table --rounds 2 --share 0.01",), 1),
    "start": Plan(
        ("start.py", "start.py --objects --gigabytes 0.5"),
        (
            "start.py --gigabytes 0.02 --workers 2 --rounds 1",
            "start.py --objects --gigabytes 0.01 --workers 2 --rounds 1",
        ),
        15,
    ),
    "paths": Plan(("stored.py paths",), ("stored.py paths --share 0.01",), 2),
    "formats": Plan(("formats.py",), ("formats.py --share 0.02 --seconds 0.05",), 3),
    "order": Plan(("order.py --sizes 1e6 1e8 3e8 1e9 1e10 --rounds 3",), ("order.py --sizes 1e5 1e10 --rounds 1",), 5),
    "small-batches": Plan(("small_batches.py",), ("small_batches.py --rounds 1 --share 0.05",), 4),
    "stragglers": Plan(("stragglers.py",), ("stragglers.py --rounds 1 --share 0.1",), 7),
    "bucket": Plan(("remote.py",), ("remote.py --samples 100 --rounds 1",), 4),
    "line": Plan(("remote_line.py",), ("remote_line.py --samples 200 --rounds 1 --rate 1e10",), 15),
    "cache": Plan(("remote_cache.py --rounds 15",), ("remote_cache.py --samples 100 --rounds 1",), 2),
    "databases": Plan(("sql.py",), ("sql.py sqlite --rows 4096 --rounds 1",), 2),
    "kafka": Plan(("live.py",), ("live.py rates --messages 20000 --rounds 1",), 5),
    "journal": Plan(
        ("journal.py --only tcp rabbitmq disk",),
        ("journal.py --only tcp disk --messages 2000 --rounds 1",),
        5,
    ),
    "remote-workers": Plan(
        ("remote_workers.py --batches 20 --rounds 5",),
        ("remote_workers.py --batches 2 --rounds 1 --workers 1",),
        5,
    ),
    "faults": Plan(("faults.py",), ("faults.py --batches 2 --rounds 2",), 3),
    "auto-backend": Plan(
        ("auto_backend.py",), ("auto_backend.py --rounds 1 --starts 1 --share 0.02 --only scalars",), 8
    ),
    "auto": Plan(("auto.py",), ("auto.py --seconds 0.2 --cold 2",), 10),
}


@dataclass(frozen=True)
class Places:
    """Where results, the page and its pictures are."""

    results: Path
    page: Path
    images: Path

    def result(self, name: str) -> Path:
        """The figures of a table."""
        return self.results / f"{name}.json"

    def picture(self, name: str) -> Path:
        """The picture of a table."""
        return self.images / f"bench-{name}.svg"


IN_PLACE = Places(SCRIPTS / "results", ROOT / "docs" / "benchmarks.md", ROOT / "docs" / "images")


def beside(folder: Path) -> Places:
    """Returns places in another folder, with a copy of the page."""
    places = Places(folder / "results", folder / "benchmarks.md", folder / "images")
    folder.mkdir(parents=True, exist_ok=True)
    if not places.page.exists():
        shutil.copyfile(IN_PLACE.page, places.page)
    return places


def say(line: str) -> None:
    """Prints a line of progress."""
    print(line, file=sys.stderr, flush=True)


def run(name: str, *, quick: bool) -> dict[str, Any]:
    """Runs the scripts of a table and returns its result. Raises `subprocess.CalledProcessError`."""
    plan = PLANS[name]
    began, found = time.perf_counter(), []
    for command in plan.quick if quick else plan.commands:
        with tempfile.TemporaryDirectory() as folder:
            path = Path(folder) / "result.json"
            script, *arguments = shlex.split(command)
            line = [sys.executable, f"benchmarks/{script}", *arguments, "--json", str(path)]
            say(f"  python benchmarks/{command}")
            environment = os.environ | {"PYTHONUNBUFFERED": "1"}
            subprocess.run(line, cwd=ROOT, stdout=sys.stderr, env=environment, check=True)
            found.append(json.loads(path.read_text()))
    return joined(name, found) | {"quick": quick, "seconds": round(time.perf_counter() - began)}


def joined(name: str, found: list[dict[str, Any]]) -> dict[str, Any]:
    """Returns one result of those of several scripts: tables of one title and unit become one."""
    tables: dict[tuple[str, str], Table] = {}
    for one in (Table.from_json(table) for result in found for table in result["tables"]):
        known = tables.setdefault((one.title, one.unit), one)
        if known is not one:
            known.rows += one.rows
            known.notes += [note for note in one.notes if note not in known.notes]
    versions: dict[str, str] = {}
    for result in found:
        versions |= result["versions"]
    return {
        "name": name,
        "commands": [result["command"] for result in found],
        "machine": found[0]["machine"],
        "versions": versions,
        "tables": [table.as_json() for table in tables.values()],
    }


def render(name: str, places: Places) -> bool:
    """Makes the section and the picture of a table from its figures. Returns whether there are any."""
    path = places.result(name)
    if not path.exists():
        return False
    result, picture = json.loads(path.read_text()), places.picture(name)
    drawn = pictures.draw(result, picture)
    link = str(picture.relative_to(places.page.parent)) if drawn else None
    sections.put(places.page, name, sections.section(result, link))
    return True


def expected(name: str, places: Places) -> str:
    """Returns about how long a table takes, in words: as long as last time, if it is known."""
    path = places.result(name)
    last = json.loads(path.read_text()) if path.exists() else {}
    minutes = last["seconds"] / 60 if last and not last["quick"] else PLANS[name].minutes
    return f"about {minutes:.0f} minutes" if minutes >= 1.5 else "about a minute"


def make(name: str, places: Places, *, quick: bool) -> bool:
    """Measures a table, keeps its figures and renders it. Returns whether that went well."""
    if PLANS[name].missing:
        say(f"{name}: left out, benchmarks/{PLANS[name].missing} is not there")
        return True
    say(f"{name}: {'seconds' if quick else expected(name, places)}, from {time.strftime('%H:%M')}")
    try:
        result = run(name, quick=quick)
    except subprocess.CalledProcessError as error:
        say(f"{name}: FAILED with status {error.returncode}; its table stays as it was")
        return False
    places.results.mkdir(parents=True, exist_ok=True)
    places.result(name).write_text(json.dumps(result, indent=1) + "\n")
    render(name, places)
    say(f"{name}: done in {result['seconds']} s")
    return True


def show_list(places: Places) -> None:
    """Prints what there is."""
    for name, plan in PLANS.items():
        state = "measured" if places.result(name).exists() else "no figures yet"
        state = f"{plan.missing} is not there" if plan.missing else state
        print(f"{name:<13} {expected(name, places):<17} {state:<22} {'; '.join(plan.commands)}")


def chosen(parser: argparse.ArgumentParser, given: argparse.Namespace) -> list[str]:
    """Returns the names on the command line; an error ends the process."""
    if unknown := [name for name in given.names if name not in PLANS]:
        parser.error(f"no table {unknown[0]}; there are {', '.join(PLANS)}")
    if bool(given.names) == given.all:
        parser.error("say which tables, or --all")
    if given.quick and not given.into:
        parser.error("figures of small sizes are none: --quick goes with --into FOLDER")
    return list(PLANS) if given.all else list(dict.fromkeys(given.names))


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("names", nargs="*", metavar="NAME", help=", ".join(PLANS))
    parser.add_argument("--all", action="store_true", help="all tables")
    parser.add_argument("--list", action="store_true", help="what there is")
    parser.add_argument("--quick", action="store_true", help="small sizes, to try the commands")
    parser.add_argument("--into", type=Path, metavar="FOLDER", help="results, page and pictures go there, not to docs/")
    parser.add_argument("--render-only", action="store_true", help="only make text and pictures, from kept figures")
    given = parser.parse_args()
    if given.list:
        show_list(IN_PLACE)
        return 0
    names = chosen(parser, given)
    places = beside(given.into) if given.into else IN_PLACE
    if homeless := [name for name in names if name not in sections.names_in(places.page.read_text())]:
        parser.error(f"{places.page} has no markers for {', '.join(homeless)}")
    if given.render_only:
        without = [name for name in names if not render(name, places)]
        for name in without:
            say(f"{name}: no figures in {places.result(name)}; its section stays as it is")
        return 0
    went_well = [make(name, places, quick=given.quick) for name in names]
    return 0 if all(went_well) else 1


if __name__ == "__main__":
    sys.exit(main())
