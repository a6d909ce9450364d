"""The loader class under test, and the care that tests with worker processes need."""

import gc
import importlib
import warnings
from collections.abc import Callable, Iterator
from multiprocessing.process import BaseProcess

import pytest
import torch.utils.data

from tests.selection import parameters_of

NOT_RUN = {"threads": ["processes_only"], "forkserver": ["forked_only"]}
"""Other ways to run the workers of the loader under test, each a module here: the marks of what they do not run."""

ABOUT_STARTS = {"every_start", "start_methods"}
"""Modules about how workers start. Elsewhere forked and threaded workers of the class under test are enough: torch's
workers, and those of a fork server, run under `make stress`."""


@pytest.fixture(scope="session", params=["torch", *NOT_RUN, "headrace"])
def Loader(request: pytest.FixtureRequest) -> type[torch.utils.data.DataLoader]:
    """The class under test. headrace is imported late, so that torch's part runs without it."""
    if request.param == "torch":
        return torch.utils.data.DataLoader
    name = "headrace" if request.param == "headrace" else f"{__package__}.{request.param}"
    return importlib.import_module(name).DataLoader


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Leave out the cases that cannot be had with threads, or with a fork server; leave some for longer runs."""
    items[:] = [item for item in items if not is_left_out(item)]
    for item in items:
        if is_for_longer_runs(item):
            item.add_marker(pytest.mark.stress)
        if is_for_thorough_runs(item):
            item.add_marker(pytest.mark.thorough)


def is_left_out(item: pytest.Item) -> bool:
    parameters = parameters_of(item)
    loader = parameters.get("Loader")
    if loader not in NOT_RUN:
        return False
    without_workers = parameters.get("num_workers") == 0  # as with "headrace"
    return without_workers or any(item.get_closest_marker(marker) for marker in NOT_RUN[loader])


def is_for_longer_runs(item: pytest.Item) -> bool:
    parameters = parameters_of(item)
    if item.path.stem.removeprefix("test_") in ABOUT_STARTS or item.path.parent.name != "conformance":
        return False
    loader = parameters.get("Loader")
    return loader == "forkserver" or (loader == "torch" and parameters.get("num_workers", 0) > 0)


def is_for_thorough_runs(item: pytest.Item) -> bool:
    """Torch does not change from one edit to the next."""
    return parameters_of(item).get("Loader") == "torch"


@pytest.fixture(autouse=True)
def no_child_is_left(children: Callable[[], list[BaseProcess]]) -> Iterator[None]:
    """End here, and not in a child of the next test, what an exception kept alive; then count children."""
    # Python 3.12 and later warn at each fork of a process with threads, of which torch has some
    warnings.filterwarnings("ignore", "This process .* is multi-threaded", DeprecationWarning)
    yield
    gc.collect()
    assert children() == []
