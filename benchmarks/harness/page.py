"""The page docs/benchmarks/figures.md: each benchmark's figures, section and picture, made anew by one command.

    python -m benchmarks page transport tar         measures these; --all: all that have a section
    python -m benchmarks page --all --render-only   text and pictures from the figures that are there, nothing is run
    python -m benchmarks page order --quick --into FOLDER   small sizes, to try it; docs/ stays as it is

Each benchmark is run in a process of its own, with its output on stderr. Its figures are kept in
benchmarks/results/NAME.json; the section between `<!-- begin NAME -->` and `<!-- end NAME -->` and the picture
docs/images/bench-NAME.svg are made from them. A benchmark that fails leaves its section as it was.
"""

from __future__ import annotations

import argparse
import json
import os
import shutil
import subprocess
import sys
import tempfile
import time
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from benchmarks.catalog import BENCHMARKS
from benchmarks.harness import pictures, sections

ROOT = Path(__file__).parents[2]


@dataclass(frozen=True)
class Places:
    """Where results, the page and its pictures are."""

    results: Path
    page: Path
    images: Path

    def result(self, name: str) -> Path:
        """The figures of a benchmark."""
        return self.results / f"{name}.json"

    def picture(self, name: str) -> Path:
        """The picture of a benchmark."""
        return self.images / f"bench-{name}.svg"

    def link(self, name: str) -> str:
        """The address of a benchmark's picture, as seen from the page."""
        return os.path.relpath(self.picture(name), self.page.parent)

    def names(self) -> list[str]:
        """Returns the benchmarks that have a section, in the order in which they are measured."""
        on_page = sections.names_in(self.page.read_text())
        return [name for name in BENCHMARKS if name in on_page]


IN_PLACE = Places(
    ROOT / "benchmarks" / "results", ROOT / "docs" / "benchmarks" / "figures.md", ROOT / "docs" / "images"
)


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


def render(name: str, places: Places) -> bool:
    """Makes the section and the picture of a benchmark from its figures. Returns whether there are any."""
    path = places.result(name)
    if not path.exists():
        return False
    result, picture = json.loads(path.read_text()), places.picture(name)
    drawn = pictures.draw(result, picture)
    link = places.link(name) if drawn else None
    sections.put(places.page, name, sections.section(result, link))
    return True


def expected(name: str, places: Places) -> str:
    """Returns in words how long a benchmark took when its figures were kept."""
    path = places.result(name)
    minutes = json.loads(path.read_text())["seconds"] / 60 if path.exists() else 0
    return f"about {minutes:.0f} minutes" if minutes >= 1.5 else "about a minute" if minutes else ""


def make(name: str, places: Places, options: Sequence[str]) -> bool:
    """Measures, keeps the figures and renders them. Returns whether that went well."""
    say(f"{name}: {'seconds' if options else expected(name, places)}, from {time.strftime('%H:%M')}")
    began = time.perf_counter()
    with tempfile.TemporaryDirectory() as folder:
        figures = Path(folder) / "figures.json"
        command = [sys.executable, "-m", "benchmarks", name, *options, "--json", str(figures)]
        ended = subprocess.run(command, cwd=ROOT, stdout=sys.stderr, check=False)
        if ended.returncode:
            say(f"{name}: FAILED with status {ended.returncode}; its section stays as it was")
            return False
        places.results.mkdir(parents=True, exist_ok=True)
        shutil.copyfile(figures, places.result(name))
    render(name, places)
    say(f"{name}: done in {time.perf_counter() - began:.0f} s")
    return True


def chosen(parser: argparse.ArgumentParser, given: argparse.Namespace, places: Places) -> list[str]:
    """Returns the names on the command line; an error ends the process."""
    names = places.names()
    if unknown := [name for name in given.names if name not in names]:
        parser.error(f"{places.page} has no section {unknown[0]}; there are {', '.join(names)}")
    if bool(given.names) == given.all:
        parser.error("say which sections, or --all")
    if given.quick and not given.into:
        parser.error("figures of small sizes are none: --quick goes with --into FOLDER")
    return names if given.all else list(dict.fromkeys(given.names))


def main(arguments: Sequence[str]) -> int:
    """Makes what the command line asks for. Returns the status of the process."""
    parser = argparse.ArgumentParser(
        prog="python -m benchmarks page", description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("names", nargs="*", metavar="NAME")
    parser.add_argument("--all", action="store_true", help="all that have a section")
    parser.add_argument("--quick", action="store_true", help="small sizes, to try the commands")
    parser.add_argument("--into", type=Path, metavar="FOLDER", help="results, page and pictures go there, not to docs/")
    parser.add_argument("--render-only", action="store_true", help="only make text and pictures, from kept figures")
    given = parser.parse_args(arguments)
    places = beside(given.into) if given.into else IN_PLACE
    names = chosen(parser, given, places)
    if given.render_only:
        without = [name for name in names if not render(name, places)]
        for name in without:
            say(f"{name}: no figures in {places.result(name)}; its section stays as it is")
        return 0
    went_well = [make(name, places, ["--quick"] if given.quick else []) for name in names]
    return 0 if all(went_well) else 1
