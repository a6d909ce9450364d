"""What becomes of bad samples of stored data: damaged images, damaged storage."""

from __future__ import annotations

import io
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow
import pyarrow.ipc
import pyarrow.parquet
import pytest
from torch.utils.data import Subset

import headrace
from headrace import DataLoader


@pytest.fixture
def photos(tmp_path: Path) -> Path:
    """Forty JPEGs in an Arrow file, three of them damaged."""
    pil = pytest.importorskip("PIL.Image")
    images = []
    for key in range(40):
        out = io.BytesIO()
        pil.fromarray(np.full((16, 16, 3), key * 5, np.uint8)).save(out, "JPEG")
        images.append(out.getvalue() if key not in (3, 17, 33) else out.getvalue()[:200])
    table = pyarrow.table({"jpg": pyarrow.array(images, pyarrow.binary()), "label": list(range(40))})
    with pyarrow.ipc.new_file(tmp_path / "photos.arrow", table.schema) as writer:
        writer.write_table(table, max_chunksize=10)
    return tmp_path / "photos.arrow"


@pytest.mark.parametrize("form", ["map", "stream", "mapped", "subset"])
@pytest.mark.parametrize("workers", [0, 2])
def test_damaged_images_in_stored_data(photos: Path, form: str, workers: int) -> None:
    opened = headrace.open(photos)
    dataset: Any = opened
    if form == "stream":
        dataset = opened.stream()
    elif form == "mapped":
        dataset = opened.map(doubled)
    elif form == "subset":
        dataset = Subset(opened, range(40))
    loader = DataLoader(dataset, 4, on_error="replace", num_workers=workers, seed=0)
    labels = [label for batch in loader for label in batch["label"].tolist()]
    assert len(labels) == 40
    assert set(labels) == set(range(40)) - {3, 17, 33}
    assert len(loader.faults.records) == 3
    assert all("cannot decode" in record.error for record in loader.faults.records)


def doubled(sample: dict[str, Any]) -> dict[str, Any]:
    return {"jpg": sample["jpg"], "label": sample["label"]}


def test_the_file_of_a_damaged_image_is_named(tmp_path: Path) -> None:
    pil = pytest.importorskip("PIL.Image")
    for name in ("a", "b", "c"):
        (tmp_path / "cat").mkdir(exist_ok=True)
        pil.new("RGB", (8, 8)).save(tmp_path / "cat" / f"{name}.png")
    (tmp_path / "cat" / "b.png").write_bytes(b"no image")
    folder = headrace.ImageFolder(tmp_path, transform=np.asarray)
    for dataset in (folder, Subset(folder, [1, 2, 0])):
        loader = DataLoader(dataset, 3, on_error="replace")
        list(loader)
        assert [record.path for record in loader.faults.records] == [str(tmp_path / "cat" / "b.png")]


@pytest.fixture
def damaged(tmp_path: Path) -> str:
    """Forty rows in four groups; the third cannot be unpacked."""
    path = tmp_path / "rows.parquet"
    table = pyarrow.table({"x": np.random.default_rng(0).normal(size=40), "key": np.arange(40)})
    pyarrow.parquet.write_table(table, path, row_group_size=10, compression="zstd", use_dictionary=False)
    column = pyarrow.parquet.ParquetFile(path).metadata.row_group(2).column(0)
    data = bytearray(path.read_bytes())
    start = column.data_page_offset
    data[start : start + 30] = b"\xff" * 30
    path.write_bytes(bytes(data))
    return str(path)


@pytest.mark.parametrize("form", ["map", "stream", "shuffled"])
@pytest.mark.parametrize("workers", [0, 1])
@pytest.mark.parametrize("policy", ["skip", "replace"])
def test_damaged_storage_costs_its_samples_and_no_other(damaged: str, form: str, workers: int, policy: Any) -> None:
    opened = headrace.open(damaged)
    dataset: Any = {"map": opened, "stream": opened.stream(), "shuffled": opened.stream(shuffle=15)}[form]
    loader = DataLoader(dataset, 4, on_error=policy, num_workers=workers, seed=0)
    keys = [key for batch in loader for key in batch["key"].tolist()]
    good = {*range(20), *range(30, 40)}
    assert set(keys) == good
    assert loader.faults.bad == 10
    if policy == "replace":
        assert len(keys) == 40


@pytest.mark.parametrize("stop", range(9))
def test_a_damaged_stream_resumes_anywhere(damaged: str, stop: int) -> None:
    def loader() -> DataLoader[Any]:
        return DataLoader(headrace.open(damaged).stream(shuffle=15), 4, on_error="skip", seed=0)

    whole = [batch["key"].tolist() for batch in loader()]
    half = loader()
    iterator = iter(half)
    begun = [next(iterator)["key"].tolist() for _ in range(stop)]
    again = loader()
    again.load_state_dict(half.state_dict())
    rest = [batch["key"].tolist() for batch in again]
    good = {*range(20), *range(30, 40)}
    assert {key for batch in begun + rest for key in batch} == good
    assert len(begun + rest) == len(whole)
    assert half.faults.bad + again.faults.bad == 10


def test_without_a_policy_a_damaged_stream_says_where(damaged: str) -> None:
    with pytest.raises(headrace.core.errors.FormatError, match=r"rows\.parquet"):
        list(DataLoader(headrace.open(damaged).stream(), 4))
