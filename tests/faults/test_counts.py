"""How much may be lost."""

from __future__ import annotations

import logging
from pathlib import Path
from typing import Any

import pytest
import torch

from headrace import DataLoader, OnError
from headrace.core.errors import TooManyBadSamplesError, UsageError
from headrace.faults.counts import SAID
from headrace.testing import Faulty, FaultyStream, Raise


def faulty(length: int, count: int) -> Faulty:
    keys = range(0, length, length // count)
    return Faulty([torch.tensor(number) for number in range(length)], {key: Raise(ValueError("no")) for key in keys})


@pytest.mark.parametrize("workers", [0, 2])
@pytest.mark.parametrize(("limit", "passes"), [(10, True), (9, False), (0, False), (None, True)])
def test_a_number_of_bad_samples_is_allowed(workers: int, limit: int | None, passes: bool) -> None:
    loader = DataLoader(faulty(100, 10), 4, on_error=OnError("skip", max_count=limit), num_workers=workers)
    if passes:
        assert sum(len(batch) for batch in loader) == 90
        assert sum(len(batch) for batch in loader) == 90  # the next epoch has its own allowance
    else:
        with pytest.raises(TooManyBadSamplesError, match=f"at most max_count={limit}"):
            list(loader)


def test_a_share_is_one_of_the_whole_epoch_and_judged_early_only_if_it_cannot_hold() -> None:
    early = Faulty(list(range(2000)), {key: Raise(ValueError("no")) for key in range(20)})
    loader = DataLoader(early, 10, on_error=OnError("skip", max_rate=0.01))
    assert sum(len(batch) for batch in loader) == 1982  # two batches would be empty, and get one other sample each
    many = Faulty(list(range(2000)), {key: Raise(ValueError("no")) for key in range(40)})
    iterator = iter(DataLoader(many, 10, on_error=OnError("skip", max_rate=0.01)))
    assert [len(next(iterator)), len(next(iterator))] == [1, 1]
    with pytest.raises(TooManyBadSamplesError, match="30 of 30"):
        next(iterator)


def test_a_share_of_a_small_epoch_is_one_of_its_length() -> None:
    loader = DataLoader(faulty(50, 5), 10, on_error=OnError("replace", max_rate=0.05), seed=0)
    with pytest.raises(TooManyBadSamplesError, match="3 of 30"):
        list(loader)
    assert len(loader.faults.records) == 3


def test_a_share_of_a_stream_is_judged_at_its_end() -> None:
    stream = FaultyStream(range(50), {key: Raise(ValueError("no")) for key in range(5, 15)})
    batches = []
    with pytest.raises(TooManyBadSamplesError, match="10 of 50"):
        batches.extend(DataLoader(stream, 10, on_error=OnError("replace", max_rate=0.05)))
    assert len(batches) == 5


def test_a_limit_needs_a_policy() -> None:
    with pytest.raises(UsageError, match="a limit has nothing to count"):
        DataLoader([1, 2, 3], on_error=OnError(max_count=3))


def test_counts_go_on_over_epochs_and_say_what_became_of_each(tmp_path: Path) -> None:
    loader = DataLoader(faulty(40, 4), 10, on_error=lambda one: "skip" if one.key == 0 else "replace", seed=0)
    for _ in range(3):
        list(loader)
    faults = loader.faults
    assert (faults.bad, faults.skipped, faults.replaced, faults.restarts) == (12, 3, 9, 0)
    assert [record.epoch for record in faults.records] == [0] * 4 + [1] * 4 + [2] * 4


def test_batches_that_were_only_prefetched_are_not_counted() -> None:
    loader = DataLoader(faulty(40, 4), 2, on_error="skip", num_workers=2)
    next(iter(loader))
    assert loader.faults.bad == 1


def test_the_log_names_the_first_ones_and_sums_up(caplog: pytest.LogCaptureFixture) -> None:
    with caplog.at_level(logging.WARNING, "headrace"):
        list(DataLoader(faulty(100, 20), 10, on_error="skip"))
    said = [record.getMessage() for record in caplog.records]
    assert len([text for text in said if "bad sample" in text]) == SAID
    assert said[-1] == "headrace: 20 of the 100 samples of this epoch are bad."


@pytest.mark.parametrize(
    "wrong",
    [
        {"action": "ignore"}, {"action": 3}, {"max_count": -1}, {"max_rate": 1.5}, {"max_rate": "many"},
        {"max_rate": 1}, {"max_count": 0.5}, {"max_count": True}, {"timeout": 0}, {"timeout": -2}, {"timeout": "1"},
        {"max_rate": float("nan")}, {"timeout": float("inf")}, {"timeout": 1e30}, {"log": 3},
        {"original": "x"},
    ],
    ids=str,
)  # fmt: skip
def test_arguments_that_make_no_sense_are_named(wrong: dict[str, Any]) -> None:
    (name,) = wrong
    with pytest.raises(UsageError, match=f"{name}="):
        OnError(**{"action": "skip", **wrong})


@pytest.mark.parametrize("action", ["ignore", 3])
def test_a_word_that_is_none_of_the_three_is_named(action: Any) -> None:
    with pytest.raises(UsageError, match=rf"headrace.OnError\(action=\)(?s:.*){action!r}"):
        DataLoader([1, 2, 3], on_error=action)


def test_of_two_limits_one_is_to_be_given() -> None:
    with pytest.raises(UsageError, match="give one of the two"):
        OnError("skip", max_rate=0.1, max_count=3)
