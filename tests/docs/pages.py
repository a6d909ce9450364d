"""The pages of the documentation, and the blocks of code in them."""

from __future__ import annotations

import re
from dataclasses import dataclass
from pathlib import Path

ROOT = Path(__file__).parents[2]
DOCS = ROOT / "docs"
PAGES = [ROOT / "README.md", *sorted(DOCS.rglob("*.md"))]
BLOCK = re.compile(r"(?P<before>[^\n]*)\n+```python\n(?P<code>.*?)^```$", re.DOTALL | re.MULTILINE)
NOT_RUN = re.compile(r"<!-- not run: (?P<reason>.+) -->")
FILE = re.compile(r"<!-- file: (?P<name>\S+) -->")
NEEDS = re.compile(r"<!-- needs: (?P<module>\S+) -->")


@dataclass(frozen=True)
class Block:
    """A block of Python. The page itself says why it is not run, as which file the other blocks find it, and which
    module it needs that `make install` does not bring: such blocks run with the frameworks.
    """

    page: Path
    line: int
    code: str
    reason: str | None
    file: str | None
    needs: str | None

    @property
    def name(self) -> str:
        """Where the block is, in words."""
        return f"{self.page.relative_to(ROOT)}:{self.line}"

    def program(self) -> str:
        """Returns the block on the lines that it has in the page, so that a traceback names them."""
        return "\n" * (self.line - 1) + self.code


def blocks_of(page: Path) -> list[Block]:
    """Returns all blocks of a page, in its order."""
    text = page.read_text()
    found = []
    for match in BLOCK.finditer("\n" + text):
        reason = NOT_RUN.search(match["before"])
        file = FILE.search(match["before"])
        line = text.count("\n", 0, max(match.start("code") - 1, 0)) + 1
        needs = NEEDS.search(match["before"])
        found.append(
            Block(
                page,
                line,
                match["code"],
                reason=reason["reason"] if reason else None,
                file=file["name"] if file else None,
                needs=needs["module"] if needs else None,
            )
        )
    return found
