"""A small terminal: runs a command on a pseudo-terminal, and keeps the lines that a person would see."""

from __future__ import annotations

import fcntl
import os
import re
import struct
import subprocess
import termios
from collections.abc import Mapping, Sequence
from typing import IO

CONTROL = re.compile(r"\x1b\[([0-9;?]*)([A-Za-z])|\x1b([78D])|([\r\n\b\t])|([^\x1b\r\n\b\t]+)", re.DOTALL)


class Screen:
    """What a terminal shows after what was written to it, as far as the control sequences in CONTROL go."""

    def __init__(self, columns: int, lines: int) -> None:
        self.columns, self.lines = columns, lines
        self.rows = [""] * lines
        self.above: list[str] = []
        """Rows that have scrolled away at the top."""
        self.row = self.column = 0
        self._saved = (0, 0)
        self.bottom = lines - 1
        """The last row of the part that scrolls."""

    @property
    def seen(self) -> list[str]:
        """All rows, those that scrolled away first, without blanks at their ends."""
        return [row.rstrip() for row in (*self.above, *self.rows)]

    def write(self, text: str) -> None:
        """Does what the text says; `AssertionError` at a sequence that is not known."""
        end = 0
        for match in CONTROL.finditer(text):
            assert match.start() == end, text[end : end + 20]
            end = match.end()
            arguments, command, plain, single, words = match.groups()
            if command:
                self._command(command, arguments)
            elif plain:
                self._plain(plain)
            elif single:
                self._single(single)
            else:
                self._words(words)
        assert end == len(text), text[end : end + 20]

    def _command(self, command: str, arguments: str) -> None:
        numbers = [int(one) for one in arguments.split(";") if one.isdecimal()]
        if command == "r":
            assert not numbers or numbers[0] == 1
            self.bottom = (numbers[1] if numbers else self.lines) - 1
            self.row = self.column = 0
        elif command == "H":
            self.row, self.column = numbers[0] - 1, numbers[1] - 1
        elif command == "A":
            self.row = max(0, self.row - numbers[0])
        elif command == "K":
            assert numbers == [2]
            self.rows[self.row] = ""
        elif command == "J":
            assert not numbers
            self.rows[self.row] = self.rows[self.row][: self.column]
            self.rows[self.row + 1 :] = [""] * (self.lines - self.row - 1)
        else:
            assert command in "mhl", command
        assert 0 <= self.row < self.lines

    def _plain(self, command: str) -> None:
        if command == "7":
            self._saved = self.row, self.column
        elif command == "8":
            self.row, self.column = self._saved
        else:
            self._down()

    def _single(self, sign: str) -> None:
        if sign == "\n":
            self._down()
        elif sign == "\r":
            self.column = 0
        elif sign == "\b":
            self.column = max(0, self.column - 1)
        else:
            self.column = min(self.column // 8 * 8 + 8, self.columns - 1)

    def _down(self) -> None:
        if self.row == self.bottom:
            self.above.append(self.rows.pop(0))
            self.rows.insert(self.bottom, "")
        else:
            self.row = min(self.row + 1, self.lines - 1)

    def _words(self, words: str) -> None:
        for sign in words:
            if self.column == self.columns:
                self.column = 0
                self._down()
            row = self.rows[self.row].ljust(self.column)
            self.rows[self.row] = row[: self.column] + sign + row[self.column + 1 :]
            self.column += 1


def run_on_terminal(
    command: Sequence[str],
    *,
    columns: int = 80,
    lines: int = 24,
    environment: Mapping[str, str] | None = None,
    errors: IO[bytes] | None = None,
) -> tuple[int, str]:
    """Runs a command on a terminal of its own; returns its exit status and all that was written there.

    errors: where its standard error goes; None: to the terminal, too.
    """
    ours, theirs = os.openpty()
    fcntl.ioctl(theirs, termios.TIOCSWINSZ, struct.pack("HHHH", lines, columns, 0, 0))
    known = {**os.environ, "TERM": "xterm-256color", **(environment or {})}
    process = subprocess.Popen(
        command, stdin=theirs, stdout=theirs, stderr=errors or theirs, env=known, start_new_session=True
    )
    os.close(theirs)
    pieces = []
    try:
        while piece := _read(ours):
            pieces.append(piece)
        status = process.wait()
    finally:
        process.kill()
        process.wait()
        os.close(ours)
    return status, b"".join(pieces).decode()


def _read(descriptor: int) -> bytes:
    """Returns what is there; b"" when nobody has the terminal any more."""
    try:
        return os.read(descriptor, 1 << 16)
    except OSError:
        return b""
