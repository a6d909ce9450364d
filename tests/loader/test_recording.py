"""Each batch of a real loader leaves one row: its moments in order, its samples and its bytes, whoever made it."""

from __future__ import annotations

import json
import random
import time
from collections.abc import Iterator
from itertools import pairwise
from typing import Any

import numpy as np
import pytest
import torch
from torch.utils.data import Dataset, IterableDataset

import headrace
from headrace.telemetry.recorder import HELD
from headrace.telemetry.recording import BATCH, MAIN, Recording, totals_of
from headrace.testing import Faulty, Kill, Raise
from headrace.workers.play.workload import workload_of

MOMENTS = ("posted", "begun", "loaded", "collated", "sent", "arrived")
engines = pytest.mark.parametrize(
    "how",
    [{}, {"num_workers": 2}, {"num_workers": 2, "backend": "thread"}],
    ids=["inline", "process", "thread"],
)
workers = pytest.mark.parametrize(
    "how", [{"num_workers": 2}, {"num_workers": 2, "backend": "thread"}], ids=["process", "thread"]
)
seeds = pytest.mark.parametrize("seed", [None, 3])


class Rows(Dataset[Any]):
    """Sample k is what `make(k)` returns."""

    def __init__(self, length: int = 22, kind: str = "tensors") -> None:
        self.length, self.kind = length, kind

    def __len__(self) -> int:
        return self.length

    def __getitem__(self, key: int) -> Any:
        return KINDS[self.kind](key)


KINDS: dict[str, Any] = {
    "tensors": lambda key: torch.full((5,), float(key)),
    "pairs": lambda key: (torch.full((3, 2), float(key)), key),
    "dicts": lambda key: {"image": np.full((7,), key, np.uint8), "label": float(key), "name": f"name {key}"},
    "strings": lambda key: f"name {key}",
    "bytes": lambda key: bytes([key]) * 10,
    "sparse": lambda key: torch.eye(3).to_sparse(),
    "large": lambda key: torch.full((20_000,), float(key)),
}
BYTES = {"tensors": 20, "pairs": 24 + 8, "dicts": 7 + 8, "strings": 0, "bytes": None, "sparse": None, "large": 80_000}
"""Of a sample; None: not of tensors."""


class WholeBatches(Rows):
    """Makes whole batches."""

    def fetch_batch(self, keys: Any, out: Any) -> torch.Tensor:
        target = out.empty((len(keys), 5), torch.float32) if hasattr(out, "empty") else torch.empty(len(keys), 5)
        target[:] = torch.as_tensor(np.asarray(keys), dtype=torch.float32)[:, None]
        return target


class Stream(IterableDataset[torch.Tensor]):
    """22 numbers, dealt out over workers."""

    def __iter__(self) -> Iterator[torch.Tensor]:
        return (torch.full((5,), float(number)) for number in headrace.shard(range(22)))


def as_they_are(samples: list[Any]) -> list[Any]:
    return samples


def rows_of(loader: Any, recording: Recording | None = None) -> np.ndarray:
    return (recording or loader.recording).batches


def check_moments(rows: np.ndarray, *, by_workers: bool) -> None:
    """Moments follow each other, and those that there cannot be are not there."""
    assert (rows["asked"] <= rows["delivered"]).all()
    assert (rows["delivered"][:-1] <= rows["asked"][1:]).all()
    if by_workers:
        for one, two in pairwise(MOMENTS):
            assert (rows[one] <= rows[two]).all(), (one, two)
        assert (rows["arrived"] <= rows["delivered"]).all()
        assert (rows["worker"] >= 0).all()
    else:
        assert (rows["worker"] == MAIN).all()
        moments = ("asked", "begun", "loaded", "collated", "delivered")
        for one, two in pairwise(moments):
            assert (rows[one] <= rows[two]).all(), (one, two)
        assert np.isnan(rows["posted"]).all()
        assert np.isnan(rows["arrived"]).all()
    with np.errstate(invalid="ignore"):
        assert not (rows["load_cpu"] > rows["cpu"] + 1e-6).any()
    assert (rows["opened"] >= 0).all()


