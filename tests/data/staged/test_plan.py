"""`Staged.plan()`: which cut it recommends where that is clear, what it refuses, and that it keeps nothing."""

from __future__ import annotations

import json
import random
import tempfile
import time
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import headrace
from headrace import Staged, step
from headrace.core.errors import UsageError
from headrace.data.staged.planning import CacheCut, CutPlan, StepCost
from tests.data.staged.pipelines import samples
from tests.data.staged.test_cuts import RANDOM

SOURCE = [{"id": number, "x": np.arange(8.0) + number} for number in range(96)]


@pytest.fixture(autouse=True)
def nothing_is_left(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Any:
    """Fails a test that leaves something among temporary files."""
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))
    yield
    assert [one.name for one in tmp_path.iterdir() if one.name.startswith(("headrace", "tmp"))] == []


def cheap(one: dict[str, Any]) -> dict[str, Any]:
    return {**one, "y": one["x"] + 1}


def dear(one: dict[str, Any]) -> dict[str, Any]:
    time.sleep(0.002)
    return {**one, "x": one["x"] * 2}


@step(random=True)
def noisy(one: dict[str, Any]) -> dict[str, Any]:
    return {**one, "x": one["x"] + headrace.rng().random()}


def secretly(one: dict[str, Any]) -> dict[str, Any]:
    return {**one, "x": one["x"] + random.random()}


def pictured(one: dict[str, Any]) -> dict[str, Any]:
    return {**one, "image": object()}


def planned(*steps: Any, **words: Any) -> CutPlan:
    return Staged(SOURCE, get_item_transform=steps).plan(**{"batch_size": 16, **words})


def test_a_dear_step_is_to_be_kept() -> None:
    plan = planned(cheap, dear, cheap)
    assert plan.recommended.cut in (2, 3)
    assert plan.steps[2].seconds > 0.002
    assert plan.steps[2].seconds > 10 * max(plan.steps[1].seconds, plan.steps[3].seconds)
    assert plan.cuts[0].epoch > plan.cuts[2].epoch
    assert plan.cuts[2].build > 0
    assert f"Cache after step {plan.recommended.cut} (" in plan.advice


def test_the_cut_comes_before_random_steps() -> None:
    plan = planned(cheap, dear, noisy, dear)
    assert plan.recommended.cut == 2
    assert [cut.refused is None for cut in plan.cuts] == [True, True, True, False, False]
    assert "step 3 (noisy) is random" in str(plan.cuts[3].refused)
    assert "step 3 (noisy) is random" in str(plan.cuts[4].refused)
    assert str(plan).count("is not possible") == 2


def test_nothing_is_kept_where_nothing_pays() -> None:
    plan = planned(noisy, dear)
    assert plan.recommended.cut == 0
    assert plan.advice.startswith("Keep nothing")
    assert planned().recommended.cut == 0


def test_a_step_that_draws_without_saying_so_is_found() -> None:
    plan = planned(cheap, secretly, dear)
    assert [cut.refused is None for cut in plan.cuts] == [True, True, False, False]
    assert "secretly" in str(plan.cuts[2].refused)


def test_what_columns_cannot_hold_is_no_place_for_a_cut() -> None:
    plan = planned(cheap, pictured, lambda one: one["id"])
    assert [cut.refused is None for cut in plan.cuts] == [True, True, False, True]
    assert plan.steps[2].bytes is None
    assert "columns" in str(plan.cuts[2].refused)


def test_a_batched_step_that_mixes_samples_is_no_place_for_a_cut() -> None:
    mixing = step(lambda batch: {**batch, "x": batch["x"] - batch["x"].mean()}, batched=True, name="mixing")
    plan = planned(cheap, mixing)
    assert [cut.refused is None for cut in plan.cuts] == [True, True, False]
    assert "mixing" in str(plan.cuts[2].refused)


def test_the_plan_of_a_pipeline_with_every_kind_of_part_is_complete() -> None:
    plan = Staged(samples(30, 0), get_item_transform=RANDOM).plan(batch_size=8)
    assert len(plan.cuts) == len(plan.steps) == len(RANDOM) + 1
    assert [cut.cut for cut in plan.cuts] == list(range(len(RANDOM) + 1))
    assert all(cost.seconds >= 0 and (cost.bytes is None or cost.bytes > 0) for cost in plan.steps)
    assert all(cut.build > 0 and cut.bytes > 0 and cut.epoch > 0 for cut in plan.cuts[1:] if cut.refused is None)
    assert [one.name.split(",")[0] for one in plan.steps[1:]] == [
        getattr(one, "name", "") or one.__name__ for one in RANDOM
    ]


