"""What people do with a dataset that has steps: odd keys, copies, views, saved states, changes of its samples."""

from __future__ import annotations

import copy
import itertools
import multiprocessing
import pickle
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch.utils.data import ConcatDataset, DataLoader, Subset, random_split

import headrace
from headrace import Staged, step
from headrace.core.errors import UsageError
from tests.data.staged.pipelines import same, samples

SOURCE = [{"id": number, "x": np.arange(3.0) + number} for number in range(40)]


def doubled(one: dict[str, Any]) -> dict[str, Any]:
    return {**one, "x": one["x"] * 2}


@pytest.fixture(params=["memory", "folder"])
def where(request: pytest.FixtureRequest, tmp_path: Path) -> Any:
    return "memory" if request.param == "memory" else tmp_path / "c"


@pytest.fixture
def made(where: Any) -> Staged:
    """The samples, `x` doubled once and negated at each access."""
    return Staged(SOURCE, doubled, cache=where).map(lambda one: {**one, "x": -one["x"]})


def plain(key: int) -> dict[str, Any]:
    return {"id": key, "x": -2 * (np.arange(3.0) + key)}


def test_keys_are_those_of_a_list(made: Staged) -> None:
    for key in (-1, -40, np.int64(-3), np.uint8(7), True, torch.tensor(5).item(), np.array(9)):
        assert same(made[key], plain(int(key) % 40))
    for wrong in (40, -41, 2**70, -(2**70), np.uint64(2**63 + 5)):
        with pytest.raises(IndexError):
            made[wrong]
        with pytest.raises(IndexError):
            made.__getitems__([0, wrong])
    for wrong in (1.5, "1", None, slice(0, 2), [0, 1], np.array([1, 2]), np.float64(1)):
        with pytest.raises(TypeError):
            made[wrong]
    assert same(list(made), [plain(key) for key in range(40)])
    assert len(list(made)) == 40


def test_what_is_done_with_a_sample_changes_no_cache(where: Any) -> None:
    source = samples(5, 0)
    made = Staged(source, cache=where)
    for one in (made[0], made.__getitems__([0, 1])[0], next(iter(headrace.DataLoader(made.map(small), batch_size=1)))):
        for array in (one["tensor"], one["xy"]):
            values = array if isinstance(array, (np.ndarray, torch.Tensor)) else array.values
            try:
                values += 100
            except ValueError as error:
                assert "read-only" in str(error)
        one.clear()
    assert same(list(made), source)


def small(one: Any) -> Any:
    return {name: one[name] for name in ("tensor", "xy")}


def private_bytes(made: Staged, answers: Any) -> None:
    total = sum(float(made[key]["x"].sum()) for key in range(len(made)))
    lines = Path("/proc/self/smaps_rollup").read_text().splitlines()
    answers.put((total, sum(int(line.split()[1]) << 10 for line in lines if line.startswith("Private_Dirty"))))


def test_forked_processes_share_the_memory_of_a_cache() -> None:
    large = 1 << 17
    made = Staged(range(64), lambda key: {"x": np.full(large, key, np.float64)}, cache="memory")
    context = multiprocessing.get_context("fork")
    answers = context.SimpleQueue()
    process = context.Process(target=private_bytes, args=(made, answers))
    process.start()
    total, private = answers.get()
    process.join()
    assert total == large * sum(range(64))
    assert private < large * 8 * 64 / 2


def keep_list(batch: list[Any]) -> list[Any]:
    return batch


@pytest.mark.parametrize("loader", [DataLoader, headrace.DataLoader])
@pytest.mark.parametrize("workers", [0, 2])
def test_views_of_a_staged_dataset_go_through_any_loader(made: Staged, loader: Any, workers: int) -> None:
    generator = torch.Generator().manual_seed(0)
    split = random_split(made, [30, 10], generator)
    order = [*split[0].indices, *split[1].indices]
    views = {"subset": (Subset(made, [7, 3, 3]), [7, 3, 3]), "both": (ConcatDataset([made, made]), [*range(40)] * 2),
             "split": (ConcatDataset(split), order)}  # fmt: skip
    for view, keys in views.values():
        batches = list(loader(view, batch_size=4, num_workers=workers))
        expected = torch.stack([torch.from_numpy(plain(key)["x"]) for key in keys])
        assert torch.equal(torch.cat([batch["x"] for batch in batches]), expected)
    listed = list(loader(made, batch_size=4, collate_fn=keep_list, num_workers=workers))
    assert same(list(itertools.chain(*listed)), [plain(key) for key in range(40)])
    single = list(loader(made, batch_size=None, num_workers=workers))
    assert [int(one["id"]) for one in single] == list(range(40))


