"""The loader class under test, and the care that tests with worker processes need."""

import gc
import importlib
import multiprocessing
import warnings
from collections.abc import Callable, Iterator
from multiprocessing.process import BaseProcess

import pytest
import torch.utils.data


@pytest.fixture(scope="session", params=["torch", "headrace", "threads"])
def Loader(request: pytest.FixtureRequest) -> type[torch.utils.data.DataLoader]:
    """The class under test. headrace is imported late, so that torch's part runs without it."""
    if request.param == "torch":
        return torch.utils.data.DataLoader
    name = "headrace" if request.param == "headrace" else f"{__package__}.threaded"
    return importlib.import_module(name).DataLoader


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Leave out the cases with threads where a test is about processes."""
    items[:] = [item for item in items if not (is_threaded(item) and item.get_closest_marker("processes_only"))]


def is_threaded(item: pytest.Item) -> bool:
    return (
        isinstance(item, pytest.Function)
        and getattr(item, "callspec", None) is not None
        and (item.callspec.params.get("Loader") == "threads")
    )


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
