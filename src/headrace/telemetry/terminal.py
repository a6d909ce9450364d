"""The consoles that everything of headrace prints with, and text of what they would print."""

from __future__ import annotations

import io
import os
from collections.abc import Callable
from typing import Any

from rich.console import Console
from rich.text import Text

from headrace.core.text.printable import printable


class Terminal(Console):
    """A console of rich that writes control characters in strings as escapes, in lines and in cells of tables.

    `rich.text.Text` and what `out` gets is printed as it is. It writes to its file in notebooks too, where rich's own
    console displays what it is to print and writes nothing.
    """

    def __init__(self, **options: Any) -> None:
        """options: those of `rich.console.Console`."""
        super().__init__(**{"force_jupyter": False, **options})

    def render_str(self, text: str, **options: Any) -> Text:
        """Returns a text with its markup rendered, as `rich.console.Console.render_str` does."""
        return super().render_str(printable(text), **options)

    def on_broken_pipe(self) -> None:
        """Goes on without printing where nobody reads any more, as behind `| head`: there may be files to write."""
        self.quiet = True
        nowhere = os.open(os.devnull, os.O_WRONLY)
        os.dup2(nowhere, self.file.fileno())
        os.close(nowhere)


def plain_text(show: Callable[[Console], object], width: int) -> str:
    """Returns what `show` prints on the console that it is given, without colours, in lines of `width` columns."""
    page = io.StringIO()
    show(Console(file=page, width=width, color_system=None, force_terminal=False, force_jupyter=False))
    return page.getvalue()
