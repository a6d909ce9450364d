"""Servers that fail: what passes is asked for again, what stays is an error, and no wrong byte is ever returned."""

from __future__ import annotations

import os
import shutil
import socket
import subprocess
import threading
from collections.abc import Callable
from datetime import timedelta
from functools import partial
from pathlib import Path
from random import Random
from typing import Any

import pytest

from headrace.core.errors import HeadraceError, ObjectChangedError, ObjectNotFoundError, StorageError
from headrace.storage.locations import Location, parse
from headrace.storage.stores.cloud_requests import PART_BYTES, retry_config
from headrace.storage.stores.objects import Store
from headrace.storage.stores.opening import open_store
from headrace.storage.stores.retries import RetryLimits
from tests.pairs import pairwise
from tests.servers.faulty import Fault, FaultyServer, etag_of, secured

DATA = os.urandom(200_000)
IMPATIENT: dict[str, object] = {"read_timeout": 0.4}
"""For servers that stall; with others, a busy machine must not look like one."""


@pytest.fixture(autouse=True)
def short_waits(monkeypatch: pytest.MonkeyPatch) -> None:
    """Between repetitions; their number and their order stay as they are."""
    monkeypatch.setattr(
        "headrace.storage.stores.access.RetryLimits", partial(RetryLimits, first_wait=0.01, longest_wait=0.05)
    )


SCHEMES = ["http", "s3"]


@pytest.fixture(params=SCHEMES)
def store(faulty_server: FaultyServer, request: pytest.FixtureRequest) -> Store:
    faulty_server.put("b", "k", DATA)
    return opened(faulty_server, request.param)


def opened(server: FaultyServer, scheme: str = "s3", **options: object) -> Store:
    """A store with limits of its own, in front of bucket "b"."""
    if scheme == "http":
        return open_store(parse(server.url), options)
    return open_store(Location("s3", "b", ""), {**server.s3_options, **options})


def key_in(store: Store) -> str:
    return "k" if store.location.scheme == "s3" else "b/k"


def read_range(store: Store) -> bool:
    return store.read(key_in(store), 1000, 150_000) == DATA[1000:150_000]


def read_version(store: Store) -> bool:
    return store.read(key_in(store), 1000, 150_000, etag_of(DATA)) == DATA[1000:150_000]


def read_whole(store: Store) -> bool:
    return store.read_whole(key_in(store))[0] == DATA


READS: dict[str, Callable[[Store], bool]] = {"range": read_range, "version": read_version, "whole": read_whole}

PASSING = {
    "503": (Fault("status"), "throttled"),
    "429": (Fault("status", status=429, code="TooManyRequests"), "throttled"),
    "503 with Retry-After": (Fault("status", headers=(("Retry-After", "0"),)), "throttled"),
    "500": (Fault("status", status=500, code="InternalError"), "server error"),
    "502": (Fault("status", status=502, code="BadGateway"), "server error"),
    "504": (Fault("status", status=504, code="GatewayTimeout"), "server error"),
    "reset": (Fault("reset"), "connection"),
    "cut": (Fault("cut"), "connection"),
    "cut at once": (Fault("cut", after=0), "connection"),
}


@pytest.mark.quick(read="range")
@pytest.mark.parametrize(("store", "read", "kind"), pairwise(SCHEMES, READS, PASSING), indirect=["store"])
def test_what_passes_is_asked_for_again(faulty_server: FaultyServer, store: Store, kind: str, read: str) -> None:
    fault, told = PASSING[kind]
    kinds: list[str] = []
    store.on_retry = kinds.append
    faulty_server.faults.extend([fault, None, fault, fault, None])
    assert READS[read](store)
    assert READS[read](store)
    assert [told] * 3 == kinds
    assert 5 == len(faulty_server.requests)


@pytest.mark.parametrize(
    ("store", "read", "kind"), pairwise(SCHEMES, READS, ["stall", "stall in body"]), indirect=["store"]
)
def test_a_server_that_stalls_is_asked_again(faulty_server: FaultyServer, store: Store, kind: str, read: str) -> None:
    impatient = opened(faulty_server, store.location.scheme, **IMPATIENT)
    kinds: list[str] = []
    impatient.on_retry = kinds.append
    faulty_server.faults.append(Fault(kind))
    assert READS[read](impatient)
    assert {"timeout"} == set(kinds)


