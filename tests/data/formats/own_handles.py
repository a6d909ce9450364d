"""What a program itself has open of stored data, by the own library of each form."""

from __future__ import annotations

import tarfile
import zipfile
from abc import ABC, abstractmethod
from collections.abc import Callable
from pathlib import Path
from typing import Any

import datasets
import h5py
import lmdb
import numpy as np
import pyarrow as pa
import pyarrow.parquet
import torch
from tensordict import TensorDict

from headrace.data.formats.manifest import NAME as MANIFEST


def files_of_samples(path: Path) -> list[Path]:
    """Returns the files that hold data: the one at the path, or those below it."""
    if path.is_file():
        return [path]
    found = [file for file in path.rglob("*") if file.is_file() and file.name not in (MANIFEST, "lock.mdb")]
    return sorted(found)


class OwnHandle(ABC):
    """Data that a program has open. `values` reads them, always from the open file."""

    @abstractmethod
    def values(self) -> Any:
        """Returns what `==` compares."""

    @abstractmethod
    def close(self) -> None:
        """Closes what is open."""


class _Files(OwnHandle):
    """Files, as Python opens them."""

    def __init__(self, path: Path, mode: str = "rb") -> None:
        self._files = [file.open(mode) for file in files_of_samples(path)]

    def values(self) -> list[bytes]:
        read = []
        for file in self._files:
            file.seek(0)
            read.append(file.read())
        return read

    def close(self) -> None:
        for file in self._files:
            file.close()


class _Arrow(OwnHandle):
    def __init__(self, path: Path) -> None:
        self._source = pa.memory_map(str(path))
        self._table = pa.ipc.open_file(self._source).read_all()

    def values(self) -> Any:
        return self._table.to_pydict()

    def close(self) -> None:
        del self._table
        self._source.close()


class _Parquet(OwnHandle):
    def __init__(self, path: Path) -> None:
        self._file = pyarrow.parquet.ParquetFile(path)

    def values(self) -> Any:
        return self._file.read().to_pydict()

    def close(self) -> None:
        self._file.close()


class _Tar(OwnHandle):
    def __init__(self, path: Path) -> None:
        self._file = tarfile.open(path)  # noqa: SIM115 - closed by `close`

    def values(self) -> dict[str, bytes]:
        found = {}
        for member in self._file.getmembers():
            content = self._file.extractfile(member)
            found[member.name] = content.read() if content is not None else b""
        return found

    def close(self) -> None:
        self._file.close()


class _Lmdb(OwnHandle):
    def __init__(self, path: Path) -> None:
        self._environment = lmdb.open(str(path), map_size=1 << 26)

    def values(self) -> dict[bytes, bytes]:
        with self._environment.begin() as transaction:
            return dict(transaction.cursor())

    def close(self) -> None:
        self._environment.close()


class _LmdbInTransaction(_Lmdb):
    """A program that writes, and has committed nothing yet."""

    def __init__(self, path: Path) -> None:
        super().__init__(path)
        self._transaction = self._environment.begin(write=True)
        for key, value in list(self._transaction.cursor()):
            self._transaction.put(key, b"\xff" * len(value))

    def values(self) -> int:
        return int(self._transaction.stat()["entries"])

    def close(self) -> None:
        self._transaction.abort()
        super().close()


class _Hdf5(OwnHandle):
    def __init__(self, path: Path, mode: str = "r") -> None:
        self._file = h5py.File(path, mode)

    def values(self) -> dict[str, Any]:
        return {name: item[()].tolist() for name, item in self._file.items()}

    def close(self) -> None:
        self._file.close()


class _Npz(OwnHandle):
    def __init__(self, path: Path) -> None:
        self._file = np.load(path)

    def values(self) -> dict[str, Any]:
        return {name: self._file[name].tolist() for name in self._file.files}

    def close(self) -> None:
        self._file.close()


class _Zip(OwnHandle):
    def __init__(self, path: Path) -> None:
        self._file = zipfile.ZipFile(path)

    def values(self) -> dict[str, bytes]:
        return {name: self._file.read(name) for name in self._file.namelist()}

    def close(self) -> None:
        self._file.close()


class _Arrays(OwnHandle):
    """`.npy` files that are mapped into memory."""

    def __init__(self, path: Path, mode: Any = "r") -> None:
        self._arrays = [np.load(file, mmap_mode=mode) for file in files_of_samples(path)]

    def values(self) -> list[Any]:
        # Records may have fields of several numbers, whose `tolist` keeps arrays.
        return [array.tobytes() for array in self._arrays]

    def close(self) -> None:
        self._arrays.clear()


class _TensorDict(OwnHandle):
    def __init__(self, path: Path) -> None:
        self._stored = TensorDict.load_memmap(path)

    def values(self) -> dict[str, Any]:
        return {str(name): value.tolist() for name, value in self._stored.items()}

    def close(self) -> None:
        del self._stored


class _HuggingFace(OwnHandle):
    def __init__(self, path: Path) -> None:
        self._stored = datasets.load_from_disk(str(path))

    def values(self) -> Any:
        return self._stored[:]

    def close(self) -> None:
        del self._stored


class _Torch(OwnHandle):
    def __init__(self, path: Path) -> None:
        files = files_of_samples(path)
        self._samples = [torch.load(file, mmap=True, weights_only=True) for file in files]

    def values(self) -> list[Any]:
        found = []
        for sample in self._samples:
            found.append(
                {name: getattr(value, "tolist", lambda value=value: value)() for name, value in sample.items()}
            )
        return found

    def close(self) -> None:
        self._samples.clear()


def _written(path: Path) -> OwnHandle:
    return _Files(path, "r+b")


READ: dict[str, tuple[Callable[[Path], OwnHandle], ...]] = {
    "arrow": (_Arrow, _Files),
    "memmap": (_Arrays, _Files),
    "parquet": (_Parquet, _Files),
    "webdataset": (_Tar, _Files),
    "lmdb": (_Lmdb, _Files),
    "hdf5": (_Hdf5, _Files),
    "npz": (_Npz, _Zip),
    "npy": (_Arrays, _Files),
    "idx": (_Files,),
    "tensordict": (_TensorDict, _Files),
    "huggingface": (_HuggingFace, _Files),
    "pt": (_Torch, _Files),
    "csv": (_Files,),
    "tsv": (_Files,),
    "jsonl": (_Files,),
    "folder": (_Files,),
}
"""Ways to open data of a form to read."""


def _arrays_to_write(path: Path) -> OwnHandle:
    return _Arrays(path, "r+")


def _hdf5_to_write(path: Path) -> OwnHandle:
    return _Hdf5(path, "r+")


WRITTEN: dict[str, Callable[[Path], OwnHandle]] = {
    "memmap": _arrays_to_write,
    "npy": _arrays_to_write,
    "lmdb": _LmdbInTransaction,
    "hdf5": _hdf5_to_write,
}
"""How data of a form are opened to write; `_written` for the others."""


def to_write(format: str, path: Path) -> OwnHandle:
    """Opens data of a form to write."""
    return WRITTEN.get(format, _written)(path)
