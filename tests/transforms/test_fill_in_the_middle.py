"""Documents with their middle part put last: nothing is lost, and the loader's seed decides."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

import headrace
from headrace.core.errors import SampleError, UsageError
from headrace.core.randomness.rng import begin_stream
from headrace.transforms import FillInTheMiddle
from tests.transforms.texts import Stepped, as_list, rows_of

PREFIX, MIDDLE, SUFFIX = 1000, 1001, 1002
BEGIN, END = 998, 999
CREWS = [
    {"num_workers": 2, "multiprocessing_context": "spawn"},
    {"num_workers": 2, "multiprocessing_context": "fork"},
    {"num_workers": 1},
    {"num_workers": 2, "backend": "thread"},
]


@pytest.fixture(autouse=True)
def own_stream() -> Any:
    """Each test begins a stream of its own, and leaves none behind."""
    begin_stream(3)
    yield
    begin_stream(None)


def restored(ids: list[int]) -> list[int]:
    """Undoes the step: in both orders, what is between `suffix` and `middle` goes last."""
    if PREFIX not in ids:
        return ids
    first = ids[: ids.index(PREFIX)]
    before = ids[ids.index(PREFIX) + 1 : ids.index(SUFFIX)]
    behind = ids[ids.index(SUFFIX) + 1 : ids.index(MIDDLE)]
    rest = ids[ids.index(MIDDLE) + 1 :]
    last = []
    if rest[-1:] == [END]:
        last = [rest.pop()]
    return first + before + rest + behind + last


def tokens(count: int = 40) -> list[dict[str, Any]]:
    return [{"input_ids": np.arange(3 * at % 17 + 1)} for at in range(count)]


@given(
    ids=st.lists(st.integers(0, 900), max_size=30),
    seed=st.integers(0, 1 << 40),
    rate=st.sampled_from([0.5, 1.0]),
    spm_rate=st.sampled_from([0.0, 0.5, 1.0]),
    begins=st.booleans(),
    ends=st.booleans(),
)
def test_undoing_it_gives_the_document_back(
    ids: list[int], seed: int, rate: float, spm_rate: float, begins: bool, ends: bool
) -> None:
    document = [BEGIN] * begins + ids + [END] * ends
    begin_stream(seed)
    step = FillInTheMiddle(PREFIX, MIDDLE, SUFFIX, rate=rate, spm_rate=spm_rate, begin=BEGIN, end=END)
    made = step(np.array(document, np.int32))
    assert made.dtype == np.int32
    assert restored(made.tolist()) == document
    assert len(made) - len(document) == step.grows_by * (PREFIX in made)
    assert made[: int(begins)].tolist() == [BEGIN] * begins
    assert made[len(made) - int(ends) :].tolist() == [END] * ends


@pytest.mark.parametrize("spm_rate", [0.0, 1.0])
@pytest.mark.quick
def test_the_orders_are_those_of_the_paper(spm_rate: float) -> None:
    step = FillInTheMiddle(PREFIX, MIDDLE, SUFFIX, rate=1.0, spm_rate=spm_rate)
    at = {}
    made: list[int] = []
    while not made or at[MIDDLE] - at[SUFFIX] == 1 or made[-1] == MIDDLE or 0 in made[at[MIDDLE] :] == spm_rate:
        made = step(np.arange(12)).tolist()
        at = {mark: made.index(mark) for mark in (PREFIX, MIDDLE, SUFFIX)}

    assert at[PREFIX] == 0
    if spm_rate:
        assert at[SUFFIX] == 1
        assert made[at[MIDDLE] + 1 :] == list(range(len(made) - at[MIDDLE] - 1))
    else:
        first = at[SUFFIX] - 1
        assert made[1 : at[SUFFIX]] == list(range(first))
        assert made[at[MIDDLE] + 1 :] == list(range(first, first + len(made) - at[MIDDLE] - 1))


@pytest.mark.parametrize("rate", [0.0, 0.25, 1.0])
@pytest.mark.quick
def test_the_rates_are_kept(rate: float) -> None:
    step = FillInTheMiddle(PREFIX, MIDDLE, SUFFIX, rate=rate, spm_rate=0.75)
    made = [step(np.arange(50)).tolist() for _ in range(2000)]
    rearranged = [ids for ids in made if PREFIX in ids]
    assert abs(len(rearranged) / 2000 - rate) < 0.04
    if rearranged:
        # Of PSM, one in 51 has nothing in front of the gap, and reads as SPM.
        assert abs(sum(ids[1] == SUFFIX for ids in rearranged) / len(rearranged) - 0.76) < 0.06


def test_cuts_are_uniform_over_all_places_between_tokens() -> None:
    step = FillInTheMiddle(PREFIX, MIDDLE, SUFFIX, rate=1.0, spm_rate=0.0)
    counts = np.zeros((4, 4))
    for _ in range(8000):
        made = step(np.arange(3)).tolist()
        first = made.index(SUFFIX) - 1
        counts[first, first + len(made) - made.index(MIDDLE) - 1] += 1

    expected = np.triu(np.full((4, 4), 2 / 16), 1) + np.eye(4) / 16
    assert np.abs(counts / 8000 - expected).max() < 0.02


@pytest.mark.quick(crew=CREWS[1])
@pytest.mark.parametrize("crew", CREWS, ids=lambda crew: "-".join(map(str, crew.values())))
def test_the_seed_decides_whatever_the_workers(crew: dict[str, Any]) -> None:
    data = Stepped(FillInTheMiddle(PREFIX, MIDDLE, SUFFIX, rate=0.9), tokens())

    def epochs(**words: Any) -> list[list[list[int]]]:
        loader = headrace.DataLoader(data, batch_size=4, shuffle=True, seed=5, collate_fn=as_list, **words)
        return [rows_of(loader) for _ in range(2)]

    expected = epochs()
    assert epochs(**crew) == expected
    assert expected[0] != expected[1]
    assert sorted(map(restored, expected[0])) == sorted(sample["input_ids"].tolist() for sample in tokens())


def test_it_is_random_and_so_kept_in_no_cache() -> None:
    step = FillInTheMiddle(PREFIX, MIDDLE, SUFFIX)
    with pytest.raises(UsageError, match="random"):
        headrace.Staged(tokens()).map(step).cache("memory")

    behind = headrace.Staged(tokens()).cache("memory").map(step)
    batches = headrace.DataLoader(behind, batch_size=5, seed=1)
    assert list(map(restored, rows_of(batches))) == [sample["input_ids"].tolist() for sample in tokens()]


def test_it_draws_the_same_cuts_at_any_rate() -> None:
    made = []
    for rate in (0.6, 1.0):
        begin_stream(8)
        step = FillInTheMiddle(PREFIX, MIDDLE, SUFFIX, rate=rate)
        made.append([step(np.arange(20)).tolist() for _ in range(50)])

    both = [(few, all_) for few, all_ in zip(*made, strict=True) if PREFIX in few]
    assert len(both) > 10
    assert [few for few, _ in both] == [all_ for _, all_ in both]


def test_the_given_ids_and_the_other_entries_stay_as_they_were() -> None:
    sample = {"input_ids": torch.arange(9), "year": 2026}
    made = FillInTheMiddle(PREFIX, MIDDLE, SUFFIX, rate=1.0)(sample)
    assert (made["year"], len(made["input_ids"])) == (2026, 12)
    assert sample["input_ids"].tolist() == list(range(9))


@pytest.mark.parametrize("value", [np.zeros((2, 3), int), np.zeros(3), ["a"], [np.arange(2), np.arange(2)]])
@pytest.mark.quick
def test_what_is_no_document_of_token_ids_is_a_bad_sample(value: Any) -> None:
    with pytest.raises(SampleError, match=r"(?s)no token ids.*FillInTheMiddle\(column='input_ids'\)"):
        FillInTheMiddle(PREFIX, MIDDLE, SUFFIX)({"input_ids": value})


def test_marks_that_do_not_fit_the_type_of_the_ids_are_refused() -> None:
    with pytest.raises(UsageError, match=r"(?s)too large.*1002, in ids of type uint8"):
        FillInTheMiddle(PREFIX, MIDDLE, SUFFIX, rate=1.0)(np.arange(9, dtype=np.uint8))


@pytest.mark.parametrize(
    ("marks", "words", "expected"),
    [
        ((1, 2, 2), {}, "could not be told apart"),
        ((1, 2, -3), {}, r"FillInTheMiddle\(suffix=\)"),
        ((1, 2, 3), {"rate": 1.5}, r"(?s)rate is no probability.*FillInTheMiddle\(rate=\).*1\.5.*fix:"),
        ((1, 2, 3), {"spm_rate": -0.1}, "spm_rate is no probability"),
        ((1, 2, 3), {"rate": "x"}, "rate is no probability"),
        ((1, 2, 3), {"end": "x"}, r"FillInTheMiddle\(end=\)"),
    ],
)
@pytest.mark.quick
def test_wrong_arguments_are_refused(marks: tuple[int, int, int], words: dict[str, Any], expected: str) -> None:
    with pytest.raises(UsageError, match=expected):
        FillInTheMiddle(*marks, **words)


def test_a_sample_without_the_entry_is_an_error() -> None:
    with pytest.raises(UsageError, match=r"(?s)no entry 'ids'.*entries 'input_ids'"):
        FillInTheMiddle(PREFIX, MIDDLE, SUFFIX, column="ids")(tokens()[0])