@pytest.mark.parametrize("read", ["range", "version"])
@pytest.mark.parametrize("kind", ["short", "shifted"])
def test_answers_with_other_bytes_are_asked_for_again(
    faulty_server: FaultyServer, store: Store, kind: str, read: str
) -> None:
    kinds: list[str] = []
    store.on_retry = kinds.append
    # Between them, the size of the object is asked for.
    faulty_server.faults.extend([Fault(kind), None])
    assert READS[read](store)
    assert ["short answer"] == kinds


@pytest.mark.parametrize("read", ["range", "version"])
@pytest.mark.parametrize("kind", ["short", "shifted", "whole", "cut", "stall in body"])
def test_other_bytes_are_never_returned(faulty_server: FaultyServer, kind: str, read: str) -> None:
    faulty_server.put("b", "k", DATA)
    for scheme in ("http", "s3"):
        store = opened(faulty_server, scheme, max_retries=1, **IMPATIENT)
        faulty_server.always = Fault(kind)
        with pytest.raises(StorageError):
            READS[read](store)


@pytest.mark.parametrize("length", [1, 4, 10])
def test_a_storm_that_ends(faulty_server: FaultyServer, length: int) -> None:
    faulty_server.put("b", "k", DATA)
    store = opened(faulty_server)
    kinds: list[str] = []
    store.on_retry = kinds.append
    storm = [Fault("status"), Fault("status", status=500, code="InternalError"), Fault("reset"), Fault("cut")] * 3
    faulty_server.faults.extend(storm[:length])
    assert read_range(store)
    assert (["throttled", "server error", "connection", "connection"] * 3)[:length] == kinds


def test_a_storm_that_never_ends_is_an_error_at_the_limit(faulty_server: FaultyServer, store: Store) -> None:
    faulty_server.always = Fault("status")
    limited = opened(faulty_server, store.location.scheme, max_retries=3)
    with pytest.raises(StorageError, match=r"status 503, SlowDown .throttled.; tried 4 times") as caught:
        read_range(limited)
    assert 4 == len(faulty_server.requests)
    assert "max_retries" in str(caught.value)

    limited = opened(faulty_server, store.location.scheme, retry_timeout=timedelta(seconds=0))
    with pytest.raises(StorageError, match="tried once"):
        read_range(limited)
    assert 5 == len(faulty_server.requests)


@pytest.mark.parametrize("kind", ["503", "500", "reset"])
def test_what_passes_is_written_again(faulty_server: FaultyServer, kind: str) -> None:
    fault, told = PASSING[kind]
    store = opened(faulty_server)
    kinds: list[str] = []
    store.on_retry = kinds.append
    faulty_server.faults.extend([fault] * 3)
    store.write("folder/k", [b"some ", b"bytes"])
    assert [told] * 3 == kinds
    assert b"some bytes" == (faulty_server.folder / "b/folder/k").read_bytes()


@pytest.mark.parametrize("size", [10, PART_BYTES + 1])
def test_a_write_that_always_fails_is_an_error_at_the_limit(faulty_server: FaultyServer, size: int) -> None:
    faulty_server.always = Fault("status", status=500, code="InternalError")
    limited = opened(faulty_server, max_retries=3)
    with pytest.raises(StorageError, match=r"status 500, InternalError .server error.; tried 4 times in"):
        limited.write("k", [bytes(size)])
    assert 4 == len(faulty_server.requests)


def test_parts_wait_for_a_server_as_long_as_other_requests(faulty_server: FaultyServer) -> None:
    """obstore draws each wait between the first one and a multiple of the one before."""
    random = Random(1)
    limits = RetryLimits()
    backoff = retry_config(limits)["backoff"]
    most = backoff["max_backoff"].total_seconds()
    for _ in range(200):
        wait, waited = backoff["init_backoff"].total_seconds(), 0.0
        for _ in range(limits.retries):
            waited += wait
            wait = min(most, random.uniform(backoff["init_backoff"].total_seconds(), wait * backoff["base"]))
        assert waited > 0.8 * limits.seconds


LASTING: dict[str, tuple[Fault, type[HeadraceError], str]] = {
    "403": (Fault("status", status=403, code="AccessDenied"), StorageError, "no permission .status 403, AccessDenied"),
    "401": (Fault("status", status=401, code="Unauthorized"), StorageError, "no permission .status 401"),
    "404": (Fault("status", status=404, code="NoSuchKey"), ObjectNotFoundError, "no such object"),
    "no bucket": (Fault("status", status=404, code="NoSuchBucket"), ObjectNotFoundError, "there is no bucket"),
    "expired": (Fault("status", status=400, code="ExpiredToken"), StorageError, "credentials have expired"),
    "other": (Fault("status", status=418, code="Teapot"), StorageError, "status 418, Teapot"),
}