def noisy(one: Any) -> Any:
    return {**one, "x": one["x"] + headrace.rng().random(), "y": np.random.random()}


@pytest.mark.parametrize("workers", [0, 2])
def test_an_epoch_goes_on_from_a_saved_state_with_the_same_random_numbers(made: Staged, workers: int) -> None:
    def loader() -> Any:
        return headrace.DataLoader(made.map(noisy), batch_size=4, shuffle=True, seed=1, num_workers=workers)

    one, other = loader(), loader()
    iterator = iter(one)
    for _ in range(4):
        next(iterator)
    state = pickle.loads(pickle.dumps(one.state_dict()))
    rest = list(iterator)
    other.load_state_dict(state)
    assert same(list(other), rest)
    assert len(rest) == 6


@pytest.mark.parametrize(("workers", "backend"), [(0, "process"), (1, "thread"), (1, "process")])
def test_a_batch_belongs_to_the_loop_whatever_the_last_step_does_with_what_it_returned(
    workers: int, backend: Any
) -> None:
    table = np.full((64, 3), 2.0)

    def look_up(batch: Any) -> Any:
        buffer[: len(batch["id"])] = batch["id"][:, None]
        return {"id": buffer[: len(batch["id"])], "prior": table[: len(batch["id"])]}

    buffer = np.zeros((64, 3))
    data = Staged([{"id": float(key)} for key in range(40)]).map(look_up, batched=True)
    loader = headrace.DataLoader(data, batch_size=4, num_workers=workers, backend=backend)
    kept = []
    for batch in loader:
        assert (batch["prior"] == 2).all()
        batch["prior"].mul_(2)
        kept.append(batch["id"])
    assert [batch[0, 0].item() for batch in kept] == [4.0 * number for number in range(10)]


@pytest.mark.parametrize("copied", [copy.copy, copy.deepcopy], ids=["copy", "deepcopy"])
def test_copies_are_data_sets_of_their_own(made: Staged, copied: Any) -> None:
    other = copied(made)
    del made
    assert same(list(other), [plain(key) for key in range(40)])
    assert next(iter(headrace.DataLoader(other.map(doubled), batch_size=2)))["x"].tolist()[1] == [-4, -8, -12]


def test_steps_that_cannot_be_pickled_are_an_error_under_spawn(made: Staged) -> None:
    with pytest.raises((pickle.PicklingError, AttributeError), match=r"lambda|local"):
        pickle.dumps(made)
    sound = pickle.loads(pickle.dumps(Staged(SOURCE[:9], doubled, cache="memory")))
    assert same(sound[3], doubled(SOURCE[3]))


def test_a_data_set_with_names_for_keys_needs_no_numbers() -> None:
    staged = Staged({"a": 1, "b": 2})
    assert (staged["a"], staged["b"]) == (1, 2)
    loader = headrace.DataLoader(staged, sampler=["a", "b"], batch_size=2)
    assert [batch.tolist() for batch in loader] == [[1, 2]]


@pytest.mark.parametrize("given", [3, "f", [3], {"a": doubled}, [[doubled]]])
def test_what_is_no_step_is_refused(given: Any) -> None:
    with pytest.raises(UsageError, match="no step"):
        Staged(SOURCE, given)


def test_a_step_is_declared_with_known_words_only() -> None:
    words: list[dict[str, Any]] = [{"random": 1}, {"batched": None}, {"on": 1.5}, {"name": 3}, {"version": 2}]
    for word in words:
        with pytest.raises(UsageError, match=next(iter(word))):
            step(doubled, **word)
    with pytest.raises(UsageError, match="step already"):
        step(step(doubled))
