"""A forked child has copies of its parent's loaders, and none of their workers."""

from __future__ import annotations

import os
from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch.utils.data import TensorDataset

import headrace

WAYS: dict[str, dict[str, Any]] = {
    "processes": {"num_workers": 2},
    "persistent": {"num_workers": 2, "persistent_workers": True},
    "threads": {"num_workers": 2, "backend": "thread"},
    "auto": {"num_workers": headrace.Auto()},
}
pytestmark = pytest.mark.timeout(60)


def in_child(work: Callable[[], object]) -> str:
    """Does something in a forked child; returns what it gave, or the name of what it raised."""
    reader, writer = os.pipe()
    child = os.fork()
    if child == 0:
        try:
            said = str(work())
        except BaseException as error:  # noqa: BLE001 - the child must not go on as the test
            said = f"{type(error).__name__}: {error}"
        os.write(writer, said.encode())
        os._exit(0)
    os.close(writer)
    with open(reader, closefd=True) as told:
        said = told.read()
    os.waitpid(child, 0)
    return said


@pytest.mark.filterwarnings("ignore:This process .* is multi-threaded:DeprecationWarning")
@pytest.mark.parametrize("how", WAYS.values(), ids=WAYS)
def test_the_childs_loader_begins_anew_and_the_parents_loses_nothing(how: dict[str, Any]) -> None:
    loader = headrace.DataLoader(TensorDataset(torch.arange(64)), 4, **how)
    iterator = iter(loader)
    found = [next(iterator)[0].tolist() for _ in range(3)]

    assert "make a new one with iter(loader)" in in_child(lambda: next(iterator))
    assert in_child(lambda: sum(batch[0].sum().item() for batch in loader)) == str(sum(range(64)))
    found += [batch[0].tolist() for batch in iterator]
    assert found == [list(range(first, first + 4)) for first in range(0, 64, 4)]
