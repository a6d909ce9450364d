"""The stores that this process reads from, by name: a byte range names its store instead of carrying its options."""

from __future__ import annotations

import functools
import hashlib
import logging
import os
import secrets
import threading
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

from headrace.core.errors import wrong_argument
from headrace.storage.cache import DiskCache, bytes_in
from headrace.storage.locations import Location, is_url
from headrace.storage.objects import Store, StoreConfig

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


def cache_settings(
    folder: str | os.PathLike[str] | None, limit: int | str | None, source: object
) -> CacheSettings | None:
    """Returns what `cache_dir=` and `cache_limit=` of `headrace.open` ask for; None if that is no cache.

    Raises `UsageError` for a limit without a folder, or a folder for data that lie on this machine.
    """
    if folder is not None and not is_url(source):
        cure = "leave cache_dir= out: only what comes from elsewhere is kept there"
        raise wrong_argument("cache_dir", folder, "a URL to open with it", place="headrace.open", cure=cure)

    if folder is None:
        folder = os.environ.get("HEADRACE_CACHE_DIR") or None
    if is_url(folder):
        cure = "name a folder on a disk of this node"
        raise wrong_argument("cache_dir", folder, "a path", place="headrace.open", cure=cure)
    if folder is None:
        if limit is not None:
            raise wrong_argument("cache_limit", limit, "cache_dir= with it", place="headrace.open")
        return None

    most = None
    if limit is not None:
        most = bytes_in(limit, "cache_limit")
        if most < SMALLEST_CACHE:
            raise wrong_argument("cache_limit", limit, f"{SMALLEST_CACHE:,} bytes or more", place="headrace.open")

    return CacheSettings(Path(folder).expanduser(), most, secrets.randbits(62) + 1)


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


_LOCK = threading.Lock()
_SETTINGS: dict[str, StoreSettings] = {}
_CACHES: dict[CacheSettings, DiskCache] = {}
_OPENED_BY: int | None = None
_OPENED: dict[str, tuple[int, Store]] = {}
"""Stores, each with the process that has opened it: a forked child cannot use those of its parent."""

_IS_WORKER = False
_LOGGER = logging.getLogger("headrace")
_LISTENERS: list[Callable[[str, str], None]] = []


def register(settings: StoreSettings) -> str:
    """Makes a store known in this process. Returns its name, which is the same in all processes."""
    name = settings.name
    with _LOCK:
        _SETTINGS.setdefault(name, settings)
    return name


def settings_of(name: str) -> StoreSettings | None:
    """Returns how a store is read; None if it was not registered."""
    return _SETTINGS.get(name)


def store_named(name: str) -> Store:
    """Returns a store that was registered. Raises `KeyError`."""
    global _OPENED_BY
    pid = os.getpid()
    opened = _OPENED.get(name)
    if opened is not None and opened[0] == pid:
        return opened[1]

    store = _SETTINGS[name].config.open()
    _OPENED_BY = pid
    store.on_retry = functools.partial(_retried, name)
    _OPENED[name] = pid, store
    return store


def location_of(name: str, key: str) -> Location:
    """Returns where an object of a store is."""
    config = _SETTINGS[name].config
    return Location(config.scheme, config.container, key)


def cache_of(name: str) -> DiskCache | None:
    """Returns the cache through which a store is read; None without one. Raises `UsageError` for one that cannot be."""
    settings = _SETTINGS[name].cache
    if settings is None:
        return None

    with _LOCK:
        cache = _CACHES.get(settings)
        if cache is None:
            cache = DiskCache(settings.folder, settings.limit, job=settings.job, say=_say_of_cache)
            _CACHES[settings] = cache
        return cache


def leave_words_to_io_process() -> None:
    """Says that this process is a worker: what is wrong with a cache, the I/O process says once for all of them."""
    global _IS_WORKER
    _IS_WORKER = True


def _say_of_cache(text: str) -> None:
    # Asked when there is something to say: a forked worker has its parent's cache.
    if _IS_WORKER:
        _LOGGER.info(text)
    else:
        _LOGGER.warning(text)


def keeps_all(name: str) -> bool:
    """Tells whether what is read from a store stays on this node: there is a cache, and it has no limit."""
    settings = _SETTINGS[name].cache
    return settings is not None and settings.limit is None


def has_limit(name: str) -> bool:
    """Tells whether what is read from a store is kept on this node, as far as there is room."""
    settings = _SETTINGS[name].cache
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
    with _LOCK:
        known = list(_SETTINGS.items())

    for name, settings in reversed(known):
        if (settings.config.scheme, settings.config.container) == (location.scheme, location.container):
            return name
    return None


def opened_by() -> int | None:
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


def _renew_lock() -> None:
    """Called in a forked child: a thread of the parent may have held the lock."""
    global _LOCK
    _LOCK = threading.Lock()


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_renew_lock)
