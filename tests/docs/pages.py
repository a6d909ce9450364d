"""The pages of the documentation, and the blocks of code in them."""

from __future__ import annotations

import re
from dataclasses import dataclass
from pathlib import Path

ROOT = Path(__file__).parents[2]
PAGES = [ROOT / "README.md", *sorted((ROOT / "docs").glob("*.md"))]
BLOCK = re.compile(r"(?P<before>[^\n]*)\n+```python\n(?P<code>.*?)^```$", re.DOTALL | re.MULTILINE)
NOT_RUN = re.compile(r"<!-- not run: (?P<reason>.+) -->")


@dataclass(frozen=True)
class Block:
    """A block of Python; `reason` says why it is not run, in the page itself."""

    line: int
    code: str
    reason: str | None


def blocks_of(page: Path) -> list[Block]:
    text = page.read_text()
    found = []
    for match in BLOCK.finditer("\n" + text):
        reason = NOT_RUN.search(match["before"])
        line = text.count("\n", 0, max(match.start("code") - 1, 0)) + 1
        found.append(Block(line, match["code"], reason["reason"] if reason else None))
    return found


def program_of(page: Path) -> str:
    """All blocks of a page that are run, one after the other, on the lines that they have in the page."""
    lines = [""] * len(page.read_text().splitlines())
    for block in blocks_of(page):
        if block.reason is None:
            code = block.code.splitlines()
            lines[block.line - 1 : block.line - 1 + len(code)] = code
    return "\n".join(lines) + "\n"