@engines
@seeds
@pytest.mark.parametrize("shuffle", [False, True])
def test_every_batch_leaves_one_row(how: dict[str, Any], seed: int | None, shuffle: bool) -> None:
    loader = headrace.DataLoader(Rows(), 4, shuffle=shuffle, seed=seed, **how)
    for epoch in range(2):
        assert len(list(loader)) == 6
        rows = rows_of(loader)[-6:]
        assert rows["epoch"].tolist() == [epoch] * 6
        assert rows["number"].tolist() == list(range(6))
        assert rows["samples"].tolist() == [4, 4, 4, 4, 4, 2]
        check_moments(rows, by_workers="num_workers" in how)
    recording = loader.recording
    assert len(recording.batches) == 12
    assert recording.totals["samples"] == 44
    assert recording.totals["batches"] == 12
    assert [(one.epoch, one.batches, one.workers) for one in recording.epochs] == [
        (epoch, 6, how.get("num_workers", 0)) for epoch in range(2)
    ]
    assert all(one.began <= one.first <= one.ended for one in recording.epochs)


@workers
def test_rows_name_the_worker_that_made_the_batch(how: dict[str, Any]) -> None:
    loader = headrace.DataLoader(Rows(), 4, **how)
    list(loader)
    assert rows_of(loader)["worker"].tolist() == [0, 1, 0, 1, 0, 1]


@engines
@pytest.mark.parametrize("kind", list(KINDS))
def test_samples_and_bytes_are_those_of_the_batch(kind: str, how: dict[str, Any]) -> None:
    collate = as_they_are if kind in ("sparse", "bytes") else None
    loader = headrace.DataLoader(Rows(12, kind), 4, collate_fn=collate, **how)
    list(loader)
    rows = rows_of(loader)
    assert rows["samples"].tolist() == [4, 4, 4]
    in_buffers = how != {"num_workers": 2} or kind == "large"  # small tensors are pickled on their way from processes
    if not in_buffers:
        assert (rows["bytes"] > 40).all()  # what is pickled counts as it is
    elif kind == "bytes":
        assert rows["bytes"].tolist() == [40] * 3
    elif BYTES[kind] is not None:
        assert rows["bytes"].tolist() == [4 * BYTES[kind]] * 3
    assert loader.stats.bytes == rows["bytes"].sum()


@engines
@seeds
def test_data_sets_that_make_batches_have_rows_like_others(how: dict[str, Any], seed: int | None) -> None:
    loader = headrace.DataLoader(WholeBatches(), 4, seed=seed, **how)
    assert torch.cat(list(loader))[:, 0].tolist() == list(range(22))
    rows = rows_of(loader)
    assert rows["samples"].tolist() == [4, 4, 4, 4, 4, 2]
    assert rows["bytes"].tolist()[:5] == [80] * 5
    check_moments(rows, by_workers="num_workers" in how)
    assert loader.recording.setting.makes_batches


@engines
@seeds
def test_streams_have_rows_like_others(how: dict[str, Any], seed: int | None) -> None:
    loader = headrace.DataLoader(Stream(), 4, seed=seed, **how)
    batches = list(loader)
    rows = rows_of(loader)
    assert rows["samples"].tolist() == [len(batch) for batch in batches]
    assert rows["number"].tolist() == list(range(len(batches)))
    assert loader.recording.totals["samples"] == 22
    check_moments(rows, by_workers="num_workers" in how)
    assert loader.recording.setting.is_stream


@workers
def test_without_order_each_row_is_of_its_batch(how: dict[str, Any]) -> None:
    loader = headrace.DataLoader(Rows(), 4, in_order=False, **how)
    batches = list(loader)
    rows = rows_of(loader)
    assert rows["number"].tolist() == list(range(6))
    assert rows["samples"].tolist() == [len(batch) for batch in batches]


@engines
def test_without_batches_a_row_is_of_a_sample(how: dict[str, Any]) -> None:
    loader = headrace.DataLoader(Rows(5), None, **how)
    list(loader)
    assert rows_of(loader)["samples"].tolist() == [1] * 5


@pytest.mark.parametrize(
    ("dataset", "how", "kind"),
    [
        (Rows(22), {}, "inline"),
        (Rows(22), {"num_workers": 2}, "process"),
        (Rows(22), {"num_workers": 2, "backend": "thread"}, "thread"),
        (Rows(22), {"num_workers": 2, "backend": "inline"}, "inline"),
    ],
)
def test_the_setting_is_that_of_the_loader(dataset: Any, how: dict[str, Any], kind: str) -> None:
    loader = headrace.DataLoader(dataset, 4, seed=0, in_order=False, **how)
    list(loader)
    setting = loader.recording.setting
    count = 0 if kind == "inline" else 2
    assert (setting.backend, setting.num_workers, setting.batch_size, setting.length) == (kind, count, 4, 6)
    assert (setting.in_order, setting.dataset, setting.is_stream) == (False, "Rows", False)
    assert setting.prefetch_factor == (2 if count else 0)
    assert setting.free == bool(count)
    assert setting.cores >= 1
    assert setting.memory > 1 << 20


