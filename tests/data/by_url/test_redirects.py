"""Web servers that redirect: one file, a list and a range are read alike, and no password goes to another host."""

from __future__ import annotations

import base64
import io
import tarfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

import headrace
from headrace.core.errors import StorageError
from tests.servers import faulty
from tests.servers.faulty import Fault, FaultyServer

STATUSES = [301, 302, 303, 307, 308]

SHARDS = 4


@pytest.fixture
def other_host(tmp_path: Path) -> Iterator[FaultyServer]:
    """Another server: the same machine by another name."""
    folder = tmp_path / "other"
    folder.mkdir()
    with faulty.running(folder) as server:
        yield server


def write_shards(server: FaultyServer) -> None:
    (server.folder / "new").mkdir()
    for shard in range(SHARDS):
        with tarfile.open(server.folder / "new" / f"shard-{shard:03d}.tar", "w") as tar:
            info = tarfile.TarInfo(f"{shard:06d}.txt")
            info.size = 4
            tar.addfile(info, io.BytesIO(b"%04d" % shard))


def texts(data: Any) -> list[str]:
    return [str(data[number]["txt"]) for number in range(len(data))]


WHOLE = [f"{shard:04d}" for shard in range(SHARDS)]


def given_as(kind: str, base: str) -> Any:
    if kind == "range":
        return f"{base}/shard-{{000..003}}.tar"
    return [f"{base}/shard-{shard:03d}.tar" for shard in range(SHARDS)]


@pytest.mark.parametrize("status", STATUSES)
@pytest.mark.parametrize("kind", ["one", "list", "range"])
def test_files_are_read_where_the_server_redirects(faulty_server: FaultyServer, status: int, kind: str) -> None:
    write_shards(faulty_server)
    faulty_server.moved = {"/old/": (status, f"{faulty_server.url}/new/")}
    base = f"{faulty_server.url}/old"
    if kind == "one":
        assert texts(headrace.open(f"{base}/shard-001.tar")) == WHOLE[1:2]
    else:
        assert texts(headrace.open(given_as(kind, base))) == WHOLE


def test_a_range_of_names_asks_for_no_name_with_braces(faulty_server: FaultyServer) -> None:
    write_shards(faulty_server)
    headrace.open(f"{faulty_server.url}/new/shard-{{000..003}}.tar")
    assert [asked.path for asked in faulty_server.requests if "{" in asked.path] == []


@pytest.mark.parametrize("kind", ["one", "list", "range"])
def test_user_and_password_do_not_go_to_another_host(
    faulty_server: FaultyServer, other_host: FaultyServer, kind: str
) -> None:
    write_shards(other_host)
    elsewhere = other_host.url.replace("127.0.0.1", "localhost")
    faulty_server.moved = {"/old/": (302, f"{elsewhere}/new/")}
    base = f"{faulty_server.url.replace('http://', 'http://me:GEHEIM@')}/old"
    if kind == "one":
        assert texts(headrace.open(f"{base}/shard-001.tar")) == WHOLE[1:2]
    else:
        assert texts(headrace.open(given_as(kind, base))) == WHOLE

    def names(server: FaultyServer) -> set[str]:
        return {name.lower() for asked in server.requests for name in asked.headers}

    assert "authorization" in names(faulty_server)
    assert "authorization" not in names(other_host)
    word = base64.b64encode(b"me:GEHEIM").decode()
    for asked in other_host.requests:
        assert not any(word in value or "GEHEIM" in value for value in asked.headers.values())


def test_redirects_that_never_end_are_an_error_at_once(faulty_server: FaultyServer) -> None:
    faulty_server.moved = {"/x.tar": (302, f"{faulty_server.url}/x.tar")}
    with pytest.raises(StorageError, match="more than 10 redirects") as caught:
        headrace.open(f"{faulty_server.url}/x.tar")
    for part in ("place:", "found:", "expected:", "fix:"):
        assert part in str(caught.value)
    # A HEAD, and the GET that would say why: each once.
    assert len(faulty_server.requests) <= 22


@pytest.mark.parametrize("status", [301, 302])
def test_a_redirect_to_nowhere_is_named_so(faulty_server: FaultyServer, status: int) -> None:
    faulty_server.always = Fault("status", status, "Moved")
    with pytest.raises(StorageError, match="a redirect") as caught:
        headrace.open(f"{faulty_server.url}/b/x.tar")
    assert "region" not in str(caught.value)
