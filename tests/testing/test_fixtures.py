"""The fixtures do in a pytest of its own what they say."""

from __future__ import annotations

import subprocess
import sys

import pytest

pytest_plugins = ["pytester"]
pytestmark = pytest.mark.alone  # files of other tests in /dev/shm would count as left behind

TESTS = """
import os, subprocess, sys
from headrace.testing import Hang
import multiprocessing

def test_sound(no_leaks):
    os.close(os.open(os.devnull, os.O_RDONLY))

def test_leaking(no_leaks):
    os.open(os.devnull, os.O_RDONLY)

def test_counting(attempts):
    assert [attempts.count("a"), attempts.count("a"), attempts.of("a")] == [0, 1, 2]

def test_killing(no_leaks, killer):
    process = multiprocessing.get_context("fork").Process(target=Hang())
    process.start()
    victims = [process.pid]
    kills = killer(lambda: victims, every=0.01).kills
    process.join()
    victims.clear()  # the killer goes on until the test is over
    assert process.exitcode == -9
    process.close()
"""


@pytest.mark.thorough
def test_the_fixtures_check_count_and_kill(pytester: pytest.Pytester) -> None:
    pytester.makeconftest('pytest_plugins = ["headrace.testing.fixtures"]')
    pytester.makepyfile(TESTS)
    result = pytester.runpytest_subprocess("-p", "no:cacheprovider")
    result.assert_outcomes(passed=4, errors=1)
    result.stdout.fnmatch_lines(["*LeakError: something was left behind", "*descriptor *: /dev/null"])
    result.stdout.fnmatch_lines(["ERROR *::test_leaking - *"])


@pytest.mark.thorough
def test_the_kit_needs_no_pytest() -> None:
    code = "import headrace.testing, sys; sys.exit('pytest' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", code], check=False).returncode == 0
