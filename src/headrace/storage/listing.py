"""What lies where: objects as files and folders, looked up once for all who ask while data are opened.

A listing is a request for each thousand objects, and asking for one object is a request as well. So each answer is kept
as long as a `Lookup` is in use: from the beginning of an `open` to its end.
"""

from __future__ import annotations

import contextlib
import contextvars
import fnmatch
import json
import re
from bisect import bisect_left
from collections.abc import Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor

from headrace.core.errors import DatasetNotFoundError, StorageError, UsageError
from headrace.core.files.regular_files import SIDE_FILE
from headrace.storage.locations import HTTP_SCHEMES, Location, parse
from headrace.storage.stores.failures import ListingRefusedError, RefusedError
from headrace.storage.stores.objects import ObjectInfo, Store, store_config
from headrace.storage.stores.registry import CacheSettings, RegisteredStore, StoreSettings, register

MAGIC = "*?["
RANGE = re.compile(r"\{(\d+)\.\.(\d+)\}")
"""A range of names, such as `part-{000..127}.tar`: never the name of a folder."""

MANIFEST = "headrace.json"
"""The name of the manifest in a folder of packed data, or behind the folder's name; see `data/formats/manifest.py`."""

HEAD = 1 << 14
"""Bytes from the beginning of an object that are read at once: the formats are told apart by them."""

PATIENCE = 15.0
"""Seconds for which a store that does not answer is asked again."""

AT_ONCE = 16
"""Objects that are asked for at a time where a store cannot list them."""


class Listing:
    """The objects in a folder, by key, in order."""

    def __init__(self, prefix: str, objects: Sequence[ObjectInfo], *, deep: bool) -> None:
        """prefix: the folder, with a slash at its end; empty for the whole container. deep: with its sub-folders."""
        self.prefix = prefix
        self.deep = deep
        self.objects = sorted(objects, key=lambda info: info.key)
        self._keys = [info.key for info in self.objects]

    def covers(self, key: str) -> bool:
        """Tells whether a key would be in it if there were such an object."""
        return key.startswith(self.prefix) and (self.deep or "/" not in key[len(self.prefix) :])

    def find(self, key: str) -> ObjectInfo | None:
        """Returns an object by its key."""
        place = bisect_left(self._keys, key)
        if place < len(self._keys) and self._keys[place] == key:
            return self.objects[place]
        return None

    def below(self, prefix: str) -> Sequence[ObjectInfo]:
        """Returns the objects whose keys begin with a prefix."""
        start = bisect_left(self._keys, prefix)
        stop = bisect_left(self._keys, prefix + "\U0010ffff")
        return self.objects[start:stop]


