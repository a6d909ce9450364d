"""The console that everything of headrace prints with."""

from __future__ import annotations

from typing import Any

from rich.console import Console
from rich.text import Text

from headrace.core.printable import printable


class Terminal(Console):
    """A console of rich that writes control characters in strings as escapes, in lines and in cells of tables.

    `rich.text.Text` and what `out` gets is printed as it is.
    """

    def render_str(self, text: str, **options: Any) -> Text:
        """See `rich.console.Console.render_str`."""
        return super().render_str(printable(text), **options)
