"""Samples and batches are the same wherever the cut is, and whoever makes them."""

from __future__ import annotations

import multiprocessing
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from torch.utils.data import Subset, TensorDataset, default_collate

import headrace
from headrace import Staged, step
from headrace.types import Ragged
from tests.data.staged.pipelines import (
    STEPS,
    applied,
    jittered,
    lists_of_steps,
    noisy,
    same,
    samples,
    scaled,
    shifted,
    summed,
)

QUICK = settings(max_examples=40, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])


@QUICK
@given(st.integers(2, 12), st.integers(0, 999), lists_of_steps, st.data())
def test_samples_are_the_same_at_any_cut(tmp_path_factory: Any, count: int, seed: int, steps: Any, data: Any) -> None:
    source = samples(count, seed)
    cut = data.draw(st.integers(0, len(steps)))
    where = data.draw(st.sampled_from(["memory", "folder", None]))
    place = tmp_path_factory.mktemp("cache") / "c" if where == "folder" else where
    staged = Staged(source, steps[:cut], steps[cut:], cache=place)
    expected = [applied(steps, one) for one in samples(count, seed)]
    assert len(staged) == count
    assert same([staged[number] for number in range(count)], expected)
    keys = data.draw(st.lists(st.integers(0, count - 1), max_size=8))
    assert same(staged.__getitems__(keys), [expected[key] for key in keys])
    assert same(source, samples(count, seed)), "the dataset itself was changed"


def batches(staged: Any, **words: Any) -> list[Any]:
    loader = headrace.DataLoader(staged, batch_size=5, shuffle=True, seed=3, **words)
    return [batch for _ in range(2) for batch in loader]


def without_images(one: dict[str, Any]) -> dict[str, Any]:
    return {name: value for name, value in one.items() if name != "image"}


RANDOM = (without_images, scaled, shifted, summed, noisy, scaled, noisy)


@pytest.mark.parametrize("cut", range(5))
@pytest.mark.parametrize("where", ["memory", "folder"])
def test_batches_and_random_numbers_are_the_same_at_any_cut(tmp_path: Path, cut: int, where: str) -> None:
    source = samples(23, 1)
    expected = batches(Staged(source, get_item_transform=RANDOM))
    place = tmp_path / "c" if where == "folder" else "memory"
    assert same(batches(Staged(source, RANDOM[:cut], RANDOM[cut:], cache=place)), expected)
    assert not same(expected[0]["xy"], expected[5]["xy"])


CREWS: tuple[dict[str, Any], ...] = (
    {"num_workers": 2}, {"num_workers": 1, "multiprocessing_context": "spawn"}, {"num_workers": 2, "backend": "thread"},
)  # fmt: skip


@pytest.mark.parametrize("crew", CREWS, ids=str)
def test_batches_are_the_same_in_any_worker(tmp_path: Path, crew: dict[str, Any]) -> None:
    staged = Staged(samples(23, 1), RANDOM[:3], (*RANDOM[3:], jittered), cache=tmp_path / "c")
    assert same(batches(staged, **crew), batches(staged))


def test_each_random_step_of_a_sample_has_numbers_of_its_own() -> None:
    @step(random=True)
    def draw(one: Any) -> Any:
        return {**one, f"n{len(one)}": float(headrace.rng().random())}

    staged = Staged([{"id": 0}, {"id": 1}], get_item_transform=[draw, draw])
    batch = next(iter(headrace.DataLoader(staged, batch_size=2, seed=0)))
    assert len({*batch["n1"].tolist(), *batch["n2"].tolist()}) == 4
    inner = Staged(Staged([{"id": 0}, {"id": 1}]).map(draw), get_item_transform=[draw])
    again = next(iter(headrace.DataLoader(inner, batch_size=2, seed=0)))
    assert len({*again["n1"].tolist(), *again["n2"].tolist()}) == 4


def test_a_data_set_that_draws_has_a_stream_for_each_sample_too() -> None:
    class Drawing(torch.utils.data.Dataset[Any]):
        def __len__(self) -> int:
            return 6

        def __getitem__(self, key: int) -> Any:
            return {"n": float(np.random.random())}

    staged = Staged(Drawing(), get_item_transform=[lambda one: one])
    one = [b["n"] for b in headrace.DataLoader(staged, batch_size=3, seed=0)]
    other = [b["n"] for b in headrace.DataLoader(staged, batch_size=2, seed=0, num_workers=2)]
    assert torch.equal(torch.cat(one), torch.cat(other))
    assert len(torch.cat(one).unique()) == 6


def test_the_fluent_words_say_the_same(tmp_path: Path) -> None:
    source = samples(9, 2)
    fluent = Staged(source).map(scaled).map(shifted).cache(tmp_path / "c").map(summed).map(noisy)
    plain = Staged(source, [scaled, shifted], [summed, noisy], cache=tmp_path / "c")
    assert fluent.cut == plain.cut == 2
    assert [one.name for one in fluent.steps] == ["scaled", "shifted", "summed", "noisy"]
    assert same(batches(fluent.map(without_images)), batches(plain.map(without_images)))


def test_a_second_cache_lies_behind_the_first(tmp_path: Path) -> None:
    source = samples(9, 2)
    twice = Staged(source).map(scaled).cache(tmp_path / "a").map(summed).cache("memory").map(scaled)
    assert same([twice[key] for key in range(9)], [applied([scaled, summed, scaled], one) for one in source])


