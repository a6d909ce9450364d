"""Object stores: listed, read by ranges, written whole. One client per process, container and options.

`open_store` returns the same store to everyone in a process who asks with the same options. Stores are safe to use from
several threads. They are not pickled: `store_config` describes a store, and another process opens it from that.

Requests that fail for a while are made again, up to a limit. What then still fails is a `StorageError`.
"""

from __future__ import annotations

import os
import threading
import weakref
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Protocol

from headrace.core.errors import MissingExtraError
from headrace.storage.locations import CLOUD_SCHEMES, Location
from headrace.storage.stores.store_options import StoreOptions

Retried = Callable[[str], None]
"""Called before a request is made again, with one of `retrying.KINDS`; in the thread of the request."""


@dataclass(frozen=True, slots=True)
class ObjectInfo:
    """What a store says of an object without its bytes."""

    key: str
    size: int
    """In bytes."""

    etag: str | None
    """Names the version of the object, with its quotes; None where the server names none."""

    modified: float | None
    """In seconds since 1970."""


Infos = list[ObjectInfo]
Page = Sequence[ObjectInfo]
Folder = tuple[list[str], Infos]
"""The names of the folders directly in a folder, without slashes, and the objects there; both sorted."""


class Store(Protocol):
    """A bucket, a container or a server.

    Every method raises `StorageError` or one of its subclasses: `ObjectNotFoundError` for an object or a bucket that
    is not there, `ObjectChangedError` for another version than the wanted one.
    """

    location: Location
    """Of the container: its key is ""."""

    on_retry: Retried | None
    """None, or what is called before a request is made again."""

    def list(self, prefix: str) -> Iterator[Page]:
        """Yields pages of the objects in a folder and in those below it, in the order of their keys.

        prefix: a folder, with or without a slash behind it; "" for everything. Objects that only begin with the same
        letters are not in it: "train" does not list "training/x".
        """
        ...

    def list_folder(self, prefix: str) -> Folder:
        """Returns the folders and objects directly in a folder; `prefix` as for `list`."""
        ...

    def beginning(self, letters: str) -> Infos:
        """Returns the objects whose keys begin with some letters and have no slash behind these, sorted.

        Costs as many requests as these objects take, and not as many as their folder, where the store can do that.
        """
        ...

    def head(self, key: str) -> ObjectInfo:
        """Returns what the store says of an object."""
        ...

    def read(self, key: str, start: int, stop: int, etag: str | None = None) -> memoryview:
        """Returns the bytes from `start` up to `stop`, exclusive: exactly these, or it raises.

        The view is read-only. It keeps alive the buffer that the client received the bytes into; nothing is copied.
        etag: of the version that is wanted; another one is an `ObjectChangedError`.
        """
        ...

    def read_whole(self, key: str) -> tuple[memoryview, ObjectInfo]:
        """Returns all bytes of an object, and what the same answer said of it."""
        ...

    def write(self, key: str, parts: Iterable[Any]) -> ObjectInfo:
        """Writes an object from buffers. It appears only when it is complete.

        An exception in `parts` passes through, and what was there before stays.
        """
        ...

    def delete(self, key: str) -> None:
        """Deletes an object. Only call it for what this program wrote itself."""
        ...


@dataclass(frozen=True)
class StoreConfig:
    """What another process needs to open the same store. May be pickled; holds secrets, so save it nowhere."""

    scheme: str
    container: str
    options: Mapping[str, object] = field(repr=False)
    """Credentials and the like; they are not shown."""

    def open(self) -> Store:
        """Opens the store in this process, as `open_store` does."""
        return open_store(Location(self.scheme, self.container, ""), self.options)


def store_config(location: Location, options: Mapping[str, object] | None = None) -> StoreConfig:
    """Returns the description of the store that holds a location."""
    return StoreConfig(location.scheme, location.container, StoreOptions(options or {}))


def open_store(location: Location, options: Mapping[str, object] | None = None) -> Store:
    """Returns the store that holds a location; no request is made.

    options: credentials, endpoint and limits, as `docs/storage.md` lists them. What is not given is looked for in the
    environment, as the store's own tools do.

    Raises `UsageError` for an unknown option, `MissingExtraError` where a library is missing, and `StorageError` in a
    process that was forked from one that had used a store: threads of the client do not live on there.
    """
    config = store_config(location, options)
    described = tuple(sorted((name, repr(value)) for name, value in config.options.items()))
    name = (os.getpid(), config.scheme, config.container, described)
    with _OPENING.lock:
        store = _STORES.get(name)
        if store is None:
            store = _new_store(config)
            _STORES[name] = store

    return store


def _new_store(config: StoreConfig) -> Store:
    """Returns a new store: obstore's where it can, else one of fsspec."""
    location = Location(config.scheme, config.container, "")
    if config.scheme not in CLOUD_SCHEMES:
        from headrace.storage.stores.fsspec_store import FsspecStore

        return FsspecStore(location, config.options)

    try:
        import obstore  # noqa: F401
    except ImportError as missing:
        return _without_obstore(location, config.options, missing)

    from headrace.storage.stores.cloud_store import CloudStore

    return CloudStore(location, config.options)


def _without_obstore(location: Location, options: Mapping[str, object], missing: ImportError) -> Store:
    """Returns fsspec's store for a location; raises `MissingExtraError` where its package is missing too."""
    import fsspec

    from headrace.storage.stores.fsspec_store import FsspecStore

    try:
        fsspec.get_filesystem_class(location.scheme)
    except ImportError:
        what = f"URLs that begin with {location.scheme}:// need the package obstore"
        cure = "pip install 'headrace[cloud]'"
        raise MissingExtraError.about(what, place=location.url, found=str(missing), cure=cure) from missing

    return FsspecStore(location, options)


class _Opening:
    """The lock around opening, and what a forked child has of its parent."""

    def __init__(self) -> None:
        self.lock = threading.Lock()
        self.inherited: list[Store] = []

    def renew(self) -> None:
        """Called in the child after a fork: a thread of the parent may have held the lock.

        The child never uses its parent's stores, and never ends them: obstore's clients belong to threads that do not
        exist in the child.
        """
        self.lock = threading.Lock()
        self.inherited += _STORES.values()


_OPENING = _Opening()
_STORES: weakref.WeakValueDictionary[tuple[object, ...], Store] = weakref.WeakValueDictionary()
"""By process, container and options, as long as somebody holds them."""

os.register_at_fork(after_in_child=_OPENING.renew)
