"""Ranks with different numbers of batches are named; ranks that agree, or differ on purpose, are left alone."""

from __future__ import annotations

import os
import subprocess
import sys
import warnings
from pathlib import Path
from typing import Any

import pytest
import torch.distributed

from headrace.core.errors import RanksDifferError
from headrace.core.world import World
from headrace.loader.rank_check import RankWatch

ROOT = Path(__file__).parents[2]


class Store:
    """What a process group's store does, in one process."""

    def __init__(self) -> None:
        self.held: dict[str, str] = {}

    def set(self, key: str, value: str) -> None:
        self.held[key] = value

    def get(self, key: str) -> bytes:
        return self.held[key].encode()

    def check(self, keys: list[str]) -> bool:
        return all(key in self.held for key in keys)


def watches(*, strict: bool = True) -> tuple[RankWatch, RankWatch]:
    store = Store()
    first, second = (RankWatch(store, "a/0", World(rank, 2), strict=strict) for rank in (0, 1))
    return first, second


def test_the_second_to_begin_sees_the_first() -> None:
    first, second = watches()
    first.begin(10)
    with pytest.raises(RanksDifferError, match="rank 0: 10, rank 1: 12"):
        second.begin(12)
    first.delivers(1)
    with pytest.raises(RanksDifferError, match="rank 0: 10, rank 1: 12"):
        first.delivers(2)


@pytest.mark.parametrize("posts_first", ["the one that ends", "the one that goes on"])
def test_of_two_streams_that_differ_one_sees_it(posts_first: str) -> None:
    ending, going_on = watches()
    for count in range(1, 4):
        ending.delivers(count)
        going_on.delivers(count)
    if posts_first == "the one that ends":
        ending.ends(3)
        with pytest.raises(RanksDifferError, match="rank 0 has ended after 3 batches, rank 1 goes on with 4"):
            going_on.delivers(4)
    else:
        going_on.delivers(4)
        with pytest.raises(RanksDifferError, match="rank 0 has ended after 3 batches, rank 1 goes on"):
            ending.ends(3)


def test_equal_ranks_are_left_alone() -> None:
    first, second = watches()
    for watch in (first, second):
        watch.begin(None)
        for count in range(1, 6):
            watch.delivers(count)
    first.ends(5)
    second.ends(5)


def test_ranks_whose_samplers_differ_are_named() -> None:
    store: Any = Store()
    first, second = (
        RankWatch(store, "a/0", World(rank, 2), strict=True, order=order)
        for rank, order in enumerate(("a sampler", "another"))
    )
    first.begin(None)
    with pytest.raises(RanksDifferError, match="a sampler on rank 0, another on rank 1"):
        second.begin(None)
    first.delivers(1)
    with pytest.raises(RanksDifferError, match="another on rank 1, a sampler on rank 0"):
        first.delivers(2)


def test_ranks_that_count_other_epochs_are_named_at_their_first_batches() -> None:
    store = Store()

    def watch(rank: int, epoch: int) -> RankWatch:
        return RankWatch(store, f"a/{epoch}", World(rank, 2), strict=True, counted=("a", epoch))  # type: ignore[arg-type]

    for further, is_told in ((0, True), (1, True), (2, True), (3, False)):
        first, second = watch(0, 1), watch(1, 0)
        first.begin(10)
        second.begin(10)
        for count in range(1, further + 1):
            with warnings.catch_warnings(record=True):
                warnings.simplefilter("always")
                second.delivers(count)
        first.delivers(1)
        with warnings.catch_warnings(record=True) as caught:
            warnings.simplefilter("always")
            first.delivers(2)
        assert ["their orders differ" in str(one.message) for one in caught] == [True] * is_told

    # One that is through is behind, and out of step.
    first, second = watch(0, 1), watch(1, 0)
    second.begin(1)
    second.delivers(1)
    second.ends(1)
    first.begin(1)
    first.delivers(1)
    first.delivers(2)


def test_a_warning_comes_once() -> None:
    first, second = watches(strict=False)
    first.begin(10)
    with pytest.warns(UserWarning, match="the ranks have different numbers of batches"):
        second.begin(12)
    second.delivers(2)  # warnings are errors here
    second.ends(12)


@pytest.mark.thorough
@pytest.mark.skipif(not torch.distributed.is_gloo_available(), reason="needs gloo")
@pytest.mark.parametrize(
    ("kind", "expected"),
    [
        ("auto", ["RanksDifferError", "rank 0: 5, rank 1: 6"]),
        pytest.param("replica", ["RanksDifferError", "one model replica"], marks=pytest.mark.stress),
        pytest.param("map", ["rank 0: 10, rank 1: 12"], marks=pytest.mark.stress),
        ("stream", ["rank 0 has ended after 10 batches, rank 1 goes on"]),
        ("other packs", ["the samplers of the ranks do not belong together", "a PackedBatchSampler with the digest"]),
        ("looked", ["Rank 0 is in epoch 1, and rank 1 in epoch 0", "set_epoch"]),
        ("looked, numbered", []),
        ("equal", []),
        ("packs", []),
        pytest.param("dealt", [], marks=pytest.mark.stress),
        pytest.param("keep", [], marks=pytest.mark.stress),
        pytest.param("portion", [], marks=pytest.mark.stress),
    ],
)
def test_in_a_process_group(kind: str, expected: list[str], tmp_path: Path) -> None:
    command = [sys.executable, "-m", "tests.loader.ranks_program"]
    environment: dict[str, Any] = {**os.environ, "GLOO_SOCKET_IFNAME": "lo"}
    ranks = [
        subprocess.Popen(
            [*command, str(rank), str(tmp_path / "store"), kind],
            stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, cwd=ROOT, env=environment,
        )
        for rank in (0, 1)
    ]  # fmt: skip
    outputs = [rank.communicate(timeout=100) for rank in ranks]
    said = "".join(out for out, _ in outputs)
    if kind not in ("auto", "replica"):  # one rank ends with the error, and the other's barrier with one of its own
        assert [rank.returncode for rank in ranks] == [0, 0], outputs
    assert all(text in said for text in expected), said
    counts_differ = kind in ("auto", "map", "stream")
    assert ("different numbers" in said) == counts_differ
    assert ("their orders differ" in said) == (kind == "looked")
    assert ("belong together" in said) == (kind == "other packs")
