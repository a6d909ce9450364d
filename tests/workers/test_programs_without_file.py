"""Classes of a notebook, and programs that lie in no file: under spawn and forkserver, an error with a fix."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

from tests.programs import run
from tests.workers.fork_server_data import METHODS

PROGRAM = """
import numpy, torch.utils.data, headrace
numpy.save('data.npy', numpy.arange(8))

class Data(torch.utils.data.Dataset):
    def __len__(self): return 8
    def __getitem__(self, index): return index

def collate(samples): return list(samples)
def double(sample): return sample

def attempt(dataset, method, **options):
    loader = headrace.DataLoader(dataset, 4, num_workers=1, multiprocessing_context=method, **options)
    try: print("read", [list(map(int, batch)) for batch in loader])
    except headrace.errors.UsageError as error: print("UsageError", *map(str.strip, str(error).splitlines()), sep=" | ")

"""

OBJECTS = {
    "Data": "Data()",
    "collate": "range(8), {method!r}, collate_fn=collate",
    "double": "headrace.open('data.npy').map(double)",
    "nothing of it": "range(8)",
}
"""What a loader is given, by the name of what the error is to name."""


def call_of(name: str, method: str) -> str:
    given = OBJECTS[name]
    if "{method!r}" in given:
        return f"attempt({given.format(method=method)})\n"
    return f"attempt({given}, {method!r})\n"


def read_from_stdin(code: str, folder: Path, *options: str) -> str:
    """Has a Python read a program from its standard input; returns what it prints."""
    ended = subprocess.run(
        [sys.executable, *options], input=code, cwd=folder, capture_output=True, text=True, timeout=100, check=True
    )
    return ended.stdout


def error_of(name: str, method: str) -> str:
    return (
        "UsageError | workers cannot get a class or function of this program | "
        f"place:    __main__.{name}, in a DataLoader with start method {method!r} | "
        "found:    a definition in a notebook, or in a program without a file | "
        "expected: one in a module that workers can import | "
        "fix:      put it into a module file and import it from there, or pass multiprocessing_context='fork'\n"
    )


@METHODS
@pytest.mark.thorough
def test_what_an_interactive_session_defines_is_named_with_a_fix(method: str, tmp_path: Path) -> None:
    calls = "".join(call_of(name, method) for name in OBJECTS)
    # As a notebook does, an interactive session leaves `__main__` without a file.
    found = read_from_stdin(f"exec({PROGRAM!r})\n{calls}attempt(Data(), 'fork')\n", tmp_path, "-i", "-q")
    expected = [error_of(name, method) for name in ("Data", "collate", "double")]
    assert found == "".join(expected) + "read [[0, 1, 2, 3], [4, 5, 6, 7]]\n" * 2


@METHODS
@pytest.mark.thorough
def test_what_a_program_on_the_command_line_defines_is_named_with_a_fix(method: str, tmp_path: Path) -> None:
    code = PROGRAM + "".join(call_of(name, method) for name in OBJECTS)
    ended = run(["-c", code], cwd=tmp_path, fresh=True)
    expected = [error_of(name, method) for name in ("Data", "collate", "double")]
    assert ended.stdout == "".join(expected) + "read [[0, 1, 2, 3], [4, 5, 6, 7]]\n"


@METHODS
@pytest.mark.quick(method="spawn")
def test_a_program_that_is_read_from_the_standard_input_is_refused(method: str, tmp_path: Path) -> None:
    code = PROGRAM + call_of("Data", method) + call_of("nothing of it", method) + "attempt(Data(), 'fork')\n"
    lines = read_from_stdin(code, tmp_path, "-").splitlines()
    assert len(lines) == 3
    for line in lines[:2]:
        assert line.startswith("UsageError | workers cannot import this program | place:")
        assert "such as the standard input" in line
        assert "write the program into a file, or pass multiprocessing_context='fork'" in line
    assert lines[2] == "read [[0, 1, 2, 3], [4, 5, 6, 7]]"


@METHODS
def test_workers_that_are_no_forks_of_a_helper_say_the_same(method: str, tmp_path: Path) -> None:
    # As on a system without descriptors of processes.
    apart = "from headrace.workers.processes import start\nstart.fork_servers_exist = lambda: False\n"
    code = PROGRAM + apart + call_of("collate", method) + call_of("nothing of it", method)
    ended = run(["-c", code], cwd=tmp_path, fresh=True)
    assert ended.stdout == error_of("collate", method) + "read [[0, 1, 2, 3], [4, 5, 6, 7]]\n"


@METHODS
def test_what_stands_below_the_guard_of_a_script_is_named(method: str, tmp_path: Path) -> None:
    guarded = "".join(f"    {line}\n" for line in (PROGRAM + call_of("Data", method)).splitlines())
    (tmp_path / "script.py").write_text(f"if __name__ == '__main__':\n{guarded}")
    ended = run(["script.py"], cwd=tmp_path, fresh=True)
    assert ended.stdout.startswith("UsageError | workers cannot get a class or function of this program")
    assert "below `if __name__ == '__main__':`" in ended.stdout