class Lookup:
    """What is known by now of the objects in stores. Belongs to one thread."""

    def __init__(self, options: Mapping[str, object] | None = None, cache: CacheSettings | None = None) -> None:
        """options: of the stores. cache: where their blocks are kept on this node."""
        self.options = options
        self.cache = cache
        self._listings: dict[tuple[str, str], list[Listing]] = {}
        self._stores: dict[tuple[str, str], RegisteredStore] = {}
        self._single: dict[str, ObjectInfo | None] = {}
        self._heads: dict[str, bytes] = {}
        self._without_manifest: set[tuple[str, str, str]] = set()

    def store(self, location: Location) -> Store:
        """Returns the store in which a location lies."""
        # Whoever opens data waits for an answer, and nothing is lost if there is none: it is not waited for as long as
        # in the middle of an epoch.
        options = {"retry_timeout": PATIENCE, **(self.options or {})}
        place = location.scheme, location.container
        if place not in self._stores:
            self._stores[place] = register(StoreSettings(store_config(location, options), None))
        return self._stores[place].opened()

    def settings(self, location: Location) -> StoreSettings:
        """Returns how the store in which a location lies is read."""
        return StoreSettings(store_config(location, self.options), self.cache)

    def file(self, url: str) -> ObjectInfo | None:
        """Returns what is known of an object; None if there is none. Raises `StorageError`."""
        location = parse(url)
        # A range stands for the names of several objects, and is the name of none.
        if not location.key or location.key.endswith("/") or RANGE.search(location.key):
            return None

        listing = self._covering(location, location.key)
        if listing is not None:
            return listing.find(location.key)

        # Web servers have folders. What lies below a file is not asked for: some refuse that, as they do what is
        # not signed.
        if location.scheme in HTTP_SCHEMES and self._is_below_object(location):
            return None

        # What has no ending is a folder more often than not. Asked for that, a server may answer anything: that it may
        # not be listed, or a page about it.
        if location.scheme in HTTP_SCHEMES and "." not in location.key.rpartition("/")[2] and self.below(url):
            return None

        if url not in self._single:
            try:
                self._single[url] = self._info(self.store(location), location.key)
            except RefusedError:
                # A store that may not be listed refuses what is not there, too, and so do servers that want a signature
                # for each name. Nobody has given this name.
                if not location.key.endswith(MANIFEST):
                    raise
                self._single[url] = None
        return self._single[url]

    def _is_below_object(self, location: Location) -> bool:
        folder = location.key
        while folder := folder.rpartition("/")[0]:
            if self._single.get(Location(location.scheme, location.container, folder).url) is not None:
                return True
        return False

    def head_of(self, url: str) -> bytes:
        """Returns the first bytes of an object, up to `HEAD`; none if there is no such object."""
        if url not in self._heads:
            found = self.file(url)
            if found is None or found.size == 0:
                self._heads[url] = b""
            else:
                location = parse(url)
                data = self.store(location).read(location.key, 0, min(HEAD, found.size), found.etag)
                self._heads[url] = bytes(data)

        return self._heads[url]

    def below(self, url: str) -> Sequence[ObjectInfo]:
        """Returns all objects in a folder and its sub-folders, by key; none if there is no such folder."""
        location = parse(url)
        prefix = as_prefix(location.key)
        for listing in self._listings.get((location.scheme, location.container), []):
            if listing.deep and prefix.startswith(listing.prefix):
                return listing.below(prefix)

        if location.scheme in HTTP_SCHEMES:
            return self._below_by_manifest(location, prefix)
        try:
            return self._list(location, prefix, deep=True).objects
        except ListingRefusedError:
            # Many may read objects that they may not list.
            objects = self._below_by_manifest(location, prefix)
            if not objects:
                raise
            return objects

    def beginning(self, url: str) -> Sequence[ObjectInfo]:
        """Returns the objects whose URLs begin with another one and have no slash behind it, by key."""
        location = parse(url)
        folder, slash, _ = location.key.rpartition("/")
        if location.scheme in HTTP_SCHEMES:
            known = self.below(Location(location.scheme, location.container, folder).url)
        else:
            listing = self._covering(location, f"{folder}{slash}")
            if listing is None:
                return self.store(location).beginning(location.key)
            known = listing.below(location.key)

        found = []
        for info in known:
            if info.key.startswith(location.key) and "/" not in info.key[len(location.key) :]:
                found.append(info)
        return found

    def _below_by_manifest(self, location: Location, prefix: str) -> Sequence[ObjectInfo]:
        asked = location.scheme, location.container, prefix
        if asked in self._without_manifest:
            return []

        objects = self._of_manifest(location, prefix)
        if objects:
            return self._keep(location, Listing(prefix, objects, deep=True)).objects
        # Nothing is known of what lies there: that is no listing without objects.
        self._without_manifest.add(asked)
        return []

    def _of_manifest(self, location: Location, prefix: str) -> list[ObjectInfo]:
        """Returns the objects of a folder that cannot be listed, as the manifest of packed data names them."""
        store = self.store(location)
        objects = []
        inside = f"{prefix}{MANIFEST}"
        found = self._manifest_info(store, inside)
        if found is not None:
            objects.append(found)
        elif prefix:
            found = self._manifest_info(store, f"{prefix.rstrip('/')}.{MANIFEST}")
        if found is None:
            return []

        try:
            named = json.loads(bytes(store.read(found.key, 0, min(found.size, SIDE_FILE), found.etag)))
            names = [str(name) for name in named["files"]]
        except (FileNotFoundError, RefusedError, ValueError, KeyError, TypeError) as error:
            if isinstance(error, UsageError):
                raise
            return []

        with ThreadPoolExecutor(AT_ONCE) as threads:
            for info in threads.map(lambda name: self._info(store, prefix + name), names):
                if info is not None:
                    objects.append(info)
        return objects

    def _manifest_info(self, store: Store, key: str) -> ObjectInfo | None:
        """Returns what is known of a manifest, a name that nobody has given: None, too, where it is refused."""
        try:
            return self._info(store, key)
        except RefusedError:
            return None

    def _info(self, store: Store, key: str) -> ObjectInfo | None:
        try:
            return store.head(key)
        except FileNotFoundError:
            return None

    def is_folder(self, url: str) -> bool:
        """Tells whether objects lie below a URL, and none under it itself."""
        # To find out about a range would take a listing, which may be refused where each of its objects can be read.
        if RANGE.search(parse(url).key) or self.file(url) is not None:
            return False
        return bool(self.below(url))

    def look_for(self, urls: Sequence[str]) -> None:
        """Finds out about many objects at once: by a listing if the store can list, otherwise several at a time."""
        if len(urls) < 3:
            return

        location = parse(urls[0])
        folders = {parse(url).key.rpartition("/")[0] for url in urls}
        if len(folders) == 1:
            try:
                self._list(location, as_prefix(folders.pop()), deep=False)
                return
            except StorageError:
                # Many may read objects that they may not list, and servers of HTTP cannot list at all.
                pass

        with ThreadPoolExecutor(AT_ONCE) as threads:
            for url, found in zip(urls, threads.map(self._head, urls), strict=True):
                self._single[url] = found

    def matching(self, pattern: str) -> list[str]:
        """Returns the URLs of the objects that a pattern with `*`, `?` and `[...]` stands for, in order."""
        location = parse(pattern)
        wildcards = [place for place, letter in enumerate(location.key) if letter in MAGIC]
        if not wildcards:
            return []

        folder = location.key[: wildcards[0]].rpartition("/")[0]
        deep = "/" in location.key[wildcards[0] :]
        listing = self._list(location, as_prefix(folder), deep=deep)
        begin = pattern[: len(pattern) - len(location.key)]
        urls = []
        for info in listing.objects:
            if _matches(info.key, location.key):
                urls.append(begin + info.key)

        return urls

    def _head(self, url: str) -> ObjectInfo | None:
        location = parse(url)
        return self._info(self.store(location), location.key)

    def _covering(self, location: Location, key: str) -> Listing | None:
        for listing in self._listings.get((location.scheme, location.container), []):
            if listing.covers(key):
                return listing
        return None

    def _list(self, location: Location, prefix: str, *, deep: bool) -> Listing:
        objects: list[ObjectInfo] = []
        if deep:
            for page in self.store(location).list(prefix):
                objects += page
        else:
            objects = self.store(location).list_folder(prefix)[1]

        return self._keep(location, Listing(prefix, objects, deep=deep))

    def _keep(self, location: Location, listing: Listing) -> Listing:
        self._listings.setdefault((location.scheme, location.container), []).append(listing)
        return listing


