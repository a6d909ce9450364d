"""What the benchmarks of data in buckets share: a server, samples of 100 KB in it, and peers that read them."""

from __future__ import annotations

import contextlib
import functools
import importlib.util
import io
import os
import sys
import tarfile
import tempfile
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
import torch

sys.path.insert(0, str(Path(__file__).parents[1]))  # where `tests` is, whose servers are these

from tests.servers import nginx

import headrace

SAMPLE = 100_000
"""Bytes of a sample. The first eight are its number."""
BUCKET = "bucket"
BATCH = 32
FORMS = ("objects", "tar", "parquet")
SHARDS = 10
ROWS = 10
"""Rows in a row group of Parquet: as many bytes as a request is worth."""


def contents(samples: int) -> np.ndarray:
    """Returns random samples, [samples, SAMPLE] of uint8."""
    data = np.random.default_rng(0).integers(0, 256, (samples, SAMPLE), np.uint8)
    data[:, :8] = np.arange(samples, dtype=np.int64)[:, None].view(np.uint8)
    return data


@dataclass
class Bucket:
    """A bucket that is served. It may be sent to other processes."""

    url: str
    """Of the server, or of a slow line to it."""
    folder: Path
    """Where its objects are on this machine."""
    samples: int
    names: list[str] = field(default_factory=list)
    """Keys of the objects of one sample each, in the order of the samples."""
    shards: list[str] = field(default_factory=list)
    """Keys of the tar shards."""
    tables: list[str] = field(default_factory=list)
    """Keys of the files of Parquet."""

    def __getstate__(self) -> dict[str, Any]:
        return {name: value for name, value in self.__dict__.items() if name != "data"}

    @functools.cached_property
    def data(self) -> np.ndarray:
        """The samples, [samples, SAMPLE] of uint8."""
        return contents(self.samples)

    def fill(self) -> None:
        """Writes each sample as an object, in tar shards with their index, and in Parquet."""
        self._fill_objects()
        self._fill_tar()
        self._fill_parquet()

    def _fill_objects(self) -> None:
        for number, sample in enumerate(self.data):
            key = f"objects/class-{number % 10}/{number:06d}.bin"
            path = self.folder / key
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_bytes(sample.tobytes())
            self.names.append(key)

    def _fill_tar(self) -> None:
        from headrace.data.formats.tar.kept_index import keep_index

        for shard, numbers in enumerate(np.array_split(np.arange(len(self.data)), SHARDS)):
            key = f"tar/{shard:03d}.tar"
            path = self.folder / key
            path.parent.mkdir(exist_ok=True)
            with tarfile.open(path, "w", format=tarfile.USTAR_FORMAT) as file:
                for number in numbers:
                    info = tarfile.TarInfo(f"{number:06d}.bin")
                    info.size = SAMPLE
                    file.addfile(info, io.BytesIO(self.data[number].tobytes()))
            keep_index(path)
            self.shards.append(key)

    def _fill_parquet(self) -> None:
        import pyarrow as pa
        import pyarrow.parquet as pq

        for shard, numbers in enumerate(np.array_split(np.arange(len(self.data)), SHARDS)):
            key = f"parquet/{shard:03d}.parquet"
            path = self.folder / key
            path.parent.mkdir(exist_ok=True)
            table = pa.table({"bin": pa.array([self.data[number].tobytes() for number in numbers], pa.binary())})
            pq.write_table(table, path, row_group_size=ROWS, compression="none", use_dictionary=False)
            self.tables.append(key)

    def check(self, batches: Iterable[Iterable[Any]]) -> None:
        """Compares every byte of an epoch, whose samples may have any order. Raises SystemExit if one is wrong."""
        seen = set()
        for batch in batches:
            for sample in batch:
                # Tensors, arrays and bytes alike, without their copy.
                found = np.frombuffer(sample, np.uint8) if isinstance(sample, bytes) else np.asarray(sample)
                number = int(np.ascontiguousarray(found[:8]).view(np.int64)[0])
                if number in seen or not np.array_equal(found, self.data[number]):
                    raise SystemExit(f"sample {number} is wrong, or came twice")
                seen.add(number)
        if len(seen) != len(self.data):
            raise SystemExit(f"{len(seen)} of {len(self.data)} samples came")

    def open(self, form: str, **words: Any) -> Any:
        """Returns headrace's dataset of one of the forms: objects, tar or parquet."""
        columns = ["data"] if form == "objects" else ["bin"]
        return headrace.open(f"s3://{BUCKET}/{form}", columns, decode=False, **words)

    def open_local(self, form: str) -> Any:
        """Returns the same from the files that the server has."""
        columns = ["data"] if form == "objects" else ["bin"]
        return headrace.open(str(self.folder / form), columns, decode=False)

    def loader(self, form: str, workers: int, seed: int | None = None, **words: Any) -> headrace.DataLoader:
        """Returns a loader that shuffles one of the forms, by URL."""
        return loader(self.open(form, options=self.options, **words), workers, seed)

    @property
    def options(self) -> dict[str, object]:
        """What headrace needs to find the server."""
        return {"endpoint": self.url, "skip_signature": True, "region": "us-east-1"}


