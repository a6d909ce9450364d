"""What `cloud_store.py` sends through obstore: clients, listings page by page, uploads in blocks."""

from __future__ import annotations

from collections.abc import Generator, Iterable, Iterator, Mapping
from datetime import timedelta
from typing import Any

import obstore
import obstore.store

from headrace.storage.locations import HTTP_SCHEMES, Location
from headrace.storage.stores.access import CLIENT_OPTIONS, Access
from headrace.storage.stores.objects import ObjectInfo
from headrace.storage.stores.retries import RetryLimits

PAGE = 1000
"""Objects in a page of a listing; stores send as many in an answer."""

FEW = 50
"""Objects that are looked at together where only some are wanted: fewer than in an answer, so that one will do."""

PART_BYTES = 16 << 20
"""Of an upload in parts. S3 takes 10,000 parts, so objects of up to 156 GiB can be written."""

CLIENT_ONLY = {"default_headers", "root_certificate"}
"""Options that obstore takes for its connections, but not in `config`."""


class PagedListing:
    """A listing in key order, which goes on behind its last page after a failure."""

    def __init__(self, client: Any, prefix: str, after: str | None = None, size: int = PAGE) -> None:
        """after: a key behind which it begins. size: objects that are handed out at a time."""
        self._client = client
        self._folder = prefix.strip("/") or None
        self._size = size
        self._after = after
        self._stream: Any = None

    def next_page(self) -> Any:
        """Returns the next page, or None behind the last one."""
        if self._stream is None:
            self._stream = obstore.list(self._client, self._folder, offset=self._after, chunk_size=self._size)

        stream = self._stream
        self._stream = None
        page = next(stream, None)
        if page:
            self._after = page[-1]["path"]

        # Only here: a stream that failed is not asked again.
        self._stream = stream
        return page


class Upload:
    """The buffers of an upload, counted, in blocks of bytes."""

    def __init__(self, parts: Iterable[Any]) -> None:
        self._parts = iter(parts)
        self.size = 0
        self.ended = False
        self.failure: BaseException | None = None

    def first_bytes(self) -> bytearray:
        """Returns the bytes up to one part's size; `ended` then tells whether that is all."""
        gathered = bytearray()
        for part in self._parts:
            gathered += memoryview(part).cast("B")
            if len(gathered) > PART_BYTES:
                self.size = len(gathered)
                return gathered

        self.ended = True
        self.size = len(gathered)
        return gathered

    def from_first(self, first: bytearray) -> Iterator[memoryview]:
        """Yields what was gathered, and then the rest."""
        yield memoryview(first)
        try:
            for part in self._parts:
                view = memoryview(part).cast("B")
                self.size += len(view)
                if view:
                    yield view
        except BaseException as error:
            # obstore gives the upload up, but raises an exception of its own.
            self.failure = error
            raise

    def close(self) -> None:
        """Lets a generator end."""
        if isinstance(self._parts, Generator):
            self._parts.close()


def client_of(location: Location, access: Access, retries: Mapping[str, Any]) -> Any:
    """Returns obstore's client for a location."""
    limits: Any = dict(retries)
    classes = {"s3": obstore.store.S3Store, "gs": obstore.store.GCSStore, "az": obstore.store.AzureStore}
    if location.scheme in HTTP_SCHEMES:
        connection: Any = access.config
        return obstore.store.HTTPStore(access.url, client_options=connection, retry_config=limits)

    container = location.container
    config = dict(access.config)
    if "@" in container:
        # abfss://container@account.dfs.core.windows.net/key
        container, _, account = container.partition("@")
        config.setdefault("account_name", account.partition(".")[0])

    given: dict[str, Any] = {"config": config, "retry_config": limits}
    if CLIENT_ONLY & config.keys():
        # These replace what obstore found in the environment, so all of the connection's options go together.
        given["client_options"] = {name: config.pop(name) for name in CLIENT_OPTIONS & config.keys()}

    if access.provider is not None:
        given["credential_provider"] = access.provider
    return classes[location.scheme](container, **given)


def retry_config(limits: RetryLimits) -> dict[str, Any]:
    """Returns the limits as obstore takes them."""
    backoff = {
        "init_backoff": timedelta(seconds=limits.first_wait),
        "max_backoff": timedelta(seconds=limits.longest_wait),
        # obstore draws each wait between the first one and `base` times the one before. With 2 they stay short: it
        # would give up after 20 s, and not after about as long as `retried`.
        "base": 5,
    }
    return {
        "max_retries": limits.retries,
        "retry_timeout": timedelta(seconds=limits.seconds),
        "backoff": backoff,
    }


def object_info(meta: Any) -> ObjectInfo:
    """Returns what obstore says of an object."""
    modified = meta["last_modified"]
    return ObjectInfo(meta["path"], meta["size"], meta["e_tag"], modified.timestamp() if modified else None)


def key_of(info: ObjectInfo) -> str:
    """Orders objects."""
    return info.key
