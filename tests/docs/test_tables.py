"""Tables of the documentation say what the code and other pages say."""

from __future__ import annotations

import re
import tomllib

from .pages import DOCS, ROOT

VARIABLE = re.compile(
    r"\"((?:AWS|AZURE|GOOGLE|HEADRACE|RAY|SLURM|OMPI|LOCAL|MALLOC)_[A-Z0-9_]+|RANK|WORLD_SIZE|TMPDIR|TERM)\""
)


def rows_of(text: str) -> list[list[str]]:
    lines = [line for line in text.splitlines() if line.startswith("| ")]
    return [[cell.strip() for cell in line.strip("|").split(" | ")] for line in lines if not line.startswith("| ---")]


def numbers_of(version: str) -> tuple[int, ...]:
    """Returns the three numbers of a version, of which the last may be left out: 2.6 is 2.6.0, and so is 2.6.0+cpu."""
    numbers = [int(number) for number in re.findall(r"\d+", version.partition("+")[0])]
    return tuple([*numbers, 0, 0][:3])


def versions_of_frameworks() -> dict[str, tuple[str, str]]:
    """Returns the lowest and the newest version of each framework, as the page of frameworks names them."""
    section = (
        (DOCS / "howto" / "frameworks.md").read_text().split("| package | lowest | newest |\n")[1].split("\n\n")[0]
    )
    return {package.strip("`"): (lowest, newest) for package, lowest, newest in rows_of(section)}


def test_every_extra_is_listed() -> None:
    extras = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]["optional-dependencies"]
    section = (DOCS / "start" / "install.md").read_text().split("## Extras")[1].split("\n## ")[0]
    listed = [name for row in rows_of(section)[1:] for name in re.findall(r"`([\w-]+)`", row[0])]
    assert sorted(listed) == sorted(extras)


def test_every_environment_variable_is_listed() -> None:
    listed = set(re.findall(r"`([A-Z][A-Z0-9_]+)`", (DOCS / "reference" / "environment.md").read_text()))
    read = {name for path in (ROOT / "src").rglob("*.py") for name in VARIABLE.findall(path.read_text())}
    assert len(read) > 40
    assert read - listed == set()


def test_the_summary_of_the_benchmarks_has_the_figures_of_their_sections() -> None:
    figures = (DOCS / "benchmarks" / "figures.md").read_text()
    sections = {part.partition("\n")[0]: part for part in re.split(r"^## ", figures, flags=re.MULTILINE)[1:]}
    by_anchor = {title.lower().replace(" ", "-"): text for title, text in sections.items()}
    rows = rows_of((DOCS / "benchmarks" / "index.md").read_text())[1:]
    assert len(rows) == 6
    for row in rows:
        what, ours, others, link = row
        (anchor,) = re.findall(r"\(figures\.md#(.+)\)", link)
        there = set(re.findall(r"[\d.,]*\d", by_anchor[anchor]))
        assert set(re.findall(r"[\d.,]*\d", f"{ours} {others}")) <= there, what


def test_the_lowest_versions_of_frameworks_are_those_of_the_project() -> None:
    requirements = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]["optional-dependencies"]["clients"]
    requirements += tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]["optional-dependencies"]["ray"]
    lowest = dict(one.split(">=") for one in requirements if ">=" in one)
    rows = versions_of_frameworks()
    assert len(rows) == 12
    installed_apart = {"torchtitan", "litdata"}  # the Makefile names their versions
    for package, (tried, _) in rows.items():
        if package not in installed_apart:
            assert numbers_of(tried) == numbers_of(lowest[package]), package
    makefile = (ROOT / "Makefile").read_text()
    for package in installed_apart:
        assert f"{package}=={rows[package][0]}" in makefile
