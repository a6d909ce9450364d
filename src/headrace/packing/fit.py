"""Puts documents into packs: pure arithmetic on lengths, with numpy alone.

A *pack* is one row of a model's input: several documents, end to end, of at most a budget of tokens. `best_fit` and
`first_fit` keep documents whole; `split` cuts them at the budget. Each returns all documents exactly once.

`best_fit` is best-fit decreasing (Johnson, "Near-optimal bin packing algorithms", MIT 1973) with a beginning of its
own: as many packs as the tokens need at least are opened at once, and the longer documents are dealt to the emptiest
ones, many at a time. That is what numpy does fast, and it spreads the long documents, on which attention spends its
time, over the packs. The shorter ones, and those that did not fit, then go one by one where they leave the least room.
"""

from __future__ import annotations

from bisect import bisect_left, insort
from typing import Any, Literal, NamedTuple

import numpy as np
import numpy.typing as npt

Numbers = npt.NDArray[np.int64]

Fit = Literal["best", "first", "split"]
"""How documents are put into packs."""

DEALT = 0.6
"""Which part of the documents, the longest ones, is dealt to the emptiest packs. Measured: see docs/design."""


class Packs(NamedTuple):
    """Documents in packs. Pack i holds the pieces `edges[i] : edges[i + 1]`."""

    documents: Numbers
    """The document of each piece, a number from 0 to n-1, shape (pieces,)."""
    starts: Numbers
    """Its first token in the document, shape (pieces,)."""
    stops: Numbers
    """The token behind its last one, shape (pieces,)."""
    edges: Numbers
    """Where packs begin and the last one ends, shape (packs + 1,)."""

    def __len__(self) -> int:
        return len(self.edges) - 1

    def totals(self) -> Numbers:
        """Returns the tokens of each pack, shape (packs,)."""
        before: Numbers = np.append(0, np.cumsum(self.stops - self.starts))
        return np.diff(before[self.edges])


def best_fit(sizes: Numbers, budgets: Numbers) -> Packs:
    """Puts whole documents into few packs.

    Args:
        sizes: of each document, by budget; not negative and at most the budget, shape (n, budgets).
        budgets: what a pack holds of each at most, shape (budgets,).
    """
    return _whole(_best_fit(sizes, budgets), sizes)


def first_fit(sizes: Numbers, budgets: Numbers) -> Packs:
    """Puts whole documents, in their order, into the first pack that has room. Arguments as of `best_fit`."""
    return _whole(_first_fit(sizes, budgets), sizes)


def split(sizes: Numbers, budgets: Numbers) -> Packs:
    """Cuts the documents, end to end in their order, at the budget. There must be one budget. Empty ones stay whole."""
    lengths, budget = sizes[:, 0], int(budgets[0])
    if not len(lengths):
        return _whole(lengths, sizes)

    ends = np.cumsum(lengths)
    total = int(ends[-1])
    # Pieces end where documents end, and where packs do. An empty document is a piece between two equal ends.
    cuts = np.setdiff1d(np.arange(budget, total, budget), ends)
    at = np.searchsorted(ends, cuts)
    stops = np.insert(ends, at, cuts)
    documents = np.insert(np.arange(len(ends)), at, at)
    starts = np.concatenate(([0], stops[:-1]))
    edges = np.searchsorted(starts, np.arange(0, max(total, 1), budget))
    before = (ends - lengths)[documents]
    return Packs(documents, starts - before, stops - before, np.append(edges, len(documents)))


FITS = {"best": best_fit, "first": first_fit, "split": split}


def _whole(where: Numbers, sizes: Numbers) -> Packs:
    """Returns packs of whole documents. where: the pack of each."""
    documents = np.argsort(where, kind="stable")
    edges = np.concatenate(([0], np.cumsum(np.bincount(where))))
    return Packs(documents, np.zeros_like(documents), sizes[documents, 0], edges)


