"""Addresses with a signature of their own, as stores presign them: opened, listed, resumed, and never shown."""

from __future__ import annotations

import copy
import datetime
import itertools
import logging
import pickle
import pprint
import shutil
import time
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

import headrace
from headrace.core.errors import HeadraceError, StorageError, UsageError
from headrace.storage.stores.signed_urls import expiry_of
from tests.data.by_url.test_secrets import all_texts
from tests.servers.faulty import Fault, FaultyServer
from tests.servers.seaweed import Seaweed

COUNT = 3


@pytest.fixture
def signing(faulty_server: FaultyServer) -> FaultyServer:
    """A server that gives an object only to whom has its signature."""
    faulty_server.secret = "GEHEIM"
    folder = faulty_server.folder / "b"
    folder.mkdir()
    for number in range(COUNT):
        np.save(folder / f"{number}.npy", np.arange(number * 100, number * 100 + 100))
        pq.write_table(pa.table({"x": range(number * 100, number * 100 + 100)}), folder / f"{number}.parquet")
        (folder / f"{number}.csv").write_text("x\n" + "\n".join(map(str, range(number * 10, number * 10 + 10))))
    shutil.copy(folder / "0.npy", folder / "noending")
    return faulty_server


def two_files(server: FaultyServer) -> None:
    folder = server.folder / "b"
    folder.mkdir()
    for number in range(2):
        pq.write_table(pa.table({"x": range(number * 100, number * 100 + 100)}), folder / f"{number}.parquet")


def signatures(server: FaultyServer) -> set[str]:
    """Returns all signatures that were sent."""
    found = set()
    for asked in server.requests:
        found |= {part.partition("=")[2] for part in asked.query.split("&") if part.startswith("Signature")}
    return found


def values(data: Any, column: str = "data", **settings: Any) -> list[int]:
    loader = headrace.DataLoader(data, batch_size=10, **settings)
    return [number for batch in loader for number in batch[column].tolist()]


@pytest.mark.parametrize("name", ["0.npy", "noending"])
@pytest.mark.parametrize("format", [None, "npy"])
def test_one_is_opened_though_nothing_beside_it_may_be_read(
    signing: FaultyServer, name: str, format: str | None
) -> None:
    data = headrace.open(signing.signed(f"/b/{name}"), format=format)
    assert values(data) == list(range(100))


@pytest.mark.parametrize("workers", [0, 2])
def test_a_list_is_opened_each_with_its_signature(signing: FaultyServer, workers: int) -> None:
    urls = [signing.signed(f"/b/{number}.parquet") for number in range(COUNT)]
    data = headrace.open(urls)
    assert values(data, "x", num_workers=workers) == list(range(300))


def test_a_list_of_files_that_are_fetched_whole_is_opened(signing: FaultyServer) -> None:
    urls = [signing.signed(f"/b/{number}.csv") for number in range(COUNT)]
    assert values(headrace.open(urls), "x") == list(range(30))


def test_a_list_may_mix_addresses_with_and_without_one(faulty_server: FaultyServer) -> None:
    two_files(faulty_server)
    data = headrace.open([f"{faulty_server.url}/b/0.parquet", f"{faulty_server.url}/b/1.parquet?sig=GEHEIM"])
    assert values(data, "x") == list(range(200))
    asked = {(asked.path, asked.query) for asked in faulty_server.requests if asked.path.endswith(".parquet")}
    assert asked == {("/b/0.parquet", ""), ("/b/1.parquet", "sig=GEHEIM")}


def test_options_take_the_place_of_all_queries(faulty_server: FaultyServer) -> None:
    two_files(faulty_server)
    urls = [f"{faulty_server.url}/b/{number}.parquet?sig={number}" for number in range(2)]
    assert values(headrace.open(urls, options={"query": "sig=all"}), "x") == list(range(200))
    assert {asked.query for asked in faulty_server.requests} == {"sig=all"}


