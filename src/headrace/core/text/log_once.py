"""Lines of the log `headrace` that are said once in a process."""

from __future__ import annotations

import logging

LOGGER = logging.getLogger("headrace")

_said: set[str] = set()


def warn_once(about: str, text: str) -> None:
    """Says something in the log, unless something about the same was said before."""
    if about not in _said:
        _said.add(about)
        LOGGER.warning("headrace: %s", text)