def loader(dataset: Any, workers: int, seed: int | None = None) -> headrace.DataLoader:
    """Returns a loader that shuffles.

    Without a seed, the order of the next epoch is not known before it begins: a run of one epoch then fetches what it
    delivers, and nothing of an epoch that never comes.
    """
    words = {"num_workers": workers, "persistent_workers": workers > 0}
    return headrace.DataLoader(dataset, batch_size=BATCH, shuffle=True, seed=seed, **words)


def samples_of(batch: dict[str, Any]) -> list[np.ndarray]:
    """Returns the samples of one of headrace's batches."""
    (column,) = batch.values()
    return [np.asarray(sample) for sample in column]


@contextlib.contextmanager
def serving(samples: int, folder: Path | None = None) -> Iterator[Bucket]:
    """Serves a bucket of so many samples until the block ends. Raises SystemExit where nginx is not installed."""
    program = nginx.find_nginx()
    if program is None:
        raise SystemExit("nginx is not installed (Debian: nginx-light)")

    with tempfile.TemporaryDirectory(dir=folder) as temporary, nginx.running(Path(temporary), program) as server:
        bucket = Bucket(server.url, server.root / BUCKET, samples)
        bucket.fill()
        for form in FORMS:
            server.make_list(BUCKET, form)
        yield bucket


# Peers, each as its own documents tell.


def obstore_store(url: str) -> Any:
    """Returns the store that the bare loops read from."""
    from obstore.store import S3Store

    return S3Store(
        BUCKET,
        endpoint=url,
        region="us-east-1",
        skip_signature=True,
        virtual_hosted_style_request=False,
        client_options={"allow_http": True},
    )


def torch_loader(dataset: Any, workers: int, **words: Any) -> torch.utils.data.DataLoader:
    """Returns torch's loader as the peers are used with it."""
    return torch.utils.data.DataLoader(
        dataset, batch_size=BATCH, num_workers=workers, persistent_workers=workers > 0, **words
    )


def s3torchconnector(bucket: Bucket, workers: int) -> Iterable[Any]:
    """s3torchconnector's map-style dataset over the objects."""
    from s3torchconnector import S3ClientConfig, S3MapDataset

    dataset = S3MapDataset.from_objects(
        [f"s3://{BUCKET}/{key}" for key in bucket.names],
        region="us-east-1",
        endpoint=bucket.url,
        transform=_as_tensor,
        s3client_config=S3ClientConfig(force_path_style=True),
    )
    return torch_loader(dataset, workers, shuffle=True)


def _as_tensor(reader: Any) -> torch.Tensor:
    return torch.frombuffer(bytearray(reader.read()), dtype=torch.uint8)


class FsspecObjects(torch.utils.data.Dataset):
    """The idiom of many projects: an s3fs file system in a dataset, opened in each worker."""

    def __init__(self, keys: list[str], url: str) -> None:
        self.keys = keys
        self.url = url
        self._files: Any = None

    def __len__(self) -> int:
        return len(self.keys)

    def __getitem__(self, index: int) -> torch.Tensor:
        if self._files is None:
            import s3fs

            self._files = s3fs.S3FileSystem(anon=True, client_kwargs={"endpoint_url": self.url})
        data = self._files.cat_file(f"{BUCKET}/{self.keys[index]}")
        return torch.frombuffer(bytearray(data), dtype=torch.uint8)


