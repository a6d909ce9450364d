"""What cannot be computed once is refused with the step and the sample; what is odd but sound is taken."""

from __future__ import annotations

import os
import random
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from PIL import Image
from torch.utils.data import Dataset

import headrace
from headrace import Staged, step
from headrace.core.errors import DatasetError, SampleError, UsageError
from headrace.types import Ragged
from tests.data.staged.pipelines import same, samples

SOURCE = [{"id": number, "x": np.arange(3.0) + number} for number in range(400)]

RARE = 123
"""A sample that nobody looks at beforehand."""


@pytest.fixture(params=["memory", "folder"])
def where(request: pytest.FixtureRequest, tmp_path: Path) -> Any:
    return "memory" if request.param == "memory" else tmp_path / "c"


# -- random steps ----------------------------------------------------------------------------------------------------


def with_number(draw: Callable[[], float], *, rare: bool = False) -> Callable[[Any], Any]:
    return lambda one: {**one, "drawn": float(draw()) if not rare or one["id"] == RARE else 0.0}


OWN = np.random.default_rng(0)
DRAWS: dict[str, Callable[[], float]] = {
    "random": random.random,
    "numpy": np.random.random,
    "torch": lambda: float(torch.rand(())),
    "rng": lambda: float(headrace.rng().random()),
}
HIDDEN: dict[str, Callable[[], float]] = {
    "a generator of its own": OWN.random,
    "a new generator": lambda: float(np.random.default_rng().random()),
    "the system": lambda: float(os.urandom(7)[0] + 256 * os.urandom(7)[0]),
    "the time": time.perf_counter,
}


@pytest.mark.parametrize("draws", [*DRAWS, *HIDDEN])
def test_a_step_that_draws_is_not_computed_once(where: Any, draws: str) -> None:
    drawing = step(with_number((DRAWS | HIDDEN)[draws]), name="noisy", version="1")
    with pytest.raises(UsageError, match=r"random(.|\n)*the step 'noisy'(.|\n)*random=False(.|\n)*freeze_random=True"):
        Staged(SOURCE[:50], [doubled, drawing], cache=where)


def doubled(one: dict[str, Any]) -> dict[str, Any]:
    return {**one, "x": one["x"] * 2}


@pytest.mark.parametrize("draws", DRAWS)
def test_one_sample_in_hundreds_that_draws_is_noticed(where: Any, draws: str) -> None:
    drawing = step(with_number(DRAWS[draws], rare=True), name="noisy", version="1")
    with pytest.raises(UsageError, match="the step 'noisy'"):
        Staged(SOURCE, drawing, cache=where)
    if where != "memory":
        assert not (where / "staged.json").exists()


def test_a_declared_step_is_refused_before_it_runs(where: Any) -> None:
    @step(random=True)
    def never(one: Any) -> Any:
        raise AssertionError("it ran")

    with pytest.raises(UsageError, match="the step 'never'"):
        Staged(SOURCE, never, cache=where)
    assert where == "memory" or not where.exists() or not (where / "staged.json").exists()


def test_a_data_set_that_draws_is_refused(where: Any) -> None:
    class Drawing(Dataset[Any]):
        def __len__(self) -> int:
            return 9

        def __getitem__(self, key: int) -> Any:
            return random.random()

    with pytest.raises(UsageError, match="the dataset itself"):
        Staged(Drawing(), cache=where)


@pytest.mark.parametrize("several", [lambda keys: [1], lambda keys: [*keys, 7], lambda keys: []])
def test_a_data_set_that_returns_another_number_of_samples_is_refused(where: Any, several: Any) -> None:
    class Wrong(Dataset[Any]):
        def __len__(self) -> int:
            return 50

        def __getitem__(self, key: int) -> Any:
            return key

        def __getitems__(self, keys: Any) -> Any:
            return several(keys)

    with pytest.raises((DatasetError, SampleError), match=r"50|16"):
        Staged(Wrong(), cache=where)


