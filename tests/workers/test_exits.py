"""Python exits while iterators live: wherever they are held, it exits at once, with its own code and in silence."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests import programs

PROGRAM = """
import builtins, gc, sys, threading, time
import torch
import headrace

class Rows(torch.utils.data.Dataset):
    def __len__(self):
        return 1000

    def __getitem__(self, index):
        if index >= 100:
            time.sleep(1.5)
        return torch.tensor(index)

def begun(**options):
    loader = headrace.DataLoader(Rows(), batch_size=2, num_workers=2, **options)
    iterator = iter(loader)
    next(iterator)
    return iterator

class Node:
    pass

def cycle(**options):
    node = Node()
    node.me = node
    node.iterator = begun(**options)
    node.iterator.back = node

def iterate(ready, options):
    for number, batch in enumerate(begun(**options)):
        if number == 48:
            ready.set()

def in_daemon(**options):
    ready = threading.Event()
    thread = threading.Thread(target=iterate, args=(ready, options), daemon=True)
    thread.start()
    ready.wait()
    # Until it waits for a slow batch: before Python 3.14, a Python that exits aborts if a thread is inside torch.
    before = None
    while (now := place_of(thread)) != before:
        before = now
        time.sleep(0.2)

def place_of(thread):
    frame = sys._current_frames()[thread.ident]
    return frame.f_code.co_name, frame.f_lasti

if __name__ == "__main__":
    {place}
    sys.exit(7)
"""

PLACES = {
    "module globals": "iterator = begun({options})",
    "globals of a module that is imported by others": "torch.kept = begun({options})",
    "builtins": "builtins.kept = begun({options})",
    "reference cycle": "cycle({options})",
    "reference cycle, frozen": "cycle({options}); gc.freeze()",
    "daemon thread": "in_daemon({options})",
}

OPTIONS = {
    "fork": "",
    "spawn": "multiprocessing_context='spawn'",
    "thread": "backend='thread'",
}

SPAWNED = ("module globals", "reference cycle", "daemon thread")
"""Places of iterators over spawned workers; each takes seconds. With the others this is a stress test."""

CASES = [
    pytest.param(place, options, marks=pytest.mark.stress if options == "spawn" and place not in SPAWNED else ())
    for place in PLACES
    for options in OPTIONS
]


@pytest.mark.thorough
@pytest.mark.parametrize(("place", "options"), CASES)
def test_python_exits_in_silence_while_an_iterator_lives(place: str, options: str, tmp_path: Path) -> None:
    fresh = place == "reference cycle"  # one place in a Python that was started for it
    script = tmp_path / "script.py"
    script.write_text(PROGRAM.replace("{place}", PLACES[place].replace("{options}", OPTIONS[options])))
    run = programs.run(["-W", "ignore", script], timeout=60, fresh=fresh)
    assert (run.stdout, run.stderr, run.returncode) == ("", "", 7)
