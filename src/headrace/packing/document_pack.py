"""One pack with its documents: what a stream of packs gives."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from headrace.packing.fit import Numbers


@dataclass(frozen=True)
class DocumentPack:
    """The documents of a pack, and which of their tokens are in it."""

    documents: Sequence[Any]
    starts: Numbers
    """The first token of each, shape (documents,)."""
    stops: Numbers
    """The token behind the last one of each, likewise."""
    lengths: Numbers
    """How long each is said to be as a whole, likewise."""
    row: int
    """The length to which the pack is padded."""
    errors: Sequence[tuple[int, Exception]] = ()
    """Of documents that could not be read, before this one's: the number of each in the stream, and its exception."""
