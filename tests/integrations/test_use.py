"""`headrace.use`: headrace's loader stands in torch's place, here and in processes that start here, and goes again."""

from __future__ import annotations

import sys
import types
from collections.abc import Iterator
from pathlib import Path

import pytest
import torch.utils.data
from torch.utils.data import DataLoader as TorchLoader

import headrace
from headrace.errors import UsageError
from tests import programs

SCRIPT = """
import json, subprocess, sys
import torch
from torch.utils.data import DataLoader, Dataset

class Bad(Dataset):
    def __len__(self):
        return 6
    def __getitem__(self, index):
        if index == 3:
            raise ValueError("bad")
        return index

if __name__ == "__main__":
    if sys.argv[1:] == ["parent"]:
        import headrace
        headrace.use(on_error="skip")
        subprocess.run([sys.executable, __file__], check=True)
    else:
        loader = DataLoader(Bad(), batch_size=2, num_workers=1)
        import headrace
        print(json.dumps([isinstance(loader, headrace.DataLoader), [batch.tolist() for batch in loader]]))
"""


@pytest.fixture
def imported_before() -> Iterator[types.ModuleType]:
    """A module that has imported torch's loader by name, as frameworks have."""
    module = types.ModuleType("a_framework")
    module.DataLoader = TorchLoader  # type: ignore[attr-defined]
    sys.modules[module.__name__] = module
    yield module
    del sys.modules[module.__name__]


def test_all_names_of_the_loader_are_replaced_and_put_back(imported_before: types.ModuleType) -> None:
    expected = [batch.tolist() for batch in TorchLoader(range(7), batch_size=3)]
    with headrace.use():
        for place in (torch.utils.data, torch.utils.data.dataloader, imported_before):
            loader = place.DataLoader(range(7), batch_size=3)
            assert isinstance(loader, headrace.DataLoader)
            assert [batch.tolist() for batch in loader] == expected
        # Ours and the one that other libraries derive from are what they were.
        assert headrace.DataLoader is not torch.utils.data.DataLoader

    assert torch.utils.data.DataLoader is TorchLoader
    assert torch.utils.data.dataloader.DataLoader is TorchLoader
    assert imported_before.DataLoader is TorchLoader
    assert [batch.tolist() for batch in loader] == expected


def test_arguments_hold_where_a_call_does_not_give_them() -> None:
    with headrace.use(batch_size=4):
        given = torch.utils.data.DataLoader(range(8), batch_size=2)
        default = torch.utils.data.DataLoader(range(8))
    assert [given.batch_size, default.batch_size] == [2, 4]


def test_a_use_within_a_use_changes_nothing() -> None:
    with headrace.use():
        outer = torch.utils.data.DataLoader
        with headrace.use():
            assert torch.utils.data.DataLoader is outer
        assert torch.utils.data.DataLoader is outer
    assert torch.utils.data.DataLoader is TorchLoader


def test_an_error_ends_the_use() -> None:
    with pytest.raises(KeyError), headrace.use():
        raise KeyError
    assert torch.utils.data.DataLoader is TorchLoader


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        ({"num_wrokers": 2}, "no such argument: num_wrokers"),
        ({"dataset": 2}, "no such argument: dataset"),
        ({"collate_fn": list}, "collate_fn cannot be told to the processes that this one starts"),
    ],
)
def test_wrong_arguments_are_refused(arguments: dict[str, object], words: str) -> None:
    with pytest.raises(UsageError, match=words):
        headrace.use(**arguments)
    assert torch.utils.data.DataLoader is TorchLoader


def test_a_class_derived_before_is_named() -> None:
    derived = type("TheirLoader", (TorchLoader,), {"__module__": "a_framework"})
    with pytest.warns(UserWarning, match=r"a_framework\.TheirLoader"), headrace.use():
        assert not isinstance(derived(range(2)), headrace.DataLoader)


def test_processes_that_start_here_get_the_loader_and_the_arguments(tmp_path: Path) -> None:
    script = tmp_path / "train.py"
    script.write_text(SCRIPT)
    done = programs.run([script.name, "parent"], cwd=tmp_path)
    assert done.returncode == 0, done.stderr
    assert done.stdout.strip() == "[true, [[0, 1], [2], [4, 5]]]"


@pytest.mark.thorough
def test_processes_that_start_behind_the_block_get_torchs(tmp_path: Path) -> None:
    script = tmp_path / "train.py"
    ended = 'with headrace.use(on_error="skip"): pass'
    script.write_text(SCRIPT.replace('headrace.use(on_error="skip")', ended))
    done = programs.run([script.name, "parent"], cwd=tmp_path)
    assert done.returncode != 0
    assert "ValueError: bad" in done.stderr
