"""How many tokens a sample of a stream has."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

from headrace.core.errors import SampleError, UsageError
from headrace.packing.columns import TOKENS


def tokens_of(sample: Any, length: Callable[[Any], int] | None, place: str) -> int:
    """Returns the number of tokens of a sample.

    length: tells it; None: it is the length of the sample's `input_ids`, or of the sample. place: what was called, for
    errors. Raises `SampleError` for a sample without a length, `UsageError` if `length` is a function that tells none.
    """
    is_asked = length is not None
    if length is None:
        length = len
        if isinstance(sample, Mapping):
            sample = _tokens_in(sample, place)
    try:
        tokens: Any = length(sample)
    except (TypeError, ValueError) as error:
        found = f"a {type(sample).__name__}: {error}"
        if is_asked:
            raise _no_count(found, place) from error
        raise SampleError.about(
            "a sample has no length",
            place=place,
            found=found,
            expected=f"a sample with a part {TOKENS!r} that has a length, or with a length of its own",
            fix="give length=, a function that takes a sample and returns its number of tokens, from 0 up",
        ) from error
    if not _is_count(tokens):
        raise _no_count(f"a length of {tokens!r}", place)
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


def _no_count(found: str, place: str) -> UsageError:
    return UsageError.about(
        "cannot tell how many tokens a sample has",
        place=place,
        found=found,
        expected="a number of tokens, from 0 up",
        fix="let the function length= take a sample and return that",
    )


def _is_count(tokens: Any) -> bool:
    try:
        return 0 <= float(tokens) < float("inf")
    except (TypeError, ValueError):
        return False