def test_figures_are_plain_values() -> None:
    figures = json.loads(json.dumps(planned(cheap, noisy).to_json()))
    assert figures["samples"] == len(SOURCE)
    assert [one["name"] for one in figures["steps"]] == ["the dataset (list)", "cheap", "noisy, random"]
    assert [one["cut"] for one in figures["cuts"]] == [0, 1, 2]
    assert figures["recommended"] in (0, 1)
    assert isinstance(figures["advice"], str)


def test_tables_name_each_step_and_cut() -> None:
    text = str(planned(cheap, step(dear, name="[red]dear[/]"), noisy))
    for words in ("Measured on 96 of 96 samples", "1 cheap", "nothing kept", "into a batch", "3 noisy", "not possible"):
        assert words in text
    assert text.count("<") == 1
    assert "[red]dear[/]" in text


def test_the_cut_of_now_does_not_matter(tmp_path: Path) -> None:
    source = SOURCE[:20]
    for staged in (
        Staged(source, [cheap], [dear], cache="memory"),
        Staged(source, [cheap, dear], cache=tmp_path / "c"),
    ):
        plan = staged.plan(batch_size=16)
        assert len(plan.cuts) == 3
        assert plan.recommended.cut == 2
    again = Staged(source).map(cheap).cache("memory").map(dear).cache("memory").map(cheap).plan(batch_size=16)
    assert "Staged" in again.steps[0].name


def test_the_data_and_the_generators_are_left_alone() -> None:
    source = samples(20, 0)
    states = random.getstate(), np.random.get_state()[1].tolist()  # type: ignore[index]
    Staged(source, get_item_transform=lambda one: one["xy"].__iadd__(1)).plan(batch_size=4)
    assert states == (random.getstate(), np.random.get_state()[1].tolist())  # type: ignore[index]
    assert all(np.array_equal(one["xy"], other["xy"]) for one, other in zip(source, samples(20, 0), strict=True))


@pytest.mark.parametrize("count", [1, 2, 17])
@pytest.mark.parametrize("size", [1, 16, 1000])
def test_few_samples_are_enough(count: int, size: int) -> None:
    plan = Staged(SOURCE[:count], get_item_transform=[cheap]).plan(batch_size=size)
    assert plan.samples == count
    assert 1 <= plan.looked_at <= count


@pytest.mark.parametrize(
    "words", [{"batch_size": 0}, {"epochs": 0}, {"batch_size": -1}, {"batch_size": 1.5}, {"epochs": "3"}], ids=str
)
def test_wrong_arguments_are_refused(words: dict[str, Any]) -> None:
    with pytest.raises(UsageError, match="plan"):
        planned(cheap, **words)


def test_an_empty_data_set_has_no_plan() -> None:
    with pytest.raises(UsageError, match="empty dataset"):
        Staged([], get_item_transform=cheap).plan()


def test_what_steps_raise_comes_through() -> None:
    with pytest.raises(ZeroDivisionError) as caught:
        planned(cheap, lambda one: 1 / 0)
    assert "'<lambda>'" in caught.value.__notes__[0]


def a_plan(cuts: list[CacheCut], *, epochs: int = 10, free: int = 10**9) -> CutPlan:
    steps = tuple(StepCost(f"s{number}", 0.0, 1.0) for number in range(len(cuts)))
    return CutPlan(100, 10, epochs, steps, 0.0, tuple(cuts), free, 10**9)


def test_the_recommended_cut_costs_least_over_the_epochs_and_fits_the_disk() -> None:
    cuts = [
        CacheCut(0, None, epoch=10.0),
        CacheCut(1, None, 50.0, 1e6, 2.0),
        CacheCut(2, None, 60.0, 1e12, 0.1),
        CacheCut(3, "random"),
    ]
    assert a_plan(cuts).recommended.cut == 1
    assert a_plan(cuts, epochs=5).recommended.cut == 0
    assert a_plan(cuts, free=10**13).recommended.cut == 2
    assert a_plan(cuts, free=0).recommended.cut == 0
    alike = [CacheCut(0, None, epoch=10.0), CacheCut(1, None, 1.0, 1.0, 1.0), CacheCut(2, None, 1.0, 1.0, 0.99)]
    assert a_plan(alike).recommended.cut == 1
