"""Streams of Hugging Face's `datasets`: a resumed run delivers what an uninterrupted one does, in all epochs."""

from __future__ import annotations

import importlib.util
from collections.abc import Callable, Iterator
from typing import Any, NamedTuple

import pytest
import torch
from torch.utils.data import IterableDataset

import headrace
from headrace.core.hugging_face_streams import missing_in_state
from headrace.core.protocols import tell_epoch

pytestmark = [
    pytest.mark.skipif(importlib.util.find_spec("datasets") is None, reason="datasets is not installed"),
    pytest.mark.filterwarnings("ignore:.*cannot say where it was"),
    pytest.mark.filterwarnings("ignore:This DataLoader will create"),
]

SHARDS, ROWS = 4, 5


def rows(shards: list[int]) -> Iterator[dict[str, int]]:
    for shard in shards:
        for row in range(ROWS):
            yield {"x": ROWS * shard + row}


def stream(shards: int = SHARDS) -> Any:
    import datasets

    return datasets.IterableDataset.from_generator(rows, gen_kwargs={"shards": list(range(shards))})


def table() -> Any:
    import datasets

    whole = datasets.Dataset.from_dict({"x": list(range(SHARDS * ROWS))})
    return whole.to_iterable_dataset(num_shards=SHARDS).with_format("torch")


def joined(name: str) -> Any:
    import datasets

    return getattr(datasets, name)([stream(), stream()])


def doubled(sample: dict[str, int]) -> dict[str, int]:
    return {"x": 2 * sample["x"]}


KINDS: dict[str, Callable[[], Any]] = {
    "fewer shards than workers": lambda: stream(1),
    "mapped": lambda: stream().map(doubled),
    "taken": lambda: stream().skip(2).take(11),
    "interleaved": lambda: joined("interleave_datasets"),
    "joined": lambda: joined("concatenate_datasets"),
    "shuffled table": lambda: table().shuffle(seed=3, buffer_size=6),
    "shuffled": lambda: stream().shuffle(seed=3, buffer_size=6),
    "table": table,
    "plain": stream,
}


class Crew(NamedTuple):
    """Who makes batches."""

    workers: int = 0
    persistent: bool = False
    backend: str = "process"

    def loader(self, dataset: Any, **more: Any) -> Any:
        words: dict[str, Any] = {"num_workers": self.workers, "backend": self.backend, **more}
        if self.workers:
            words["persistent_workers"] = self.persistent
        return headrace.DataLoader(dataset, 3, **words)


CREWS = [Crew(3), Crew(2, backend="thread"), Crew(2, persistent=True), Crew()]


def lists(batches: Any) -> list[list[int]]:
    return [batch["x"].tolist() for batch in batches]


def epochs(loader: Any, dataset: Any, numbers: range, *, tells: bool) -> list[list[list[int]]]:
    """The batches of several epochs, of which the dataset may be told the numbers."""
    found = []
    for number in numbers:
        if tells:
            dataset.set_epoch(number)
        found.append(lists(loader))
    return found


