"""`backend="auto"`: what is chosen follows from the samples, and the trial leaves no trace."""

from __future__ import annotations

import logging
import random
import subprocess
import sys
import threading
from typing import Any

import numpy as np
import pytest
import torch
from torch.utils.data import Dataset, IterableDataset, Sampler

import headrace
from headrace.core.process.machine import cores
from headrace.workers.auto.backend import Run, judged


class Cheap(Dataset[int]):
    opened = False

    def __len__(self) -> int:
        return 64

    def __getitem__(self, index: int) -> Any:
        self.opened = True
        return index


class Meeting(Cheap):
    """Each sample of a batch takes long alone, and two threads meet in it: nothing else can explain a gain of two."""

    def __getitem__(self, index: int) -> Any:
        threading.Event().wait(0.01)
        return index


class Computing(Cheap):
    """Samples that hold the interpreter's lock all the time."""

    def __getitem__(self, index: int) -> Any:
        return sum(number * number for number in range(20_000)) and index


class Drawing(Meeting):
    def __getitem__(self, index: int) -> Any:
        super().__getitem__(index)
        return random.random() + float(np.random.rand()) + float(torch.rand(()))


class DrawingOwn(Meeting):
    def __getitem__(self, index: int) -> Any:
        super().__getitem__(index)
        return index, int(headrace.rng().integers(1 << 40))


class DrawingCheap(Cheap):
    def __getitem__(self, index: int) -> Any:
        return float(torch.rand(()))


class Uncopied(Sampler[int]):
    """A sampler that cannot be copied."""

    def __deepcopy__(self, memo: Any) -> Any:
        raise TypeError("not to be copied")

    def __iter__(self) -> Any:
        return iter([1, 2])


class Named(Dataset[str]):
    """Samples with names for keys."""

    def __len__(self) -> int:
        return 3

    def __getitem__(self, key: str) -> str:
        return {"a": "first", "b": "second", "c": "third"}[key]


class Shuffled(Sampler[str]):
    """The user's own: names in an order that its generator draws, with a look at the dataset."""

    def __init__(self, dataset: Named) -> None:
        self.dataset = dataset
        self.generator = np.random.default_rng(5)
        self.asked = 0

    def __len__(self) -> int:
        return 3

    def __iter__(self) -> Any:
        self.asked += 1
        return iter(self.generator.permutation(["a", "b", "c"]).tolist())


class Unsafe(Meeting):
    """Two threads at once get in each other's way."""

    def __init__(self) -> None:
        self.inside: list[int] = []

    def __getitem__(self, index: int) -> Any:
        self.inside.append(index)
        super().__getitem__(index)
        alone = len(self.inside)
        self.inside.remove(index)
        return alone


class Broken(Cheap):
    def __getitem__(self, index: int) -> Any:
        raise ValueError("broken")


class Stream(IterableDataset[int]):
    def __iter__(self) -> Any:
        return iter(range(8))


class Counted(Meeting):
    asked = 0

    def state_dict(self) -> dict[str, int]:
        return {"asked": self.asked}

    def load_state_dict(self, state: dict[str, int]) -> None:
        self.asked = state["asked"]


def prepare(worker: int) -> None:
    """Does nothing."""