# -- totals, and what is kept ------------------------------------------------------------------------------------------


def test_beyond_the_ring_totals_are_of_all_batches() -> None:
    loader = headrace.DataLoader(range(HELD + 150), 1)
    seen: list[np.ndarray] = []
    for number, _ in enumerate(loader):
        if number % 1000 == 999:
            seen.append(loader.recording.batches[-1000:])
    recording = loader.recording
    seen.append(recording.batches[-(len(recording.batches) % 1000 + 54) :])
    assert len(recording.batches) == HELD
    assert recording.batches["number"].tolist() == list(range(150, HELD + 150))
    assert recording.totals["batches"] == recording.totals["samples"] == HELD + 150
    every = np.concatenate([*seen[:-1], recording.batches[-(HELD + 150 - 4000) :]])
    assert every["number"].tolist() == list(range(HELD + 150))
    expected = totals_of(every)
    assert {name: recording.totals[name] for name in expected} == pytest.approx(expected)


@engines
def test_a_recording_is_a_snapshot_that_goes_through_json(how: dict[str, Any]) -> None:
    loader = headrace.DataLoader(Rows(), 4, **how)
    iterator = iter(loader)
    next(iterator)
    early = loader.recording
    list(iterator)
    assert len(early.batches) == 1
    found = Recording.from_json(json.loads(json.dumps(loader.recording.as_json(), allow_nan=False)))
    for name in BATCH.names or ():
        assert np.array_equal(found.batches[name], rows_of(loader)[name], equal_nan=True)


# -- epochs that are not as usual --------------------------------------------------------------------------------------


@engines
def test_an_epoch_that_is_broken_off_has_no_end(how: dict[str, Any]) -> None:
    loader = headrace.DataLoader(Rows(), 4, **how)
    for _ in zip(loader, range(2), strict=False):
        pass
    list(loader)
    first, second = loader.recording.epochs
    assert first.ended != first.ended  # NaN
    assert (second.batches, second.epoch) == (6, 1)
    rows = rows_of(loader)
    assert rows["number"][rows["epoch"] == 0].tolist() == list(range(first.batches))
    assert first.batches in (2, 3)  # zip asks for one more


@engines
def test_two_iterators_at_once_have_rows_of_their_own(how: dict[str, Any]) -> None:
    loader = headrace.DataLoader(Rows(), 4, **how)
    one, two = iter(loader), iter(loader)
    for _ in range(3):
        next(one)
        next(two)
    next(two)
    rows = rows_of(loader)
    assert rows["epoch"].tolist() == [0, 1, 0, 1, 0, 1, 1]
    assert rows["number"].tolist() == [0, 0, 1, 1, 2, 2, 3]
    assert rows["samples"].tolist() == [4] * 7
    list(two)
    list(one)
    first, second = loader.recording.epochs
    assert (first.batches, second.batches) == (6, 6)
    assert second.ended <= first.ended
    assert loader.recording.totals["samples"] == 44


@engines
def test_a_batch_that_raises_leaves_no_row(how: dict[str, Any]) -> None:
    loader = headrace.DataLoader(Faulty(Rows(), {5: Raise(ValueError("bad"))}), 4, **how)
    iterator, delivered = iter(loader), 0
    with pytest.raises(ValueError, match="bad"):
        for _ in iterator:
            delivered += 1
    delivered += len(list(iterator))
    rows = rows_of(loader)
    assert len(rows) == delivered
    assert rows["samples"].tolist() == [4] * (delivered - 1) + [2]
    check_moments(rows, by_workers="num_workers" in how)


@engines
def test_bad_samples_are_counted(how: dict[str, Any]) -> None:
    loader = headrace.DataLoader(Faulty(Rows(), {5: Raise(ValueError("bad"))}), 4, on_error="skip", **how)
    list(loader)
    assert loader.recording.bad_samples == loader.stats.bad_samples == 1


def test_workers_that_are_replaced_are_counted_and_leave_rows_all_the_same() -> None:
    loader = headrace.DataLoader(Faulty(Rows(), {9: Kill()}, times=1), 4, num_workers=2)
    assert len(list(loader)) == 6
    assert loader.recording.restarts == loader.stats.restarts == 1
    assert rows_of(loader)["number"].tolist() == list(range(6))
    check_moments(rows_of(loader), by_workers=True)


def test_workers_that_are_kept_are_not_fresh() -> None:
    for persistent in (False, True):
        loader = headrace.DataLoader(Rows(), 4, num_workers=2, persistent_workers=persistent)
        for _ in range(3):
            list(loader)
        assert [one.fresh for one in loader.recording.epochs] == [True, not persistent, not persistent]
        assert rows_of(loader)["epoch"].tolist() == [0] * 6 + [1] * 6 + [2] * 6