@pytest.mark.parametrize("draws", [*DRAWS, "a generator of its own"])
def test_a_step_that_says_it_is_not_random_is_computed(where: Any, draws: str) -> None:
    drawing = step(with_number((DRAWS | HIDDEN)[draws]), random=False, version="1")
    made = Staged(SOURCE[:50], drawing, cache=where)
    assert [one["drawn"] for one in made] == [one["drawn"] for one in made]


@pytest.mark.parametrize("draws", DRAWS)
@pytest.mark.parametrize("rare", [False, True])
def test_frozen_steps_draw_the_same_wherever_they_run(tmp_path: Path, draws: str, rare: bool) -> None:
    drawing = step(with_number(DRAWS[draws], rare=rare), random=True, version="1")
    state = random.getstate(), torch.random.get_rng_state()
    one = Staged(SOURCE, drawing, cache=tmp_path / "c", freeze_random=True)
    other = Staged(SOURCE, drawing, cache="memory", freeze_random=True)
    assert same(list(one), list(other))
    assert len({sample["drawn"] for sample in one}) == (2 if rare else 400)
    assert state[0] == random.getstate()
    assert torch.equal(state[1], torch.random.get_rng_state())


def test_the_generators_of_the_caller_are_left_alone(where: Any) -> None:
    np.random.seed(3)
    torch.manual_seed(3)
    expected = (np.random.random(), float(torch.rand(())), float(headrace.rng().random()))
    np.random.seed(3)
    torch.manual_seed(3)
    made = Staged(samples(9, 0), cache=where)
    list(made.map(with_number(random.random)))
    Staged(SOURCE[:9], step(with_number(np.random.random), random=False, version="1"), cache="memory")
    assert expected[:2] == (np.random.random(), float(torch.rand(())))


# -- samples that columns cannot hold --------------------------------------------------------------------------------


class Own:
    pass


ODD: dict[str, Any] = {
    "an image": lambda: Image.new("RGB", (2, 2)),
    "an object": Own,
    "objects": lambda: np.array([1, None], object),
    "texts in an array": lambda: np.array(["a"]),
    "a complex number": lambda: 1j,
    "complex numbers": lambda: np.zeros(2, complex),
    "a record": lambda: np.zeros(2, "i4,f4"),
    "a huge number": lambda: 2**70,
    "no UTF-8": lambda: "\ud800",
    "a key that is no text": lambda: {1.5: 2},
    "a key that is no UTF-8": lambda: {"\ud800": 2},
    "a set": lambda: {1},
    "a gradient": lambda: torch.ones(2, requires_grad=True) * 2,
    "a sparse tensor": lambda: torch.eye(2).to_sparse(),
    "bfloat16": lambda: torch.ones(2, dtype=torch.bfloat16),
    "a masked array": lambda: np.ma.masked_array([1, 2]),
    "a date": lambda: np.datetime64("2020-01-01"),
}


@pytest.mark.parametrize("odd", ODD)
def test_what_columns_cannot_hold_is_an_error_with_the_number_of_the_sample(odd: str) -> None:
    with pytest.raises(SampleError, match=r"'y'(.|\n)*sample 0\b(.|\n)*fix:"):
        Staged(SOURCE[:9], lambda one: {**one, "y": ODD[odd]()}, cache="memory")


ALIKE: dict[str, tuple[Any, Any]] = {
    "another type": (1, "1"),
    "a number of NumPy": (1, np.int64(1)),
    "true": (1, True),
    "none": (1, None),
    "another type of array": (np.zeros(2, np.float32), np.zeros(2, np.float64)),
    "another number of dimensions": (np.zeros(2), np.zeros((2, 1))),
    "a tensor": (np.zeros(2), torch.zeros(2)),
    "other keys": ({"a": 1}, {"b": 1}),
    "more keys": ({"a": 1}, {"a": 1, "b": 1}),
    "another length of a tuple": ((1, 2), (1, 2, 3)),
    "a list": ((1, 2), [1, 2]),
    "objects": (np.zeros(2), np.array([None, None])),
    "a huge number": (1, 2**70),
    "no UTF-8": ("a", "\ud800"),
}