@pytest.mark.parametrize(
    ("dataset", "options", "backend", "why"),
    [
        (Cheap(), {}, "inline", "or more from workers"),
        (Cheap(), {"batch_size": None}, "inline", "or more from workers"),
        (Cheap(), {"seed": 1, "shuffle": True}, "inline", "or more from workers"),
        (Cheap(), {"sampler": [3, 1, 2, 0]}, "inline", "or more from workers"),
        (DrawingCheap(), {}, "process", "global random generators"),
        (Meeting(), {}, "thread", "times as much done as one"),
        (Meeting(), {"batch_size": None}, "thread", "times as much done as one"),
        (Computing(), {}, "process", "times as much done as one"),
        (DrawingOwn(), {}, "thread", "times as much done as one"),
        (Drawing(), {}, "process", "global random generators"),
        (Unsafe(), {}, "process", "come out differently"),
        (Stream(), {}, "process", "stream"),
        (Counted(), {}, "process", "has a state"),
        (Meeting(), {"worker_init_fn": prepare}, "process", "worker_init_fn"),
        (Meeting(), {"sampler": [3, 1, 2, 0]}, "thread", "times as much done as one"),
        (Meeting(), {"sampler": Uncopied()}, "process", "a copy of the sampler (Uncopied) gives no keys: TypeError"),
        (Meeting(), {"sampler": []}, "process", "the sampler gives nothing"),
    ],
    ids=lambda value: type(value).__name__ if isinstance(value, Dataset) else None,
)
def test_the_choice_follows_from_the_samples(
    dataset: Any,
    options: dict[str, Any],
    backend: str,
    why: str,
    caplog: pytest.LogCaptureFixture,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    # On a busy machine threads are chosen less often, since what they wait for a core counts: less must do here.
    monkeypatch.setattr("headrace.workers.auto.backend.SCALES", 1.3)
    caplog.set_level(logging.INFO, "headrace")
    loader = headrace.DataLoader(dataset, num_workers=2, backend="auto", **{"batch_size": 8, **options})
    assert loader.backend == "auto"
    delivered = [batch for _ in range(2) for batch in loader]
    assert loader.setting.backend == backend
    assert why in caplog.text
    assert len(caplog.records) == 1
    in_order = {"sampler", "shuffle"}.isdisjoint(options)
    if type(dataset) in (Cheap, Meeting, Computing) and in_order and options.get("batch_size", 8):
        assert torch.cat(delivered).tolist() == [*range(64)] * 2


def test_a_sampler_of_the_users_is_copied_and_not_asked() -> None:
    dataset = Named()
    sampler = Shuffled(dataset)
    loader = headrace.DataLoader(dataset, batch_size=2, sampler=sampler, num_workers=2, backend="auto")
    found = [name for _ in range(2) for batch in loader for name in batch]
    assert loader.setting.backend == "inline"
    assert sampler.asked == 2
    expected = Shuffled(dataset)
    assert found == [dataset[key] for _ in range(2) for key in expected]


@pytest.mark.parametrize("busy", [False, True], ids=["quiet", "busy"])
def test_small_batches_are_made_here_however_busy_the_machine_is(busy: bool) -> None:
    others = [subprocess.Popen([sys.executable, "-c", "while True: pass"]) for _ in range(2 * cores() * busy)]
    try:
        loader = headrace.DataLoader(Cheap(), batch_size=8, num_workers=2, backend="auto")
        assert torch.cat(list(loader)).tolist() == [*range(64)]
    finally:
        for other in others:
            other.kill()
            other.wait()
    assert loader.setting.backend == "inline"


@pytest.mark.parametrize(
    ("alone", "both", "backend"),
    [
        # One second of computing: both at once, nearly at once, in turn on a busy machine, and with other samples.
        (Run(1.0, 1.0, 0.0, [7]), Run(1.01, 2.0, 0.0, [7, 7]), "thread"),
        (Run(1.0, 1.0, 0.0, [7]), Run(1.04, 2.0, 0.0, [7, 7]), "thread"),
        (Run(1.0, 1.0, 0.0, [7]), Run(1.07, 2.0, 0.0, [7, 7]), "process"),
        (Run(1.0, 1.0, 0.0, [7]), Run(4.0, 2.0, 6.0, [7, 7]), "process"),
        (Run(1.0, 1.0, 0.0, [7]), Run(1.01, 2.0, 0.0, [7, 8]), "process"),
        # The machine was slow while one thread worked alone: that makes two threads in turn no better.
        (Run(1.8, 1.8, 0.0, [7]), Run(2.0, 2.0, 2.0, [7, 7]), "process"),
        # Half a second of waiting for data, half of computing: at once, and computing in turn.
        (Run(1.0, 0.5, 0.5, [7]), Run(1.02, 1.0, 1.0, [7, 7]), "thread"),
        (Run(1.0, 0.5, 0.5, [7]), Run(1.5, 1.0, 2.0, [7, 7]), "process"),
    ],
)
def test_threads_are_chosen_if_they_gain_and_agree(alone: Run, both: Run, backend: str) -> None:
    assert judged(alone, both).backend == backend


def test_with_a_timeout_there_are_workers() -> None:
    loader = headrace.DataLoader(Cheap(), num_workers=2, backend="auto", timeout=9)
    assert len(list(loader)) == 64
    assert loader.setting.backend in ("process", "thread")


def test_an_error_of_the_first_samples_is_raised_by_the_epoch() -> None:
    loader = headrace.DataLoader(Broken(), num_workers=2, backend="auto")
    with pytest.raises(ValueError, match="Caught ValueError in DataLoader worker process 0"):
        list(loader)


def test_the_trial_leaves_random_numbers_and_the_data_set_as_they_were() -> None:
    dataset = Cheap()
    loader = headrace.DataLoader(dataset, num_workers=2, shuffle=True, backend="auto", timeout=9)
    torch.manual_seed(1)
    expected = torch.cat(list(headrace.DataLoader(Cheap(), num_workers=2, shuffle=True))).tolist()
    random.seed(1)
    np.random.seed(1)
    before = random.getstate(), np.random.get_state(legacy=False)["state"]["pos"]
    torch.manual_seed(1)
    assert torch.cat(list(loader)).tolist() == expected
    assert (random.getstate(), np.random.get_state(legacy=False)["state"]["pos"]) == before
    assert not dataset.opened


@pytest.mark.parametrize("persistent", [False, True])
def test_inline_is_the_loader_without_workers(persistent: bool) -> None:
    before = set(threading.enumerate())
    loader = headrace.DataLoader(Cheap(), 8, num_workers=2, backend="inline", persistent_workers=persistent)
    assert [torch.cat(list(loader)).tolist() for _ in range(2)] == [[*range(64)]] * 2
    assert set(threading.enumerate()) <= before


@pytest.mark.thorough
def test_an_epoch_is_the_same_whatever_is_chosen() -> None:
    def made(backend: Any) -> Any:
        return headrace.DataLoader(DrawingOwn(), 8, shuffle=True, num_workers=2, backend=backend, seed=3)

    runs = [[[part.tolist() for part in batch] for batch in made(b)] for b in ("auto", "inline", "process", "thread")]
    assert runs[0] == runs[1] == runs[2] == runs[3]