@engines
def test_a_loader_that_goes_on_behind_a_state_counts_what_it_delivers(how: dict[str, Any]) -> None:
    loader = headrace.DataLoader(Rows(), 4, seed=1, **how)
    iterator = iter(loader)
    next(iterator)
    state = loader.state_dict()
    again = headrace.DataLoader(Rows(), 4, seed=1, **how)
    again.load_state_dict(state)
    assert len(list(again)) == 5
    assert rows_of(again)["samples"].tolist() == [4, 4, 4, 4, 2]
    assert again.recording.totals["samples"] == 18


@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a GPU")
@engines
def test_pinning_is_measured(how: dict[str, Any]) -> None:
    loader = headrace.DataLoader(Rows(22, "large"), 4, pin_memory=True, **how)
    list(loader)
    assert (rows_of(loader)["pinned"] > 0).all()


class Timed(Rows):
    """Takes long enough for its core seconds to be asked for."""

    def __getitem__(self, key: int) -> Any:
        table = random.Random(key)
        sum(table.random() for _ in range(30_000))
        return super().__getitem__(key)


@engines
def test_core_seconds_of_making_batches_are_known_where_they_matter(how: dict[str, Any]) -> None:
    loader = headrace.DataLoader(Timed(24), 4, **how)
    list(loader)
    rows = rows_of(loader)[1:]
    made = rows["collated"] - rows["begun"]
    assert (rows["load_cpu"] > 0).all()
    assert (rows["load_cpu"] <= rows["cpu"]).all()
    assert (rows["load_cpu"] <= made + 1e-3).all()


class Sleeping(Rows):
    """Takes 20 ms to load."""

    def __getitem__(self, key: int) -> Any:
        time.sleep(0.02)
        return super().__getitem__(key)


def sleeping_collation(samples: list[Any]) -> Any:
    time.sleep(0.03)
    return torch.stack(samples)


@engines
def test_loading_and_collation_are_told_apart(how: dict[str, Any]) -> None:
    loader = headrace.DataLoader(Sleeping(4), 2, collate_fn=sleeping_collation, **how)
    list(loader)
    rows = rows_of(loader)
    assert (rows["loaded"] - rows["begun"] >= 0.04).all()
    assert (rows["collated"] - rows["loaded"] >= 0.03).all()
    assert loader.stats.stages["load"].seconds >= 0.08
    assert loader.stats.stages["collate"].seconds >= 0.06


class Waits(Dataset[int]):
    """Samples long enough to be timed one by one."""

    def __len__(self) -> int:
        return 64

    def __getitem__(self, key: int) -> int:
        time.sleep(1e-3)  # the work itself
        return key


def own_collate(batch: list[int]) -> torch.Tensor:
    return torch.tensor(batch)


def recorded(**how: Any) -> Recording:
    loader = headrace.DataLoader(Waits(), batch_size=8, **how)
    assert [int(key) for batch in loader for key in batch] == list(range(64))
    return loader.recording


def test_the_slowest_sample_is_recorded_where_workers_could_share_batches() -> None:
    recording = recorded(num_workers=2)
    setting, rows = recording.setting, recording.batches
    assert (setting.shares, setting.could_share, setting.adapts) == (False, True, True)
    assert setting.spare_memory > 0
    assert (rows["slowest"] > 0).all()
    assert (rows["slowest"] <= rows["loaded"] - rows["begun"]).all()
    assert np.isnan(rows["others"]).all()


def test_the_work_of_all_workers_is_recorded_of_batches_that_they_share() -> None:
    recording = recorded(num_workers=2, seed=1)
    first = recording.batches[0]
    assert (recording.setting.shares, recording.setting.could_share) == (True, True)
    assert first["slowest"] > 0
    assert first["others"] >= 1e-3  # at least one sample is the other worker's
    (work,) = workload_of(recording).epochs  # type: ignore[union-attr]  # there are batches
    made = first["loaded"] - first["begun"]
    assert work.wait[0] + work.cpu[0] + first["queued"] > made + first["others"]


@pytest.mark.parametrize(
    "how",
    [{}, {"num_workers": 2, "backend": "thread"}, {"num_workers": 2, "collate_fn": own_collate}],
    ids=["inline", "threads", "own collate_fn"],
)
def test_samples_are_not_timed_where_nobody_could_share_them(how: dict[str, Any]) -> None:
    recording = recorded(**how)
    assert not recording.setting.could_share
    assert np.isnan(recording.batches["slowest"]).all()
