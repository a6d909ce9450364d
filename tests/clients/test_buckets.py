"""Libraries that nobody here wrote read what `headrace pack` has put into a bucket, each by its own means."""

from __future__ import annotations

import importlib.util
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest

from headrace.data.convert.pack import pack
from headrace.data.convert.plan import PackOptions
from tests.servers.nginx import Nginx
from tests.servers.seaweed import ACCESS_KEY, SECRET_KEY, Seaweed

pytestmark = [
    pytest.mark.clients,
    pytest.mark.timeout(120),
    # Of these libraries themselves, when they are imported or their sockets are collected.
    pytest.mark.filterwarnings("ignore"),
]

COUNT = 50
FORMATS = ("parquet", "arrow", "webdataset", "huggingface")


def need(module: str) -> None:
    if importlib.util.find_spec(module) is None:
        pytest.skip(f"{module} is not installed: `make test-clients` installs it")


@pytest.fixture(scope="module")
def bucket(shared_seaweed: Seaweed, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Seaweed]:
    """s3://open/FORMAT holds samples with a number and a text."""
    source = tmp_path_factory.mktemp("source") / "source.npz"
    np.savez(source, number=np.arange(COUNT), half=np.arange(COUNT) / 2)
    for format in FORMATS:
        options = PackOptions(format)
        if format not in ("huggingface",):
            options = PackOptions(format, shards=3)
        pack(source, f"s3://open/{format}", options, workers=1, target_options=shared_seaweed.options)
    yield shared_seaweed


@pytest.fixture
def fsspec_options(bucket: Seaweed) -> dict[str, object]:
    return {"key": ACCESS_KEY, "secret": SECRET_KEY, "endpoint_url": bucket.url}


@pytest.mark.parametrize("format", ["parquet", "arrow"])
def test_pyarrow_reads_the_shards(bucket: Seaweed, format: str) -> None:
    import pyarrow.dataset
    import pyarrow.fs

    address = bucket.url.removeprefix("http://")
    system = pyarrow.fs.S3FileSystem(
        access_key=ACCESS_KEY, secret_key=SECRET_KEY, endpoint_override=address, scheme="http", region="us-east-1"
    )
    files = [f"open/{format}/part-{number:05d}.{format}" for number in range(3)]
    table = pyarrow.dataset.dataset(files, filesystem=system, format=format).to_table()
    assert list(range(COUNT)) == table["number"].to_pylist()


def test_polars_reads_the_shards(bucket: Seaweed) -> None:
    need("polars")
    import polars

    options = {
        "aws_access_key_id": ACCESS_KEY,
        "aws_secret_access_key": SECRET_KEY,
        "aws_endpoint_url": bucket.url,
        "aws_region": "us-east-1",
        "aws_allow_http": "true",
    }
    table = polars.scan_parquet("s3://open/parquet/*.parquet", storage_options=options).collect()
    assert list(range(COUNT)) == table["number"].to_list()


def test_datasets_loads_parquet(fsspec_options: dict[str, object], tmp_path: Path) -> None:
    need("datasets")
    need("s3fs")
    import datasets

    found = datasets.load_dataset(
        "parquet",
        data_files="s3://open/parquet/*.parquet",
        storage_options=fsspec_options,
        cache_dir=str(tmp_path),
        split="train",
    )
    assert list(range(COUNT)) == list(found["number"])


def test_datasets_loads_what_was_saved_to_disk(fsspec_options: dict[str, object], tmp_path: Path) -> None:
    need("datasets")
    need("s3fs")
    import datasets

    found = datasets.load_from_disk("s3://open/huggingface", storage_options=fsspec_options)
    assert list(range(COUNT)) == list(found["number"])


def test_webdataset_reads_shards_by_http(bucket: Seaweed, nginx_server: Nginx, tmp_path: Path) -> None:
    need("webdataset")
    import webdataset

    from headrace.storage.locations import Location
    from headrace.storage.stores.opening import open_store

    store = open_store(Location("s3", "open", ""), bucket.options)
    for number in range(3):
        name = f"webdataset/part-{number:05d}.tar"
        nginx_server.put("b", name, bytes(store.read_whole(name)[0]))

    address = f"pipe:curl -s -f {nginx_server.url}/b/webdataset/part-{{00000..00002}}.tar"
    samples = list(webdataset.WebDataset(address, shardshuffle=False))
    assert len(samples) == COUNT
    assert "number.npy" in samples[0] or any("number" in name for name in samples[0])
