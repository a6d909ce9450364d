"""What is looked for in a dataset's attributes, and how far; the traps of real loaders are in findings/test_traps."""

from __future__ import annotations

import random
from dataclasses import replace
from typing import Any

import pytest

from headrace.telemetry import object_growth as objects
from headrace.telemetry.dataset_traps import DEEP, hazards
from headrace.telemetry.recording import Setting

FORKED = Setting(backend="process", start_method="fork", num_workers=2)


class Wrapper:
    """A dataset around another one."""

    def __init__(self, dataset: Any = None, **held: Any) -> None:
        self.dataset = dataset
        self.__dict__.update(held)


def names(dataset: Any, setting: Setting = FORKED) -> list[str]:
    return [trap.name for trap in hazards(dataset, setting)]


def wrapped(times: int, innermost: Any) -> Any:
    for _ in range(times):
        innermost = Wrapper(innermost)
    return innermost


def test_files_are_looked_for_as_deep_as_the_limit_says_and_generators_wherever_datasets_are(tmp_path: Any) -> None:
    with open(tmp_path / "data", "w") as file:
        inner = Wrapper(own=random.Random(0), file=file)
        assert names(wrapped(DEEP - 1, inner)) == ["generator-copied", "handle-shared"]
        assert names(wrapped(DEEP, inner)) == ["generator-copied"]


def test_the_generators_of_transforms_are_found_and_none_where_the_loader_seeds_them() -> None:
    dataset = Wrapper(transform=Wrapper(steps=[Wrapper(random_generator=random.Random(0))]))
    (trap,) = hazards(dataset, FORKED)
    assert trap.text == "Wrapper.transform.steps[0].random_generator is a random.Random of the dataset's own."
    assert names(dataset, replace(FORKED, seeded=True)) == []


def test_a_data_set_that_contains_itself_is_looked_at_all_the_same() -> None:
    ring = Wrapper(own=random.Random(0))
    ring.dataset = ring
    assert set(names(ring)) == {"generator-copied"}


@pytest.mark.parametrize("dataset", [[1, 2, 3], range(5), "abc", (), object(), None, {"a": 1}])
def test_what_has_no_attributes_has_no_traps(dataset: Any) -> None:
    assert names(dataset) == []


def test_nothing_of_a_data_set_is_run() -> None:
    class Touchy:
        looked = 0

        @property
        def costly(self) -> None:
            raise AssertionError("nobody asked for it")

        def __getitem__(self, key: int) -> int:
            raise AssertionError("nobody asked for it")

        def __len__(self) -> int:
            raise AssertionError("nobody asked for it")

    assert names(Touchy()) == []


def test_several_traps_are_all_named(monkeypatch: pytest.MonkeyPatch, tmp_path: Any) -> None:
    monkeypatch.setattr(objects, "LARGE", 20_000)
    with open(tmp_path / "data", "w") as file:
        dataset = Wrapper(own=random.Random(0), file=file, names=[str(one) for one in range(1000)])
        found = list(hazards(dataset, Setting(backend="process", start_method="fork", accelerator="cuda")))
    assert {one.name for one in found} == {"not-pinned", "generator-copied", "handle-shared", "python-objects"}
    texts = {one.name: one.text for one in found}
    assert texts["generator-copied"] == "Wrapper.own is a random.Random of the dataset's own."
    assert texts["handle-shared"].startswith("Wrapper.file is a _io.TextIOWrapper, opened before")
    assert texts["python-objects"].startswith("Wrapper.names holds 1,000 of them, ")


def test_large_collections_of_what_is_wrapped_are_seen(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(objects, "LARGE", 20_000)
    inner = Wrapper(names=[str(one) for one in range(1000)])
    (trap,) = hazards(wrapped(2, inner), FORKED)
    assert trap.name == "python-objects"