def test_one_path_with_two_queries_is_refused(signing: FaultyServer) -> None:
    urls = [signing.signed("/b/0.npy"), signing.signed("/b/0.npy", time.time() + 60)]
    with pytest.raises(UsageError, match="with two queries") as caught:
        headrace.open(urls)
    for signature in (url.partition("?")[2] for url in urls):
        assert signature not in all_texts(caught.value)
    assert signing.requests == []


def test_other_signatures_of_the_same_objects_are_the_same_data(signing: FaultyServer, tmp_path: Path) -> None:
    def opened(when: float) -> Any:
        urls = [signing.signed(f"/b/{number}.parquet", time.time() + when) for number in range(COUNT)]
        return headrace.open(urls, cache_dir=tmp_path)

    first = opened(1000)
    loader = headrace.DataLoader(first, batch_size=10, shuffle=True, seed=3)
    whole = [batch["x"].tolist() for batch in loader]
    batches = iter(loader)
    begun = [next(batches)["x"].tolist() for _ in range(4)]
    state = loader.state_dict()
    del batches

    again = opened(2000)
    assert again.fingerprint() == first.fingerprint()
    signing.requests.clear()
    second = headrace.DataLoader(again, batch_size=10, shuffle=True, seed=3)
    second.load_state_dict(state)
    rest = [batch["x"].tolist() for batch in second]
    assert len(begun + rest) == len(whole)
    assert sorted(itertools.chain(*begun, *rest)) == list(range(300))
    # All of it lies in the cache.
    assert [asked for asked in signing.requests if asked.range is not None] == []

    single = headrace.open(signing.signed("/b/0.npy", time.time() + 500), cache_dir=tmp_path)
    other = headrace.open(signing.signed("/b/0.npy", time.time() + 600), cache_dir=tmp_path)
    assert single.fingerprint() == other.fingerprint()


def test_no_signature_is_shown_or_kept(signing: FaultyServer, tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.DEBUG)
    urls = [signing.signed(f"/b/{number}.parquet") for number in range(COUNT)]
    data = headrace.open(urls, cache_dir=tmp_path)
    loader = headrace.DataLoader(data, batch_size=10, shuffle=True, seed=3)
    next(iter(loader))
    shown = [repr(data), str(data), repr(vars(data)), pprint.pformat(vars(data)), repr(copy.copy(data)), caplog.text]
    shown += [repr(data._options), data.fingerprint(), repr(loader.state_dict())]
    shown += [str(path) for path in tmp_path.rglob("*")]
    kept = pickle.dumps(loader.state_dict())
    sent = signatures(signing)
    assert len(sent) == COUNT
    for signature in sent:
        assert not any(signature in text for text in shown)
        assert signature.encode() not in kept
        for path in tmp_path.rglob("*"):
            assert not path.is_file() or signature.encode() not in path.read_bytes()


@pytest.mark.parametrize("several", [False, True])
def test_a_signature_that_has_expired_is_named_so(signing: FaultyServer, several: bool) -> None:
    long_ago = datetime.datetime(2020, 5, 17, 12, 30, tzinfo=datetime.UTC).timestamp()
    urls = [signing.signed(f"/b/{number}.npy", long_ago) for number in range(COUNT)]
    with pytest.raises(StorageError, match="the signature of the URL has expired") as caught:
        headrace.open(urls if several else urls[0])
    text = str(caught.value)
    assert "2020-05-17 12:30" in text
    assert "sign it again" in text
    for signature in signatures(signing):
        assert signature not in all_texts(caught.value)


def test_a_signature_that_expires_between_reads_is_named_so(signing: FaultyServer) -> None:
    data = headrace.open(signing.signed("/b/0.npy", time.time() + 3600))
    signing.secret = "another"
    with pytest.raises(StorageError, match="SignatureDoesNotMatch") as caught:
        data[3]
    assert "the query of the URL" in str(caught.value)
    assert "sign it again" in str(caught.value)
    for signature in signatures(signing):
        assert signature not in all_texts(caught.value)


