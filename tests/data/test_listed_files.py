"""A list of files is opened as one dataset, in the order of the list."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest

import headrace
from headrace.core.errors import DatasetNotFoundError, FormatError, UsageError
from headrace.data.formats.columns.schema import Field, Schema
from headrace.data.formats.registry import open_writer
from tests.data.formats.samples import block_of
from tests.servers.faulty import FaultyServer
from tests.servers.nginx import Nginx

SUFFIXES = {"arrow": ".arrow", "parquet": ".parquet", "webdataset": ".tar", "csv": ".csv", "tsv": ".tsv",
            "jsonl": ".jsonl"}  # fmt: skip
SCHEMA = Schema((Field("number", "fixed", np.dtype(np.int64)), Field("words", "text")))
ORDER = (2, 0, 1)


def write(folder: Path, form: str) -> list[str]:
    """Writes three files of five samples. Returns their names, in another order than that of the alphabet."""
    folder.mkdir(exist_ok=True)
    names = []
    for number in ORDER:
        name = f"{number}{SUFFIXES[form]}"
        writer = open_writer(folder / name, SCHEMA, form)
        writer.append(block_of(SCHEMA, 5, number, finite=True))
        writer.seal()
        names.append(name)

    return names


def numbers(dataset: Any) -> list[int]:
    return [int(sample["number"]) for sample in dataset.__getitems__(range(len(dataset)))]


def expected() -> list[int]:
    found: list[int] = []
    for number in ORDER:
        found += block_of(SCHEMA, 5, number, finite=True).columns["number"].tolist()  # type: ignore[union-attr]
    return found


@pytest.mark.parametrize("form", SUFFIXES)
def test_files_come_in_the_order_of_the_list(form: str, tmp_path: Path) -> None:
    names = write(tmp_path, form)
    for given in ([tmp_path / name for name in names], tuple(str(tmp_path / name) for name in names)):
        dataset = headrace.open(given)
        assert dataset.format == form
        assert dataset.place == f"{tmp_path / names[0]} and 2 more"
        assert numbers(dataset) == expected()

    assert headrace.open([tmp_path / names[0]]).place == str(tmp_path / names[0])
    assert len(headrace.open([tmp_path / names[1]] * 2)) == 10


@pytest.mark.parametrize("form", SUFFIXES)
def test_urls_of_one_store_come_in_the_order_of_the_list(form: str, faulty_server: FaultyServer) -> None:
    names = write(faulty_server.folder / "bucket", form)
    urls = [f"s3://bucket/{name}" for name in names]
    dataset = headrace.open([*urls, urls[0]], options=faulty_server.s3_options)
    assert dataset.place == f"{urls[0]} and 3 more"
    assert numbers(dataset) == [*expected(), *expected()[:5]]
    assert [int(batch["number"]) for batch in headrace.DataLoader(dataset, batch_size=1)] == numbers(dataset)


def test_a_server_that_cannot_list_will_do(nginx_server: Nginx) -> None:
    names = write(nginx_server.root / "b", "parquet")
    assert numbers(headrace.open([f"{nginx_server.url}/b/{name}" for name in names])) == expected()


def test_the_fingerprint_changes_with_any_of_the_files(tmp_path: Path) -> None:
    files = [tmp_path / name for name in write(tmp_path, "csv")]
    before = headrace.open(files).fingerprint()
    assert before == headrace.open(files).fingerprint()
    assert before != headrace.open(files[::-1]).fingerprint()
    files[1].write_text(files[1].read_text() + "7,x\n")
    assert before != headrace.open(files).fingerprint()


def test_a_missing_file_is_named(tmp_path: Path, faulty_server: FaultyServer) -> None:
    names = write(tmp_path, "csv")
    with pytest.raises(DatasetNotFoundError, match="files are missing") as caught:
        headrace.open([tmp_path / names[0], tmp_path / "gone.csv", tmp_path])
    assert f"1 of 3; not there: {tmp_path / 'gone.csv'}, {tmp_path}" in str(caught.value)

    faulty_server.put("bucket", "a.csv", b"number\n1\n")
    with pytest.raises(DatasetNotFoundError, match=r"not there: s3://bucket/b\.csv"):
        headrace.open(["s3://bucket/a.csv", "s3://bucket/b.csv"], options=faulty_server.s3_options)


def test_a_file_of_another_format_is_named(tmp_path: Path) -> None:
    first = write(tmp_path, "csv")
    odd = write(tmp_path, "arrow")[0]
    with pytest.raises(FormatError, match="listed files differ") as caught:
        headrace.open([*(tmp_path / name for name in first), tmp_path / odd])
    assert str(tmp_path / odd) in str(caught.value)
    assert "arrow where" in str(caught.value)


@pytest.mark.parametrize(
    ("words", "told"),
    [({"uri": ""}, "an empty text"), ({"uri": "data.npz", "columns": 5}, "a list of names")],
)
def test_what_is_no_path_and_no_columns_is_refused(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, words: dict[str, Any], told: str
) -> None:
    np.savez(tmp_path / "data.npz", x=np.arange(3))
    monkeypatch.chdir(tmp_path)
    with pytest.raises(UsageError, match=told):
        headrace.open(**words)


def test_a_file_of_other_columns_is_named(tmp_path: Path) -> None:
    names = write(tmp_path, "arrow")
    other = Schema((Field("else", "text"),))
    writer = open_writer(tmp_path / "odd.arrow", other, "arrow")
    writer.append(block_of(other, 2, 1))
    writer.seal()
    with pytest.raises(FormatError, match="no column 'number'") as caught:
        headrace.open([tmp_path / names[0], tmp_path / "odd.arrow"])
    assert "odd.arrow" in str(caught.value)


def test_a_format_of_one_file_is_refused(tmp_path: Path) -> None:
    np.save(tmp_path / "a.npy", np.arange(3))
    with pytest.raises(UsageError, match="not read from a list") as caught:
        headrace.open([tmp_path / "a.npy"])
    assert "arrow, parquet, webdataset, csv, tsv, jsonl" in str(caught.value)


@pytest.mark.parametrize(
    ("given", "found"),
    [
        ([], "an empty list"),
        (["a.csv", 3], "3 of type int at position 1"),
        (["a.csv", "s3://b/a.csv"], "s3://b/a.csv beside a.csv"),
        (["s3://b/a.csv", "s3://c/a.csv"], "s3://c/a.csv beside s3://b/a.csv"),
        (["https://h/a.csv", "https://me:SECRET@h/b.csv"], "another user"),
    ],
)
def test_what_is_no_list_of_files_of_one_store_is_refused(given: list[Any], found: str) -> None:
    with pytest.raises(UsageError) as caught:
        headrace.open(given)
    assert found in str(caught.value)
    assert "SECRET" not in str(caught.value)
