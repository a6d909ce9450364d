"""The tools of the tests: programs in copies of one process, and the choice of the quick tests."""

from __future__ import annotations

import os
import signal
import subprocess
from pathlib import Path
from typing import Any

import pytest

from tests import programs
from tests.quick import has_all, starts_slowly

SCRIPT = """
import os, sys
print(__name__, __file__, sys.argv, sys.path[0], os.getcwd(), os.environ.get("ADDED"))
print("said", file=sys.stderr)
sys.exit(3)
"""


def test_a_program_has_its_arguments_folder_environment_and_status(tmp_path: Path) -> None:
    script = tmp_path / "script.py"
    script.write_text(SCRIPT)
    environment = {**os.environ, "ADDED": "yes"}
    outcomes = []
    for fresh in (False, True):
        ended = programs.run([script, "--count", 2], cwd=tmp_path, env=environment, fresh=fresh)
        outcomes.append((ended.returncode, ended.stdout, ended.stderr))
    assert outcomes[0] == outcomes[1]
    argv = [str(script), "--count", "2"]
    assert outcomes[0] == (3, f"__main__ {script} {argv} {tmp_path} {tmp_path} yes\n", "said\n")


def test_a_program_reads_lines_and_is_told_apart_by_its_signal() -> None:
    with programs.Program(["-u", "-c", "import sys\nfor line in sys.stdin: print(line, end='')"]) as program:
        program.write("one\n")
        assert program.read_line() == "one\n"
        program.send_signal(signal.SIGKILL)
        assert program.communicate() == ("", "")
    assert program.wait() == -signal.SIGKILL


def test_a_program_that_does_not_end_is_killed() -> None:
    with pytest.raises(subprocess.TimeoutExpired):
        programs.run(["-c", "import signal; signal.pause()"], timeout=0.1)


def test_programs_draw_numbers_of_their_own() -> None:
    drawn = {programs.run(["-c", "import numpy; print(numpy.random.rand())"]).stdout for _ in range(2)}
    assert len(drawn) == 2


@pytest.mark.parametrize(
    ("wanted", "expected"),
    [
        ({"a": 1}, True),
        ({"a": [2, 1], "b": "dict"}, True),
        ({"a": 2}, False),
        ({"a": 1, "b": "list"}, False),
        ({"a": [None]}, False),
    ],
)
def test_a_case_is_quick_if_all_its_parameters_are_wanted(wanted: dict[str, Any], expected: bool) -> None:
    assert has_all({"a": 1, "b": dict}, wanted) == expected


@pytest.mark.parametrize("value", ["spawn", ("process", "forkserver"), {"multiprocessing_context": "spawn"}])
def test_start_methods_that_import_torch_anew_are_slow(value: Any) -> None:
    assert starts_slowly([1, value])
    assert not starts_slowly([1, "fork", {"num_workers": 2}])
