"""Stores of every other scheme, by fsspec: one request at a time, with the retries of the filesystem's own library."""

from __future__ import annotations

import contextlib
import datetime
import threading
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager
from typing import Any, TypeVar

import fsspec
from fsspec.dircache import DirCache

from headrace.core.errors import HeadraceError, ObjectChangedError, ObjectNotFoundError, StorageError, UsageError
from headrace.core.outage import Outage
from headrace.storage.locations import Location
from headrace.storage.stores.access import limits_of
from headrace.storage.stores.fsspec_failures import error_of, is_about_more
from headrace.storage.stores.fsspec_options import check_options
from headrace.storage.stores.objects import Folder, Infos, ObjectInfo, Page, Retried
from headrace.storage.stores.retries import SHORT, GaveUp, PassingFailure, retried

Result = TypeVar("Result")

PAGE = 1000

ETAG_ENTRIES = ("ETag", "etag", "e_tag", "blob_id", "oid", "md5", "md5Hash", "content_md5", "checksum")
"""Entries of an fsspec `info` that name a version, the surest first. "uid" is the user that owns the file."""

MODIFIED_ENTRIES = ("mtime", "LastModified", "last_modified", "modified", "updated", "created")

WRITE_BYTES = 8 << 20

ONE_CONNECTION = ("sftp", "ssh", "ftp")
"""Schemes whose filesystems have one connection for all threads, and do not keep their answers apart."""


