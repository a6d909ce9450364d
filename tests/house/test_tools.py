"""The tools of the tests: programs in copies of one process, which cases are made and run when, and what a failed one
leaves."""

from __future__ import annotations

import itertools
import os
import signal
import subprocess
from pathlib import Path
from typing import Any

import pytest

from tests import programs
from tests.pairs import in_turn, pairwise
from tests.selection import has_all, starts_slowly

pytest_plugins = ["pytester"]

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


FORKED = """
import os, signal
def hang():
    os.write(1, b"there\\n"); signal.pause()  # in one line: whoever has read it may find either
os.fork()
hang()
"""


def test_a_program_that_does_not_end_is_killed_and_tells_where_it_was() -> None:
    with programs.Program(["-c", FORKED]) as program:
        assert [program.read_line() for _ in range(2)] == ["there\n"] * 2
        with pytest.raises(subprocess.TimeoutExpired) as caught:
            program.communicate(timeout=0.1)
    assert str(caught.value).count("line 4 in hang\n") == 2
    assert str(caught.value).count(f"process {program.pid}, state ") == 1


def test_a_program_has_its_temporary_files_where_its_own_environment_says(tmp_path: Path) -> None:
    told = (
        "import tempfile; from multiprocessing.util import get_temp_dir; print(tempfile.gettempdir(), get_temp_dir())"
    )
    ended = programs.run(["-c", told], env={**os.environ, "TMPDIR": str(tmp_path)})
    folder, of_multiprocessing = ended.stdout.split()
    assert folder == str(tmp_path)
    assert Path(of_multiprocessing).parent == tmp_path


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


def test_values_in_turn_come_all_and_the_last_ones_come_last() -> None:
    assert in_turn("abc", [1, 2]) == [("a", 2), ("b", 1), ("c", 2)]
    assert in_turn([1, 2], "abc") == [(2, "a"), (1, "b"), (2, "c")]
    letters, numbers, signs = zip(*in_turn("abc", range(5), "xy"), strict=True)
    assert (set(letters), numbers, set(signs)) == (set("abc"), tuple(range(5)), set("xy"))


@pytest.mark.parametrize(
    ("sizes", "most"), [((3, 2), 6), ((2, 2, 2), 4), ((3, 3, 3, 3), 9), ((6, 4, 2), 24), ((2, 16, 2), 32), ((1, 1), 1)]
)
def test_each_two_values_are_in_one_of_the_pairs(sizes: tuple[int, ...], most: int) -> None:
    cases = pairwise(*map(range, sizes))
    assert len(cases) <= most
    assert cases == sorted(set(cases))
    assert cases[-1] == tuple(size - 1 for size in sizes)
    for one, other in itertools.combinations(range(len(sizes)), 2):
        found = {(case[one], case[other]) for case in cases}
        assert found == set(itertools.product(range(sizes[one]), range(sizes[other])))


def test_values_that_pairs_leave_open_take_turns() -> None:
    cases = pairwise(range(16), ["none", "fork"], ["s3", "http"])
    for workers in ("none", "fork"):
        assert [case[1:] for case in cases].count((workers, "s3")) == 8


CASES = """
import pytest

def test_plain(): pass

@pytest.mark.parametrize("workers", [0, 1, 2])
def test_last(workers): pass

@pytest.mark.quick(workers=[0, 1], kind="map")
@pytest.mark.parametrize("kind", ["map", "stream"])
@pytest.mark.parametrize("workers", [0, 1, 2])
def test_named(workers, kind): pass

@pytest.mark.parametrize("method", ["fork", "spawn"])
def test_slow_start(method): pass

@pytest.mark.quick
@pytest.mark.parametrize("method", ["fork", "spawn"])
def test_all(method): pass

@pytest.mark.thorough
def test_none(): pass

@pytest.mark.parametrize("size", [1, pytest.param(2, marks=pytest.mark.stress)])
def test_stressed(size): pass
"""
QUICK = {
    "test_plain",
    "test_last[2]",
    "test_named[0-map]",
    "test_named[1-map]",
    "test_slow_start[fork]",
    "test_all[fork]",
    "test_all[spawn]",
    "test_stressed[1]",
}
ALL = QUICK | {
    "test_last[0]",
    "test_last[1]",
    "test_named[2-map]",
    "test_named[0-stream]",
    "test_named[1-stream]",
    "test_named[2-stream]",
    "test_slow_start[spawn]",
    "test_none",
}


