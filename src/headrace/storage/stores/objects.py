"""Object stores: listed, read by ranges, written whole.

Stores are safe to use from several threads. They are not pickled: `store_config` describes a store, and another process
opens it from that. Requests that fail for a while are made again, up to a limit. What then still fails is a
`StorageError`.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Protocol

from headrace.storage.locations import Location
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

    def write(self, key: str, parts: Iterable[Any], *, new: bool = False) -> ObjectInfo:
        """Writes an object from buffers. It appears only when it is complete.

        new: of a small object: raises `ObjectChangedError` if there is one already. Only stores with conditional writes
        see that; others replace it.
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

    @property
    def location(self) -> Location:
        """Of the container: its key is ""."""
        return Location(self.scheme, self.container, "")


def store_config(location: Location, options: Mapping[str, object] | None = None) -> StoreConfig:
    """Returns the description of the store that holds a location."""
    return StoreConfig(location.scheme, location.container, StoreOptions(options or {}))