def test_a_cut_can_be_moved() -> None:
    staged = Staged(samples(9, 2), [scaled, summed], [noisy])
    moved = staged.with_cut(1, "memory")
    assert (staged.cut, moved.cut) == (0, 1)
    assert same(batches(moved.map(without_images)), batches(staged.map(without_images)))
    with pytest.raises(headrace.core.errors.UsageError, match="0 to 3"):
        staged.with_cut(4, "memory")


@pytest.mark.parametrize("chosen", STEPS, ids=lambda one: getattr(one, "name", None) or one.__name__)
def test_stored_data_go_through_the_same_steps(tmp_path: Path, chosen: Any) -> None:
    kept = Staged(samples(7, 4), cache=tmp_path / "a")
    again = Staged(kept, [chosen], cache=tmp_path / "b")
    assert same([again[key] for key in range(7)], [applied([chosen], one) for one in samples(7, 4)])


def test_splits_of_one_source_have_steps_of_their_own() -> None:
    kept = Staged(samples(50, 0)).map(scaled).cache("memory")
    train, test = kept.split(0.8, 0.2, seed=1)
    noise = train.map(noisy)
    assert (len(train), len(test)) == (40, 10)
    ids = [[one["id"] for one in part] for part in (train, test)]
    assert sorted(ids[0] + ids[1]) == list(range(50))
    assert ids == [[one["id"] for one in part] for part in kept.split(0.8, 0.2, seed=1)]
    assert not same(noise[0]["xy"], train[0]["xy"])
    assert same(test[3], kept[ids[1][3]])
    chosen = kept.select([4, 4, 0])
    assert [one["id"] for one in chosen] == [4, 4, 0]
    assert same(Staged(Subset(kept, [7]), get_item_transform=scaled)[0], scaled(kept[7]))


def test_single_batches_look_like_any_others() -> None:
    """Arrays of which some differ in length are padded even in a batch where they do not."""
    source = [{"x": np.ones(length, np.float32)} for length in (3, 3, 3, 5)]
    for staged in (Staged(source), Staged(source).map(dict), Staged(source).cache("memory"),
                   Staged(source).map(dict).map(dict, batched=True)):  # fmt: skip
        first = next(iter(headrace.DataLoader(staged, batch_size=2)))
        assert first["x"].values.tolist() == [[1, 1, 1], [1, 1, 1]]
        assert first["x"].lengths.tolist() == [3, 3]


def test_a_batched_step_always_gets_the_same_kind_of_columns() -> None:
    kinds = set()

    def look(batch: Any) -> Any:
        kinds.update((name, type(column)) for name, column in batch.items())
        return batch

    source = [{"x": np.ones(length, np.float32), "word": "a"} for length in (3, 3, 3, 5)]
    staged = Staged(source).map(dict).map(look, batched=True)
    for key in range(4):
        assert len(staged[key]["x"]) == len(source[key]["x"])
    assert kinds == {("x", Ragged), ("word", list)}


def test_batched_steps_in_a_row_get_columns_whatever_the_one_before_returned() -> None:
    def make(batch: Any) -> Any:
        batch["word"][0] += "!"
        count = len(batch["word"])
        lengths = np.arange(count) % 3
        offsets = np.append(0, lengths.cumsum()).astype(np.int32)
        return {
            **batch,
            "tensor": torch.arange(count),
            "lists": [np.full(length, length) for length in lengths],
            "gaps": Ragged(np.arange(10 * count), None, np.arange(count) * 10, np.arange(count) * 10 + lengths),
            "short": Ragged(np.arange(offsets[-1]), offsets),
        }

    def look(batch: Any) -> Any:
        seen.append({name: type(column) for name, column in batch.items()})
        assert batch["gaps"].offsets.tolist() == batch["short"].offsets.tolist() == [0, 0, 1, 3]
        assert batch["gaps"].values.tolist() == [10, 20, 21]
        assert batch["short"].offsets.dtype == np.int64
        batch["given"] += 1
        return batch

    seen: list[dict[str, type]] = []
    source = [{"word": "a", "given": torch.tensor(key)} for key in range(3)]
    made = Staged(source, get_item_transform=[step(one, batched=True) for one in (make, look)]).__getitems__([0, 1, 2])
    assert seen[-1] == {
        "word": list, "given": np.ndarray, "tensor": np.ndarray, "lists": Ragged, "gaps": Ragged, "short": Ragged,
    }  # fmt: skip
    assert [one["word"] for one in made] == ["a!", "a", "a"]
    assert same([one["given"] for one in made], [torch.tensor(key + 1) for key in range(3)])


def test_what_torch_collates_is_collated_as_torch_does() -> None:
    data = TensorDataset(torch.rand(6, 3), torch.arange(6))
    ours = next(iter(headrace.DataLoader(Staged(data), batch_size=6)))
    assert same(ours, default_collate([data[key] for key in range(6)]))

    class Own:
        pass

    with pytest.raises(TypeError, match="default_collate"):
        next(iter(headrace.DataLoader(Staged([{"own": Own()}]), batch_size=1)))


def test_keys_of_any_kind_reach_a_data_set_without_a_cache() -> None:
    staged = Staged({"a": 1, "b": 2}, get_item_transform=lambda one: one + 1)
    assert (staged["a"], staged["b"], len(staged)) == (2, 3, 2)
    with pytest.raises(KeyError):
        staged["c"]


@pytest.mark.parametrize("method", ["fork", "spawn"])
def test_a_staged_data_set_is_the_same_in_another_process(tmp_path: Path, method: str) -> None:
    staged = Staged(samples(6, 0), [scaled], [summed], cache=tmp_path / "c")
    with multiprocessing.get_context(method).Pool(1) as pool:
        assert same(pool.apply(staged.__getitem__, (4,)), staged[4])
