"""Documents are put into packs: all of them, once, and no pack over its budget."""

from __future__ import annotations

from itertools import pairwise
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from headrace.packing.fit import Numbers, Packs, best_fit, first_fit, split


@st.composite
def documents(draw: st.DrawFn, budgets: int = 3) -> tuple[Numbers, Numbers]:
    """Sizes of documents, none over its budget, and the budgets."""
    most = draw(st.lists(st.integers(1, 30), min_size=1, max_size=budgets))
    rows = st.tuples(*(st.integers(0, budget) for budget in most))
    sizes = draw(st.lists(rows, max_size=40))
    return np.array(sizes, np.int64).reshape(len(sizes), len(most)), np.array(most, np.int64)


def documents_of(packs: Packs) -> list[list[int]]:
    return [packs.documents[begin:end].tolist() for begin, end in pairwise(packs.edges)]


def first_fit_in_words(sizes: Numbers, budgets: Numbers) -> list[list[int]]:
    """First fit as it is told: each document goes into the first pack that has room."""
    packs: list[list[int]] = []
    for number in range(len(sizes)):
        for pack in packs:
            if (sizes[[*pack, number]].sum(axis=0) <= budgets).all():
                pack.append(number)
                break
        else:
            packs.append([number])
    return packs


@pytest.mark.parametrize("fit", [first_fit, best_fit])
@pytest.mark.quick
@given(given=documents())
@settings(deadline=None)
def test_whole_documents_are_in_one_pack_each_within_every_budget(fit: Any, given: tuple[Numbers, Numbers]) -> None:
    sizes, budgets = given
    packs = fit(sizes, budgets)
    assert sorted(packs.documents.tolist()) == list(range(len(sizes)))
    assert (packs.starts == 0).all()
    assert (packs.stops == sizes[packs.documents, 0]).all()
    for pack in documents_of(packs):
        assert pack
        assert (sizes[pack].sum(axis=0) <= budgets).all()
    assert packs.totals().tolist() == [int(sizes[pack, 0].sum()) for pack in documents_of(packs)]


@given(given=documents())
@settings(deadline=None)
def test_first_fit_is_first_fit(given: tuple[Numbers, Numbers]) -> None:
    assert documents_of(first_fit(*given)) == first_fit_in_words(*given)


@given(given=documents(budgets=1), longer=st.integers(1, 4))
@settings(deadline=None)
def test_split_loses_no_token_and_fills_every_pack_but_the_last(given: tuple[Numbers, Numbers], longer: int) -> None:
    sizes, budgets = given
    sizes = sizes * longer
    packs = split(sizes, budgets)
    for number in range(len(sizes)):
        pieces = np.flatnonzero(packs.documents == number)
        assert packs.starts[pieces[0]] == 0
        assert packs.stops[pieces[-1]] == sizes[number, 0]
        assert (packs.starts[pieces[1:]] == packs.stops[pieces[:-1]]).all()
    # Pieces follow the documents.
    assert (np.diff(packs.documents) >= 0).all()
    assert (packs.totals()[:-1] == budgets[0]).all()
    assert (packs.totals()[-1:] <= budgets[0]).all()


@pytest.mark.parametrize("budget", [8192, 32768])
@pytest.mark.quick
def test_best_fit_leaves_little_room(budget: int) -> None:
    """Half a pack is left over on average, so that one pack more than needed is allowed."""
    lengths = np.clip(np.random.default_rng(0).lognormal(6, 1, 10_000), 1, budget).astype(np.int64)
    packs = best_fit(lengths[:, None], np.array([budget]))
    needed = -(-int(lengths.sum()) // budget)
    assert needed <= len(packs) <= needed + 1


def test_documents_of_one_length_above_half_the_budget_have_a_pack_each() -> None:
    assert len(best_fit(np.full((100, 1), 6), np.array([10]))) == 100


@pytest.mark.parametrize("fit", [best_fit, first_fit, split])
@pytest.mark.quick
def test_no_documents_make_no_packs(fit: Any) -> None:
    packs = fit(np.zeros((0, 1), np.int64), np.array([8]))
    assert len(packs) == 0
    assert packs.edges.tolist() == [0]


@pytest.mark.parametrize("fit", [best_fit, first_fit, split])
@pytest.mark.quick
def test_empty_documents_are_not_lost(fit: Any) -> None:
    packs = fit(np.zeros((3, 1), np.int64), np.array([8]))
    assert documents_of(packs) == [[0, 1, 2]]