def as_prefix(folder: str) -> str:
    """Returns what the keys of all objects in a folder begin with."""
    folder = folder.rstrip("/")
    if not folder:
        return ""
    return f"{folder}/"


def _matches(key: str, pattern: str) -> bool:
    """Tells whether a key matches a pattern, in which no wildcard stands for a slash."""
    parts = key.split("/")
    wanted = pattern.split("/")
    return len(parts) == len(wanted) and all(map(fnmatch.fnmatchcase, parts, wanted))


_LOOKUP: contextvars.ContextVar[Lookup | None] = contextvars.ContextVar("headrace_lookup", default=None)


@contextlib.contextmanager
def lookup(options: Mapping[str, object] | None = None, cache: CacheSettings | None = None) -> Iterator[Lookup]:
    """Keeps what is found out about objects until it is left. Within another one, that one is used."""
    outer = _LOOKUP.get()
    if outer is not None and (options is None or options == outer.options):
        yield outer
        return

    token = _LOOKUP.set(Lookup(options, cache))
    try:
        yield current()
    finally:
        _LOOKUP.reset(token)


def current() -> Lookup:
    """Returns the lookup in use; a new one, which forgets, where none is."""
    return _LOOKUP.get() or Lookup()


def not_found(url: str, found: str = "nothing") -> DatasetNotFoundError:
    """Returns the error for data that are not there."""
    expected = "an object, or a folder with objects in it"
    fix = "correct the URL; upper and lower case matter"
    if parse(url).scheme in HTTP_SCHEMES:
        expected = "a file, or a folder that `headrace pack` has made: web servers cannot list other folders"
        fix = f"{fix}; of a folder, give the URLs of its files as a list, or as a range: part-{{000..127}}.tar"

    return DatasetNotFoundError.about("there are no such data", place=url, found=found, expected=expected, fix=fix)
