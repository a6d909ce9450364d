"""The bad-samples log, and what is left out because of it."""

from __future__ import annotations

import json
import os
import threading
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

import headrace
from headrace import DataLoader, OnError, load_quarantine
from headrace.core.errors import DatasetNotFoundError, FormatError, UsageError
from headrace.faults import quarantine
from headrace.faults.bad_sample import BadSample
from headrace.testing import Faulty, Raise

BAD = (3, 8, 9)


def bad(key: Any, **more: Any) -> BadSample:
    return BadSample(key=key, path=None, stage="load", error="ValueError: no", epoch=0, **more)


def faulty(length: int = 20) -> Faulty:
    error = ValueError("no\nway")
    return Faulty([torch.tensor(number) for number in range(length)], {key: Raise(error) for key in BAD})


def test_every_bad_sample_is_a_line_of_json(tmp_path: Path) -> None:
    path = tmp_path / "bad.jsonl"
    loader = DataLoader(faulty(), 5, on_error=headrace.OnError("replace", log=path), num_workers=2, seed=0)
    assert len(list(loader)) == 4
    lines = [json.loads(line) for line in path.read_text().splitlines()]
    assert [line["key"] for line in lines] == list(BAD)
    assert [line["worker"] for line in lines] == [0, 1, 1]
    for line in lines:
        assert (line["stage"], line["action"], line["epoch"], line["rank"]) == ("load", "replace", 0, 0)
        assert line["error"].startswith("ValueError: no\nway")
        assert line["replacement"] not in BAD


@pytest.mark.parametrize("more", [{}, {"num_workers": 2}, {"num_workers": 2, "backend": "thread"}], ids=str)
def test_the_sample_that_ended_the_epoch_is_written_too(more: dict[str, Any], tmp_path: Path) -> None:
    path = tmp_path / "bad.jsonl"
    loader = DataLoader(faulty(), 5, on_error=headrace.OnError(log=path), **more)
    with pytest.raises(ValueError, match="no\nway"):
        list(loader)
    (record,) = load_quarantine(path)
    assert (record.key, record.action) == (3, "raise")
    assert loader.faults.bad == 0


def test_the_file_is_read_back_and_its_samples_are_left_out(tmp_path: Path) -> None:
    path = tmp_path / "bad.jsonl"
    for _ in range(2):  # each key is there twice then
        list(DataLoader(faulty(), 5, on_error=headrace.OnError("skip", log=path)))
    records = load_quarantine(path)
    assert [record.key for record in records] == list(BAD)
    assert len(path.read_text().splitlines()) == 6
    expected = [key for key in range(20) if key not in BAD]
    for exclude in (path, str(path), records, list(BAD), np.array(BAD), torch.tensor(BAD), (key for key in BAD)):
        loader = DataLoader(faulty(), 5, on_error=OnError(exclude=exclude))
        assert torch.cat(list(loader)).tolist() == expected
        assert len(loader) == 4


@pytest.mark.parametrize("more", [{}, {"seed": 3}, {"seed": 3, "shard": "auto"}, {"generator": True}], ids=str)
@pytest.mark.parametrize("workers", [0, 2])
def test_shuffled_epochs_leave_quarantined_samples_out_and_resume(more: dict[str, Any], workers: int) -> None:
    def loader() -> DataLoader[Any]:
        given = {**more, "generator": torch.Generator().manual_seed(4)} if "generator" in more else more
        return DataLoader(faulty(), 5, shuffle=True, on_error=OnError(exclude=BAD), num_workers=workers, **given)

    torch.manual_seed(1)
    first = loader()
    epochs = [torch.cat(list(first)).tolist() for _ in range(2)]
    assert all(sorted(epoch) == [key for key in range(20) if key not in BAD] for epoch in epochs)
    assert epochs[0] != epochs[1]
    torch.manual_seed(1)
    half = loader()
    iterator = iter(half)
    begun = [next(iterator) for _ in range(2)]
    state = half.state_dict()
    again = loader()
    again.load_state_dict(state)
    assert torch.cat([*begun, *again]).tolist() == epochs[0]


