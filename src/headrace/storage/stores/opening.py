"""Opens object stores: one client per process, container and options.

Everyone in a process who asks with the same options gets the same store.
"""

from __future__ import annotations

import weakref
from collections.abc import Mapping

from headrace.core.errors import MissingExtraError
from headrace.core.process import this_process
from headrace.core.process.this_process import ForkLock, in_forked_child
from headrace.storage.locations import CLOUD_SCHEMES, Location
from headrace.storage.stores.objects import Store, StoreConfig, store_config


def open_store(location: Location, options: Mapping[str, object] | None = None) -> Store:
    """Returns the store that holds a location; no request is made.

    options: credentials, endpoint and limits, as `docs/howto/credentials.md` lists them. What is not given is looked
    for in the environment, as the store's own tools do.

    Raises `UsageError` for an unknown option, `MissingExtraError` where a library is missing, and `StorageError` in a
    process that was forked from one that had used a store: threads of the client do not live on there.
    """
    return open_config(store_config(location, options))


def open_config(config: StoreConfig) -> Store:
    """Returns the store that a description names, as `open_store` does."""
    described = tuple(sorted((name, repr(value)) for name, value in config.options.items()))
    name = (this_process.current, config.scheme, config.container, described)
    with _LOCK.here:
        store = _STORES.get(name)
        if store is None:
            store = _new_store(config)
            _STORES[name] = store

    return store


def _new_store(config: StoreConfig) -> Store:
    """Returns a new store: obstore's where it can, else one of fsspec."""
    location = config.location
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
        fix = "pip install 'headrace[cloud]'"
        raise MissingExtraError.about(what, place=location.url, found=str(missing), fix=fix) from missing

    return FsspecStore(location, options)


def _keep_inherited() -> None:
    """Called in a forked child, which never uses its parent's stores, and never ends them.

    obstore's clients belong to threads that do not exist in the child.
    """
    _INHERITED.extend(_STORES.values())


_LOCK = ForkLock()
_STORES: weakref.WeakValueDictionary[tuple[object, ...], Store] = weakref.WeakValueDictionary()
"""By process, container and options, as long as somebody holds them."""

_INHERITED: list[Store] = []
in_forked_child(_keep_inherited)
