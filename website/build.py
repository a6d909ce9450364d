"""One build of the site: its pages are put together in a folder aside, and take their place when all went well.

    site/index.html         leads to the newest version
    site/versions.json      all versions, for the menu in the head of each page (as mike, MkDocs' tool, writes it)
    site/latest/...         leads to the same page of the newest version
    site/0.1.0/...          a version; a host of plain files can serve several

Zensical renders what mkdocs.yml describes, in a copy of docs/ that also holds the pages which `generated` makes.
"""

from __future__ import annotations

import shutil
import subprocess
import sys
import tempfile
from pathlib import Path

from headrace.version import __version__
from website import generated, versions
from website.links import ROOT, absolute


def build(into: Path) -> str:
    """Builds the site of this version into a folder beside other versions. Returns what went wrong, or nothing.

    A version that is there already is replaced when the new one is complete.
    """
    into.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(prefix=".building-", dir=into) as folder:
        work = Path(folder)
        stage(work)
        command = [sys.executable, "-m", "zensical", "build", "--strict", "--config-file", str(work / "mkdocs.yml")]
        done = subprocess.run(command, cwd=work, capture_output=True, text=True, check=False)
        said = done.stdout + done.stderr
        if done.returncode or "Warning" in said or not (work / "site" / "index.html").exists():
            return f"zensical ended with status {done.returncode}:\n{said}"

        (work / "site" / "404.html").unlink()  # its links hold in the root of a host only
        versions.put(work / "site", into, __version__)
    return ""


def stage(work: Path) -> None:
    """Puts the sources of the site into a folder: the pages, those that are made, the theme, and the package."""
    pages = work / "docs"
    shutil.copytree(ROOT / "docs", pages, ignore=shutil.ignore_patterns("*.py", "__pycache__"))
    shutil.copytree(ROOT / "website" / "theme", work / "website" / "theme")
    shutil.copyfile(ROOT / "mkdocs.yml", work / "mkdocs.yml")
    (work / "src").symlink_to(ROOT / "src")
    for page in pages.rglob("*.md"):
        page.write_text(absolute(page.read_text(), ROOT / "docs" / page.relative_to(pages).parent))
    for name, text in generated.pages().items():
        (pages / name).parent.mkdir(parents=True, exist_ok=True)
        (pages / name).write_text(text)
