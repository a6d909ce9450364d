"""What takes paths alone says so when it is given a URL, with the URL as it was given."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from typer.testing import CliRunner

import headrace
from headrace.cli.app import app
from headrace.core.errors import UsageError
from headrace.data.convert.plan import PackOptions
from headrace.data.formats.columns import Field, Schema

URLS = ("s3://bucket/train.parquet", "gs://b/x", "https://host/a.tar", "hf://datasets/a", "az://c")
SCHEMA = Schema((Field("x", "fixed", np.dtype("float32")),))

CALLS: dict[str, Callable[[str], Any]] = {
    "ImageFolder": headrace.ImageFolder,
    "open_writer": lambda url: headrace.open_writer(url, SCHEMA, "arrow"),
    "cache": lambda url: headrace.Staged([1], cache=url),
}


@pytest.fixture(autouse=True)
def _in_a_folder_of_its_own(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """What is not refused is written there."""
    monkeypatch.chdir(tmp_path)


@pytest.mark.parametrize("call", CALLS)
@pytest.mark.parametrize("url", URLS)
def test_a_url_is_refused_by_its_name(call: str, url: str) -> None:
    with pytest.raises(UsageError, match="this takes no URL") as caught:
        CALLS[call](url)
    assert "s3:/b" not in str(caught.value)
    assert url in str(caught.value)
    assert "fix:" in str(caught.value)


@pytest.mark.parametrize("words", [["run"], ["prepare", "npz-demo"], ["cache", "show"]])
def test_a_command_refuses_a_url(words: list[str]) -> None:
    done = CliRunner().invoke(app, [*words, "s3://bucket/data"])
    assert isinstance(done.exception, UsageError)
    assert "s3://bucket/data" in str(done.exception)


def test_a_file_url_is_a_path_everywhere(tmp_path: Path) -> None:
    np.savez("x.npz", x=np.arange(30, dtype=np.float32))
    url = f"file://{tmp_path}"
    headrace.pack(f"{url}/x.npz", f"{url}/packed", PackOptions("memmap"), workers=1)
    assert (tmp_path / "packed" / "headrace.json").is_file()
    assert headrace.verify(f"{url}/packed").sound
    writer = headrace.open_writer(f"{url}/written", SCHEMA, "memmap")
    writer.abort()
    (tmp_path / "photos" / "cat").mkdir(parents=True)
    assert headrace.ImageFolder(f"{url}/photos", allow_empty=True).classes == ["cat"]
    headrace.Staged(headrace.open(f"{url}/packed"), cache=f"{url}/cache")
    for words in (["inspect", f"{url}/packed"], ["verify", f"{url}/packed"], ["pack", f"{url}/x.npz", f"{url}/again"]):
        done = CliRunner().invoke(app, words)
        assert done.exit_code == 0, done.output
    assert (tmp_path / "again").is_dir()


def test_a_folder_whose_name_ends_in_a_colon_is_no_url() -> None:
    Path("odd:").mkdir()
    np.save("odd:/x.npy", np.arange(3))
    assert len(headrace.open("odd:/x.npy")) == 3
