"""Stores of every other scheme, by fsspec: one request at a time, with the retries of the filesystem's own library."""

from __future__ import annotations

import datetime
import threading
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from typing import Any, TypeVar

import fsspec

from headrace.core.errors import HeadraceError, ObjectChangedError, ObjectNotFoundError, StorageError, UsageError
from headrace.storage.locations import Location
from headrace.storage.objects import Folder, Infos, ObjectInfo, Page, Retried
from headrace.storage.outages import Outage
from headrace.storage.retrying import SHORT, GaveUp, PassingFailure, RetryLimits, retried

Result = TypeVar("Result")

PAGE = 1000

ETAG_ENTRIES = ("ETag", "etag", "e_tag", "blob_id", "oid", "md5", "md5Hash", "content_md5", "checksum", "uid")
"""Entries of an fsspec `info` that name a version, the surest first."""

MODIFIED_ENTRIES = ("mtime", "LastModified", "last_modified", "modified", "updated", "created")

WRITE_BYTES = 8 << 20


class FsspecStore:
    """A `Store` over a filesystem of fsspec."""

    def __init__(self, location: Location, options: Mapping[str, object]) -> None:
        """Opens the filesystem. Raises `UsageError` where it does not take the options."""
        self.location = location
        self.on_retry: Retried | None = None
        self._outage = Outage(location.url)
        self._writing = threading.Lock()
        given = dict(options)
        self._limits = _limits(given)
        self._root = Location(location.scheme, location.container, "").url
        try:
            found = fsspec.get_filesystem_class(location.scheme)._get_kwargs_from_urls(self._root)
            # Not the instance that others have: its cache of listings would tell of old versions.
            self._system = fsspec.filesystem(
                location.scheme, **{**found, **given}, skip_instance_cache=True, use_listings_cache=False
            )
        except OSError as error:
            raise StorageError.about(
                "cannot open a store",
                place=location.url,
                found=f"fsspec's filesystem for {location.scheme}:// raised {type(error).__name__}",
                expected="a server that answers",
                cure="check host, port and network, and user and password in options=",
            ) from None
        except (TypeError, ValueError, ImportError) as error:
            name = type(error).__name__
            raise UsageError.about(
                "cannot open a store",
                place=location.url,
                found=f"fsspec's filesystem for {location.scheme}:// raised {name}",
                expected=f"options that this filesystem takes; given were: {', '.join(sorted(given)) or 'none'}",
                cure="correct options=, or the variables of the environment",
            ) from None

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
        """See `Store.list_folder`."""
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
        """See `Store.head`."""
        entry = self._ask("cannot read an object", key, lambda: self._system.info(self._path(key)))
        if entry["type"] == "directory":
            raise ObjectNotFoundError.about(
                "cannot read an object",
                place=self._url(key),
                found="a folder",
                expected="an object",
                cure="name an object in it, or open the folder",
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
        """See `Store.read_whole`."""

        def once() -> tuple[memoryview, ObjectInfo]:
            info = self.head(key)
            data = self._system.cat_file(self._path(key))
            if len(data) != info.size:
                raise PassingFailure(SHORT, f"{len(data):,} bytes came of {info.size:,}")
            return memoryview(data), info

        return self._ask("cannot read an object", key, once)

    def write(self, key: str, parts: Iterable[Any]) -> ObjectInfo:
        """See `Store.write`: in a transaction of the filesystem, one at a time."""
        path = self._path(key)
        self._ask("cannot write an object", key, lambda: self._make_folder(path))

        # The transaction belongs to the filesystem, and not to the thread. An exception that leaves it discards the
        # file.
        with self._writing, self._system.transaction, self._system.open(path, "wb", block_size=WRITE_BYTES) as file:
            for part in parts:
                file.write(memoryview(part).cast("B"))

        return self.head(key)

    def delete(self, key: str) -> None:
        """See `Store.delete`."""
        self._ask("cannot delete an object", key, lambda: self._system.rm_file(self._path(key)))

    def _make_folder(self, path: str) -> None:
        """Makes the folder of a path, where the filesystem has folders."""
        self._system.makedirs(self._system._parent(path), exist_ok=True)

    def _find(self, prefix: str) -> dict[str, dict[str, Any]]:
        """Returns all below a folder, by path; nothing where there is no such folder."""
        try:
            return dict(self._system.find(self._path(prefix.strip("/")), detail=True))
        except FileNotFoundError:
            return {}

    def _entries(self, prefix: str) -> Sequence[dict[str, Any]]:
        """Returns what is directly in a folder; nothing where there is no such folder."""
        try:
            return list(self._system.ls(self._path(prefix.strip("/")), detail=True))
        except FileNotFoundError:
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
        try:
            return retried(call, self._limits, self.on_retry, outage=self._outage)
        except HeadraceError:
            raise
        except GaveUp as error:
            raise StorageError.about(
                doing,
                place=place,
                found=error.failure.what,
                expected="all bytes",
                cure="try again later, or look at the state of the server",
            ) from None
        except FileNotFoundError:
            raise ObjectNotFoundError.about(
                doing, place=place, found="no such object", expected="an object of that key", cure="correct the key"
            ) from None
        except (OSError, ValueError, RuntimeError, ConnectionError) as error:
            found = f"fsspec's filesystem for {self.location.scheme}:// raised {type(error).__name__}"
            cure = "check the credentials in options= or the environment, and that the server can be reached"
            raise StorageError.about(doing, place=place, found=found, expected="an answer", cure=cure) from None


def _limits(given: dict[str, Any]) -> RetryLimits:
    """Takes the limits of repetition out of the options; the others are the filesystem's."""
    usual = RetryLimits()
    retries = int(given.pop("max_retries", usual.retries))
    return RetryLimits(retries=retries, seconds=float(given.pop("retry_timeout", usual.seconds)))


def _changed(url: str, found: str) -> ObjectChangedError:
    """Returns the error for an object that is not the wanted version."""
    return ObjectChangedError.about(
        "an object changed while it was being read",
        place=url,
        found=found,
        expected="the version that the listing named",
        cure="open the data again to read the new version",
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