def test_replacements_are_never_excluded_samples() -> None:
    dataset = Faulty(list(range(12)), {5: Raise(ValueError("no"))})
    loader = DataLoader(dataset, 3, on_error=OnError("replace", exclude=[0, 1, 2, 3, 4, 7, 8, 9]), seed=0)
    keys = [key for _ in range(8) for batch in loader for key in batch.tolist()]
    assert set(keys) == {6, 10, 11}


@pytest.mark.parametrize(
    ("exclude", "said"),
    [
        ([1.5], "1.5"), (["a"], "'a'"), ([-1], "-1"), ([True], "True"), (7, "7"), (range(20), "all 20 samples"),
    ],
    ids=str,
)  # fmt: skip
def test_what_cannot_be_excluded_is_named(exclude: Any, said: str) -> None:
    with pytest.raises(UsageError, match="exclude=") as caught:
        DataLoader(faulty(), on_error=OnError(exclude=exclude))
    assert said in str(caught.value)


def test_a_sampler_of_the_user_must_leave_quarantined_samples_out_itself() -> None:
    with pytest.raises(UsageError, match="a sampler of yours"):
        DataLoader(faulty(), on_error=OnError(exclude=BAD), sampler=[1, 2, 3])
    sampler = headrace.samplers.DistributedSampler(20, exclude=BAD, shuffle=False)
    assert torch.cat(list(DataLoader(faulty(), 5, sampler=sampler))).tolist() == [k for k in range(20) if k not in BAD]


def test_a_line_that_was_cut_off_is_left_out_and_any_other_is_named(tmp_path: Path) -> None:
    path = tmp_path / "bad.jsonl"
    quarantine.append(path, [bad(1), bad(2)])
    whole = path.read_text()
    path.write_text(whole[:-20])
    assert [record.key for record in load_quarantine(path)] == [1]
    quarantine.append(path, [bad(3)])
    assert [record.key for record in load_quarantine(path)] == [1, 3]
    path.write_text("nonsense\n" + whole)
    with pytest.raises(FormatError, match="line 1"):
        load_quarantine(path)
    with pytest.raises(DatasetNotFoundError, match="there is no bad-samples log"):
        load_quarantine(tmp_path / "none")


def test_keys_of_any_kind_come_back_as_json_has_them(tmp_path: Path) -> None:
    path = tmp_path / "bad.jsonl"
    keys = [np.int64(5), "naïve/ä.jpg", ("a", 3), b"\xff", "line\nbreak"]
    quarantine.append(path, [bad(key) for key in keys])
    assert [record.key for record in load_quarantine(path)] == [5, "naïve/ä.jpg", ["a", 3], "b'\\xff'", "line\nbreak"]


def test_several_threads_may_write_to_one_file(tmp_path: Path) -> None:
    path = tmp_path / "bad.jsonl"

    def write(first: int) -> None:
        for key in range(first, first + 100):
            quarantine.append(path, [bad(key)])

    threads = [threading.Thread(target=write, args=(number * 100,)) for number in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert sorted(record.key for record in load_quarantine(path)) == list(range(400))


@pytest.mark.parametrize("where", ["folder", "missing/bad.jsonl", "3", "\0"])
def test_a_file_that_cannot_be_written_is_named_at_once(where: str, tmp_path: Path) -> None:
    (tmp_path / "folder").mkdir()
    path: Any = 3 if where == "3" else tmp_path / where
    with pytest.raises(UsageError, match=r"bad-samples log|log="):
        DataLoader(faulty(), on_error=headrace.OnError(log=path))


def test_a_disk_that_fills_up_does_not_stop_training(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    if not Path("/dev/full").exists() or not os.access("/dev/full", os.W_OK):
        pytest.skip("this machine has no /dev/full")
    path = tmp_path / "bad.jsonl"
    path.symlink_to("/dev/full")
    loader = DataLoader(faulty(), 5, on_error=headrace.OnError("skip", log=path))
    assert torch.cat(list(loader)).tolist() == [key for key in range(20) if key not in BAD]
    assert [record.key for record in loader.faults.records] == list(BAD)
    assert caplog.text.count("cannot be written any more") == 1
