"""File systems that behave as remote stores do: they hang up, and they are slow."""

from __future__ import annotations

import io
import time
from typing import IO, Any

import fsspec
from fsspec.spec import AbstractFileSystem

from headrace.testing.attempts import Attempts
from headrace.testing.calls import FaultyCall, connection_reset
from headrace.testing.faults import Raise


class _Around(AbstractFileSystem):  # type: ignore[misc]  # fsspec has no types
    """A file system around another one: what is read passes `before`, all else goes straight through."""

    cachable = False
    root_marker = ""

    def __init__(self, fs: AbstractFileSystem | None = None, **storage_options: Any) -> None:
        super().__init__(fs=fs, **storage_options)
        if fs is not None:
            self.fs = fs
        else:
            self.fs = fsspec.filesystem("file")

        self._strip_protocol = self.fs._strip_protocol

    def before(self, operation: str, nbytes: int) -> None:
        """Is called before an "open" (0 bytes) or a "read" of at most `nbytes` (-1: all that is left)."""
        raise NotImplementedError

    def after(self, nbytes: int) -> None:
        """Is called when a read has given `nbytes`."""

    def _open(self, path: str, mode: str = "rb", block_size: int | None = None, **options: Any) -> Any:
        if "r" not in mode or "+" in mode:
            return self.fs._open(path, mode=mode, **options)

        self.before("open", 0)
        buffer = io.DEFAULT_BUFFER_SIZE
        if isinstance(block_size, int) and block_size > 0:
            buffer = block_size

        return io.BufferedReader(_Reader(self.fs.open(path, "rb"), self), buffer)

    def ls(self, path: str, detail: bool = True, **options: Any) -> Any:
        """See fsspec, as for the other methods here: the wrapped file system does it."""
        return self.fs.ls(path, detail=detail, **options)

    def info(self, path: str, **options: Any) -> Any:
        """Describes a file or folder."""
        return self.fs.info(path, **options)

    def created(self, path: str) -> Any:
        """Returns when it was made."""
        return self.fs.created(path)

    def modified(self, path: str) -> Any:
        """Returns when it was changed."""
        return self.fs.modified(path)

    def mkdir(self, path: str, create_parents: bool = True, **options: Any) -> Any:
        """Makes a folder."""
        return self.fs.mkdir(path, create_parents=create_parents, **options)

    def makedirs(self, path: str, exist_ok: bool = False) -> Any:
        """Makes a folder and those above it."""
        return self.fs.makedirs(path, exist_ok=exist_ok)

    def rmdir(self, path: str) -> Any:
        """Removes an empty folder."""
        return self.fs.rmdir(path)

    def rm(self, path: str | list[str], recursive: bool = False, maxdepth: int | None = None) -> Any:
        """Removes files."""
        return self.fs.rm(path, recursive=recursive, maxdepth=maxdepth)

    def rm_file(self, path: str) -> Any:
        """Removes a file."""
        return self.fs.rm_file(path)

    def cp_file(self, path1: str, path2: str, **options: Any) -> Any:
        """Copies a file."""
        return self.fs.cp_file(path1, path2, **options)

    def invalidate_cache(self, path: str | None = None) -> None:
        """Forgets listings."""
        super().invalidate_cache(path)
        self.fs.invalidate_cache(path)


class FlakyFileSystem(_Around):
    """An fsspec file system around another one that hangs up in each n-th open or read of a file.

    Opens and reads are counted together, over all processes that got this object. Reads are those of the store: small
    ones of the caller are served from a buffer. Listing and writing always succeed.

    Attributes:
        attempts: `attempts.of("call")` is the number of opens and reads.

    Args:
        fs: the other one; None: the local one.
        every: n.
        error: what is raised; by default `ConnectionResetError`.
        times: how often in all; None: for ever.
        attempts: a counter to share; None: one of its own.

    Examples:
        >>> from pathlib import Path
        >>> from headrace.testing import FlakyFileSystem
        >>> _ = Path("x.bin").write_bytes(b"abc")
        >>> FlakyFileSystem(every=10).cat_file(str(Path("x.bin").absolute()))
        b'abc'
    """

    protocol = "flaky"

    def __init__(
        self,
        fs: AbstractFileSystem | None = None,
        *,
        every: int = 10,
        error: BaseException | None = None,
        times: int | None = None,
        attempts: Attempts | None = None,
    ) -> None:
        super().__init__(fs)
        self.attempts = attempts or Attempts()
        self.every = every
        self.error = error or connection_reset()
        self.times = times
        self._meet = FaultyCall(None, Raise(self.error), every=every, times=times, attempts=self.attempts)

    def before(self, operation: str, nbytes: int) -> None:
        """Raises the error if it is this operation's turn."""
        self._meet(operation, nbytes)

    def __reduce__(self) -> Any:
        # fsspec would make it anew from the arguments, with a counter of its own
        return _flaky_again, (self.fs, self.every, self.error, self.times, self.attempts)


class SlowFileSystem(_Around):
    """An fsspec file system around another one that takes its time to open and read.

    Each file has the rate for itself. A read takes its time before it returns.

    Args:
        fs: the other one; None: the local one.
        latency: seconds to open a file.
        rate: bytes a second; None: as fast as the other one.

    Examples:
        >>> from pathlib import Path
        >>> from headrace.testing import SlowFileSystem
        >>> _ = Path("x.bin").write_bytes(b"abc")
        >>> SlowFileSystem(latency=0.001).cat_file(str(Path("x.bin").absolute()))
        b'abc'
    """

    protocol = "slow"

    def __init__(
        self, fs: AbstractFileSystem | None = None, *, latency: float = 0.0, rate: float | None = None
    ) -> None:
        super().__init__(fs)
        self.latency = latency
        self.rate = rate

    def before(self, operation: str, nbytes: int) -> None:
        """Waits for the latency, if this is an open."""
        if operation == "open":
            time.sleep(self.latency)

    def after(self, nbytes: int) -> None:
        """Waits as long as the bytes take."""
        if self.rate is not None:
            time.sleep(nbytes / self.rate)

    def __reduce__(self) -> Any:
        return _slow_again, (self.fs, self.latency, self.rate)


class _Reader(io.RawIOBase):
    """The raw side of a file opened for reading; `io.BufferedReader` makes the rest of it."""

    def __init__(self, file: IO[bytes], store: _Around) -> None:
        self._file = file
        self._store = store

    def readable(self) -> bool:
        return True

    def seekable(self) -> bool:
        return bool(self._file.seekable())

    def seek(self, offset: int, whence: int = io.SEEK_SET) -> int:
        return int(self._file.seek(offset, whence))

    def tell(self) -> int:
        return int(self._file.tell())

    def readinto(self, buffer: Any) -> int:
        data = self._read(len(buffer))
        buffer[: len(data)] = data
        return len(data)

    def readall(self) -> bytes:
        return self._read(-1)

    def close(self) -> None:
        if not self.closed:
            self._file.close()
        super().close()

    def _read(self, nbytes: int) -> bytes:
        self._store.before("read", nbytes)
        data: bytes = self._file.read(nbytes)
        self._store.after(len(data))
        return data


def _flaky_again(
    fs: AbstractFileSystem, every: int, error: BaseException, times: int | None, attempts: Attempts
) -> FlakyFileSystem:
    return FlakyFileSystem(fs, every=every, error=error, times=times, attempts=attempts)


def _slow_again(fs: AbstractFileSystem, latency: float, rate: float | None) -> SlowFileSystem:
    return SlowFileSystem(fs, latency=latency, rate=rate)