@pytest.mark.parametrize("odd", ALIKE)
def test_a_sample_unlike_the_others_is_named(where: Any, odd: str) -> None:
    usual, unlike = ALIKE[odd]
    differing = step(lambda one: {**one, "y": unlike if one["id"] == RARE else usual}, version="1")
    with pytest.raises(SampleError, match=rf"'y'(.|\n)*sample {RARE}\b(.|\n)*fix:"):
        Staged(SOURCE, differing, cache=where)


# -- batched steps ---------------------------------------------------------------------------------------------------


def at(one: dict[str, Any], **words: Any) -> dict[str, Any]:
    return {**one, **words}


MIXING: dict[str, Callable[[Any], Any]] = {
    "mean": lambda batch: at(batch, x=batch["x"] - batch["x"].mean(axis=0)),
    "order": lambda batch: {name: column[::-1] for name, column in batch.items()},
    "rank": lambda batch: at(batch, x=np.argsort(batch["id"])),
    "first": lambda batch: at(batch, x=np.repeat(batch["x"][:1], len(batch["x"]), axis=0)),
    "size": lambda batch: at(batch, size=np.full(len(batch["id"]), len(batch["id"]))),
}


@pytest.mark.parametrize("mixing", MIXING)
def test_a_batched_step_that_mixes_samples_is_refused(where: Any, mixing: str) -> None:
    with pytest.raises(UsageError, match=r"when other samples are with it(.|\n)*'mixing'(.|\n)*fix:"):
        Staged(SOURCE[:100], step(MIXING[mixing], batched=True, name="mixing"), cache=where)


NO_COLUMNS: dict[str, Callable[[Any], Any]] = {
    "fewer": lambda batch: {name: column[:-1] for name, column in batch.items()},
    "a scalar": lambda batch: at(batch, x=np.float64(3)),
    "a number": lambda batch: at(batch, x=3.0),
    "no dimension": lambda batch: at(batch, x=np.array(3)),
    "none": lambda batch: None,
    "none in it": lambda batch: at(batch, x=None),
    "objects": lambda batch: at(batch, x=np.array([Own()] * len(batch["id"]))),
    "texts": lambda batch: at(batch, x=np.array(["a"] * len(batch["id"]))),
    "a short list": lambda batch: at(batch, x=[1]),
    "a mixed list": lambda batch: at(batch, x=["a", *[1] * (len(batch["id"]) - 1)] if len(batch["id"]) > 1 else [1]),
    "a generator": lambda batch: at(batch, x=(number for number in batch["id"])),
    "complex": lambda batch: at(batch, x=batch["x"] * 1j),
    "a set": lambda batch: at(batch, x={1, 2}),
    "bfloat16": lambda batch: at(batch, x=torch.ones(len(batch["id"]), dtype=torch.bfloat16)),
    "sparse": lambda batch: at(batch, x=torch.eye(len(batch["id"])).to_sparse()),
    "short offsets": lambda batch: at(batch, x=Ragged(batch["x"].reshape(-1), np.array([0, 1]))),
    "wild offsets": lambda batch: at(batch, x=Ragged(batch["x"].reshape(-1), np.arange(len(batch["id"]) + 1) * 5)),
}


@pytest.mark.parametrize("result", NO_COLUMNS)
@pytest.mark.parametrize("cached", [True, False])
def test_a_batched_step_that_returns_no_columns_is_named(result: str, cached: bool) -> None:
    wrong = step(NO_COLUMNS[result], batched=True, name="wrong", version="1")
    with pytest.raises(SampleError, match="'wrong'"):
        Staged(SOURCE[:100], *([wrong] if cached else [None, wrong]), cache="memory").__getitems__([3, 4])


