"""How a dataset of a user's own tells the path of a bad sample: as `docs/howto/faults.md` says."""

from __future__ import annotations

import contextlib
import io
from pathlib import Path
from typing import Any

import pytest
from torch.utils.data import Dataset, Subset

import headrace
from headrace import DataLoader, load_quarantine

PAGE = Path(__file__).parents[2] / "docs" / "howto" / "faults.md"


class Listed(Dataset[int]):
    """Tells paths by a list."""

    def __init__(self, samples: Any) -> None:
        self.samples = samples

    def __len__(self) -> int:
        return len(self.samples)

    def __getitem__(self, key: int) -> int:
        if key % 3 == 2:
            raise ValueError("bad")
        return key


class Naming(Dataset[int]):
    """Tells paths by its exceptions."""

    def __len__(self) -> int:
        return 6

    def __getitem__(self, key: int) -> int:
        if key % 3 == 2:
            raise FileNotFoundError(2, "gone", f"{key}.wav")
        return key


PATHS = [f"{number}.wav" for number in range(6)]
DATASETS: dict[str, Dataset[int]] = {
    "tuples": Listed([(path, 0) for path in PATHS]),
    "paths": Listed(PATHS),
    "compact": Listed(headrace.compact([(path, 0) for path in PATHS])),
    "exceptions": Naming(),
    "a subset": Subset(Listed(PATHS), range(6)),
}


@pytest.mark.parametrize("workers", [0, 2])
@pytest.mark.parametrize("kind", DATASETS)
def test_the_quarantine_file_names_the_path(kind: str, workers: int, tmp_path: Path) -> None:
    path = tmp_path / "bad.jsonl"
    list(DataLoader(DATASETS[kind], 2, num_workers=workers, on_error=headrace.OnError("skip", log=path)))
    assert [bad.path for bad in load_quarantine(path)] == ["2.wav", "5.wav"]


def test_the_example_of_the_page_prints_the_path(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    block = next(part for part in PAGE.read_text("utf-8").split("```python\n") if "class Recordings" in part)
    out = io.StringIO()
    with contextlib.redirect_stdout(out):
        exec(block.partition("```")[0], {"__name__": "example"})
    assert out.getvalue() == "c.txt\n"
