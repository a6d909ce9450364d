"""Lengths, where somebody knows them. torch asks for few; so a length that raises is a length that is not known."""

from __future__ import annotations

from headrace.core.protocols import says_yes


def known_length(thing: object) -> int | None:
    """Returns `len(thing)`; None if it has none, or cannot say."""
    try:
        return len(thing)  # type: ignore[arg-type]  # what has none raises here
    except Exception:  # noqa: BLE001 - whatever its user wrote: nobody but us asked for the length here
        return None


def length_at_once(sampler: object) -> int | None:
    """Returns `len(sampler)`; None if it has none, or has to make its whole order for that."""
    if says_yes(sampler, "length_takes_long"):
        return None
    return known_length(sampler)