@pytest.mark.parametrize("result", NO_COLUMNS)
def test_it_is_named_also_where_another_batched_step_would_get_that(result: str) -> None:
    def unasked(batch: Any) -> Any:
        raise AssertionError("a step got what its predecessor may not return")

    wrong = step(NO_COLUMNS[result], batched=True, name="wrong")
    staged = Staged(SOURCE[:100], get_item_transform=[wrong, step(unasked, batched=True)])
    with pytest.raises(SampleError, match="'wrong'"):
        staged.__getitems__([3, 4])


def test_a_batched_step_that_fails_late_says_where(where: Any) -> None:
    def failing(batch: Any) -> Any:
        if RARE in batch["id"].tolist():
            raise ZeroDivisionError("late")
        return batch

    with pytest.raises(ZeroDivisionError) as caught:
        Staged(SOURCE, step(failing, batched=True), cache=where)
    assert "'failing'" in caught.value.__notes__[0]
    assert "sample" in caught.value.__notes__[0]


# -- odd but sound ---------------------------------------------------------------------------------------------------


SOUND: dict[str, Any] = {
    "length 0": {"a": np.zeros(0), "b": np.zeros((0, 3), np.int8)},
    "0-d": {"a": np.array(3.0), "b": torch.tensor(3), "c": np.float16(1)},
    "text": "wörd\n\0", "bytes": b"\0\xff", "number": 3, "float": float("nan"), "true": True, "array": np.arange(3),
    "file name": {"a": os.fsdecode(b"\xff\xfe")}, "tensor": torch.arange(3),
    "nested": ((1, [2, ({"a": (3,)},)]), {7: "x"}),
    "long": {"a": np.arange(1_000_000, dtype=np.int32)}, "smallest": -(2**63),
    "with none": {"a": 1, "b": None, "c": {}},
    "names": {"": 1, "value": 2, "a.b": 3, "a": {"b": 4}, "x": np.zeros(2), "x.values": 5, "x.offsets": 6, "x.shape": 7,
              "x_": 8, "a/b": 9, "../c": 10, "n\n": 11, "ä": 12, "a\u0308": 13, "1": 14, 1: 15, "CON": 16, "con": 17,
              "headrace.json": 18, "lock": {"staged.json": 19}, ".": 20, "..": 21, " ": 22, "t": "text", "t.utf8": 23},
    "ragged names": dict.fromkeys(("t", "t.utf8", "t.values", "t.offsets", "t.bytes", "t.shape", "t_"), "t"),
}  # fmt: skip


@pytest.mark.parametrize("sound", SOUND)
@pytest.mark.parametrize("count", [1, 3])
def test_odd_samples_come_back_as_they_were(where: Any, sound: str, count: int) -> None:
    source = [SOUND[sound] for _ in range(count)]
    for _ in range(2):
        made = Staged(source, cache=where)
        assert same(list(made), source)
        assert same(made.__getitems__([0, count - 1]), [source[0], source[0]])


@pytest.mark.parametrize("nothing", [{}, None, (), [], {"a": None}, {"a": {}, "b": ()}], ids=repr)
def test_samples_without_any_value_are_kept_or_refused_clearly(where: Any, nothing: Any) -> None:
    try:
        made = Staged([nothing] * 3, cache=where)
    except SampleError as error:
        assert "fix:" in str(error)
    else:
        assert same(list(made), [nothing] * 3)


def test_an_empty_data_set_is_kept(where: Any) -> None:
    for _ in range(2):
        made = Staged([], doubled, cache=where).map(doubled)
        assert (len(made), list(made), made.__getitems__([])) == (0, [], [])
        assert list(headrace.DataLoader(made, batch_size=2)) == []
        with pytest.raises(IndexError):
            made[0]


@pytest.mark.thorough
def test_many_tiny_samples_are_kept(where: Any) -> None:
    source = [{"a": number, "b": "t" * (number % 3)} for number in range(100_000)]
    assert same(Staged(source, cache=where).__getitems__([0, 99_999, 50_000]), [source[0], source[-1], source[50_000]])
