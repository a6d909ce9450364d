"""The pages that are made for each build: the command line, the changelog, and how to contribute."""

from __future__ import annotations

import re
import subprocess
import sys

from website.links import ROOT, absolute

INTRODUCTION = """# Command line

`headrace COMMAND --help` prints the same. Every command ends with status 0 if all went well, with 1 if it found a
problem, and with 2 if it was called wrongly. `headrace run` ends with the status of your script.
"""


PAGES = {
    "reference/cli.md": "src/headrace/cli/app.py",
    "about/changelog.md": "CHANGELOG.md",
    "about/contributing.md": "CONTRIBUTING.md",
}
"""The pages by their paths within docs/, and the files that they are made from."""


def pages() -> dict[str, str]:
    """Returns the text of each page. It begins with the file that it is made from, to which website/theme links."""
    texts = {}
    for page, source in PAGES.items():
        path = ROOT / source
        text = absolute(path.read_text(), ROOT) if path.suffix == ".md" else command_line()
        texts[page] = f"---\nsource: {source}\n---\n\n{text}"
    return texts


def command_line() -> str:
    """Returns what typer tells of the commands, with a whole sentence about each in the list of all."""
    command = [sys.executable, "-m", "typer", "headrace.cli.app", "utils", "docs", "--name", "headrace"]
    text = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=True).stdout
    sentences = dict(re.findall(r"^#+ `headrace (.+)`\n\n(.+?\.)(?:\s|$)", text, re.MULTILINE))

    def item(match: re.Match[str]) -> str:
        name = next(full for full in sentences if full.split()[-1] == match[1])
        return f"* [`{match[1]}`](#headrace-{name.replace(' ', '-')}): {sentences[name]}"

    text = re.sub(r"^\* `([a-z]+)`: .+$", item, text, flags=re.MULTILINE)
    return text.replace("# `headrace`\n", INTRODUCTION, 1)
