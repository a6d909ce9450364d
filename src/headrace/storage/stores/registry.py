"""The stores that this process reads from, by name: a byte range names its store instead of carrying its options."""

from __future__ import annotations

import functools
import hashlib
import logging
import os
import secrets
import weakref
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

from headrace.core.errors import wrong_argument
from headrace.core.process import this_process
from headrace.core.process.this_process import ForkLock, Process
from headrace.storage.cache import CachedObject, DiskCache
from headrace.storage.cache.disk_cache import limit_in
from headrace.storage.fetching.ranges import ObjectVersion
from headrace.storage.locations import Location, is_url, lies_elsewhere
from headrace.storage.stores.objects import Store, StoreConfig
from headrace.storage.stores.opening import open_config

SMALLEST_CACHE = 1_000_000
"""Bytes that a cache may have at least: a few blocks."""


@dataclass(frozen=True)
class CacheSettings:
    """Where blocks of objects are kept on the disk of this node."""

    folder: Path
    limit: int | None
    """Bytes on the disk; None: no limit."""
    job: int
    """The same in all processes of a job."""


_JOBS: dict[tuple[Path, int | None], int] = {}
"""The number of this process's job in each cache: all datasets that it opens there share files and descriptors."""


def cache_settings(
    folder: str | os.PathLike[str] | None, limit: int | str | None, source: object
) -> CacheSettings | None:
    """Returns what `cache_dir=` and `cache_limit=` of `headrace.open` ask for; None if that is no cache.

    Raises `UsageError` for a limit without a folder, for a folder that is none, or for data that lie on this machine.
    """
    if folder is not None and not lies_elsewhere(source):
        fix = "leave cache_dir= out: only what comes from elsewhere is kept there"
        raise wrong_argument("cache_dir", folder, "a URL to open with it", place="headrace.open", fix=fix)

    if folder is None:
        folder = os.environ.get("HEADRACE_CACHE_DIR") or None
    elif not isinstance(folder, str | os.PathLike) or not str(folder):
        raise wrong_argument("cache_dir", folder, "a path", place="headrace.open")
    if is_url(folder):
        fix = "name a folder on a disk of this node"
        raise wrong_argument("cache_dir", folder, "a path", place="headrace.open", fix=fix)
    if folder is None:
        if limit is not None:
            fix = "name the folder of the cache: cache_dir=, or HEADRACE_CACHE_DIR in the environment"
            raise wrong_argument("cache_limit", limit, "cache_dir= with it", place="headrace.open", fix=fix)
        return None

    most = None
    if limit is not None:
        most = limit_in(limit, "cache_limit", place="headrace.open")
        if most < SMALLEST_CACHE:
            raise wrong_argument("cache_limit", limit, f"{SMALLEST_CACHE:,} bytes or more", place="headrace.open")

    # Workers, and files that are linked to, may have another folder as theirs.
    path = Path(folder).expanduser().absolute()
    return CacheSettings(path, most, _JOBS.setdefault((path, most), secrets.randbits(62) + 1))


@dataclass(frozen=True)
class StoreSettings:
    """What a process needs to read from a store. May be pickled; holds secrets, so it is saved nowhere."""

    config: StoreConfig
    cache: CacheSettings | None

    @property
    def name(self) -> str:
        """Tells this store from others, in all processes."""
        config = self.config
        described = repr((config.scheme, config.container, sorted(config.options.items()), self.cache))
        return hashlib.sha256(described.encode()).hexdigest()[:16]