class FsspecStore:
    """A `Store` over a filesystem of fsspec."""

    def __init__(self, location: Location, options: Mapping[str, object]) -> None:
        """Opens the filesystem. Raises `UsageError` where it does not take the options."""
        self.location = location
        self.on_retry: Retried | None = None
        self._outage = Outage(location.url)
        self._writing = threading.Lock()
        self._turn: AbstractContextManager[object] = contextlib.nullcontext()
        if location.scheme in ONE_CONNECTION:
            self._turn = threading.RLock()
        # Until a file is complete, it lies beside its place: servers may have no /tmp, and move no file between disks.
        self._has_own_place = location.scheme in ("sftp", "ssh") and "temppath" not in options
        given = dict(options)
        self._limits = limits_of(given)
        self._root = Location(location.scheme, location.container, "").url
        kind = fsspec.get_filesystem_class(location.scheme)
        given = {**kind._get_kwargs_from_urls(self._root), **given}
        check_options(location, kind, given)
        try:
            # Not the instance that others have: its cache of listings would tell of old versions.
            self._system = fsspec.filesystem(location.scheme, **given, skip_instance_cache=True)
            # No option: some filesystems pass on to their libraries what they do not know.
            if isinstance(self._system.dircache, DirCache):
                self._system.dircache.use_listings_cache = False
        except (TypeError, ValueError, ImportError) as error:
            name = type(error).__name__
            raise UsageError.about(
                "cannot open a store",
                place=location.url,
                found=f"fsspec's filesystem for {location.scheme}:// raised {name}",
                expected=f"options that this filesystem takes; given were: {', '.join(sorted(given)) or 'none'}",
                fix="correct options=, or the variables of the environment",
            ) from None
        except Exception as error:  # noqa: BLE001 - each filesystem raises the errors of its library
            raise error_of("cannot open a store", location.url, location.scheme, error) from None

    def __repr__(self) -> str:
        """Shows the container only."""
        return f"FsspecStore({self.location.url!r})"

    def __reduce__(self) -> Any:
        """Refuses to be pickled: what another process needs is a `StoreConfig`."""
        raise TypeError("a store is not pickled; pickle store_config(location, options) and open that")

    def list(self, prefix: str) -> Iterator[Page]:
        """See `Store.list`: all is fetched before the first page is yielded."""
        found = self._ask("cannot list objects", prefix, lambda: self._find(prefix))
        infos = sorted((_info(self._key(path), entry) for path, entry in found.items()), key=lambda info: info.key)
        for first in range(0, len(infos), PAGE):
            yield infos[first : first + PAGE]

    def list_folder(self, prefix: str) -> Folder:
        entries = self._ask("cannot list objects", prefix, lambda: self._entries(prefix))
        names = []
        infos = []
        for entry in entries:
            key = self._key(entry["name"])
            if entry["type"] == "directory":
                names.append(key.rstrip("/").rpartition("/")[2])
            else:
                infos.append(_info(key, entry))

        return sorted(names), sorted(infos, key=lambda info: info.key)

    def beginning(self, letters: str) -> Infos:
        """See `Store.beginning`: all in the folder is looked at."""
        return [info for info in self.list_folder(letters.rpartition("/")[0])[1] if info.key.startswith(letters)]

    def head(self, key: str) -> ObjectInfo:
        entry = self._ask("cannot read an object", key, lambda: self._system.info(self._path(key)))
        if entry["type"] == "directory":
            raise ObjectNotFoundError.about(
                "cannot read an object",
                place=self._url(key),
                found="a folder",
                expected="an object",
                fix="name an object in it, or open the folder",
            )
        return _info(key, entry)

    def read(self, key: str, start: int, stop: int, etag: str | None = None) -> memoryview:
        """See `Store.read`. With an ETag, another request afterwards sees whether the object is still that version."""
        if not 0 <= start <= stop:
            expected = "0 <= start <= stop"
            raise UsageError.about("wrong range", place=self._url(key), found=f"{start} to {stop}", expected=expected)
        if start == stop:
            return memoryview(b"")

        def once() -> memoryview:
            data = self._system.cat_file(self._path(key), start=start, end=stop)
            if len(data) != stop - start:
                raise self._wrong_length(key, len(data), stop)
            return memoryview(data)

        view = self._ask("cannot read an object", key, once)
        if etag is not None and self.head(key).etag != etag:
            raise _changed(self._url(key), "the store names another version by now")
        return view

    def read_whole(self, key: str) -> tuple[memoryview, ObjectInfo]:
        def once() -> tuple[memoryview, ObjectInfo]:
            info = self.head(key)
            data = self._system.cat_file(self._path(key))
            if len(data) != info.size:
                raise PassingFailure(SHORT, f"{len(data):,} bytes came of {info.size:,}")
            return memoryview(data), info

        return self._ask("cannot read an object", key, once)

    def write(self, key: str, parts: Iterable[Any], *, new: bool = False) -> ObjectInfo:
        """See `Store.write`: in a transaction of the filesystem, one at a time."""
        path = self._path(key)
        self._ask("cannot write an object", key, lambda: self._make_folder(path))

        failed: list[Exception] = []

        def given() -> Iterator[Any]:
            try:
                yield from parts
            except Exception as error:
                failed.append(error)
                raise

        # The transaction belongs to the filesystem, and not to the thread. An exception that leaves it discards the
        # file.
        try:
            with self._writing, self._turn:
                if self._has_own_place:
                    self._system.temppath = self._system._parent(path).rstrip("/")
                with self._system.transaction, self._system.open(path, "wb", block_size=WRITE_BYTES) as file:
                    for part in given():
                        file.write(memoryview(part).cast("B"))
        except Exception as error:
            if failed:
                raise
            raise error_of("cannot write an object", self._url(key), self.location.scheme, error) from None

        return self.head(key)

    def delete(self, key: str) -> None:
        self._ask("cannot delete an object", key, lambda: self._system.rm_file(self._path(key)))

    def _make_folder(self, path: str) -> None:
        """Makes the folder of a path, where the filesystem has folders."""
        self._system.makedirs(self._system._parent(path), exist_ok=True)

    def _find(self, prefix: str) -> dict[str, dict[str, Any]]:
        """Returns all below a folder, by path; nothing where there is no such folder."""
        try:
            return dict(self._system.find(self._path(prefix.strip("/")), detail=True))
        except FileNotFoundError as error:
            if is_about_more(error):
                raise
            return {}

    def _entries(self, prefix: str) -> Sequence[dict[str, Any]]:
        """Returns what is directly in a folder; nothing where there is no such folder."""
        try:
            return list(self._system.ls(self._path(prefix.strip("/")), detail=True))
        except FileNotFoundError as error:
            if is_about_more(error):
                raise
            return []

    def _path(self, key: str) -> str:
        """Returns a key as the filesystem takes it."""
        return str(self._system._strip_protocol(self._root + key))

    def _key(self, path: str) -> str:
        """Returns the key of a path that the filesystem named."""
        root = str(self._system._strip_protocol(self._root)).strip("/")
        return path.strip("/").removeprefix(root).lstrip("/")

    def _url(self, key: str) -> str:
        """Returns the URL of an object."""
        return Location(self.location.scheme, self.location.container, key).url

    def _wrong_length(self, key: str, length: int, stop: int) -> Exception:
        """Returns what to raise for a range of which not all bytes came."""
        size = self.head(key).size
        if size < stop:
            found = f"the object has {size:,} bytes, and bytes up to {stop:,} are wanted"
            return _changed(self._url(key), found)
        return PassingFailure(SHORT, f"{length:,} bytes came of a longer range")

    def _ask(self, doing: str, key: str, call: Callable[[], Result]) -> Result:
        """Calls, and raises headrace's errors. Answers of a wrong length are asked for again."""
        place = self._url(key)

        def once() -> Result:
            with self._turn:
                return call()

        try:
            return retried(once, self._limits, self.on_retry, outage=self._outage)
        except HeadraceError:
            raise
        except GaveUp as error:
            raise StorageError.about(
                doing,
                place=place,
                found=error.failure.what,
                expected="all bytes",
                fix="try again later, or look at the state of the server",
            ) from None
        except Exception as error:  # noqa: BLE001 - each filesystem raises the errors of its library
            raise error_of(doing, place, self.location.scheme, error) from None


def _changed(url: str, found: str) -> ObjectChangedError:
    """Returns the error for an object that is not the wanted version."""
    return ObjectChangedError.about(
        "an object changed while it was being read",
        place=url,
        found=found,
        expected="the version that the listing named",
        fix="open the data again to read the new version",
    )


def _info(key: str, entry: Mapping[str, Any]) -> ObjectInfo:
    """Returns what fsspec says of an object."""
    etag = next((str(entry[name]) for name in ETAG_ENTRIES if entry.get(name)), None)
    modified = next((entry[name] for name in MODIFIED_ENTRIES if entry.get(name)), None)
    if isinstance(modified, datetime.datetime):
        modified = modified.timestamp()
    if not isinstance(modified, (int, float)):
        modified = None

    return ObjectInfo(key, int(entry.get("size") or 0), etag, modified)
