"""Text as HTML takes it."""

from __future__ import annotations

import html
import re


def text(value: object) -> str:
    """Returns it as text of HTML, also fit for attributes in double quotes; what UTF-8 cannot hold becomes "?"."""
    return html.escape(str(value).encode("utf-8", "replace").decode())


def prose(value: str) -> str:
    """Returns it as HTML: what stands between `backticks` is code."""
    return re.sub(r"`([^`]+)`", r"<code>\1</code>", text(value))


def short(words: str) -> str:
    """Returns a figure without the zeros at its end, as the labels of an axis have it: "2 s" for "2.00 s"."""
    return re.sub(r"(?<=\d)\.0+(?= )|(?<=\.\d)0(?= )", "", words)