class RegisteredStore:
    """A store as this process reads from it: byte ranges name it. It is known as long as somebody holds this object.

    Pickled, it is registered where it arrives.
    """

    def __init__(self, settings: StoreSettings) -> None:
        self.settings = settings
        self.name = settings.name
        self.recent: dict[ObjectVersion, CachedObject] = {}
        """Objects in the cache that are kept at hand."""

        # With the process that has opened it: a forked child cannot use that of its parent.
        self._opened: tuple[Process, Store] | None = None
        self._cache: DiskCache | None = None

    def __reduce__(self) -> tuple[object, ...]:
        return _registered, (self.settings, frozenset(_SAID))

    def opened(self) -> Store:
        """Returns the store itself."""
        global _OPENED_BY
        if self._opened is not None and self._opened[0] is this_process.current:
            return self._opened[1]

        store = open_config(self.settings.config)
        _OPENED_BY = this_process.current
        store.on_retry = functools.partial(_retried, self.name)
        self._opened = this_process.current, store
        return store

    def cache(self) -> DiskCache | None:
        """Returns the cache through which it is read; None without one. Raises `UsageError` for one that cannot be.

        It is closed when neither this object nor an object of the cache is held any more.
        """
        settings = self.settings.cache
        if settings is None:
            return None

        with _LOCK.here:
            if self._cache is None:
                self._cache = DiskCache(settings.folder, settings.limit, job=settings.job, say=_say_of_cache)
            return self._cache


_LOCK = ForkLock()
_KNOWN: weakref.WeakValueDictionary[str, RegisteredStore] = weakref.WeakValueDictionary()
_OPENED_BY: Process | None = None
_IS_WORKER = False
_LOGGER = logging.getLogger("headrace")
_SAID: set[str] = set()
"""What was said of caches, in this process or in the one that has sent a store to it."""
_LISTENERS: list[Callable[[str, str], None]] = []


def register(settings: StoreSettings) -> RegisteredStore:
    """Makes a store known in this process, by a name that is the same in all processes, while the result is held."""
    name = settings.name
    with _LOCK.here:
        known = _KNOWN.get(name)
        if known is None:
            known = _KNOWN[name] = RegisteredStore(settings)
        return known


def _registered(settings: StoreSettings, said: frozenset[str]) -> RegisteredStore:
    """Registers a store that another process has sent. said: what it has said of caches, which is not said again."""
    _SAID.update(said)
    return register(settings)


def known(name: str) -> RegisteredStore | None:
    """Returns the store of a name; None if nobody holds it."""
    return _KNOWN.get(name)


def store_named(name: str) -> Store:
    """Returns a store that was registered. Raises `KeyError`."""
    return _KNOWN[name].opened()


def location_of(name: str, key: str) -> Location:
    """Returns where an object of a store is."""
    config = _KNOWN[name].settings.config
    return Location(config.scheme, config.container, key)


def leave_words_to_io_process() -> None:
    """Says that this process is a worker: what is wrong with a cache, the I/O process says once for all of them."""
    global _IS_WORKER
    _IS_WORKER = True


def _say_of_cache(text: str) -> None:
    # Asked when there is something to say: a forked worker has its parent's cache.
    if _IS_WORKER or text in _SAID:
        _LOGGER.info(text)
    else:
        _SAID.add(text)
        _LOGGER.warning(text)


def keeps_all(name: str) -> bool:
    """Tells whether what is read from a store stays on this node: there is a cache, and it has no limit."""
    settings = _KNOWN[name].settings.cache
    return settings is not None and settings.limit is None


def has_limit(name: str) -> bool:
    """Tells whether what is read from a store is kept on this node, as far as there is room."""
    settings = _KNOWN[name].settings.cache
    return settings is not None and settings.limit is not None


def cache_kind(name: str) -> str:
    """Returns how what is read from a store is cached: "all" of it, "limited" by a size, or "" for no cache."""
    if keeps_all(name):
        return "all"
    if has_limit(name):
        return "limited"
    return ""


def name_at(location: Location) -> str | None:
    """Returns the store of a location that was registered last; None if there is none."""
    with _LOCK.here:
        registered = list(_KNOWN.values())

    for store in reversed(registered):
        config = store.settings.config
        if (config.scheme, config.container) == (location.scheme, location.container):
            return store.name
    return None


def opened_by() -> Process | None:
    """Returns the process that was the last to open a store: this one, or one that it was forked from."""
    return _OPENED_BY


def on_retry(listener: Callable[[str, str], None]) -> None:
    """Has a function called whenever a request is made again, in the thread of the request.

    It is called with the name of the store and the kind of failure, one of `retrying.KINDS`.
    """
    _LISTENERS.append(listener)


def _retried(name: str, kind: str) -> None:
    for listener in _LISTENERS:
        listener(name, kind)
