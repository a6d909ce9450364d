"""A batch of packs: which tokens of which documents are in it, and how it is padded."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import pairwise
from typing import Any, NamedTuple

import numpy as np

from headrace.packing.document_pack import NOT_THE_FIRST_PART, UNKNOWN, DocumentPack
from headrace.packing.fit import Numbers, Packs
from headrace.samplers.sampler import Keys, State
from headrace.samplers.windowed import Batch


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

    def has_part(self, place: int) -> bool:
        """Tells whether a piece, by its place in the batch, is less than the whole document."""
        pieces = self.pieces
        return bool(pieces.starts[place] > 0 or pieces.stops[place] < pieces.lengths[place])

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
    """Returns the packs with some of their pieces.

    places: of the pieces that stay, ascending. keys: the document of each; of one that comes in the place of another,
    the same tokens come.
    """
    kept = np.asarray(places, np.int64)
    others = np.asarray(keys, np.int64)
    starts, stops, lengths, edges = batch.pieces
    is_other = np.asarray(batch, np.int64)[kept] != others
    lengths = np.where(is_other, UNKNOWN, lengths[kept])
    pieces = PieceBounds(starts[kept], stops[kept], lengths, np.searchsorted(kept, edges))
    return PackedBatch(others, batch.positions[kept], pieces, batch.shape[1])


def without_documents(batch: PackedBatch, key: int) -> PackedBatch:
    """Returns the packs with none of the tokens of one document, which is there for its columns alone."""
    bounds = np.array([NOT_THE_FIRST_PART], np.int64)
    edges = np.ones_like(batch.pieces.edges)
    edges[0] = 0
    pieces = PieceBounds(bounds, bounds, np.array([UNKNOWN]), edges)
    return PackedBatch(np.array([key]), batch.positions[:1], pieces, batch.shape[1])


class PackedWindow:
    """The packs of one window, in the order in which they come.

    Args:
        number: of the window.
        documents: their keys, positions, and the lengths that they are said to have, before those that are too long are
            cut.
        packs: as they were planned.
        turns: the packs in the order in which they come.
        batches: where batches begin among these, and the last one ends.
        shapes: how many packs a batch has, and the lengths to which they may be padded, ascending.
        order: the state of the sampler that ordered the documents, at the beginning of the window; None: there is none.
    """

    def __init__(
        self,
        number: int,
        documents: tuple[Keys, Keys, Numbers],
        packs: Packs,
        turns: Numbers,
        batches: Numbers,
        shapes: tuple[int, list[int]],
        order: State | None = None,
    ) -> None:
        self.number = number
        self.packs = packs
        self.order = order
        self._batches = batches
        self._packs_of_a_batch, rows = shapes
        # All pieces at once, so that a batch is a slice of them.
        begins = packs.edges[turns]
        counts = packs.edges[turns + 1] - begins
        self._edges = np.append(0, np.cumsum(counts))
        at = np.repeat(begins - self._edges[:-1], counts) + np.arange(self._edges[-1])
        chosen = packs.documents[at]
        self._keys, self._positions, self._lengths = (column[chosen] for column in documents)
        self._starts, self._stops = packs.starts[at], packs.stops[at]
        self._rows: list[int] = []
        if len(turns):
            longest = np.maximum.reduceat(packs.totals()[turns], batches[:-1])
            self._rows = np.array(rows)[np.searchsorted(rows, longest)].tolist()

    def __len__(self) -> int:
        return len(self._batches) - 1

    def batch(self, number: int) -> PackedBatch:
        """Returns batch `number`, counted in the order in which they come."""
        first, last = self._batches[number], self._batches[number + 1]
        edges = self._edges[first : last + 1]
        pieces = slice(edges[0], edges[-1])
        edges = edges - edges[0]
        # The last batch of a window has as many packs as the others; some are without documents.
        missing = self._packs_of_a_batch + 1 - len(edges)
        if missing:
            edges = np.pad(edges, (0, missing), mode="edge")
        bounds = PieceBounds(self._starts[pieces], self._stops[pieces], self._lengths[pieces], edges)
        return PackedBatch(self._keys[pieces], self._positions[pieces], bounds, self._rows[number])
