"""What others named or wrote does nothing to a terminal: control characters are printed as escapes."""

from __future__ import annotations

import io
import logging
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from rich.table import Table

import headrace
from headrace.core.errors import FormatError, explain
from headrace.core.text.printable import printable
from headrace.telemetry.terminal import Terminal
from tests import programs

EVIL = "a\x1b]0;owned\x07\x1b[31mred\u202e\x9b2J"
SCRIPT = """
import torch
from torch.utils.data import DataLoader, Dataset

class Data(Dataset):
    def __len__(self): return 2
    def __getitem__(self, key): raise ValueError({evil!r})

for _ in DataLoader(Data(), batch_size=1):
    pass
"""


def is_harmless(text: str) -> bool:
    return all(char.isprintable() or char in "\n\t" for char in text)


def run(*arguments: object) -> programs.Ended:
    return programs.run(["-m", "headrace", *arguments])


@pytest.mark.thorough
def test_verify_prints_the_names_of_files_as_escapes(tmp_path: Path) -> None:
    folder = tmp_path / EVIL
    folder.mkdir()
    np.save(folder / f"{EVIL}.npy", np.arange(3))
    (folder / f"{EVIL}2.npy").write_bytes(b"damaged")
    done = run("verify", folder)
    assert is_harmless(done.stdout + done.stderr)
    assert r"\x1b[31mred" in done.stdout + done.stderr


@pytest.mark.thorough
def test_run_prints_exceptions_as_escapes(tmp_path: Path) -> None:
    script = tmp_path / "train.py"
    script.write_text(SCRIPT.format(evil=EVIL))
    for options in ((), ("--on-error", "skip")):
        done = run("run", *options, script)
        assert is_harmless(done.stdout + done.stderr)
        assert r"\x1b[31mred" in done.stderr


def test_the_log_is_printable_whoever_writes_to_it(caplog: pytest.LogCaptureFixture) -> None:
    logging.getLogger("headrace").warning("sample %s", EVIL)
    assert caplog.messages == [f"sample {printable(EVIL)}"]


def test_errors_hold_no_control_characters(tmp_path: Path) -> None:
    assert is_harmless(explain(EVIL, place=EVIL, found=EVIL, expected=EVIL, fix=EVIL))
    path = tmp_path / f"{EVIL}.npy"
    path.write_bytes(b"damaged")
    with pytest.raises(FormatError) as caught:
        headrace.open(path)
    assert is_harmless(str(caught.value))


def test_cells_of_tables_and_lines_are_printed_as_escapes() -> None:
    out = io.StringIO()
    terminal = Terminal(file=out, width=200)
    table = Table("name")
    table.add_row(EVIL)
    terminal.print(table)
    terminal.print(EVIL, markup=False)
    assert is_harmless(out.getvalue())
    assert out.getvalue().count(r"\x9b2J") == 2


@given(st.text())
def test_only_what_is_not_printable_changes(text: str) -> None:
    shown = printable(text)
    assert is_harmless(shown)
    assert (shown == text) == is_harmless(text)
