"""Sizes in words."""

from __future__ import annotations

import pytest

from headrace.core.errors import UsageError
from headrace.core.sizes import bytes_in


@pytest.mark.parametrize(
    ("given", "expected"),
    [
        (1, 1),
        ("17", 17),
        ("200GB", 200 * 10**9),
        ("200 gb", 200 * 10**9),
        ("1.5TiB", 3 * 2**39),
        (" 4k ", 4000),
        ("4KiB", 4096),
        (".5 MB", 500_000),
    ],
)
def test_a_size_in_words_is_bytes(given: int | str, expected: int) -> None:
    assert expected == bytes_in(given, "limit")


@pytest.mark.parametrize(
    "given", [0, -1, "0", "GB", "1 apple", "-3GB", "1e9", "nan", "9" * 400, True, None, 1.5, "4iB "]
)
def test_what_is_no_size_is_refused_with_its_name(given: object) -> None:
    with pytest.raises(UsageError, match="limit="):
        bytes_in(given, "limit")  # type: ignore[arg-type]
