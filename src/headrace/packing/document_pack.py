"""One pack with its documents: what a stream of packs gives."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from headrace.packing.fit import Numbers

UNKNOWN = -1
"""The length of a document that came in the place of another one."""

NOT_THE_FIRST_PART = 1
"""A token at which no document begins: what comes once for each document comes with its first part."""


@dataclass(frozen=True)
class DocumentPack:
    """The documents of a pack, and which of their tokens are in it."""

    documents: Sequence[Any]
    numbers: Numbers
    """Of the documents in the stream, counted from 0, shape (documents,)."""
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

    def with_some(self, numbers: Sequence[int]) -> DocumentPack:
        """Returns the pack with some of its documents only."""
        chosen = np.asarray(numbers, np.int64)
        documents = [self.documents[number] for number in numbers]
        return replace(
            self,
            documents=documents,
            numbers=self.numbers[chosen],
            starts=self.starts[chosen],
            stops=self.stops[chosen],
            lengths=self.lengths[chosen],
        )

    def with_columns_of(self, other: DocumentPack) -> DocumentPack:
        """Returns the pack, which has no documents, with none of the tokens of another one's first document.

        So a batch of it has the columns of that document, and nothing in them.
        """
        bounds = np.array([NOT_THE_FIRST_PART], np.int64)
        lengths = np.array([UNKNOWN], np.int64)
        return replace(
            other.with_some([0]), starts=bounds, stops=bounds, lengths=lengths, row=self.row, errors=self.errors
        )
