"""A batch of packs: which tokens of which documents are in it, and how it is padded."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import Any, NamedTuple

import numpy as np

from headrace.packing.document_pack import DocumentPack
from headrace.packing.fit import Numbers, Packs
from headrace.samplers.sampler import Keys, State
from headrace.samplers.windowed import Batch

UNKNOWN = -1
"""The length of a document that came in the place of another one."""


class PieceBounds(NamedTuple):
    """Which tokens of the documents of a batch are in its packs; pack i has the pieces `edges[i] : edges[i + 1]`."""

    starts: Numbers
    """The first token of each piece in its document, shape (pieces,)."""
    stops: Numbers
    """The token behind its last one, likewise."""
    lengths: Numbers
    """How long the whole document is said to be, likewise; `UNKNOWN`: any length will do."""
    edges: Numbers
    """Where packs begin, and the last one ends, shape (packs + 1,)."""


class PackedBatch(Batch):
    """The keys of a batch of packs. A document of which two packs have a part comes twice.

    The last batch of a window may have packs without documents.

    Attributes:
        positions: as of `Batch`.
        pieces: which tokens of each document are in the packs.

    Args:
        keys: of the pieces, in the order of the packs, int64, shape (n,).
        positions: likewise.
        pieces: the tokens of each.
        row: the length to which packs are padded.

    Examples:
        >>> sampler = headrace.samplers.PackedBatchSampler([9, 2, 8, 3], budget=11, shuffle=False)
        >>> [batch.packs for batch in sampler]
        [[[(0, 0, 9), (1, 0, 2)]], [[(2, 0, 8), (3, 0, 3)]]]
    """

    def __init__(self, keys: Keys, positions: Keys, pieces: PieceBounds, row: int) -> None:
        super().__init__(keys, positions)
        self.pieces = pieces
        self._row = row

    @property
    def packs(self) -> list[list[tuple[int, int, int]]]:
        """For each pack, `(key, start, stop)` of the documents in it."""
        pieces = list(zip(self, self.pieces.starts.tolist(), self.pieces.stops.tolist(), strict=True))
        return [pieces[begin:end] for begin, end in pairwise(self.pieces.edges.tolist())]

    @property
    def shape(self) -> tuple[int, int]:
        """The number of packs, and the length to which they are padded."""
        return len(self.pieces.edges) - 1, self._row

    def __reduce__(self) -> Any:
        return PackedBatch, (np.asarray(self, np.int64), self.positions, self.pieces, self._row)


def one_pack(lengths: Sequence[int]) -> PackedBatch:
    """Returns the batch of all documents of these lengths, without padding."""
    stops = np.array(lengths, np.int64)
    keys = np.arange(len(stops))
    pieces = PieceBounds(np.zeros_like(stops), stops, stops, np.array([0, len(stops)]))
    return PackedBatch(keys, keys, pieces, int(stops.sum()))


def batch_of(packs: Sequence[DocumentPack]) -> PackedBatch:
    """Returns the batch of packs of a stream; its keys count their documents."""
    starts = np.concatenate([pack.starts for pack in packs])
    stops = np.concatenate([pack.stops for pack in packs])
    keys = np.arange(len(starts))
    edges = np.append(0, np.cumsum([len(pack.starts) for pack in packs]))
    pieces = PieceBounds(starts, stops, np.concatenate([pack.lengths for pack in packs]), edges)
    return PackedBatch(keys, keys, pieces, max(pack.row for pack in packs))


def with_others(batch: PackedBatch, places: Sequence[int], keys: Sequence[int]) -> PackedBatch:
    """Returns the packs with some of their pieces. What comes in the place of another document is at most as long.

    places: of the pieces that stay, ascending. keys: the document of each.
    """
    kept = np.asarray(places, np.int64)
    others = np.asarray(keys, np.int64)
    starts, stops, lengths, edges = batch.pieces
    is_other = np.asarray(batch, np.int64)[kept] != others
    pieces = PieceBounds(
        np.where(is_other, 0, starts[kept]),
        np.where(is_other, stops[kept] - starts[kept], stops[kept]),
        np.where(is_other, UNKNOWN, lengths[kept]),
        np.searchsorted(kept, edges),
    )
    return PackedBatch(others, batch.positions[kept], pieces, batch.shape[1])


@dataclass(frozen=True)
class PackedWindow:
    """The packs of one window. Batch i has the packs `turns[edges[i] : edges[i + 1]]`."""

    number: int
    keys: Keys
    positions: Keys
    lengths: Numbers
    """How long the documents are said to be; those that are too long may be cut in the packs."""
    packs: Packs
    turns: Numbers
    """The packs in the order in which they come."""
    edges: list[int]
    packs_of_a_batch: int
    rows: list[int]
    """The lengths to which packs may be padded, ascending."""
    order: State | None
    """The state of the sampler that ordered the documents, at the beginning of the window; None: there is none."""

    def __len__(self) -> int:
        return len(self.edges) - 1

    def batch(self, number: int) -> PackedBatch:
        """Returns batch `number`, counted in the order in which they come."""
        packs = self.packs
        chosen = self.turns[self.edges[number] : self.edges[number + 1]]
        begins, ends = packs.edges[chosen], packs.edges[chosen + 1]
        at = np.concatenate([np.arange(begin, end) for begin, end in zip(begins, ends, strict=True)])
        # The last batch of a window has as many packs as the others; some are without documents.
        many = np.zeros(self.packs_of_a_batch, np.int64)
        many[: len(chosen)] = ends - begins
        edges = np.concatenate(([0], np.cumsum(many)))

        documents = packs.documents[at]
        starts, stops = packs.starts[at], packs.stops[at]
        tokens = Packs(documents, starts, stops, edges).totals()
        longest = int(tokens.max())
        row = next(length for length in self.rows if length >= longest)
        pieces = PieceBounds(starts, stops, self.lengths[documents], edges)
        return PackedBatch(self.keys[documents], self.positions[documents], pieces, row)
