"""Links that lead out of docs/."""

from __future__ import annotations

import re
from pathlib import Path

ROOT = Path(__file__).parents[1]
REPOSITORY = "https://github.com/headrace/headrace"
LINK = re.compile(r"\]\((?!https?://|mailto:|#)([^)\s#]+)(#[^)\s]*)?\)")


def absolute(text: str, folder: Path) -> str:
    """Returns a page with links to the repository in place of those that lead out of docs/.

    folder: where the page lies, from which its links are seen.
    """

    def address(match: re.Match[str]) -> str:
        target = (folder / match[1]).resolve()
        if folder.is_relative_to(ROOT / "docs") and target.is_relative_to(ROOT / "docs") and target.suffix:
            return match[0]
        kind = "tree" if target.is_dir() else "blob"
        return f"]({REPOSITORY}/{kind}/main/{target.relative_to(ROOT)}{match[2] or ''})"

    return LINK.sub(address, text)
