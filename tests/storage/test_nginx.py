"""Another server that many run: plain http, without listings."""

from __future__ import annotations

import os
import threading

import pytest

from headrace.core.errors import ObjectNotFoundError, StorageError
from headrace.storage.locations import Location, parse
from headrace.storage.stores.objects import Store
from headrace.storage.stores.opening import open_store
from tests.servers.nginx import Nginx


@pytest.fixture(params=["http", "s3"])
def store(nginx_server: Nginx, request: pytest.FixtureRequest) -> Store:
    """The same objects at the same keys: bucket "b" of the server."""
    if request.param == "s3":
        return open_store(Location("s3", "b", ""), nginx_server.s3_options)
    return open_store(parse(nginx_server.url))


def key_in(store: Store, key: str) -> str:
    return key if store.location.scheme == "s3" else f"b/{key}"


def test_ranges_and_versions(nginx_server: Nginx, store: Store) -> None:
    data = os.urandom(300_000)
    nginx_server.put("b", "a é%20+#?.bin", data)
    key = key_in(store, "a é%20+#?.bin")
    info = store.head(key)
    assert (len(data), key) == (info.size, info.key)
    assert info.etag is not None
    for start, stop in ((0, 1), (0, 300_000), (299_999, 300_000), (12_345, 123_456)):
        assert data[start:stop] == store.read(key, start, stop)
        assert data[start:stop] == store.read(key, start, stop, info.etag)
    view, whole = store.read_whole(key)
    assert (data, info) == (view, whole)
    with pytest.raises(StorageError):
        store.read(key, 299_999, 300_001)
    with pytest.raises(ObjectNotFoundError):
        store.head(key_in(store, "nothing"))


def test_many_threads_read_through_one_store(nginx_server: Nginx, store: Store) -> None:
    objects = {f"k{index}": os.urandom(20_000) for index in range(40)}
    for name, data in objects.items():
        nginx_server.put("b", name, data)
    wrong = []

    def read_all() -> None:
        for name, data in objects.items():
            if store.read(key_in(store, name), 1000, 20_000) != data[1000:]:
                wrong.append(name)

    threads = [threading.Thread(target=read_all) for _ in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(60)
    assert [] == wrong


def test_an_http_server_says_that_it_cannot_be_listed(nginx_server: Nginx) -> None:
    store = open_store(parse(nginx_server.url))
    for call in (lambda: store.list("b"), lambda: store.list_folder("b")):
        with pytest.raises(StorageError, match="cannot be listed") as caught:
            call()
        assert "{000..127}" in str(caught.value)
    with pytest.raises(StorageError, match="cannot be written to"):
        store.write("b/k", [b"x"])
