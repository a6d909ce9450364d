"""`_thread.interrupt_main()`, by which notebooks and debuggers stop a program, is noticed while a sample loads."""

from __future__ import annotations

import _thread
import contextlib
import os
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from torch.utils.data import Dataset

import headrace

PATIENCE = 60
"""Seconds after which a test has failed: torch, too, looks every 5."""


class Slow(Dataset[int]):
    """Says that it is loading, or being unpickled, and goes on when it is told to."""

    def __init__(self, folder: Path, *, in_unpickling: bool) -> None:
        self.folder = folder
        self.in_unpickling = in_unpickling

    def __len__(self) -> int:
        return 4

    def __getitem__(self, index: int) -> int:
        if not self.in_unpickling:
            self.wait()
        return index

    def wait(self) -> None:
        (self.folder / "began").open("w").close()
        (self.folder / "goes-on").open().close()

    def __setstate__(self, state: dict[str, Any]) -> None:
        vars(self).update(state)
        if self.in_unpickling:
            self.wait()


@pytest.fixture
def pipes(tmp_path: Path) -> Iterator[Path]:
    """A folder with two named pipes. Interrupts the main thread once the dataset has opened the first."""
    for name in ("began", "goes-on"):
        os.mkfifo(tmp_path / name)

    def interrupt() -> None:
        (tmp_path / "began").open().close()
        _thread.interrupt_main()

    thread = threading.Thread(target=interrupt)
    thread.start()
    yield tmp_path
    thread.join()


@pytest.mark.thorough
@pytest.mark.timeout(PATIENCE)
@pytest.mark.parametrize(
    ("words", "in_unpickling"),
    [
        ({"multiprocessing_context": "fork"}, False),
        ({"multiprocessing_context": "spawn"}, False),
        ({"multiprocessing_context": "spawn"}, True),
        ({"backend": "thread"}, False),
    ],
    ids=["fork", "spawn", "while the dataset is unpickled", "thread"],
)
def test_the_main_thread_is_interrupted_while_it_waits(pipes: Path, words: dict[str, Any], in_unpickling: bool) -> None:
    loader = headrace.DataLoader(Slow(pipes, in_unpickling=in_unpickling), num_workers=1, **words)
    with pytest.raises(KeyboardInterrupt):
        try:
            next(iter(loader))
        finally:
            go_on(pipes)


def go_on(pipes: Path) -> None:
    """Lets the sample be made, if somebody still wants it."""
    with contextlib.suppress(OSError):
        os.close(os.open(pipes / "goes-on", os.O_WRONLY | os.O_NONBLOCK))
