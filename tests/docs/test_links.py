"""Links in the documentation lead somewhere, also from the page of the package, which has no files beside it."""

from __future__ import annotations

import re
import tomllib
from pathlib import Path

import pytest

from .pages import ROOT

PAGES = [ROOT / "README.md", ROOT / "CONTRIBUTING.md", *sorted((ROOT / "docs").rglob("*.md"))]
LINK = re.compile(r"\]\(([^)\s]+)\)")
FENCED = re.compile(r"^```.*?^```$", re.DOTALL | re.MULTILINE)
FULL = re.compile(r"https?://|mailto:")


def links_of(text: str) -> list[str]:
    return LINK.findall(FENCED.sub("", text))


def anchors_of(page: Path) -> set[str]:
    """What the headings of a page can be linked by."""
    headings = re.findall(r"^#+ +(.+)$", FENCED.sub("", page.read_text()), re.MULTILINE)
    return {re.sub(r"[^\w\- ]", "", heading.lower()).strip().replace(" ", "-") for heading in headings}


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.stem)
def test_links_of_a_page_lead_to_files_and_headings_that_exist(page: Path) -> None:
    broken = []
    for link in links_of(page.read_text()):
        if FULL.match(link):
            continue
        path, _, anchor = link.partition("#")
        target = (page.parent / path).resolve() if path else page
        if not target.exists() or (anchor and anchor not in anchors_of(target)):
            broken.append(link)
    assert broken == []


def test_pages_that_the_code_names_exist() -> None:
    """In help texts, error messages and docstrings."""
    missing = []
    for folder in ("src", "benchmarks", "examples", "tests"):
        for path in sorted((ROOT / folder).rglob("*.py")):
            named = set(re.findall(r"docs/[\w/-]+\.md", path.read_text()))
            missing += [(path.name, name) for name in sorted(named) if not (ROOT / name).exists()]
    assert missing == []


def test_the_page_of_the_package_has_no_relative_link() -> None:
    settings = tomllib.loads((ROOT / "pyproject.toml").read_text())
    hook = settings["tool"]["hatch"]["metadata"]["hooks"]["fancy-pypi-readme"]
    (fragment,) = hook["fragments"]
    text = (ROOT / fragment["path"]).read_text()
    relative = [link for link in links_of(text) if not FULL.match(link)]
    for substitution in hook["substitutions"]:
        text = re.sub(substitution["pattern"], substitution["replacement"], text)
    links = links_of(text)
    assert len(relative) > 10
    assert [link for link in links if not FULL.match(link)] == []
    made = {link for link in links if link.startswith("https://raw.") or "/blob/main/" in link}
    assert {link.split("/main/")[1] for link in made} == set(relative)


def test_the_package_says_where_its_project_is() -> None:
    urls = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]["urls"]
    assert {"Homepage", "Documentation", "Changelog", "Issues"} <= set(urls)
    assert all(url.startswith("https://github.com/headrace/headrace") for url in urls.values())