@pytest.mark.quick(read="range")
@pytest.mark.parametrize(("store", "read", "kind"), pairwise(SCHEMES, READS, LASTING), indirect=["store"])
def test_what_stays_is_an_error_at_once(faulty_server: FaultyServer, store: Store, kind: str, read: str) -> None:
    fault, error, words = LASTING[kind]
    faulty_server.always = fault
    with pytest.raises(error, match=words) as caught:
        READS[read](store)
    assert 1 == len(faulty_server.requests)
    for line in ("place:", "expected:", "fix:", "k"):
        assert line in str(caught.value)


REGIONS = {
    "redirect": Fault(
        "status",
        status=301,
        body="<Error><Code>PermanentRedirect</Code><Endpoint>b.s3.eu-west-3.amazonaws.com</Endpoint></Error>",
    ),
    "named": Fault(
        "status",
        status=400,
        body="<Error><Code>AuthorizationHeaderMalformed</Code><Region>eu-west-3</Region></Error>",
    ),
    "in words": Fault(
        "status",
        status=400,
        body="<Error><Code>AuthorizationHeaderMalformed</Code><Message>the region 'us-east-1' is wrong; expecting "
        "'eu-west-3'</Message></Error>",
    ),
}


@pytest.mark.parametrize("kind", REGIONS)
def test_a_wrong_region_is_told_with_the_right_one(faulty_server: FaultyServer, kind: str) -> None:
    faulty_server.put("b", "k", DATA)
    store = opened(faulty_server)
    faulty_server.always = REGIONS[kind]
    calls: tuple[Callable[[], Any], ...] = (lambda: read_range(store), lambda: list(store.list("")))
    for call in calls:
        with pytest.raises(StorageError, match="another region"):
            call()
    with pytest.raises(StorageError) as caught:
        read_range(store)
    if kind != "redirect":
        assert "AWS_REGION=eu-west-3" in str(caught.value)


def test_the_answer_to_head_has_no_reason_so_get_is_asked(faulty_server: FaultyServer, store: Store) -> None:
    faulty_server.always = Fault("status", status=403, code="AccountProblem")
    with pytest.raises(StorageError, match="AccountProblem"):
        store.head(key_in(store))
    assert ["HEAD", "GET"] == [request.method for request in faulty_server.requests]


def test_another_version_is_refused(faulty_server: FaultyServer, store: Store) -> None:
    faulty_server.put("b", "k", DATA[::-1])
    with pytest.raises(ObjectChangedError, match="b/k"):
        read_version(store)

    # The server refuses it, without sending the wrong version.
    assert etag_of(DATA) == faulty_server.requests[-1].headers["if-match"]
    assert 1000 > faulty_server.bytes_sent


def test_a_server_that_passes_over_if_match_is_found_out(faulty_server: FaultyServer, store: Store) -> None:
    faulty_server.faults.append(Fault("unconditional"))
    with pytest.raises(ObjectChangedError, match="ETag"):
        store.read(key_in(store), 0, 10, '"another"')


def test_a_weak_etag_is_compared_and_never_sent(faulty_server: FaultyServer, store: Store) -> None:
    faulty_server.put("b", "k", DATA)
    with pytest.raises(ObjectChangedError, match="ETag"):
        store.read(key_in(store), 0, 10, 'W/"weak"')
    assert "If-Match" not in {name.title() for name in faulty_server.requests[-1].headers}


def test_an_object_that_became_shorter_is_an_error(faulty_server: FaultyServer, store: Store) -> None:
    with pytest.raises(ObjectChangedError, match="200,000 bytes"):
        store.read(key_in(store), 199_000, 201_000)


def test_a_listing_goes_on_behind_its_last_page(faulty_server: FaultyServer) -> None:
    keys = [f"folder/{index:03d}" for index in range(25)]
    for key in keys:
        faulty_server.put("b", key, key.encode())
    faulty_server.page = 10
    store = opened(faulty_server)
    faulty_server.faults.extend([Fault("cut", after=100), Fault("status"), None, Fault("reset"), None, Fault("status")])
    infos = [info for page in store.list("folder") for info in page]
    assert keys == [info.key for info in infos]
    assert etag_of(keys[0].encode()) == infos[0].etag


