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
from headrace.data.convert.pack import pack
from headrace.data.convert.plan import PackOptions
from headrace.data.convert.verify import verify

URLS = ("s3://bucket/train.parquet", "gs://b/x", "https://host/a.tar", "hf://datasets/a", "az://c", "file:///data/x")

CALLS: dict[str, Callable[[str], Any]] = {
    "ImageFolder": headrace.ImageFolder,
    "verify": verify,
    "pack from": lambda url: pack(url, "there", PackOptions()),
    "pack to": lambda url: pack("here", url, PackOptions()),
    "cache": lambda url: headrace.Staged([1], cache=url),
}


@pytest.fixture(autouse=True)
def _in_a_folder_of_its_own(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """What is not refused is written there."""
    monkeypatch.chdir(tmp_path)


@pytest.mark.parametrize("call", CALLS)
@pytest.mark.parametrize("url", URLS)
def test_a_url_is_refused_by_its_name(call: str, url: str) -> None:
    with pytest.raises(UsageError, match="URLs are not read yet") as caught:
        CALLS[call](url)
    assert "s3:/b" not in str(caught.value)
    assert url in str(caught.value)
    assert "cure:" in str(caught.value)


@pytest.mark.parametrize("words", [["verify"], ["run"], ["pack", "here"], ["prepare", "npz-demo"]])
def test_a_command_refuses_a_url(words: list[str]) -> None:
    done = CliRunner().invoke(app, [*words, "s3://bucket/data"])
    assert isinstance(done.exception, UsageError)
    assert "s3://bucket/data" in str(done.exception)


def test_a_folder_whose_name_ends_in_a_colon_is_no_url() -> None:
    Path("odd:").mkdir()
    np.save("odd:/x.npy", np.arange(3))
    assert len(headrace.open("odd:/x.npy")) == 3
