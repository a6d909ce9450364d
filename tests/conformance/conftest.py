"""The loader class under test, and the care that tests with worker processes need."""

import gc
import importlib
import multiprocessing
import warnings
from collections.abc import Callable, Iterator
from multiprocessing.process import BaseProcess
from typing import Any

import pytest
import torch.utils.data


@pytest.fixture(scope="session", params=["torch", "headrace", "threads"])
def Loader(request: pytest.FixtureRequest) -> type[torch.utils.data.DataLoader]:
    """The class under test. headrace is imported late, so that torch's part runs without it."""
    if request.param == "torch":
        return torch.utils.data.DataLoader
    ours = importlib.import_module("headrace").DataLoader
    return ours if request.param == "headrace" else with_threads(ours)


def with_threads(loader: type[torch.utils.data.DataLoader]) -> type[torch.utils.data.DataLoader]:
    """The class with worker threads wherever a test asks for forked workers."""

    class DataLoader(loader):  # type: ignore[misc,valid-type]
        def __init__(self, *args: Any, **kwargs: Any) -> None:
            super().__init__(*args, backend="thread", **kwargs)

    return DataLoader


@pytest.fixture(scope="module", autouse=True)
def frozen_heap() -> Iterator[None]:
    """Hide what is there already from the collector, so that a collection after each test costs little."""
    gc.collect()
    gc.freeze()
    yield
    gc.unfreeze()


@pytest.fixture
def children() -> Callable[[], list[BaseProcess]]:
    """Tells which child processes were started since the test began and still run."""
    before = set(multiprocessing.active_children())
    return lambda: [child for child in multiprocessing.active_children() if child not in before]


@pytest.fixture(autouse=True)
def no_child_is_left(frozen_heap: None, children: Callable[[], list[BaseProcess]]) -> Iterator[None]:
    """End here, and not in a child of the next test, what an exception kept alive; then count children."""
    # Python 3.12 and later warn at each fork of a process with threads, of which torch has some
    warnings.filterwarnings("ignore", "This process .* is multi-threaded", DeprecationWarning)
    yield
    gc.collect()
    assert children() == []