def test_a_store_that_promises_order_is_listed_page_by_page(
    faulty_server: FaultyServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    keys = [f"folder/{index:04d}" for index in range(2500)]
    for key in keys:
        faulty_server.put("b", key, b"")
    store = opened(faulty_server)
    monkeypatch.setattr(type(store), "_sends_in_order", True)
    pages = store.list("folder")
    first = next(pages)
    assert 1000 == len(first)
    faulty_server.faults.extend([Fault("cut", after=100), Fault("status")])
    rest = [info.key for page in pages for info in page]
    assert keys == [info.key for info in first] + rest


@pytest.mark.parametrize("in_order", [True, False])
def test_a_listing_gives_up_at_the_limit(
    faulty_server: FaultyServer, monkeypatch: pytest.MonkeyPatch, in_order: bool
) -> None:
    faulty_server.put("b", "k", DATA)
    store = opened(faulty_server, max_retries=2)
    monkeypatch.setattr(type(store), "_sends_in_order", in_order)
    faulty_server.always = Fault("status")
    with pytest.raises(StorageError, match="tried 3 times"):
        list(store.list(""))
    assert 3 == len(faulty_server.requests)


def test_only_what_failed_is_sent_again(faulty_server: FaultyServer) -> None:
    faulty_server.put("b", "k", DATA)
    store = opened(faulty_server)
    faulty_server.faults.append(Fault("cut", after=5000))
    store.read("k", 0, 100_000)
    assert 105_000 == faulty_server.bytes_sent
    assert ["bytes=0-99999"] * 2 == [request.range for request in faulty_server.requests]


@pytest.mark.thorough
def test_a_slow_body_is_no_stall(faulty_server: FaultyServer) -> None:
    faulty_server.put("b", "k", DATA)
    faulty_server.faults.append(Fault("slow", after=50_000))
    kinds: list[str] = []
    store = opened(faulty_server, read_timeout=1.0)
    store.on_retry = kinds.append
    assert read_whole(store)
    assert [] == kinds


def test_a_server_that_is_not_there() -> None:
    with socket.socket() as unused:
        unused.bind(("127.0.0.1", 0))
        port = unused.getsockname()[1]
        store = open_store(parse(f"http://127.0.0.1:{port}/"), {"max_retries": 1})
        with pytest.raises(StorageError, match=r"refused the connection .connection.; tried 2 times"):
            store.read("k", 0, 1)


def test_a_name_that_is_not_known() -> None:
    store = open_store(parse("http://no-such-host.invalid/"), {"max_retries": 0})
    with pytest.raises(StorageError, match=r"could not be resolved.*\n.*\n.*check endpoint, name and port"):
        store.head("k")


def test_plain_http_where_tls_is_asked_for(faulty_server: FaultyServer) -> None:
    store = open_store(parse(faulty_server.url.replace("http:", "https:")), {"max_retries": 0})
    with pytest.raises(StorageError, match="does not speak TLS"):
        store.read("k", 0, 1)


def test_a_certificate_that_nobody_trusts(faulty_server: FaultyServer, tmp_path: Path) -> None:
    openssl = shutil.which("openssl")
    if openssl is None:
        pytest.skip("openssl is not installed")

    key, certificate = tmp_path / "key.pem", tmp_path / "certificate.pem"
    command = [openssl, "req", "-x509", "-newkey", "rsa:2048", "-nodes", "-days", "2", "-subj", "/CN=localhost"]
    command += ["-addext", "basicConstraints=CA:FALSE", "-addext", "subjectAltName=IP:127.0.0.1"]
    command += ["-keyout", str(key), "-out", str(certificate)]
    subprocess.run(command, check=True, capture_output=True, timeout=60)
    faulty_server.put("b", "k", DATA)
    with secured(faulty_server, certificate, key) as url:
        options = {**faulty_server.s3_options, "endpoint": url, "max_retries": 0}
        with pytest.raises(StorageError, match="certificate of the server is not trusted") as caught:
            open_store(Location("s3", "b", ""), options).read("k", 0, 10)
        assert "root_certificate" in str(caught.value)

        trusting = open_store(Location("s3", "b", ""), {**options, "root_certificate": certificate.read_text()})
        assert DATA[:10] == bytes(trusting.read("k", 0, 10))


def test_threads_that_meet_a_storm_all_get_their_bytes(faulty_server: FaultyServer) -> None:
    for index in range(8):
        faulty_server.put("b", str(index), DATA[index:])
    store = opened(faulty_server)
    faulty_server.faults.extend([Fault("status"), Fault("cut"), Fault("reset"), None] * 10)
    right = []

    def read_all(index: int) -> None:
        for _ in range(5):
            right.append(store.read(str(index), 100, 150_000) == DATA[index:][100:150_000])

    threads = [threading.Thread(target=read_all, args=(index,)) for index in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(60)
    assert [True] * 40 == right
