"""Names of files as UTF-8 on the disk, whatever the locale says: in a locale of ASCII, Python's own way is another."""

from __future__ import annotations

import os


def on_disk(text: str) -> str:
    """Returns the name by which this process opens a file whose name is `text` in UTF-8."""
    return os.fsdecode(text.encode("utf-8", "surrogateescape"))


def as_text(name: str) -> str:
    """Returns the text, in UTF-8, of a file's name as this process sees it: the opposite of `on_disk`."""
    return os.fsencode(name).decode("utf-8", "surrogateescape")
