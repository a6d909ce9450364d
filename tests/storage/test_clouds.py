"""Stores of Google and Azure: that their URLs, endpoints and versions reach the server as its protocol wants them.

The server is no copy of theirs. Signatures are left out, and listings, which have other forms than those of S3.
"""

from __future__ import annotations

import json

import pytest

from headrace.core.errors import ObjectChangedError, ObjectNotFoundError, UsageError
from headrace.storage.locations import parse
from headrace.storage.stores.objects import Store
from headrace.storage.stores.opening import open_store
from tests.servers.faulty import Fault, FaultyServer, etag_of

DATA = bytes(range(200))


@pytest.fixture(params=["az", "gs"])
def store(faulty_server: FaultyServer, request: pytest.FixtureRequest) -> Store:
    """A store in front of bucket "c"."""
    faulty_server.put("c", "folder/k é", DATA)
    if request.param == "az":
        options = {"endpoint": faulty_server.url, "skip_signature": True}
        return open_store(parse("abfss://c@account.dfs.core.windows.net/folder"), options)

    key = {"gcs_base_url": faulty_server.url, "disable_oauth": True}
    for name in ("client_email", "private_key", "private_key_id"):
        key[name] = ""
    return open_store(parse("gs://c/folder"), {"service_account_key": json.dumps(key), "allow_http": True})


def test_objects_are_read_by_ranges_and_versions(faulty_server: FaultyServer, store: Store) -> None:
    view, info = store.read_whole("folder/k é")
    assert (DATA, len(DATA), etag_of(DATA)) == (view, info.size, info.etag)
    assert info == store.head("folder/k é")
    assert DATA[10:20] == store.read("folder/k é", 10, 20)
    assert DATA[10:20] == store.read("folder/k é", 10, 20, info.etag)
    assert {"/c/folder/k é"} == {request.path for request in faulty_server.requests}

    faulty_server.put("c", "folder/k é", DATA[::-1])
    with pytest.raises(ObjectChangedError):
        store.read("folder/k é", 10, 20, info.etag)
    with pytest.raises(ObjectNotFoundError):
        store.head("folder/other")


def test_what_passes_is_asked_for_again(faulty_server: FaultyServer, store: Store) -> None:
    kinds: list[str] = []
    store.on_retry = kinds.append
    faulty_server.faults.extend([Fault("status"), Fault("cut", after=10), None])
    assert DATA == store.read("folder/k é", 0, 200)
    assert ["throttled", "connection"] == kinds


def test_azure_needs_an_account() -> None:
    with pytest.raises(UsageError, match="Account must be specified"):
        open_store(parse("az://c"))
