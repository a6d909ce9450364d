"""What steps raise while a cache is built comes through, from any process, with the step and the sample."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any
from urllib.error import HTTPError

import numpy as np
import pytest

from headrace import DataLoader, Staged
from headrace.core.errors import SampleError, UsageError
from headrace.data.staged import build, staged
from headrace.types import Ragged
from tests.data.staged import building
from tests.data.staged.building import COUNT, GATE
from tests.pairs import pairwise


class Odd(Exception):
    """Cannot be pickled, and not be made from its text."""

    def __init__(self, one: int, other: Any) -> None:
        super().__init__(f"odd {one}")
        self.other = other


RAISED: dict[str, tuple[Callable[[], BaseException], type[BaseException]]] = {
    "its own": (lambda: Odd(3, lambda: None), Odd),
    "a key": (lambda: KeyError("name"), KeyError),
    "a file": (lambda: FileNotFoundError(2, "No such file", "odd.jpg"), FileNotFoundError),
    "a decode error": (lambda: UnicodeDecodeError("utf-8", b"x", 0, 1, "odd"), UnicodeDecodeError),
    "a web error": (lambda: HTTPError("http://odd", 404, "odd", {}, None), OSError),  # type: ignore[arg-type]
    "ours": (lambda: UsageError("odd"), UsageError),
    "a stop": (lambda: StopIteration("odd"), Exception),
}


@pytest.mark.parametrize(
    ("what", "place", "workers"),
    pairwise(RAISED, [("folder", GATE), ("memory", GATE), ("folder", COUNT - 1)], [1, 2]),
    ids=str,
)
def test_what_a_step_raises_keeps_its_type_its_text_and_the_sample(
    tmp_path: Path, what: str, place: tuple[str, int], workers: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    where, number = place
    for module, name in ((build, "plan_work"), (staged, "plan_work"), (build, "cores"), (build, "ALONE")):
        monkeypatch.setattr(module, name, getattr(module, name))
    building.small_pieces(workers, crowd=workers > 1)
    make, kind = RAISED[what]
    kinds = (kind, RuntimeError) if workers > 1 else kind  # torch's form of what cannot be made from its text

    def failing(one: Any) -> Any:
        if one["id"] == number:
            raise make()
        return one

    before = building.children()
    with pytest.raises(kinds) as caught:
        building.Staged(building.source(), building.step(failing, version="1"),
                        cache=tmp_path / "c" if where == "folder" else "memory")  # fmt: skip
    text = f"{caught.value} {getattr(caught.value, '__notes__', '')}"
    assert isinstance(caught.value, kind) or (workers > 1 and what in ("its own", "a decode error", "a web error"))
    assert "'failing'" in text
    assert f"sample {number}" in text
    assert "name" in text if what == "a key" else "odd" in text
    assert building.children() == before


def fails(block: dict[str, Any]) -> dict[str, Any]:
    raise ValueError("a defect of the step")


def descends(block: dict[str, Any]) -> dict[str, Any]:
    block["xy"].offsets[1] = 1000
    return {**block, "xy": Ragged(block["xy"].values, block["xy"].offsets)}


@pytest.mark.parametrize(
    ("step", "kind", "text"), [(fails, ValueError, "a defect of the step"), (descends, SampleError, "offsets")]
)
def test_what_a_batched_step_raises_for_all_samples_comes_through_without_a_cache(
    step: Callable[[Any], Any], kind: type[Exception], text: str
) -> None:
    samples = [{"xy": np.zeros((number % 5, 2), np.float32)} for number in range(40)]
    dataset = Staged(samples).map(step, batched=True)
    for access in (lambda: dataset[0], lambda: next(iter(DataLoader(dataset, batch_size=8)))):
        with pytest.raises(kind, match=text) as caught:
            access()
        assert step.__name__ in f"{caught.value} {getattr(caught.value, '__notes__', None)}"


# -- samples that are unlike all others --------------------------------------------------------------------------------


@pytest.mark.parametrize("odd", [0, 13, 39])
@pytest.mark.parametrize("value", [np.ones(3, np.float32), None], ids=["another type", "nothing"])
@pytest.mark.filterwarnings("ignore:.*bad sample")
def test_one_sample_that_is_unlike_the_others_costs_no_others(odd: int, value: Any) -> None:
    samples = [{"id": number, "x": np.arange(1.0 + number % 3)} for number in range(40)]
    samples[odd]["x"] = value
    loader = DataLoader(
        Staged(samples).map(dict, batched=True), batch_size=5, on_error="skip", collate_fn=lambda batch: batch
    )
    assert [int(one["id"]) for batch in loader for one in batch] == [n for n in range(40) if n != odd]
    assert [bad.key for bad in loader.faults.records] == [odd]


def test_samples_that_all_differ_are_an_error_at_each_access() -> None:
    samples = [{"x": np.ones(3, dtype)} for dtype in ("f4", "f8", "i4", "i8")]
    data = Staged(samples).map(dict, batched=True)
    for key in range(4):
        with pytest.raises(SampleError, match="samples differ too much"):
            data[key]