@pytest.mark.parametrize(
    "query",
    [
        "X-Amz-Date=20200517T123000Z&X-Amz-Expires=0&X-Amz-Signature=GEHEIM",
        "X-Goog-Date=20200517T122000Z&X-Goog-Expires=600&X-Goog-Signature=GEHEIM",
        "Expires=1589718600&Signature=GEHEIM",
        "sv=2020&se=2020-05-17T12%3A30%3A00Z&sig=GEHEIM",
    ],
)
def test_the_time_is_found_as_each_store_writes_it(query: str) -> None:
    assert expiry_of(query) == datetime.datetime(2020, 5, 17, 12, 30, tzinfo=datetime.UTC)


@pytest.mark.parametrize(
    "query", ["", "sig=GEHEIM", "Expires=soon", "se=2020", "X-Amz-Date=x&X-Amz-Expires=3", "Expires=" + "9" * 40]
)
def test_a_query_without_a_time_has_none(query: str) -> None:
    assert expiry_of(query) is None


@pytest.mark.parametrize("status", [302, 400, 401, 403, 405, 406, 501])
def test_a_server_that_refuses_what_is_not_there_has_no_manifest(faulty_server: FaultyServer, status: int) -> None:
    folder = faulty_server.folder / "b"
    folder.mkdir()
    np.save(folder / "x.npy", np.arange(100))
    faulty_server.only = "/b/x.npy.headrace.json"
    faulty_server.always = Fault("status", status, "No")
    assert values(headrace.open(f"{faulty_server.url}/b/x.npy")) == list(range(100))


def test_a_server_that_has_a_page_for_everything_has_no_manifest(faulty_server: FaultyServer) -> None:
    folder = faulty_server.folder / "b"
    folder.mkdir()
    np.save(folder / "x.npy", np.arange(100))
    page = folder / "x.npy.headrace.json"
    for text in ("<!doctype html><title>Not here</title>", '{"error": "not found"}', ""):
        page.write_text(text)
        assert values(headrace.open(f"{faulty_server.url}/b/x.npy")) == list(range(100))
    page.write_text('{"headrace": 1, "form')
    with pytest.raises(HeadraceError, match="a manifest is damaged"):
        headrace.open(f"{faulty_server.url}/b/x.npy")


def test_a_manifest_is_read_with_the_signature_of_its_folder(faulty_server: FaultyServer, tmp_path: Path) -> None:
    np.savez(tmp_path / "x.npz", x=np.arange(12))
    headrace.pack(tmp_path / "x.npz", faulty_server.folder / "b" / "packed", headrace.PackOptions("arrow"), workers=1)
    data = headrace.open(f"{faulty_server.url}/b/packed?sig=GEHEIM")
    assert values(data, "x") == list(range(12))
    assert {asked.query for asked in faulty_server.requests} == {"sig=GEHEIM"}


@pytest.mark.thorough
@pytest.mark.parametrize("several", [False, True])
def test_what_a_real_store_presigns_is_read_until_it_expires(shared_seaweed: Seaweed, several: bool) -> None:
    obstore = pytest.importorskip("obstore")
    from obstore.store import S3Store

    options = dict(shared_seaweed.options)
    store = S3Store("open", config=options, client_options={"allow_http": True})
    folder = f"signed-{several}"
    for number in range(2):
        data = "x\n" + "\n".join(str(number * 10 + row) for row in range(10))
        obstore.put(store, f"{folder}/{number}.csv", data.encode())

    def signed(seconds: int) -> Any:
        span = datetime.timedelta(seconds=seconds)
        urls = [obstore.sign(store, "GET", f"{folder}/{number}.csv", span) for number in range(2)]
        return urls if several else urls[0]

    assert values(headrace.open(signed(600)), "x") == list(range(20 if several else 10))
    expired = signed(1)
    first = expired[0] if several else expired
    moment = expiry_of(first.partition("?")[2])
    assert moment is not None
    while datetime.datetime.now(datetime.UTC) <= moment + datetime.timedelta(seconds=1):
        time.sleep(0.05)
    with pytest.raises(StorageError, match="the signature of the URL has expired"):
        headrace.open(expired)
