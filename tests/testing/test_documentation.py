"""Each block of the page on testing is a test file that passes."""

from __future__ import annotations

import pytest

from tests.docs.pages import DOCS, blocks_of

pytest_plugins = ["pytester"]
pytestmark = pytest.mark.alone  # files of other tests in /dev/shm would count as left behind

PAGE = DOCS / "howto" / "testing.md"


@pytest.mark.thorough
def test_the_blocks_of_the_page_pass(pytester: pytest.Pytester) -> None:
    tests = 0
    for block in blocks_of(PAGE):
        name = block.file or f"test_line_{block.line}.py"
        (pytester.path / name).write_text(block.code)
        tests += block.code.count("\ndef test_")

    pytester.syspathinsert()
    result = pytester.runpytest_subprocess("-p", "no:cacheprovider")
    result.assert_outcomes(passed=tests)
    assert tests == 8
