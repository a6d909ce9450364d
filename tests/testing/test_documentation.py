"""The page on testing is a test file that passes."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

pytest_plugins = ["pytester"]
pytestmark = pytest.mark.alone  # files of other tests in /dev/shm would count as left behind

PAGE = Path(__file__).parents[2] / "docs" / "testing.md"


@pytest.mark.thorough
def test_the_blocks_of_the_page_pass(pytester: pytest.Pytester) -> None:
    blocks = re.findall(r"```python\n(.*?)```", PAGE.read_text(), re.DOTALL)
    tests = sum(block.count("\ndef test_") + block.startswith("def test_") for block in blocks)
    pytester.makepyfile("\n".join(blocks))
    result = pytester.runpytest_subprocess("-p", "no:cacheprovider")
    result.assert_outcomes(passed=tests)
    assert tests == 8
