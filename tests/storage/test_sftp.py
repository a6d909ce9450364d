"""Files of an SSH server, by fsspec and paramiko: a real server, on this machine."""

from __future__ import annotations

import asyncio
import os
import threading
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

import headrace
from headrace.core.errors import ObjectNotFoundError, StorageError, UsageError
from headrace.storage.locations import parse
from headrace.storage.stores.objects import Store
from headrace.storage.stores.opening import open_store

asyncssh = pytest.importorskip("asyncssh", reason="asyncssh is not installed (pip install asyncssh)")
pytest.importorskip("paramiko", reason="paramiko is not installed (pip install paramiko)")

SECRET = "GEHEIM"


@dataclass
class Served:
    """An SSH server that shows a folder as the root of all paths."""

    folder: Path
    port: int

    @property
    def options(self) -> dict[str, object]:
        return {"username": "me", "password": SECRET, "look_for_keys": False, "allow_agent": False}

    @property
    def url(self) -> str:
        return f"sftp://127.0.0.1:{self.port}"


@pytest.fixture(scope="module")
def sftp(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Served]:
    folder = tmp_path_factory.mktemp("sftp")

    class Login(asyncssh.SSHServer):  # type: ignore[misc, name-defined]
        def begin_auth(self, username: str) -> bool:
            return True

        def password_auth_supported(self) -> bool:
            return True

        def validate_password(self, username: str, password: str) -> bool:
            return (username, password) == ("me", SECRET)

    loop = asyncio.new_event_loop()
    key = asyncssh.generate_private_key("ssh-ed25519")

    def chrooted(channel: Any) -> Any:
        return asyncssh.SFTPServer(channel, chroot=os.fsencode(folder))

    async def listen() -> Any:
        return await asyncssh.listen(
            "127.0.0.1", 0, server_factory=Login, server_host_keys=[key], sftp_factory=chrooted
        )

    server = loop.run_until_complete(listen())
    thread = threading.Thread(target=loop.run_forever, daemon=True)
    thread.start()
    try:
        yield Served(folder, server.get_port())
    finally:

        async def end() -> None:
            server.close()
            await server.wait_closed()

        asyncio.run_coroutine_threadsafe(end(), loop).result(10)
        loop.call_soon_threadsafe(loop.stop)
        thread.join(10)
        loop.close()


@pytest.fixture
def store(sftp: Served) -> Store:
    return open_store(parse(f"{sftp.url}/"), sftp.options)


def test_objects_are_written_read_listed_and_deleted(store: Store, sftp: Served) -> None:
    data = bytes(range(100))
    for key in ("w/a", "w/c/d", "w/with space"):
        assert store.write(key, [data[:50], data[50:]]).size == 100
    assert (sftp.folder / "w" / "a").read_bytes() == data
    assert ["w/a", "w/c/d", "w/with space"] == [info.key for page in store.list("w") for info in page]
    assert store.list_folder("w")[0] == ["c"]
    assert data[10:60] == bytes(store.read("w/a", 10, 60))
    assert data == bytes(store.read_whole("w/a")[0])
    store.delete("w/a")
    with pytest.raises(ObjectNotFoundError, match="no such object"):
        store.head("w/a")


def test_the_user_who_owns_a_file_is_no_version_of_it(store: Store, sftp: Served) -> None:
    path = sftp.folder / "owned"
    path.write_bytes(b"one")
    if os.geteuid() == 0:
        os.chown(path, 1234, 1234)
    assert store.head("owned").etag is None
    assert store.head("owned").modified == int(path.stat().st_mtime)


def test_new_files_and_new_versions_are_seen(store: Store, sftp: Served) -> None:
    folder = sftp.folder / "fresh"
    folder.mkdir()
    (folder / "a").write_bytes(b"1")
    assert [info.key for info in store.list_folder("fresh")[1]] == ["fresh/a"]
    (folder / "b").write_bytes(b"1")
    (folder / "a").write_bytes(b"22")
    assert [(info.key, info.size) for info in store.list_folder("fresh")[1]] == [("fresh/a", 2), ("fresh/b", 1)]


@pytest.mark.parametrize("workers", [0, 2])
@pytest.mark.parametrize("kind", ["file", "folder", "pattern", "list", "range"])
def test_data_are_opened(sftp: Served, kind: str, workers: int) -> None:
    folder = sftp.folder / "data"
    folder.mkdir(exist_ok=True)
    for number in range(2):
        table = pa.table({"x": range(number * 100, number * 100 + 100)})
        pq.write_table(table, folder / f"part-{number}.parquet")

    base = f"{sftp.url}/data"
    given: Any = {
        "file": f"{base}/part-0.parquet",
        "folder": base,
        "pattern": f"{base}/part-*.parquet",
        "list": [f"{base}/part-{number}.parquet" for number in range(2)],
        "range": f"{base}/part-{{0..1}}.parquet",
    }[kind]
    data = headrace.open(given, options=sftp.options)
    loader = headrace.DataLoader(data, batch_size=10, num_workers=workers)
    values = [number for batch in loader for number in batch["x"].tolist()]
    assert values == list(range(100 if kind == "file" else 200))


def test_user_and_password_may_stand_in_the_url(sftp: Served) -> None:
    np.save(sftp.folder / "x.npy", np.arange(8))
    options = {"look_for_keys": False, "allow_agent": False}
    data = headrace.open(f"sftp://me:{SECRET}@127.0.0.1:{sftp.port}/x.npy", options=options)
    assert int(data[5]["data"]) == 5


def test_a_wrong_password_is_told_so_and_not_shown(sftp: Served) -> None:
    with pytest.raises(StorageError, match="does not let this user in") as caught:
        headrace.open(f"{sftp.url}/x.npy", options={**sftp.options, "password": f"{SECRET}-not"})
    assert SECRET not in str(caught.value)
    assert "username and password" in str(caught.value)
    assert caught.value.__cause__ is None


def test_a_server_that_is_away_is_told_so() -> None:
    with pytest.raises(StorageError, match="the server cannot be reached"):
        headrace.open("sftp://127.0.0.1:1/x.npy", options={"username": "me", "password": SECRET})


def test_a_file_that_is_not_there_is_told_so(sftp: Served) -> None:
    with pytest.raises(headrace.errors.DatasetNotFoundError):
        headrace.open(f"{sftp.url}/nothing.npy", options=sftp.options)


def test_an_unknown_option_is_named_with_those_of_paramiko(sftp: Served) -> None:
    with pytest.raises(UsageError, match="unknown option of a store") as caught:
        headrace.open(f"{sftp.url}/x.npy", options={**sftp.options, "pasword": SECRET})
    text = str(caught.value)
    assert "'pasword'" in text
    assert "did you mean 'password'" in text
    assert "key_filename" in text
    assert SECRET not in text
