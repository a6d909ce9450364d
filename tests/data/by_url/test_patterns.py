"""What a pattern stands for is told, and why it cannot be opened: in a store as on this machine."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

import headrace
from headrace.core.errors import DatasetNotFoundError, UsageError
from tests.data.by_url.test_naming import picture
from tests.servers.faulty import FaultyServer

Open = Callable[..., Any]


@pytest.fixture(params=["local", "s3"])
def open_in(request: pytest.FixtureRequest, faulty_server: FaultyServer) -> tuple[Open, str]:
    """Returns what opens a name in a folder, and how errors call that folder."""
    folder = faulty_server.folder / "b"
    folder.mkdir()
    for number in range(3):
        np.savez(folder / f"{number}.npz", x=np.arange(4))
        (folder / f"{number}.jpg").write_bytes(picture(number))
    (folder / "table.txt").write_text("x\n1\n2\n")
    (folder / "classes").mkdir()
    (folder / "classes" / "0.jpg").write_bytes(picture(0))
    if request.param == "local":
        return lambda name, **words: headrace.open(f"{folder}/{name}", **words), str(folder)
    return lambda name, **words: headrace.open(f"s3://b/{name}", options=faulty_server.s3_options, **words), "s3://b"


@pytest.mark.parametrize("pattern", ["*.npz", "?.npz", "{0..2}.npz", "{0..7}.npz"])
@pytest.mark.parametrize("format", [None, "npz"])
def test_a_format_of_one_file_says_how_many_match(open_in: tuple[Open, str], pattern: str, format: str | None) -> None:
    opened, folder = open_in
    with pytest.raises(UsageError) as caught:
        opened(pattern, format=format)
    text = str(caught.value)
    assert "found:    3 matching" in text
    assert f"the first is {folder}/0.npz" in text
    assert "the format 'npz' takes no patterns; these do: arrow, parquet" in text
    assert "torch.utils.data.ConcatDataset" in text


def test_samples_in_files_of_their_own_belong_to_a_folder(open_in: tuple[Open, str]) -> None:
    opened, folder = open_in
    with pytest.raises(UsageError) as caught:
        opened("*.jpg")
    assert "found:    3 matching" in str(caught.value)
    assert f"fix:      open the folder {folder}\n" in f"{caught.value}\n"


def test_a_format_of_patterns_wants_its_name_for_another_ending(open_in: tuple[Open, str]) -> None:
    opened, _ = open_in
    assert len(opened("*.txt", format="csv")) == 2
    with pytest.raises(UsageError, match=r"1 matching .*table\.txt"):
        opened("*.txt")


def test_a_pattern_without_a_match_says_so(open_in: tuple[Open, str]) -> None:
    opened, _ = open_in
    for pattern in ("*.nope", "{5..7}.npz"):
        with pytest.raises(DatasetNotFoundError, match=r"match\n.*\n  found:    nothing"):
            opened(pattern)


def test_one_match_is_offered(open_in: tuple[Open, str]) -> None:
    opened, folder = open_in
    with pytest.raises(UsageError) as caught:
        opened("[2-9].npz")
    assert f"fix:      open {folder}/2.npz" in str(caught.value)


def test_a_url_with_a_space_in_front_is_told() -> None:
    with pytest.raises(DatasetNotFoundError, match="remove the space in front of the URL"):
        headrace.open(" s3://bucket/x.tar")