def _best_fit(sizes: Numbers, budgets: Numbers) -> Numbers:
    """Returns the pack of each document. One counts by the budget of which it takes the largest part."""
    order = np.argsort(_emptiness(-sizes, budgets), kind="stable")
    largest = sizes[order]
    packs = int((-(-largest.sum(axis=0) // budgets)).max())
    room = np.tile(budgets, (packs, 1))
    where = np.empty(len(order), np.int64)

    # Without a token there is no pack yet.
    dealt = int(len(order) * DEALT) if packs else 0
    left = []
    for begin in range(0, dealt, max(packs, 1)):
        some = np.arange(begin, min(begin + packs, dealt))
        emptiest = np.argsort(-_emptiness(room, budgets), kind="stable")[: len(some)]
        fits = (largest[some] <= room[emptiest]).all(axis=1)
        where[some[fits]] = emptiest[fits]
        room[emptiest[fits]] -= largest[some[fits]]
        left.append(some[~fits])

    rest = np.concatenate([*left, np.arange(dealt, len(order))])
    if len(budgets) == 1:
        where[rest] = _one_by_one(largest[rest, 0], room[:, 0], int(budgets[0]))
    else:
        where[rest] = _one_by_one_of_many(largest[rest], room, budgets)
    pack_of = np.empty_like(where)
    pack_of[order] = where
    return pack_of


def _emptiness(room: Numbers, budgets: Numbers) -> npt.NDArray[Any]:
    """Returns how much room there is by the budget that has the least, shape (n,). room: shape (n, budgets)."""
    if len(budgets) == 1:
        return room[:, 0]
    shares: npt.NDArray[np.float64] = room / budgets
    return shares.min(axis=1)  # type: ignore[no-any-return]


def _one_by_one(lengths: Numbers, room: Numbers, budget: int) -> Numbers:
    """Puts each document where it leaves the least room; those of equal length in one go. lengths: descending."""
    runs, counts = np.unique(-lengths, return_counts=True)
    packs = len(room)
    # Pack and room in one number, so that one sorted list of plain numbers finds the pack.
    most = packs + len(lengths) + 1
    open_packs = sorted((room * most + np.arange(packs)).tolist())
    where: list[int] = []
    many: list[int] = []
    for length, count in zip((-runs).tolist(), counts.tolist(), strict=True):
        while count:
            at = bisect_left(open_packs, length * most)
            if at < len(open_packs):
                has, pack = divmod(open_packs.pop(at), most)
            else:
                has, pack = budget, packs
                packs += 1
            fitting = count
            if length:
                fitting = min(count, has // length)
            where.append(pack)
            many.append(fitting)
            count -= fitting
            has -= fitting * length
            insort(open_packs, has * most + pack)
    return np.repeat(np.array(where, np.int64), np.array(many, np.int64))


def _one_by_one_of_many(sizes: Numbers, room: Numbers, budgets: Numbers) -> Numbers:
    """Puts each document where the budget that is nearest to its end then leaves the least."""
    packs = len(room)
    # By budget, since numpy is slow along a short last axis. A pack that is not open yet has all its room.
    rooms = np.concatenate([room, np.tile(budgets, (len(sizes), 1))]).T.copy()
    where = []
    for size in sizes.tolist():
        found = _with_room(rooms, packs, size)
        if len(found):
            after = [(rooms[number, found] - takes) / budgets[number] for number, takes in enumerate(size)]
            pack = int(found[np.minimum.reduce(after).argmin()])
        else:
            pack = packs
            packs += 1
        rooms[:, pack] -= size
        where.append(pack)
    return np.array(where, np.int64)


def _first_fit(sizes: Numbers, budgets: Numbers) -> Numbers:
    """Returns the pack of each document."""
    packs = 0
    rooms = np.tile(budgets, (len(sizes), 1)).T.copy()
    where = []
    for size in sizes.tolist():
        # One pack that is not open yet is always among them.
        pack = int(_with_room(rooms, packs + 1, size)[0])
        packs = max(packs, pack + 1)
        rooms[:, pack] -= size
        where.append(pack)
    return np.array(where, np.int64)


def _with_room(rooms: Numbers, packs: int, size: list[int]) -> Numbers:
    """Returns which of the first packs have room for a document. rooms: shape (budgets, packs)."""
    fits = rooms[0, :packs] >= size[0]
    for number in range(1, len(size)):
        fits &= rooms[number, :packs] >= size[number]
    return np.flatnonzero(fits)