def collected(pytester: pytest.Pytester, marks: str, *options: str) -> list[str]:
    """Returns the names of the cases of `CASES` that a run with these options has."""
    pytester.makeconftest("pytest_plugins = ['tests.conftest']")
    pytester.makepyfile(CASES)
    result = pytester.runpytest_subprocess("--collect-only", "-q", "-m", marks, *options, "-p", "no:cacheprovider")
    return [line.partition("::")[2] for line in result.outlines if "::" in line]


@pytest.fixture
def _finds_the_tools(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PYTHONPATH", str(programs.ROOT))


@pytest.mark.usefixtures("_finds_the_tools")
def test_the_last_case_of_a_test_is_quick_or_those_that_it_names(pytester: pytest.Pytester) -> None:
    assert sorted(collected(pytester, "not thorough and not stress")) == sorted(QUICK)


@pytest.mark.usefixtures("_finds_the_tools")
def test_the_parts_have_each_thorough_case_once_and_each_quick_one_always(pytester: pytest.Pytester) -> None:
    parts = [collected(pytester, "not stress", "--part", f"{part}/3") for part in (1, 2, 3)]
    assert set.intersection(*map(set, parts)) == QUICK
    assert sorted(name for part in parts for name in part if name not in QUICK) == sorted(ALL - QUICK)
    assert all(set(part) != QUICK for part in parts)


@pytest.mark.usefixtures("_finds_the_tools")
@pytest.mark.parametrize("part", ["0/3", "4/3", "2", "1/a", ""])
def test_a_part_that_makes_no_sense_is_refused(pytester: pytest.Pytester, part: str) -> None:
    pytester.makeconftest("pytest_plugins = ['tests.conftest']")
    pytester.makepyfile(CASES)
    result = pytester.runpytest_subprocess("--part", part, "-p", "no:cacheprovider", "-n", "2")
    assert result.ret == pytest.ExitCode.USAGE_ERROR
    result.stderr.fnmatch_lines([f"*--part {part}*: expected for example 2/3, the second of three parts*"])


@pytest.mark.usefixtures("_finds_the_tools")
@pytest.mark.parametrize("mark", ["quick(size=1)", "quick(1)"])
def test_a_mark_that_names_no_parameter_is_refused_with_its_test(pytester: pytest.Pytester, mark: str) -> None:
    pytester.makeconftest("pytest_plugins = ['tests.conftest']")
    parameters = "@pytest.mark.parametrize('number', [1, 2])"
    pytester.makepyfile(f"import pytest\n@pytest.mark.{mark}\n{parameters}\ndef test_marked(number): pass")
    result = pytester.runpytest_subprocess("-p", "no:cacheprovider")
    assert result.ret == pytest.ExitCode.USAGE_ERROR
    result.stderr.fnmatch_lines(
        ["*::test_marked: its mark quick names *; expected are names of its parameters: number=..."]
    )


FAILING = """
import weakref
import pytest

class Loader: pass
held = []

def hold(fault):
    loader = Loader()
    loader.itself = loader
    held.append(weakref.ref(loader))
    try:
        raise fault
    except KeyError as error:
        raise ValueError from error

@pytest.mark.parametrize("fault", [ValueError(), KeyError()])
def test_failing(fault): hold(fault)

def test_behind(): assert [loader() for loader in held] == [None, None]
"""


@pytest.mark.usefixtures("_finds_the_tools")
def test_what_a_failed_test_held_is_gone_in_the_next_one(pytester: pytest.Pytester) -> None:
    pytester.makeconftest("pytest_plugins = ['tests.conftest']")
    pytester.makepyfile(FAILING)
    pytester.runpytest_subprocess("-p", "no:cacheprovider").assert_outcomes(passed=1, failed=2)
