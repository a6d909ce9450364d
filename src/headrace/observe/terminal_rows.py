"""Rows at the bottom of a terminal that stay where they are, while whatever anybody prints scrolls above them.

The terminal is told to scroll its upper part only (DECSTBM), as apt does for its progress bar. Nothing is put in the
place of `sys.stdout`, so that prints of the script, of its workers and of libraries in C come out as they are.
"""

from __future__ import annotations

import os
from collections.abc import Sequence
from typing import IO

SAVE, RESTORE = "\x1b7", "\x1b8"
"""Of the place of the cursor."""
DOWN = "\x1bD"
"""One row, in the same column; the screen scrolls where there is none below."""
SCROLL_ALL = "\x1b[r"
"""Ends the division of the screen; the cursor goes to the top."""
ERASE_BELOW, ERASE_ROW = "\x1b[J", "\x1b[2K"


class PinnedRows:
    """The lowest rows of the terminal that a file is. Each change of them is a single write."""

    def __init__(self, file: IO[str]) -> None:
        self._file = file
        self._taken: tuple[int, os.terminal_size] | None = None

    def size(self) -> os.terminal_size:
        """Returns the columns and lines of the terminal; where it does not tell, 80 and 24."""
        size = os.get_terminal_size(self._file.fileno())
        return os.terminal_size((size.columns or 80, size.lines or 24))

    def show(self, lines: Sequence[str], size: os.terminal_size) -> None:
        """Shows these lines: fewer than the terminal of this size has, and none wider. `OSError`: it has gone."""
        rows = len(lines)
        text = ""
        if self._taken != (rows, size):
            # Going down first scrolls what stands in the lowest rows out of their way. Setting the division moves the
            # cursor to the top, so its place is saved around that.
            text = self._release() + DOWN * rows + f"\x1b[{rows}A{SAVE}\x1b[1;{size.lines - rows}r{RESTORE}"
            self._taken = rows, size

        # All of it is one write: what another thread or process prints comes before or behind, and never while the
        # cursor is in the pinned rows.
        text += SAVE
        for row, line in enumerate(lines, size.lines - rows + 1):
            text += f"\x1b[{row};1H{ERASE_ROW}{line}"

        self._write(text + RESTORE)

    def remove(self) -> None:
        """Leaves the terminal as if nothing had been shown; twice is once."""
        if self._taken is not None:
            text = self._release()
            self._taken = None
            self._write(text)

    def _release(self) -> str:
        if self._taken is not None:
            return f"{SAVE}{SCROLL_ALL}{RESTORE}{ERASE_BELOW}"
        return ""

    def _write(self, text: str) -> None:
        self._file.write(text)
        self._file.flush()
