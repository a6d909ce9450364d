"""Texts of others on their way to a terminal or a log: names of files and exceptions may hold control characters."""

from __future__ import annotations

import logging

from headrace.core.text.secrets import hide_secrets

KEPT = "\n\t"


def printable(text: str, kept: str = KEPT) -> str:
    r"""Returns a text with what is not printable as \x1b, \u202e or \udcff, so that it does nothing to a terminal.

    kept: characters that stay as they are.
    """
    # Nearly every text is, and one call is much faster than a look at each character.
    if text.isprintable():
        return text

    shown = []
    for char in text:
        if char.isprintable() or char in kept:
            shown.append(char)
        else:
            shown.append(char.encode("unicode_escape").decode())

    return "".join(shown)


class PrintableFilter(logging.Filter):
    """Makes the messages of a logger printable, and hides the secrets of URLs, whatever handler writes them."""

    def filter(self, record: logging.LogRecord) -> bool:
        """See `logging.Filter.filter`: lets every record through."""
        # The arguments are joined in first: the text that is not printable is usually in them. Records without such a
        # text stay as they are, as collectors of logs group them by their unjoined message.
        message = record.getMessage()
        shown = hide_secrets(printable(message))
        if shown != message:
            record.msg = shown
            record.args = None

        return True


def guard_log() -> None:
    """Makes what the logger `headrace` says printable; calling it again changes nothing."""
    logger = logging.getLogger("headrace")
    if not any(isinstance(present, PrintableFilter) for present in logger.filters):
        logger.addFilter(PrintableFilter())