def s3fs(bucket: Bucket, workers: int) -> Iterable[Any]:
    """s3fs in torch's loader. Its threads do not live on in forked workers: these are spawned."""
    context = "spawn" if workers else None
    return torch_loader(FsspecObjects(bucket.names, bucket.url), workers, shuffle=True, multiprocessing_context=context)


def webdataset(bucket: Bucket, workers: int) -> Iterable[Any]:
    """WebDataset over HTTP, shuffled as its documents tell: shards, then a buffer."""
    import webdataset

    urls = [f"{bucket.url}/{BUCKET}/{key}" for key in bucket.shards]
    dataset = webdataset.WebDataset(urls, shardshuffle=SHARDS, seed=0, empty_check=False).shuffle(1000)
    dataset = dataset.to_tuple("bin").map(_first)
    return torch_loader(dataset, workers)


def _first(fields: tuple[bytes]) -> torch.Tensor:
    return torch.frombuffer(bytearray(fields[0]), dtype=torch.uint8)


def litdata(bucket: Bucket, workers: int) -> Iterable[Any]:
    """LitData's raw dataset over the objects, each fetched anew."""
    from litdata import StreamingRawDataset

    _allow_http()
    set_environment(bucket.url)
    folder = tempfile.mkdtemp(prefix="litdata-", dir=bucket.folder.parent.parent)
    dataset = StreamingRawDataset(f"s3://{BUCKET}/objects/", cache_dir=folder, transform=_bytes_as_tensor)
    # In one process, forked workers would find that their parent has used the client already.
    context = "spawn" if workers else None
    return torch_loader(
        dataset, workers, shuffle=True, multiprocessing_context=context, worker_init_fn=_allow_http if workers else None
    )


def _allow_http(worker: int = 0) -> None:
    """LitData has no option for a server without TLS."""
    from litdata.streaming import downloader

    downloader._OBSTORE_CLIENT_OPTIONS["allow_http"] = True


def _bytes_as_tensor(data: bytes) -> torch.Tensor:
    return torch.frombuffer(bytearray(data), dtype=torch.uint8)


def streaming(bucket: Bucket, workers: int) -> Iterable[Any]:
    """Streaming's dataset over shards of its own, fetched anew into an empty folder."""
    from streaming import StreamingDataset

    set_environment(bucket.url)
    folder = tempfile.mkdtemp(prefix="streaming-", dir=bucket.folder.parent.parent)
    dataset = StreamingDataset(remote=f"s3://{BUCKET}/mds", local=folder, shuffle=True, batch_size=BATCH)
    return torch_loader(dataset, workers, collate_fn=_stacked)


def _stacked(samples: list[dict[str, bytes]]) -> torch.Tensor:
    return torch.stack([_bytes_as_tensor(sample["bin"]) for sample in samples])


def fill_mds(bucket: Bucket) -> None:
    """Writes the samples as shards of Streaming, of ten megabytes."""
    from streaming import MDSWriter

    with MDSWriter(out=str(bucket.folder / "mds"), columns={"bin": "bytes"}, size_limit=100 * SAMPLE) as writer:
        for sample in bucket.data:
            writer.write({"bin": sample.tobytes()})


Peer = Callable[[Bucket, int], Iterable[Any]]


def missing(module: str) -> str | None:
    """Returns why a peer is left out, or None if it is installed."""
    if importlib.util.find_spec(module) is None:
        return "not installed"
    return None


def set_environment(url: str) -> None:
    """Tells the server's address to clients that look for it in the environment: no key is needed, but some ask."""
    os.environ.update(
        AWS_ENDPOINT_URL=url,
        S3_ENDPOINT_URL=url,
        AWS_ALLOW_HTTP="true",
        AWS_ACCESS_KEY_ID="any",
        AWS_SECRET_ACCESS_KEY="any",
        AWS_REGION="us-east-1",
        AWS_DEFAULT_REGION="us-east-1",
        AWS_EC2_METADATA_DISABLED="true",
    )
