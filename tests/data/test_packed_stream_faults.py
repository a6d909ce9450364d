"""What is said of bad documents of a stream of packs, when, and which states it refuses."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

import headrace
from headrace.core.errors import DatasetError, StateError
from tests.data.test_packed_stream import Documents, Generated, loader_of

ROWS = [39] * 2000
BAD = (100, 900, 1500, 1999)


@pytest.mark.parametrize(
    ("name", "other"), [("fit", "first"), ("fit", "split"), ("budget", 64), ("too_long", "cut"), ("window", 51)]
)
def test_a_state_of_packs_that_were_made_in_another_way_is_refused(name: str, other: Any) -> None:
    arguments: dict[str, Any] = {"budget": 40, "window": 50}
    loader = loader_of(headrace.PackedStream(Documents(ROWS[:200]), **arguments))
    next(iter(loader))
    again = loader_of(headrace.PackedStream(Documents(ROWS[:200]), **(arguments | {name: other})))
    again.load_state_dict(loader.state_dict())
    with pytest.raises(StateError, match=f"{name}=.* in the state, {name}=.*{other}"):
        next(iter(again))


@pytest.mark.parametrize("workers", [0, 2])
def test_a_share_of_bad_documents_is_one_of_documents(workers: int, tmp_path: Path) -> None:
    policy = headrace.OnError("skip", max_rate=0.004, log=tmp_path / "bad.jsonl")
    stream = headrace.PackedStream(Documents(ROWS, BAD), 8192, window=500)
    loader = loader_of(stream, on_error=policy, num_workers=workers)
    numbers = {int(number) for batch in loader for number in batch["number"]}
    assert numbers == set(range(2000)) - set(BAD)
    assert loader.faults.skipped == len(BAD)
    told = [json.loads(line) for line in (tmp_path / "bad.jsonl").read_text().splitlines()]
    parts = max(workers, 1)
    # Each worker counts its own documents.
    assert {bad["key"] * parts + (bad["worker"] or 0) for bad in told} == set(BAD)


def test_too_many_bad_documents_are_told_beside_how_many_were_read() -> None:
    stream = headrace.PackedStream(Documents(ROWS, tuple(range(0, 2000, 2))), 8192, window=500)
    loader = loader_of(stream, on_error=headrace.OnError("skip", max_count=200))
    with pytest.raises(headrace.errors.TooManyBadSamplesError, match=r"250 of 500; the last: 498"):
        list(loader)


@pytest.mark.parametrize("policy", ["raise", "skip"])
@pytest.mark.parametrize("good", [0, 1])
def test_a_stream_of_bad_documents_only_is_not_read_to_its_end(good: int, policy: Any) -> None:
    stream = headrace.PackedStream(Documents([39] * 5000, tuple(range(good, 5000))), 8192)
    with pytest.raises(DatasetError, match=f"100 bad ones(.|\n)*document {good + 99} is broken"):
        list(loader_of(stream, on_error=policy))


@pytest.mark.parametrize("policy", ["raise", "skip"])
def test_a_bad_source_of_a_mixture_is_not_begun_again_for_ever(policy: Any) -> None:
    mixed = headrace.mix([Documents([3] * 10), Documents([3] * 3, (0, 1, 2))], weights=[1, 1])
    with pytest.raises(DatasetError, match="no good documents any more"):
        list(loader_of(headrace.PackedStream(mixed, 8), on_error=policy))


def test_many_documents_in_a_row_may_be_too_long() -> None:
    lengths = [9] * 30 + [41] * 150 + [9] * 30
    loader = loader_of(headrace.PackedStream(Documents(lengths), 40), on_error="skip")
    numbers = sorted(int(number) for batch in loader for number in batch["number"])
    assert numbers == [*range(30), *range(180, 210)]
    assert loader.faults.skipped == 150


def test_an_error_comes_behind_a_window_of_documents_good_or_bad() -> None:
    documents = Documents([39] * 5000, tuple(range(0, 5000, 2)))
    reading = iter(documents)
    stream = headrace.PackedStream(Generated(lambda: reading), 8192, window=50)
    with pytest.raises(ValueError, match="document 0 is broken"):
        next(iter(loader_of(stream)))
    assert reading.next <= 2 * 50
