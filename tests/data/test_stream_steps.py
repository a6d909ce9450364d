"""Steps on streams: done sample by sample, wherever the stream is read, and kept over a state."""

from __future__ import annotations

import os
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

import headrace
from headrace.core.errors import UsageError
from headrace.data.formats.columns import Block
from headrace.data.formats.columns.schema import Field, Schema
from headrace.data.formats.registry import open_writer

SCHEMA = Schema((Field("number", "fixed", np.dtype(np.int64)),))


@pytest.fixture
def stream(tmp_path: Path) -> Callable[..., Any]:
    """Makes a stream of the numbers 0 .. 29, in three shards."""
    for shard in range(3):
        writer = open_writer(tmp_path / f"{shard}.tar", SCHEMA, "webdataset")
        writer.append(Block(SCHEMA, {"number": np.arange(shard * 10, shard * 10 + 10)}))
        writer.seal()
    return lambda **words: headrace.open(str(tmp_path / "*.tar")).stream(**words)


def doubled(sample: dict[str, Any]) -> dict[str, Any]:
    return {**sample, "double": int(sample["number"]) * 2}


def with_worker_process(sample: dict[str, Any]) -> dict[str, Any]:
    return {**sample, "process": os.getpid()}


def with_a_draw(sample: dict[str, Any]) -> dict[str, Any]:
    return {**sample, "drawn": int(headrace.rng().integers(1 << 40)), "torch": int(torch.randint(1 << 40, ()))}


def refuses_seven(sample: dict[str, Any]) -> dict[str, Any]:
    if sample["number"] == 7:
        raise ValueError("seven is bad")
    return sample


def rows(loader: Any, *names: str) -> list[tuple[int, ...]]:
    """The samples of all batches, in the order of the batches."""
    found: list[tuple[int, ...]] = []
    for batch in loader:
        found += zip(*(batch[name].tolist() for name in names), strict=True)
    return found


def test_a_step_is_done_on_each_sample_and_leaves_the_stream_as_it_was(stream: Callable[..., Any]) -> None:
    plain = stream()
    stepped = plain.map(doubled)
    assert rows(headrace.DataLoader(stepped, batch_size=4), "number", "double") == [(n, 2 * n) for n in range(30)]
    assert "double" not in next(iter(plain))


def test_steps_are_done_in_order_and_on_a_part_of_a_sample(stream: Callable[..., Any]) -> None:
    stepped = stream().map(lambda number: number + 1, on="number").map(doubled)
    assert [(s["number"], s["double"]) for s in stepped][:3] == [(1, 2), (2, 4), (3, 6)]


def test_nothing_is_done_before_a_sample_is_read(stream: Callable[..., Any]) -> None:
    seen: list[int] = []
    iterator = iter(stream().map(lambda sample: seen.append(int(sample["number"]))))
    assert seen == []
    next(iterator)
    assert seen == [0]


@pytest.mark.parametrize("backend", ["process", "thread"])
def test_workers_share_the_samples_and_do_their_steps(stream: Callable[..., Any], backend: Any) -> None:
    stepped = stream(shuffle=5).map(doubled).map(with_worker_process)
    loader = headrace.DataLoader(stepped, batch_size=4, num_workers=2, backend=backend)
    found = rows(loader, "number", "double", "process")
    assert sorted(row[:2] for row in found) == [(n, 2 * n) for n in range(30)]
    processes = {row[2] for row in found}
    assert (os.getpid() in processes) == (backend == "thread")
    assert len(processes) == (1 if backend == "thread" else 2)


def test_ranks_share_the_samples(stream: Callable[..., Any], monkeypatch: pytest.MonkeyPatch) -> None:
    found = []
    monkeypatch.setenv("WORLD_SIZE", "2")
    for rank in range(2):
        monkeypatch.setenv("RANK", str(rank))
        found.append(rows(headrace.DataLoader(stream().map(doubled), batch_size=4), "number", "double"))
    assert sorted(found[0] + found[1]) == [(n, 2 * n) for n in range(30)]
    assert found[0]
    assert found[1]


@pytest.mark.parametrize("workers", [0, 2])
def test_a_stream_with_steps_resumes_with_the_same_samples_and_draws(stream: Callable[..., Any], workers: int) -> None:
    def made() -> Any:
        stepped = stream(shuffle=7).map(with_a_draw).map(doubled)
        return headrace.DataLoader(stepped, batch_size=4, num_workers=workers, seed=3)

    names = "number", "double", "drawn", "torch"
    whole = rows(made(), *names)
    assert len({row[2] for row in whole}) == 30
    for stop in (1, 4):
        loader = made()
        iterator = iter(loader)
        head = rows((next(iterator) for _ in range(stop)), *names)
        again = made()
        again.load_state_dict(loader.state_dict())
        assert head + rows(again, *names) == whole


def test_a_sample_that_a_step_refuses_can_be_skipped(stream: Callable[..., Any]) -> None:
    loader = headrace.DataLoader(stream().map(refuses_seven), batch_size=5, on_error="skip")
    assert [row[0] for row in rows(loader, "number")] == [n for n in range(30) if n != 7]
    assert loader.faults.skipped == 1


def test_an_error_of_a_step_names_the_sample(stream: Callable[..., Any]) -> None:
    with pytest.raises(ValueError, match="seven is bad") as caught:
        list(headrace.DataLoader(stream().map(refuses_seven), batch_size=5))
    assert "sample number 7" in "\n".join(caught.value.__notes__)


@pytest.mark.parametrize(
    ("word", "arguments", "fix"),
    [
        ("cache", ["kept"], "data.map(...).cache(...), without .stream()"),
        ("select", [[0, 1]], "data.select(...), without .stream()"),
        ("split", [0.5, 0.5], "data.split(...), without .stream()"),
    ],
)
def test_words_that_need_numbers_say_so(stream: Callable[..., Any], word: str, arguments: list[Any], fix: str) -> None:
    for data in (stream(), stream().map(doubled)):
        with pytest.raises(UsageError, match="samples that have numbers") as caught:
            getattr(data, word)(*arguments)
        assert f"fix:      write {fix}" in str(caught.value)


def test_a_batched_step_is_refused(stream: Callable[..., Any]) -> None:
    with pytest.raises(UsageError, match="one sample at a time"):
        stream().map(doubled, batched=True)
    with pytest.raises(UsageError, match="one sample at a time"):
        stream().map(headrace.step(doubled, batched=True))


def test_a_step_that_decodes_gets_encoded_images(tmp_path: Path) -> None:
    image = pytest.importorskip("PIL.Image")
    for number in range(4):
        folder = tmp_path / "photos" / "cat"
        folder.mkdir(parents=True, exist_ok=True)
        image.new("RGB", (40, 40), (number * 50, 0, 0)).save(folder / f"{number}.jpg")
    data = headrace.open(tmp_path / "photos")
    name = next(field.name for field in data.schema if "bytes" in str(field) or "image" in str(field))
    stepped = data.stream().map(headrace.transforms.EvalImages(16, 16), on=name)
    assert [tuple(sample[name].shape) for sample in stepped] == [(3, 16, 16)] * 4