@pytest.mark.thorough
@pytest.mark.parametrize("crew", CREWS, ids=str)
@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("tells", [True, False], ids=["told", "not told"])
def test_all_epochs_are_those_of_a_run_without_interruption(kind: str, crew: Crew, tells: bool) -> None:
    dataset = KINDS[kind]()
    whole = epochs(crew.loader(dataset), dataset, range(4), tells=tells)
    length = len(whole[1])
    for stop in (0, 1, length // 2, length):
        dataset = KINDS[kind]()
        loader = crew.loader(dataset)
        epochs(loader, dataset, range(1), tells=tells)
        if tells:
            dataset.set_epoch(1)
        batches = iter(loader)
        assert [next(batches)["x"].tolist() for _ in range(stop)] == whole[1][:stop]
        state = loader.state_dict()
        del batches, loader

        dataset = KINDS[kind]()
        loader = crew.loader(dataset)
        loader.load_state_dict(state)
        # Behind the last batch, only the resumed loader finds out that it was the last one.
        rest = [whole[1][stop:], *whole[2:]]
        first = 1
        if stop == length:
            rest = whole[2:]
            first = 2
        assert epochs(loader, dataset, range(first, first + len(rest)), tells=tells) == rest, stop


@pytest.mark.thorough
@pytest.mark.parametrize("kind", ["shuffled", "plain"])
def test_the_resumed_epoch_is_in_its_order_also_if_the_dataset_is_told_no_number(kind: str) -> None:
    crew = Crew(2)
    dataset = KINDS[kind]()
    whole = epochs(crew.loader(dataset), dataset, range(2), tells=True)
    loader = crew.loader(dataset)
    batches = iter(loader)
    next(batches)
    loader_again = crew.loader(KINDS[kind]())
    loader_again.load_state_dict(loader.state_dict())
    assert lists(loader_again) == whole[1][1:]


@pytest.mark.parametrize("kind", ["shuffled", "interleaved"])
def test_what_a_state_does_not_hold_is_read_again_with_a_word_why(kind: str) -> None:
    crew = Crew(2)
    loader = crew.loader(KINDS[kind]())
    next(iter(loader))
    state = loader.state_dict()
    loader = crew.loader(KINDS[kind]())
    loader.load_state_dict(state)
    why = {"shuffled": r"the buffer of .shuffle\(\)", "interleaved": "several sources"}[kind]
    with pytest.warns(UserWarning, match=f"cannot say where it was .*{why}.*Without that step"):
        lists(loader)


@pytest.mark.parametrize("kind", ["mapped", "filtered"])
def test_a_version_whose_states_are_ahead_is_read_again(kind: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """`make test-clients-lowest` tries such a version."""
    import datasets

    steps = {"mapped": stream().map(doubled), "filtered": stream().filter(bool)}
    monkeypatch.setattr(datasets, "__version__", "4.8.4")
    assert "before version 4.8.5 of datasets" in missing_in_state(steps[kind])
    assert missing_in_state(stream()) == ""
    monkeypatch.setattr(datasets, "__version__", "4.8.5")
    assert missing_in_state(steps[kind]) == ""
    monkeypatch.setattr(datasets, "__version__", "5.0.0.dev0")
    assert missing_in_state(steps[kind]) == ""


@pytest.mark.parametrize("workers", [0, 2])
def test_a_state_of_an_order_without_a_seed_is_refused(workers: int) -> None:
    crew = Crew(workers)
    loader = crew.loader(stream().shuffle(buffer_size=6))
    next(iter(loader))
    again = crew.loader(stream().shuffle(buffer_size=6))
    again.load_state_dict(loader.state_dict())
    with pytest.raises(headrace.core.errors.StateError, match="another order of the stream"):
        iter(again)
    again.load_state_dict({})
    assert sorted(number for batch in lists(again) for number in batch) == list(range(SHARDS * ROWS))


def test_workers_agree_on_the_epoch_that_each_of_them_is_told(monkeypatch: pytest.MonkeyPatch) -> None:
    """Copies have the number in one place, and `set_epoch` adds to what it finds there."""
    dataset = KINDS["shuffled"]()
    crew = Crew(2)
    orders = [epochs(crew.loader(KINDS["shuffled"](), seed=1), None, range(3), tells=False) for _ in range(4)]
    assert all(order == orders[0] for order in orders)
    assert orders[0][0] != orders[0][1]

    # Two that do so at the same time would both add, and the number would be twice as large.
    monkeypatch.setattr(type(dataset), "set_epoch", None)
    tell_epoch(dataset, 7)
    assert dataset.epoch == 7


class Wrapped(IterableDataset[torch.Tensor]):
    """Passes the state of a stream on, as many wrappers do."""

    def __init__(self) -> None:
        self.inner = stream()

    def __iter__(self) -> Iterator[Any]:
        yield from self.inner

    def state_dict(self) -> Any:
        return self.inner.state_dict()

    def load_state_dict(self, state: Any) -> None:
        self.inner.load_state_dict(state)


@pytest.mark.parametrize("crew", [Crew(2, persistent=True), Crew()], ids=str)
def test_a_state_that_a_wrapper_passes_on_counts_for_one_epoch(crew: Crew) -> None:
    whole = lists(crew.loader(Wrapped()))
    loader = crew.loader(Wrapped())
    batches = iter(loader)
    for _ in range(2):
        next(batches)
    again = crew.loader(Wrapped())
    again.load_state_dict(loader.state_dict())
    assert [lists(again) for _ in range(3)] == [whole[2:], whole, whole]


def test_the_stream_itself_begins_as_before() -> None:
    loader = Crew().loader(stream())
    next(iter(loader))
    dataset = stream()
    again = Crew().loader(dataset)
    again.load_state_dict(loader.state_dict())
    next(iter(again))
    assert [sample["x"] for sample in dataset] == list(range(SHARDS * ROWS))
