"""How many tokens a sample of a stream has."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

from headrace.core.errors import SampleError, UsageError
from headrace.packing.columns import TOKENS


def tokens_of(sample: Any, length: Callable[[Any], int] | None, place: str) -> int:
    """Returns the number of tokens of a sample.

    length: tells it; None: it is the length of the sample's `input_ids`, or of the sample. place: what was called, for
    errors. Raises `SampleError` for a sample without a length, `UsageError` if `length` returns no number of tokens.
    """
    if length is None:
        length = len
        if isinstance(sample, Mapping):
            sample = _tokens_in(sample, place)
    try:
        tokens: Any = length(sample)
    except (TypeError, ValueError) as error:
        raise SampleError.about(
            "a sample has no length",
            place=place,
            found=f"a {type(sample).__name__}: {error}",
            expected=f"a sample with a part {TOKENS!r} that has a length, or with a length of its own",
            fix="give length=, a function that takes a sample and returns its number of tokens, from 0 up",
        ) from error
    if not _is_count(tokens):
        raise UsageError.about(
            "cannot tell how many tokens a sample has",
            place=place,
            found=f"a length of {tokens!r}",
            expected="a number of tokens, from 0 up",
            fix="let the function length= return that",
        )
    return tokens  # type: ignore[no-any-return]


def _tokens_in(sample: Mapping[Any, Any], place: str) -> Any:
    if TOKENS in sample:
        return sample[TOKENS]
    raise SampleError.about(
        "a sample has no tokens",
        place=place,
        found=f"a sample with {', '.join(map(repr, sample)) or 'nothing'}",
        expected=f"{TOKENS!r}, whole numbers in one dimension",
        fix=f"call the column of tokens {TOKENS!r}, or give length=, a function that takes a sample",
    )


def _is_count(tokens: Any) -> bool:
    try:
        return 0 <= float(tokens) < float("inf")
    except (TypeError, ValueError):
        return False
