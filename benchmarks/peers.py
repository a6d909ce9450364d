"""Other libraries that read buckets, each as its own documents tell."""

from __future__ import annotations

import importlib.util
import os
import tempfile
from collections.abc import Callable, Iterable
from typing import Any

import torch
from torch.utils.data import DataLoader, Dataset

from benchmarks.buckets import BATCH, BUCKET, SAMPLE, SHARDS, Bucket


def missing(module: str) -> str | None:
    """Returns why a peer is left out, or None if it is installed."""
    return None if importlib.util.find_spec(module) is not None else "not installed"


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


def loader_of(dataset: Any, workers: int, **words: Any) -> DataLoader[Any]:
    """Returns torch's loader as the peers are used with it."""
    return DataLoader(dataset, batch_size=BATCH, num_workers=workers, persistent_workers=workers > 0, **words)


def _tensor(data: bytes) -> torch.Tensor:
    return torch.frombuffer(bytearray(data), dtype=torch.uint8)


def _read(reader: Any) -> torch.Tensor:
    return _tensor(reader.read())


def _first(fields: tuple[bytes]) -> torch.Tensor:
    return _tensor(fields[0])


def s3torchconnector(bucket: Bucket, workers: int) -> Iterable[Any]:
    """s3torchconnector's map-style dataset over the objects."""
    from s3torchconnector import S3ClientConfig, S3MapDataset

    dataset = S3MapDataset.from_objects(
        [f"s3://{BUCKET}/{key}" for key in bucket.names],
        region="us-east-1",
        endpoint=bucket.url,
        transform=_read,
        s3client_config=S3ClientConfig(force_path_style=True),
    )
    return loader_of(dataset, workers, shuffle=True)


class FsspecObjects(Dataset[torch.Tensor]):
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
        return _tensor(data)


def s3fs(bucket: Bucket, workers: int) -> Iterable[Any]:
    """s3fs in torch's loader. Its threads do not live on in forked workers: these are spawned."""
    context = "spawn" if workers else None
    return loader_of(FsspecObjects(bucket.names, bucket.url), workers, shuffle=True, multiprocessing_context=context)


def webdataset(bucket: Bucket, workers: int) -> Iterable[Any]:
    """WebDataset over HTTP, shuffled as its documents tell: shards, then a buffer."""
    import webdataset

    urls = [f"{bucket.url}/{BUCKET}/{key}" for key in bucket.shards]
    dataset = webdataset.WebDataset(urls, shardshuffle=SHARDS, seed=0, empty_check=False).shuffle(1000)
    dataset = dataset.to_tuple("bin").map(_first)
    return loader_of(dataset, workers)


def litdata(bucket: Bucket, workers: int) -> Iterable[Any]:
    """LitData's raw dataset over the objects, each fetched anew."""
    from litdata import StreamingRawDataset

    _allow_http()
    set_environment(bucket.url)
    folder = tempfile.mkdtemp(prefix="litdata-", dir=bucket.folder.parent.parent)
    dataset = StreamingRawDataset(f"s3://{BUCKET}/objects/", cache_dir=folder, transform=_tensor)
    # In one process, forked workers would find that their parent has used the client already.
    context = "spawn" if workers else None
    return loader_of(
        dataset, workers, shuffle=True, multiprocessing_context=context, worker_init_fn=_allow_http if workers else None
    )


def _allow_http(worker: int = 0) -> None:
    """LitData has no option for a server without TLS."""
    from litdata.streaming import downloader

    downloader._OBSTORE_CLIENT_OPTIONS["allow_http"] = True


def streaming(bucket: Bucket, workers: int) -> Iterable[Any]:
    """Streaming's dataset over shards of its own, fetched anew into an empty folder."""
    from streaming import StreamingDataset

    set_environment(bucket.url)
    folder = tempfile.mkdtemp(prefix="streaming-", dir=bucket.folder.parent.parent)
    dataset = StreamingDataset(remote=f"s3://{BUCKET}/mds", local=folder, shuffle=True, batch_size=BATCH)
    return loader_of(dataset, workers, collate_fn=_stacked)


def _stacked(samples: list[dict[str, bytes]]) -> torch.Tensor:
    return torch.stack([_tensor(sample["bin"]) for sample in samples])


def fill_mds(bucket: Bucket) -> None:
    """Writes the samples as shards of Streaming, of ten megabytes."""
    from streaming import MDSWriter

    with MDSWriter(out=str(bucket.folder / "mds"), columns={"bin": "bytes"}, size_limit=100 * SAMPLE) as writer:
        for sample in bucket.data:
            writer.write({"bin": sample.tobytes()})


Peer = Callable[[Bucket, int], Iterable[Any]]
PEERS: dict[str, Peer] = {
    "s3torchconnector": s3torchconnector,
    "s3fs": s3fs,
    "webdataset": webdataset,
    "litdata": litdata,
    "streaming": streaming,
}
"""By the name of their module."""
